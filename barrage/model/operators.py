"""The operators of tables, each declared once: what every way of asking for one follows from.

A line of :data:`OPERATORS` says how an operator is called in Python, in a query, on the command
line and in a message to a Deephaven server. From it follow

* the methods of tables in servers and clients, which ``make generated`` writes: they are in the
  repository so that editors see them, and a test holds them against this list;
* what a query may say (:mod:`barrage.model.query`) and how it is run (``server/access/query.py``);
* the options of commands (``cli/query_options.py``);
* operations in batches of Deephaven clients, both ways, where their fields are the arguments.

What an operator does is in the file of its name in ``engine/operators/``, as a function of its
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Form(Enum):
    """What an argument is."""

    TEXT = "a text"
    TEXTS = "a list of texts"
    SOME_TEXTS = "a list of at least one text"
    PAIRS = "an object of texts"
    COUNT = "a number of rows"
    POSITION = "a whole number"
    QUERY = "a query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of an operator. A list of texts is written as single arguments in Python,
    unless it ``is_list``; pairs are written as named ones."""

    name: str
    """In the methods of a server's tables."""
    form: Form
    is_list: bool = False
    in_clients: str = ""
    """Its name in the methods of clients, if it is another one there. A star before it: there may
    be several of them, each for one operator more."""
    also_takes: str = ""
    """What a method of a server's tables takes instead of a text."""
    wanted: str = ""
    """What a client says is wanted when the argument is empty, though a query may say so."""

    @property
    def client_name(self) -> str:
        return self.in_clients.removeprefix("*") or self.name

    @property
    def is_spread(self) -> bool:
        """Whether its parts are single arguments in Python."""
        return self.form in (Form.TEXTS, Form.SOME_TEXTS) and not self.is_list


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOption:
    """An option of commands that read a table, and the arguments it gives, separated by colons. Of
    several options of one operator the last one must be given."""

    name: str
    arguments: tuple[str, ...]
    metavar: str
    help: str
    example: str = ""
    is_repeated: bool = False
    """Whether it may be given several times, each for an operator of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeephavenMessage:
    """The operation of Deephaven's table service that is this operator, its arguments in fields."""

    operation: str
    """The member of ``BatchTableRequest.Operation``."""
    request: str
    """The message."""
    fields: tuple[str, ...] = ()
    """Of the message, for the arguments in their order."""
    source: str = "source_id"
    """The field of the table itself."""
    method: str = ""
    """The call that does it alone, if our servers do it for Deephaven clients by nothing but the
    fields; other operations are in ``server/deephaven/*_operations.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """One operator. ``parameters`` from ``required`` on may be left out in a query, and the last
    one may be repeated if it ``is_repeated``."""

    name: str
    doc: str
    """What it does, for the methods."""
    parameters: tuple[Parameter, ...] = ()
    required: int = 0
    is_repeated: bool = False
    wanted: str = ""
    """What a client says is wanted when all arguments are empty."""
    options: tuple[CommandOption, ...] = ()
    place: int = 0
    """Where it stands among the operators of one command."""
    message: DeephavenMessage | None = None

    def parameter(self, index: int) -> Parameter | None:
        """That of argument number ``index``; None when there is no such argument."""
        if index < len(self.parameters):
            return self.parameters[index]
        return self.parameters[-1] if self.is_repeated else None

    def spread(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a query as those of a call in Python: by place and by name."""
        placed: list[Any] = []
        named: dict[str, Any] = {}
        for index, argument in enumerate(arguments):
            parameter = self.parameter(index)
            assert parameter is not None
            if parameter.form is Form.PAIRS:
                named.update(argument)
            elif parameter.is_spread:
                placed += argument
            else:
                placed.append(argument)
        return placed, named


_SPECS = (
    OperatorSpec(
        name="where",
        doc="The rows for which this is true: ``\"Price > 3 and Sym in ('A', 'B')\"``.",
        parameters=(Parameter(name="condition", form=Form.TEXT, in_clients="*conditions"),),
        required=1,
        place=20,
        options=(
            CommandOption(
                name="where",
                arguments=("condition",),
                metavar="CONDITION",
                help="Only rows for which this holds, such as 'price > 3'; may be repeated.",
                is_repeated=True,
            ),
        ),
    ),
    OperatorSpec(
        name="sort",
        doc='Rows in order of these columns; ``"-name"`` is descending.',
        parameters=(
            Parameter(
                name="keys",
                form=Form.SOME_TEXTS,
                in_clients="columns",
                also_takes="tuple[str, str]",
            ),
        ),
        required=1,
        place=80,
        options=(
            CommandOption(
                name="sort",
                arguments=("keys",),
                metavar="A,-B,…",
                help="Sort; - is descending.",
            ),
        ),
    ),
    OperatorSpec(
        name="select",
        doc='These columns, then ``name="expression"`` ones.',
        parameters=(
            Parameter(name="columns", form=Form.TEXTS),
            Parameter(name="computed", form=Form.PAIRS, in_clients="formulas"),
        ),
        required=1,
        wanted="at least one column",
    ),
    OperatorSpec(
        name="drop",
        doc="All columns but these.",
        parameters=(Parameter(name="columns", form=Form.SOME_TEXTS),),
        required=1,
        message=DeephavenMessage(
            operation="drop_columns", request="DropColumnsRequest", fields=("column_names",)
        ),
    ),
    OperatorSpec(
        name="head",
        doc="The first ``count`` rows.",
        parameters=(Parameter(name="count", form=Form.COUNT),),
        required=1,
        place=90,
        options=(
            CommandOption(name="head", arguments=("count",), metavar="N", help="The first rows."),
        ),
        message=DeephavenMessage(
            operation="head", request="HeadOrTailRequest", fields=("num_rows",), method="Head"
        ),
    ),
    OperatorSpec(
        name="tail",
        doc="The last ``count`` rows.",
        parameters=(Parameter(name="count", form=Form.COUNT),),
        required=1,
        place=95,
        options=(
            CommandOption(name="tail", arguments=("count",), metavar="N", help="The last rows."),
        ),
        message=DeephavenMessage(
            operation="tail", request="HeadOrTailRequest", fields=("num_rows",), method="Tail"
        ),
    ),
    OperatorSpec(
        name="slice",
        doc="The rows at positions ``start`` to ``stop - 1``; negative ones count from the end, "
        "and so does a ``stop`` of 0 after a negative ``start``.",
        parameters=(
            Parameter(name="start", form=Form.POSITION),
            Parameter(name="stop", form=Form.POSITION),
        ),
        required=2,
        message=DeephavenMessage(
            operation="slice",
            request="SliceRequest",
            fields=("first_position_inclusive", "last_position_exclusive"),
        ),
    ),
    OperatorSpec(
        name="last_by",
        doc="The last row of each combination of values in ``columns``.",
        parameters=(Parameter(name="columns", form=Form.SOME_TEXTS),),
        required=1,
    ),
    OperatorSpec(
        name="agg_by",
        doc="""One row per combination of values in ``by`` (none: one row for the whole table), with
        ``name="function(column)"`` of the rows that have it: ``n="count()", total="sum(Qty)"``.

        Functions: count, sum, abs_sum, min, max, avg, var, std, first, last, and of two columns
        wavg and wsum. Nulls are passed over except by ``count()``, first and last.""",
        parameters=(
            Parameter(name="by", form=Form.TEXTS),
            Parameter(
                name="aggregations",
                form=Form.PAIRS,
                wanted="at least one aggregation, such as n='count()'",
            ),
        ),
        required=2,
        place=50,
        options=(
            CommandOption(
                name="by",
                arguments=("by",),
                metavar="A,B,…",
                help="Group by these columns; needs --agg.",
            ),
            CommandOption(
                name="agg",
                arguments=("aggregations",),
                metavar="NAME=FUNCTION(COLUMN)",
                help="A column per group, such as n='count()' or total='sum(price)'; may be "
                "repeated.",
                example="n='count()'",
            ),
        ),
    ),
    OperatorSpec(
        name="select_distinct",
        doc="Each combination of values in ``columns`` (none: all columns) once, in order of first "
        "appearance.",
        parameters=(Parameter(name="columns", form=Form.TEXTS),),
        place=70,
        options=(
            CommandOption(
                name="distinct",
                arguments=("columns",),
                metavar="A,B,…",
                help="Each combination of these columns once.",
            ),
        ),
        message=DeephavenMessage(
            operation="select_distinct",
            request="SelectDistinctRequest",
            fields=("column_names",),
        ),
    ),
    OperatorSpec(
        name="natural_join",
        doc="""Every row, with the columns ``add`` of the one row of the other table that agrees in
        ``on``; null where there is none.

        Where names differ: ``on="mine=theirs"``, ``add="new=theirs"``. Without ``add``, all columns
        of the other table but its keys. Two rows of it with one key fail the result.""",
        parameters=(
            Parameter(name="right", form=Form.QUERY, in_clients="other"),
            Parameter(name="on", form=Form.TEXTS, is_list=True, wanted="at least one text"),
            Parameter(name="add", form=Form.TEXTS, is_list=True),
        ),
        required=2,
        place=10,
        options=(
            CommandOption(
                name="join",
                arguments=("right", "on", "add"),
                metavar="TABLE:ON[:ADD]",
                help="Columns of the one row of another table that agrees in ON, such as "
                "sectors:symbol:sector; names are separated by commas; may be repeated.",
                example="sectors:symbol:sector",
                is_repeated=True,
            ),
        ),
        message=DeephavenMessage(
            operation="natural_join",
            request="NaturalJoinTablesRequest",
            fields=("right_id", "columns_to_match", "columns_to_add"),
            source="left_id",
        ),
    ),
    OperatorSpec(
        name="merge",
        doc="The rows of this table, then those of the others, which have the same columns.",
        parameters=(Parameter(name="others", form=Form.QUERY),),
        required=1,
        is_repeated=True,
    ),
    OperatorSpec(
        name="head_by",
        doc="The first ``count`` rows of each combination of values in ``by`` (none: of all rows), "
        "in row order.",
        parameters=(
            Parameter(name="count", form=Form.COUNT),
            Parameter(name="by", form=Form.TEXTS),
        ),
        required=1,
        place=60,
        options=(
            CommandOption(
                name="head-by",
                arguments=("count", "by"),
                metavar="N:A,B,…",
                help="The first rows of each combination of these columns, such as 3:symbol.",
                example="3:symbol",
            ),
        ),
        message=DeephavenMessage(
            operation="head_by",
            request="HeadOrTailByRequest",
            fields=("num_rows", "group_by_column_specs"),
            method="HeadBy",
        ),
    ),
    OperatorSpec(
        name="tail_by",
        doc="The last ``count`` rows of each combination of values in ``by`` (none: of all rows), "
        "in row order.",
        parameters=(
            Parameter(name="count", form=Form.COUNT),
            Parameter(name="by", form=Form.TEXTS),
        ),
        required=1,
        place=65,
        options=(
            CommandOption(
                name="tail-by",
                arguments=("count", "by"),
                metavar="N:A,B,…",
                help="The last rows of each combination of these columns, such as 3:symbol.",
                example="3:symbol",
            ),
        ),
        message=DeephavenMessage(
            operation="tail_by",
            request="HeadOrTailByRequest",
            fields=("num_rows", "group_by_column_specs"),
            method="TailBy",
        ),
    ),
    OperatorSpec(
        name="ungroup",
        doc="One row for each cell of the lists in ``columns`` (none: all columns of lists), which "
        "are equally long in each row; other columns are repeated. Null is an empty list.",
        parameters=(Parameter(name="columns", form=Form.TEXTS),),
        place=30,
        options=(
            CommandOption(
                name="ungroup",
                arguments=("columns",),
                metavar="A,B,…",
                help="One row for each cell of the lists in these columns.",
            ),
        ),
        message=DeephavenMessage(
            operation="ungroup",
            request="UngroupRequest",
            fields=("columns_to_ungroup",),
            method="Ungroup",
        ),
    ),
    OperatorSpec(
        name="update_by",
        doc="""All rows and columns, and running values within each combination of values in ``by``
        (none: within the whole table), in row order: ``total="cum_sum(price)"`` and, an exponential
        moving average that decays over ten rows, ``smooth="ema_tick(price, 10)"``.

        Nulls are passed over: such a row shows what the row before it shows.""",
        parameters=(
            Parameter(name="by", form=Form.TEXTS),
            Parameter(
                name="formulas",
                form=Form.PAIRS,
                wanted="at least one formula, such as total='cum_sum(price)'",
            ),
        ),
        required=2,
        place=40,
        options=(
            CommandOption(
                name="update-by",
                arguments=("by",),
                metavar="A,B,…",
                help="Let running values begin anew for each combination of these columns; needs "
                "--update.",
            ),
            CommandOption(
                name="update",
                arguments=("formulas",),
                metavar="NAME=FUNCTION(COLUMN)",
                help="A column of running values, such as total='cum_sum(size)' or "
                "smooth='ema_tick(price, 10)'; may be repeated.",
                example="total='cum_sum(size)'",
            ),
        ),
    ),
    OperatorSpec(
        name="flatten",
        doc="The same rows under the row keys 0 to n - 1.",
        message=DeephavenMessage(operation="flatten", request="FlattenRequest", method="Flatten"),
    ),
)

OPERATORS: Mapping[str, OperatorSpec] = {spec.name: spec for spec in _SPECS}
"""All operators by name."""

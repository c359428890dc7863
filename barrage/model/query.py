"""Queries: operators chained to a published table, as values and as canonical JSON.

What a ``q/`` ticket says (deephaven-clients.md knows nothing of it; it is our own)::

    {"table": "quotes", "ops": [["where", "price > 3"], ["sort", ["-price"]], ["head", 10]]}

With ``"at": "<epoch>:<version>"`` it begins with the table as it was at that version
(docs/journal.md). An operation is the name of an operator (:mod:`barrage.model.operators`) and its
arguments. This module checks names, the number and the form of the arguments and all limits;
whether columns exist and formulas make sense only a table can tell (``server/access/query.py``). No
arguments but tables nest, and these only ``expression_depth_max`` deep.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from barrage.errors import CursorError, ExpressionError, LimitExceededError, UnsupportedError
from barrage.json_text import checked_json
from barrage.limits import DEFAULT_LIMITS
from barrage.model.cursor import Cursor
from barrage.model.operators import OPERATORS, Form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.limits import Limits
    from barrage.model.operators import OperatorSpec

ROWS_MAX = 2**63 - 1

Texts: TypeAlias = tuple[str, ...]
Pairs: TypeAlias = tuple[tuple[str, str], ...]
Argument: TypeAlias = Union[str, int, Texts, Pairs, "Query"]


@dataclass(frozen=True, slots=True)
class AppliedOperator:
    """One operator and its arguments, all of them given."""

    name: str
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """Operations applied, one after another, to the published table ``table``. Equal queries are
    equal values."""

    table: str
    operations: tuple[AppliedOperator, ...] = ()
    at: Cursor | None = None
    """The version of the table it begins with; None for the table as it changes."""

    @classmethod
    def parse(cls, text: bytes | str, limits: Limits = DEFAULT_LIMITS) -> Query:
        """The query a text in JSON says.

        ExpressionError: it is no query, and which operation does not fit. UnsupportedError: it
        names an operation that does not exist. LimitExceededError.
        """
        return _Parser(limits).parse(text)

    def to_json(self) -> str:
        """The canonical text: equal queries have equal texts, and ``parse`` gives the query
        back."""
        return json.dumps(self._plain(), ensure_ascii=False, separators=(",", ":"))

    def _plain(self) -> dict[str, Any]:
        return {
            "table": self.table,
            **({} if self.at is None else {"at": str(self.at)}),
            "ops": [
                [op.name, *(_plain_argument(op.name, i, a) for i, a in enumerate(op.arguments))]
                for op in self.operations
            ],
        }


def _plain_argument(operation: str, index: int, argument: Argument) -> Any:
    if isinstance(argument, Query):
        return argument._plain()
    parameter = OPERATORS[operation].parameter(index)
    if parameter is not None and parameter.form is Form.PAIRS:
        return dict(argument)  # type: ignore[arg-type]
    return list(argument) if isinstance(argument, tuple) else argument


class _Object(list[tuple[str, Any]]):
    """The members of a JSON object, in their order."""


class _Parser:
    """Turns JSON into one query; counts operations over all nested queries."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._operation_count = 0
        self._depth = 0
        self._readers: Mapping[Form, Callable[[Any], Argument | None]] = {
            Form.TEXT: self._text,
            Form.TEXTS: self._texts,
            Form.SOME_TEXTS: lambda value: self._texts(value) or None,
            Form.PAIRS: self._pairs,
            Form.COUNT: lambda value: _whole(value, 0),
            Form.POSITION: lambda value: _whole(value, -ROWS_MAX),
            Form.QUERY: self._query_argument,
        }

    def parse(self, text: bytes | str) -> Query:
        _check_limit("query", len(text), self._limits.expression_bytes_max, unit="bytes")
        try:
            value = json.loads(
                checked_json(text), object_pairs_hook=_Object, parse_constant=_no_constant
            )
        # Malformed JSON and text, and huge numbers.
        except ValueError as error:
            raise ExpressionError(f"a query is JSON: {error}") from None
        return self._query(value)

    def _query(self, value: Any) -> Query:
        self._depth += 1
        _check_limit("query", self._depth, self._limits.expression_depth_max, unit="tables deep")
        members = dict(value) if isinstance(value, _Object) else {}
        if not isinstance(value, _Object) or len(members) != len(value):
            raise ExpressionError("a query is an object, with no member twice")
        if set(members) - {"table", "ops", "at"} or "table" not in members:
            raise ExpressionError(
                "a query has the members 'table', 'ops' and 'at', not "
                f"{', '.join(map(repr, members))}"
            )
        table = self._text(members["table"])
        steps = members.get("ops", [])
        if table is None:
            raise ExpressionError("the 'table' of a query is a name")
        if not isinstance(steps, list) or isinstance(steps, _Object):
            raise ExpressionError("the 'ops' of a query are a list")
        self._operation_count += len(steps)
        _check_limit("query", self._operation_count, self._limits.operations_max, unit="operations")
        operations = tuple(self._operation(i, step) for i, step in enumerate(steps, start=1))
        self._depth -= 1
        return Query(table, operations, _moment(members.get("at")))

    def _operation(self, number: int, step: Any) -> AppliedOperator:
        if not isinstance(step, list) or isinstance(step, _Object) or not step:
            raise ExpressionError(f"operation {number} of the query is a list: name, arguments")
        name, *values = step
        spec = OPERATORS.get(name) if isinstance(name, str) else None
        if spec is None:
            raise UnsupportedError(
                f"operation {number} of the query: no operation {_shown(name)}{_hint(name)}"
            )
        where = f"operation {number} of the query, {name}"
        if len(values) < spec.required:
            raise ExpressionError(
                f"{where}: argument {len(values) + 1} is missing, "
                f"{spec.parameters[len(values)].form.value}"
            )
        arguments = tuple(
            self._argument(f"{where}:", spec, index, value=value)
            for index, value in enumerate(values)
        )
        # What was left out is always an empty list or object.
        missing = len(spec.parameters) - len(arguments)
        return AppliedOperator(name, (*arguments, *((),) * missing))

    def _argument(self, where: str, spec: OperatorSpec, index: int, *, value: Any) -> Argument:
        parameter = spec.parameter(index)
        if parameter is None:
            raise ExpressionError(f"{where} takes {len(spec.parameters)} arguments at most")
        argument = self._readers[parameter.form](value)
        if argument is None:
            raise ExpressionError(
                f"{where} argument {index + 1} is {parameter.form.value}, not {_shown(value)}"
            )
        return argument

    def _query_argument(self, value: Any) -> Query | None:
        return self._query(value) if isinstance(value, _Object) else None

    @staticmethod
    def _text(value: Any) -> str | None:
        """A text that has bytes in UTF-8 and is not empty."""
        if not isinstance(value, str) or not value:
            return None
        is_whole = not any("\ud800" <= character <= "\udfff" for character in value)
        return value if is_whole else None

    def _texts(self, value: Any) -> Texts | None:
        if not isinstance(value, list) or isinstance(value, _Object):
            return None
        texts = tuple(self._text(part) for part in value)
        return None if None in texts else texts  # type: ignore[return-value]

    def _pairs(self, value: Any) -> Pairs | None:
        """An object, whose order counts; an empty list stands for an empty one."""
        if value == [] or not isinstance(value, _Object):
            return () if value == [] else None
        names = self._texts([name for name, _ in value])
        texts = self._texts([text for _, text in value])
        if names is None or texts is None or len(set(names)) < len(names):
            return None
        return tuple(zip(names, texts, strict=True))


def _whole(value: Any, least: int) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and least <= value <= ROWS_MAX else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _check_limit(what: str, actual: int, maximum: int, *, unit: str) -> None:
    if actual > maximum:
        raise LimitExceededError(what, actual=actual, maximum=maximum, unit=unit)


def _shown(value: Any) -> str:
    """A short form of anything for a message."""
    if isinstance(value, list):
        return "an object" if isinstance(value, _Object) else f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(name: Any) -> str:
    near = difflib.get_close_matches(name, OPERATORS, n=1) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(OPERATORS)}"


def _moment(value: Any) -> Cursor | None:
    if value is None:
        return None
    try:
        return Cursor.parse(value if isinstance(value, str) else repr(value))
    except CursorError as error:
        raise ExpressionError(f"the 'at' of a query: {error}") from None


def past_places(query: Query) -> set[tuple[str, Cursor]]:
    """The past versions a query and those nested in it begin with, with the names of their
    tables."""
    places = set() if query.at is None else {(query.table, query.at)}
    for operation in query.operations:
        for argument in operation.arguments:
            if isinstance(argument, Query):
                places |= past_places(argument)
    return places


def tables_of(query: Query) -> set[str]:
    """The published tables that a query and those nested in it begin with."""
    names = {query.table}
    for operation in query.operations:
        for argument in operation.arguments:
            if isinstance(argument, Query):
                names |= tables_of(argument)
    return names

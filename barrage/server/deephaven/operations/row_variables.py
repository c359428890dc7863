"""The variables ``i`` and ``ii`` of Deephaven's formulas: the row's position as int and as long.

As there, they are known in tables that are static or only grow. They are columns of a table that is
put in between; a table that has a column of that name keeps it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from barrage.engine.operators.row_numbers import has_fixed_positions, numbered
from barrage.engine.planning.operator_plan import prepared
from barrage.server.deephaven.text.filter_text import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits

    Read = TypeVar("Read")

_VARIABLES = {"i": pa.int32(), "ii": pa.int64()}
_MENTIONED = re.compile(r"(?<![\w$])ii?(?![\w$])", re.ASCII)


def with_row_variables(table: Table, texts: Sequence[str]) -> Table:
    """``table`` itself, or with the variables as last columns when a text may mention one and rows
    keep their places."""
    mentioned = {word for text in texts for word in _MENTIONED.findall(text)}
    wanted = {
        name: data_type
        for name, data_type in _VARIABLES.items()
        if name in mentioned and name not in table.schema.names
    }
    if not wanted:
        return table
    # Without them the parser refuses the variable, and is content if the word is in a constant.
    return numbered(table, wanted) if has_fixed_positions(table) else table


def read_texts(
    table: Table,
    texts: tuple[str, ...],
    parse: Callable[[Sequence[str], pa.Schema, Limits], Read],
    *,
    limits: Limits,
) -> tuple[Table, Read]:
    """``table`` with the variables, and what ``parse`` makes of the texts on it, which is kept for
    who asks the same. LimitExceededError."""
    check_size(texts, limits)
    shown = with_row_variables(table, texts)
    schema = shown.schema
    return shown, prepared(shown, parse, texts, prepare=lambda: parse(texts, schema, limits))

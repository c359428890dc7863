"""The last n rows of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.group_ends import ends_of_groups

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table


def tail_by(table: Table, count: int, *by: str) -> Table:
    """The last ``count`` rows of each combination of values in ``by`` (none: of all rows), in row
    order. SchemaError when a column cannot be compared."""
    return ends_of_groups(table, "tail_by", count, by=by, is_from_end=True)

"""The first n rows of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.group_ends import ends_of_groups

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table


def head_by(table: Table, count: int, *by: str) -> Table:
    """The first ``count`` rows of each combination of values in ``by`` (none: of all rows), in row
    order. SchemaError when a column cannot be compared."""
    return ends_of_groups(table, "head_by", count, by=by, is_from_end=False)

"""The first n rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.subset import SubsetTable
from barrage.engine.planning.operator_plan import check_count, derived

if TYPE_CHECKING:
    from barrage.engine.tables.table import DerivedTable, Table
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet


class HeadTable(SubsetTable):
    """Rows at the parent's positions 0..count-1."""

    is_summary = True

    def __init__(self, parent: Table, count: int) -> None:
        super().__init__(parent, parent.schema, parent.traits)
        self.count = count
        self._row_keys = parent.row_keys.slice(0, count)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return HeadTable(parents[0], self.count)

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        wanted = self.parent.row_keys.slice(0, self.count)
        return survivors - wanted, wanted - survivors


def head(table: Table, count: int) -> Table:
    """The first ``count`` rows."""
    check_count(count)
    return derived((table,), ("head", count), lambda parent: HeadTable(parent, count))

"""The last n rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.subset import SubsetTable
from barrage.engine.planning.operator_plan import check_count, derived

if TYPE_CHECKING:
    from barrage.engine.tables.table import DerivedTable, Table
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet


class TailTable(SubsetTable):
    """The parent's last ``count`` rows under their keys, so not flat."""

    is_summary = True

    def __init__(self, parent: Table, count: int) -> None:
        traits = parent.traits.changed(is_append_only=False, is_flat=False)
        super().__init__(parent, parent.schema, traits)
        self.count = count
        self._row_keys = self._wanted()

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return TailTable(parents[0], self.count)

    def _wanted(self) -> RowSet:
        size = self.parent.size
        return self.parent.row_keys.slice(max(0, size - self.count), size)

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        wanted = self._wanted()
        return survivors - wanted, wanted - survivors


def tail(table: Table, count: int) -> Table:
    """The last ``count`` rows."""
    check_count(count)
    return derived((table,), ("tail", count), lambda parent: TailTable(parent, count))

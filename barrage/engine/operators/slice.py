"""The rows between two positions, each counted from the start or from the end of the parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.subset import SubsetTable
from barrage.engine.planning.operator_plan import derived
from barrage.errors import EngineError

if TYPE_CHECKING:
    from barrage.engine.tables.table import DerivedTable, Table
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet


def check_slice(start: int, stop: int) -> None:
    """EngineError unless the positions describe rows whatever the size of the table."""
    if start < 0 < stop:
        raise EngineError(
            f"a slice cannot start {-start} rows before the end and stop at position {stop}"
        )
    if stop < start and (start < 0) == (stop < 0):
        raise EngineError(f"a slice cannot stop at {stop} before it starts at {start}")


class SliceTable(SubsetTable):
    """Rows at the parent's positions ``start`` to ``stop`` (exclusive), under the parent's keys.

    A negative position counts from the end, and so does a ``stop`` of 0 after a negative
    ``start``.
    """

    is_summary = True

    def __init__(self, parent: Table, start: int, stop: int) -> None:
        traits = parent.traits.changed(
            is_append_only=parent.is_append_only and start >= 0,
            is_flat=parent.is_flat and start == 0,
        )
        super().__init__(parent, parent.schema, traits)
        self._start = start
        self._stop = stop
        self._row_keys = self._wanted()

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return SliceTable(parents[0], self._start, self._stop)

    def _wanted(self) -> RowSet:
        size = self.parent.size
        is_stop_from_end = self._stop < 0 or self._start < 0
        start = self._start + (size if self._start < 0 else 0)
        stop = self._stop + (size if is_stop_from_end else 0)
        return self.parent.row_keys.slice(start, stop)

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        wanted = self._wanted()
        return survivors - wanted, wanted - survivors


def slice(table: Table, start: int, stop: int) -> Table:
    """The rows at positions ``start`` to ``stop`` (exclusive).

    Negative positions count from the end, as does a ``stop`` of 0 after a negative ``start``:
    ``slice(table, -3, 0)`` is the last three rows.
    """
    check_slice(start, stop)
    identity = ("slice", start, stop)
    return derived((table,), identity, lambda parent: SliceTable(parent, start, stop))

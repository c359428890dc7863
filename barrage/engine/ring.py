"""Tables that forget: a ring keeps the newest rows, a blink table keeps rows for one cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.slots import SlotStorage
from barrage.engine.source import Rows, StagedTable
from barrage.engine.table import TableTraits
from barrage.errors import EngineError
from barrage.rowset import RowSet

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.graph import UpdateGraph
    from barrage.model.update import TableUpdate


class RingTable(StagedTable["pa.Table"]):
    """The last ``capacity`` rows. Row keys only grow; the oldest rows are removed."""

    kind = "ring"

    def __init__(self, graph: UpdateGraph, schema: pa.Schema, *, capacity: int) -> None:
        if capacity < 1:
            raise EngineError(f"a ring of capacity {capacity} holds nothing; use 1 or more")
        super().__init__(graph, schema, TableTraits())
        self.capacity = capacity
        self._slots_used = 0

    def stage_add(self, rows: Rows) -> None:
        table = self._coerced(rows)
        if len(table):
            self._staged.append(table)

    def commit(self, step: int) -> TableUpdate:
        before = self._row_keys
        for rows in self._take_staged():
            self.storage.append(rows)
            self._slots_used += len(rows)
        oldest = max(0, self._slots_used - self.capacity)
        after = RowSet.of_span(max(oldest, before.first if len(before) else 0), self._slots_used)
        self._row_keys = after
        self.storage.forget_before(oldest)
        return self._update(step, removed=before - after, added=after - before)


class BlinkTable(StagedTable["pa.Table"]):
    """Rows exist for the cycle that brought them; their keys are 0..n-1 in every cycle."""

    kind = "blink"

    def __init__(self, graph: UpdateGraph, schema: pa.Schema) -> None:
        super().__init__(graph, schema, TableTraits(is_blink=True, is_flat=True))

    @property
    def has_pending(self) -> bool:
        """A blink table that shows rows has to remove them, staged rows or not."""
        return self._failure is None and (bool(self._staged) or self.size > 0)

    def stage_add(self, rows: Rows) -> None:
        table = self._coerced(rows)
        if len(table):
            self._staged.append(table)

    def commit(self, step: int) -> TableUpdate:
        before = self._row_keys
        self.storage = SlotStorage(self.schema)
        count = 0
        for rows in self._take_staged():
            self.storage.append(rows)
            count += len(rows)
        self._row_keys = RowSet.of_span(0, count)
        return self._update(step, removed=before, added=self._row_keys)

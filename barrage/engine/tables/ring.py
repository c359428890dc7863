"""Tables that forget: a ring keeps the newest rows, a blink table keeps rows for one cycle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from barrage.engine.tables.source import AddedTable, check_keys
from barrage.engine.tables.table import TableTraits
from barrage.errors import EngineError
from barrage.limits import ROW_KEY_MAX
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph
    from barrage.model.update import TableUpdate
    from barrage.rowset.arrays import Int64Array


class RingTable(AddedTable):
    """The last ``capacity`` rows. Row keys only grow; the oldest rows are removed."""

    kind = "ring"

    def __init__(self, graph: Graph, schema: pa.Schema, *, capacity: int) -> None:
        if capacity < 1:
            raise EngineError(f"a ring of capacity {capacity} holds nothing; use 1 or more")
        super().__init__(graph, schema, TableTraits())
        self.capacity = capacity
        self._keys_used = 0
        self._first_slot_key = 0
        """Key of the row in the storage's slot 0; a restored ring does not begin at key 0."""

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        is_run = keys.is_empty or (keys.is_contiguous and keys.last < ROW_KEY_MAX)
        check_keys(self.kind, keys, rows, is_possible=is_run and len(keys) <= self.capacity)
        self.storage.append(self._coerced(rows))
        self._row_keys = keys
        if len(keys):
            self._first_slot_key, self._keys_used = keys.first, keys.last + 1

    def touched_keys(self, mark: int = 0) -> RowSet:
        stop = max(0, self._keys_used + sum(map(len, self._staged)) - self.capacity)
        start = max(0, stop - sum(map(len, self._staged_after(mark))))
        return self.row_keys & RowSet.of_span(start, stop)

    def commit(self, step: int) -> TableUpdate:
        before = self._row_keys
        for rows in self._take_staged():
            self.storage.append(rows)
            self._keys_used += len(rows)
        oldest = max(0, self._keys_used - self.capacity)
        after = RowSet.of_span(max(oldest, before.first if len(before) else 0), self._keys_used)
        self._row_keys = after
        update = self._update(step, removed=before - after, added=after - before)
        if self._recorder is not None:
            columns = range(len(self.schema))
            gone = self.read_cells(update.removed_keys_pre, columns)
            self._record(update, replace(self._added_only(update), removed=gone))
        self.storage.forget_before(oldest - self._first_slot_key)
        return update

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.storage.read(keys.offset(-self._first_slot_key), columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.storage.take(keys - self._first_slot_key, columns)


class BlinkTable(AddedTable):
    """Rows exist for the cycle that brought them; their keys are 0..n-1 in every cycle."""

    kind = "blink"

    def __init__(self, graph: Graph, schema: pa.Schema) -> None:
        super().__init__(graph, schema, TableTraits(is_blink=True, is_flat=True))

    @property
    def has_pending(self) -> bool:
        """A blink table that shows rows has to remove them, staged rows or not."""
        return self._failure is None and (bool(self._staged) or self.size > 0)

    def commit(self, step: int) -> TableUpdate:
        before = self._row_keys
        self.storage.clear()
        count = 0
        for rows in self._take_staged():
            self.storage.append(rows)
            count += len(rows)
        self._row_keys = RowSet.of_span(0, count)
        update = self._update(step, removed=before, added=self._row_keys)
        if self._recorder is not None:
            # Everybody knows that the rows of the cycle before are gone, so they are not kept.
            self._record(update, self._added_only(update))
        return update

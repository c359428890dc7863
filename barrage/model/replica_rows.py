"""The cells of a replica: columns addressed by slot, and the slot of every row.

A row keeps the slot it was written to for as long as it lives; shifts, inserted and removed
neighbours only change its *position*. So the columns are append-only unless cells are modified, and
all bookkeeping is one array of slots in row order:

* as long as rows come at the end and leave at the front (append-only tables, rings, blink tables,
  one-shot states) there is no array at all: row i is slot ``base + i`` and reading is slicing,
  without a copy;
* otherwise 8 bytes per row. Inserting or removing rows copies that array once per update (1 ms per
  10^6 rows).

Slots of removed rows are garbage until it exceeds a quarter of the rows; then the columns are
compacted, one after the other. That costs O(rows) per rows/4 removals and keeps memory below 1.3
times the Arrow size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.model.storage import ColumnStore, take_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet

    Slots = npt.NDArray[np.int64]

PIECEWISE_RANGES_MAX = 256
"""Up to this many ranges it is faster to copy piece by piece than through a mask (measured at 10^6
rows)."""

GARBAGE_SLOTS_MIN = 4096
"""Garbage below this is never worth a compaction."""


class SlotMap:
    """Slots of the rows, in row order. Invariant: every slot is below :attr:`stop` and used
    once."""

    __slots__ = ("_base", "_count", "_order", "stop")

    def __init__(self) -> None:
        self._base = 0
        self._count = 0
        self._order: Slots | None = None
        self.stop = 0
        """The slot the next appended row gets."""

    def __len__(self) -> int:
        return self._count if self._order is None else len(self._order)

    @property
    def span(self) -> tuple[int, int] | None:
        """Half-open slots of all rows when they are contiguous and in order, else None."""
        return (self._base, self._base + self._count) if self._order is None else None

    @property
    def first_slot(self) -> int:
        """Slots below this are not used and never will be again."""
        return self._base

    @property
    def nbytes(self) -> int:
        return 0 if self._order is None else self._order.nbytes

    def span_of(self, positions: RowSet) -> tuple[int, int] | None:
        """Half-open slots of ``positions`` when they are known to be contiguous, else None."""
        if self._order is not None or not positions.is_contiguous:
            return None
        if positions.is_empty:
            return (self._base, self._base)
        return (self._base + positions.first, self._base + positions.last + 1)

    def slots_of(self, positions: RowSet) -> Slots:
        """Slots of the rows at ``positions``, in order."""
        if self._order is None:
            return positions.to_numpy() + self._base
        if positions.is_contiguous and not positions.is_empty:
            return self._order[positions.first : positions.last + 1]
        return self._order[positions.to_numpy()]

    def all_slots(self) -> Slots:
        """Slots of all rows, in order."""
        if self._order is None:
            return np.arange(self._base, self._base + self._count, dtype=np.int64)
        return self._order

    def delete(self, positions: RowSet) -> None:
        """Take rows out."""
        if positions.is_empty:
            return
        if len(positions) == len(self):
            self._order, self._count, self._base = None, 0, self.stop
            return
        if self._order is None and positions.is_contiguous and positions.first == 0:
            self._base += len(positions)
            self._count -= len(positions)
            return
        order = self.all_slots()
        if positions.range_count <= PIECEWISE_RANGES_MAX:
            self._order = np.concatenate(_pieces_around(order, positions))
        else:
            keep = np.ones(len(order), dtype=bool)
            keep[positions.to_numpy()] = False
            self._order = order[keep]

    def insert(self, positions: RowSet) -> None:
        """Put new rows at ``positions`` of the new order; they take the next slots in the order of
        the rows."""
        count = len(positions)
        if count == 0:
            return
        first, self.stop = self.stop, self.stop + count
        if len(self) == 0:
            self._order, self._base, self._count = None, first, count
            return
        is_at_end = positions.first == len(self)
        if self._order is None and is_at_end and self._base + self._count == first:
            self._count += count
            return
        old = self.all_slots()
        new = np.arange(first, self.stop, dtype=np.int64)
        if positions.range_count <= PIECEWISE_RANGES_MAX:
            self._order = np.concatenate(_interleaved(old, new, positions))
            return
        order = np.empty(len(old) + count, dtype=np.int64)
        is_old = np.ones(len(order), dtype=bool)
        at = positions.to_numpy()
        is_old[at] = False
        order[is_old] = old
        order[at] = new
        self._order = order

    def restart(self) -> None:
        """After the columns were compacted into row order: row i is slot i."""
        count = len(self)
        self._order, self._base, self._count, self.stop = None, 0, count, count


def _pieces_around(order: Slots, positions: RowSet) -> list[Slots]:
    """What is left of ``order`` between the ranges of ``positions``."""
    pieces = []
    start = 0
    for first, last in positions.ranges():
        pieces.append(order[start:first])
        start = last + 1
    pieces.append(order[start:])
    return pieces


def _interleaved(old: Slots, new: Slots, positions: RowSet) -> list[Slots]:
    """Pieces of ``old`` and ``new`` so that ``new`` stands at ``positions``."""
    pieces = []
    from_old = from_new = 0
    for first, last in positions.ranges():
        gap = first - from_old - from_new
        pieces.append(old[from_old : from_old + gap])
        from_old += gap
        length = last - first + 1
        pieces.append(new[from_new : from_new + length])
        from_new += length
    pieces.append(old[from_old:])
    return pieces


def columns_by_rows(modified: Sequence[RowSet], held: ColumnSet) -> dict[RowSet, list[int]]:
    """The ``held`` columns with modified rows, grouped by equal rows, which are then looked up
    once."""
    groups: dict[RowSet, list[int]] = {}
    for column in held:
        if column < len(modified) and not modified[column].is_empty:
            groups.setdefault(modified[column], []).append(column)
    return groups


class ReplicaRows:
    """Rows in order with the cells of the held columns. Knows positions only; keys are the
    replica's business."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns: ColumnSet = ()
        self._held_schema = self._schema_of(())
        self._stores: dict[int, ColumnStore] = {}
        self._slots = SlotMap()
        self._is_overwritten = False
        """Some column was written to; such columns free memory only when compacted."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def columns(self) -> ColumnSet:
        """Columns whose cells are held."""
        return self._columns

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + sum(store.nbytes for store in self._stores.values())

    def hold(self, columns: ColumnSet) -> None:
        """Hold exactly ``columns`` from now on. A column that is new needs that there are no rows
        without cells."""
        missing = [index for index in columns if index not in self._stores]
        if missing and len(self):
            raise RemoteProtocolError(
                f"column {missing[0]} enters the subscription but {len(self)} rows are kept "
                "without its cells"
            )
        self._columns = columns
        self._held_schema = self._schema_of(columns)
        for index in missing:
            self._stores[index] = ColumnStore(self._schema.field(index).type)
        self._stores = {index: self._stores[index] for index in columns}
        if missing:
            self.clear()

    def clear(self) -> None:
        """Forget all rows; what was read before stays valid."""
        self._slots = SlotMap()
        self._is_overwritten = False
        for store in self._stores.values():
            store.clear()

    def delete(self, positions: RowSet) -> None:
        """Take the rows at ``positions`` out."""
        if len(positions) == len(self):
            self.clear()
        else:
            self._slots.delete(positions)

    def insert(self, positions: RowSet, values: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Put rows at ``positions`` of the new order; ``values`` has one entry per schema
        column."""
        if positions.is_empty:
            return
        for index, store in self._stores.items():
            store.append(values[index])
        self._slots.insert(positions)

    def write(
        self,
        columns: Sequence[int],
        positions: RowSet,
        values: Sequence[pa.Array | pa.ChunkedArray],
    ) -> None:
        """Overwrite the cells of the held ``columns`` at ``positions``, of which there are some;
        ``values`` has one entry per schema column."""
        if not self._is_overwritten:
            self._is_overwritten = True
            if self._is_worth_compacting():
                self._compact()
        slots = self._slots.slots_of(positions)
        for column in columns:
            self._stores[column].write(slots, values[column])

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """See :meth:`ColumnStore.own`."""
        for store in self._stores.values():
            store.own(owned)

    def tidy(self) -> None:
        """Give back memory of removed rows. Call it once per update."""
        if self._is_worth_compacting():
            self._compact()
        elif self._slots.first_slot:
            for store in self._stores.values():
                store.forget_before(self._slots.first_slot)

    def _is_worth_compacting(self) -> bool:
        slots = self._slots
        garbage = slots.stop - len(slots)
        if not self._is_overwritten:
            garbage -= slots.first_slot
        return garbage > max(len(slots) // 4, GARBAGE_SLOTS_MIN)

    def _compact(self) -> None:
        order = self._slots.all_slots()
        for index, store in self._stores.items():
            self._stores[index] = store.compacted(order)
        self._slots.restart()

    def read(self, positions: RowSet | None = None) -> pa.Table:
        """Rows at ``positions`` (None: all) of the held columns; never changes afterwards."""
        return self._table(self.cells(positions))

    def cells(self, positions: RowSet | None = None) -> Sequence[pa.Array | pa.ChunkedArray]:
        """What :meth:`read` makes a table of, in the order of :attr:`columns`."""
        slots = self._slots
        span = slots.span if positions is None else slots.span_of(positions)
        stores = [self._stores[index] for index in self._columns]
        if span is not None:
            return [store.slice(*span) for store in stores]
        at = slots.all_slots() if positions is None else slots.slots_of(positions)
        return take_cells(stores, at)

    def _schema_of(self, columns: ColumnSet) -> pa.Schema:
        fields = [self._schema.field(index) for index in columns]
        return pa.schema(fields, metadata=self._schema.metadata)

    def _table(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
        if not columns:
            # Arrow tables without columns have no rows; there is nothing to show.
            return self._held_schema.empty_table()
        return pa.Table.from_arrays(columns, schema=self._held_schema)

    def validate(self) -> None:
        """Raise AssertionError when an invariant is broken; for tests."""
        slots = self._slots.all_slots()
        assert len(np.unique(slots)) == len(slots), "a slot is used twice"
        for store in self._stores.values():
            assert len(store) == self._slots.stop, "columns and slots disagree"
        assert set(self._stores) == set(self._columns)

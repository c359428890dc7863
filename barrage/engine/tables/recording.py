"""What a source notes of a cycle besides its update: the cells of before.

A table overwrites cells in place, so whoever wants to know what they were must say so before the
cycle (:meth:`~barrage.engine.tables.source.SourceTable.start_recording`). From then on every
overwrite hands its old cells to the source's :class:`CellRecorder`, which a write has taken anyway
to find out what it changes. At the end of the cycle they are put together with the cells that still
stand:

* the first old cell of a slot counts, whatever overwrites it again in the same cycle;
* a row that is overwritten and then removed is removed with the cells of before the cycle;
* everything is read before slots are renumbered, in the order of keys, which renumbering keeps.

Cost: none for a table that is only appended to (slices of what it stores); one read of the changed
rows and one copy of the removed and modified ones otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.model.storage import ColumnStore

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.slots import SlotStorage
    from barrage.model.storage.hashing import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCells:
    """Cells of one cycle, one entry per column, as a
    :class:`~barrage.model.table_change.TableChange` has them."""

    removed: tuple[Cells, ...]
    before: tuple[Cells, ...]
    after: tuple[Cells, ...]
    added: tuple[Cells, ...]


class CellRecorder:
    """The cells one cycle has overwritten in one table, by column and slot."""

    __slots__ = ("_cells", "_slots")

    def __init__(self, column_count: int) -> None:
        self._slots: list[list[Int64Array]] = [[] for _ in range(column_count)]
        self._cells: list[list[pa.Array]] = [[] for _ in range(column_count)]

    def clear(self) -> None:
        """A new cycle begins."""
        for parts in (*self._slots, *self._cells):
            parts.clear()

    def overwritten(self, column: int, slots: Int64Array, old: pa.Array) -> None:
        """``slots`` (distinct, in the order of ``old``) held these cells until now."""
        self._slots[column].append(slots)
        self._cells[column].append(old)

    def cells(
        self, storage: SlotStorage, *, removed: Int64Array, modified: Int64Array, added: Int64Array
    ) -> RecordedCells:
        """What the cycle did to these slots, each list in the order of the rows' keys.

        The slots must still hold the cells they had at the end of the cycle.
        """
        columns = range(len(storage.columns))
        after = storage.read_slots(modified)
        at_end = storage.read_slots(removed)
        return RecordedCells(
            removed=tuple(self._before(c, removed, at_end[c]) for c in columns),
            before=tuple(self._before(c, modified, after[c]) for c in columns),
            after=after,
            added=storage.read_slots(added),
        )

    def _before(self, column: int, slots: Int64Array, at_end: Cells) -> Cells:
        """The cells of ``slots`` before the cycle, where ``at_end`` are those they hold now."""
        if not self._slots[column] or len(slots) == 0:
            return at_end
        known, first = self._written(column)
        if len(known) == len(slots) and len(self._slots[column]) == 1 and np.all(known == slots):
            return self._cells[column][0]
        where = np.searchsorted(known, slots)
        where[where == len(known)] = 0
        is_known = known[where] == slots
        if not is_known.any():
            return at_end
        old = ColumnStore(at_end.type)
        if is_known.all():
            picks = first[where]
        else:
            old.append(at_end)
            picks = np.where(is_known, len(slots) + first[where], np.arange(len(slots)))
        for cells in self._cells[column]:
            old.append(cells)
        return old.take(picks)

    def _written(self, column: int) -> tuple[Int64Array, Int64Array]:
        """The overwritten slots of a column, ascending, and where the oldest cell of each is."""
        parts = self._slots[column]
        if len(parts) == 1 and bool(np.all(parts[0][1:] > parts[0][:-1])):
            return parts[0], np.arange(len(parts[0]), dtype=np.int64)
        # `unique` gives the first place at which a slot occurs, hence its oldest cell.
        return np.unique(np.concatenate(parts), return_index=True)

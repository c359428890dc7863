"""Key values -> slot: an open-addressing hash table in one numpy array, probed for all rows of a
batch at once.

An entry packs 24 bits of the hash and the slot, so one gather per probe decides nearly always;
candidates are then compared cell by cell with the key columns of the table. Each round of a lookup
advances only the rows still undecided, so a batch costs a handful of vector operations, about three
per row. 8 bytes per entry, load at most 5/8, so 13 to 26 bytes per key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.keys.hashing import UInt64Array, hash_rows
from barrage.model.storage import cells_differ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine.keys.hashing import Int64Array
    from barrage.model.storage import ColumnStore
    from barrage.model.storage.growth import BoolArray

_SLOT_BITS = np.uint64(40)
_SLOT_MASK = np.uint64((1 << 40) - 1)
_EMPTY = np.uint64(0)
_TOMBSTONE = np.uint64(1)
_SLOT_BIAS = np.uint64(2)

CAPACITY_MIN = 1 << 10
REBUILD_ROWS = 1 << 18
"""Keys hashed at a time while the table is rebuilt."""


class KeyIndex:
    """Where each key lives. ``columns`` gives the key columns' stores, which the index compares
    with."""

    def __init__(self, columns: Callable[[], Sequence[ColumnStore]]) -> None:
        self._columns = columns
        self._entries: UInt64Array = np.zeros(CAPACITY_MIN, dtype=np.uint64)
        self._used_count = 0
        """Entries that are not empty, tombstones included."""
        self.count = 0
        """Keys present."""

    @property
    def nbytes(self) -> int:
        return int(self._entries.nbytes)

    def lookup(self, keys: Sequence[pa.Array], hashes: UInt64Array) -> Int64Array:
        """The slot of each key, -1 where it is not present."""
        found = np.full(len(hashes), -1, dtype=np.int64)
        if self.count == 0:
            return found
        mask = np.uint64(len(self._entries) - 1)
        rows: Int64Array = np.arange(len(hashes), dtype=np.int64)
        places = hashes & mask
        prints = hashes >> _SLOT_BITS
        while len(rows):
            entries = self._entries[places]
            alike = ((entries >> _SLOT_BITS) == prints) & ((entries & _SLOT_MASK) > _TOMBSTONE)
            undecided = entries != _EMPTY
            candidates = np.flatnonzero(alike)
            if len(candidates):
                slots = ((entries[candidates] & _SLOT_MASK) - _SLOT_BIAS).astype(np.int64)
                equal = self._cells_equal(keys, rows[candidates], slots)
                found[rows[candidates[equal]]] = slots[equal]
                undecided[candidates[equal]] = False
            rows, prints = rows[undecided], prints[undecided]
            places = (places[undecided] + np.uint64(1)) & mask
        return found

    def _cells_equal(
        self, keys: Sequence[pa.Array], rows: Int64Array, slots: Int64Array
    ) -> BoolArray:
        equal = np.ones(len(rows), dtype=np.bool_)
        all_rows = len(keys[0]) == len(rows)
        picked = None if all_rows else pa.array(rows)
        for column, values in zip(self._columns(), keys, strict=True):
            wanted = values if picked is None else values.take(picked)
            equal &= ~cells_differ(column.take(slots), wanted)
        return equal

    def add(self, hashes: UInt64Array, slots: Int64Array) -> None:
        """Enter keys known to be absent and distinct; their cells are in the columns already."""
        if (self._used_count + len(slots)) * 8 > len(self._entries) * 5:
            self._resize(self.count + len(slots))
        self._enter(hashes, slots)
        self.count += len(slots)

    def _enter(self, hashes: UInt64Array, slots: Int64Array) -> None:
        mask = np.uint64(len(self._entries) - 1)
        values = ((hashes >> _SLOT_BITS) << _SLOT_BITS) | (slots.astype(np.uint64) + _SLOT_BIAS)
        places = hashes & mask
        while len(values):
            before = self._entries[places]
            free = np.flatnonzero(before <= _TOMBSTONE)
            self._entries[places[free]] = values[free]
            # Rows aiming at one free place: the last write won, the others move on.
            won = self._entries[places] == values
            self._used_count += int(np.count_nonzero(won & (before == _EMPTY)))
            lost = ~won
            values = values[lost]
            places = (places[lost] + np.uint64(1)) & mask

    def remove(self, hashes: UInt64Array, slots: Int64Array) -> None:
        """Forget keys that are present at ``slots``."""
        mask = np.uint64(len(self._entries) - 1)
        wanted = slots.astype(np.uint64) + _SLOT_BIAS
        places = hashes & mask
        while len(wanted):
            here = (self._entries[places] & _SLOT_MASK) == wanted
            self._entries[places[here]] = _TOMBSTONE
            wanted = wanted[~here]
            places = (places[~here] + np.uint64(1)) & mask
        self.count -= len(slots)

    def _resize(self, count: int) -> None:
        """A larger or cleaner table for ``count`` keys, with the entries that are present now."""
        present = self._entries[(self._entries & _SLOT_MASK) > _TOMBSTONE] & _SLOT_MASK
        self._reset(count)
        self._enter_slots((present - _SLOT_BIAS).astype(np.int64))

    def rebuild(self, slots: Int64Array) -> None:
        """Start over with the keys at ``slots`` of the columns as they are now."""
        self._reset(len(slots))
        self.count = len(slots)
        self._enter_slots(slots)

    def _reset(self, count: int) -> None:
        capacity = CAPACITY_MIN
        while capacity * 2 < count * 5:
            capacity *= 2
        self._entries = np.zeros(capacity, dtype=np.uint64)
        self._used_count = 0

    def _enter_slots(self, slots: Int64Array) -> None:
        columns = self._columns()
        for start in range(0, len(slots), REBUILD_ROWS):
            part = slots[start : start + REBUILD_ROWS]
            self._enter(hash_rows([column.take(part) for column in columns]), part)


def first_duplicate(keys: Sequence[pa.Array], hashes: UInt64Array) -> int | None:
    """The first row (by the order of hashes) whose key occurred in an earlier row; None when all
    differ."""
    ordered = np.sort(hashes)
    if not np.any(ordered[1:] == ordered[:-1]):
        return None
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    distance = 1
    while True:
        pairs = np.flatnonzero(ordered[distance:] == ordered[:-distance])
        if len(pairs) == 0:
            return None
        earlier, later = order[pairs], order[pairs + distance]
        differ = np.zeros(len(pairs), dtype=np.bool_)
        for column in keys:
            differ |= cells_differ(column.take(pa.array(earlier)), column.take(pa.array(later)))
        if not differ.all():
            return int(later[~differ].min())
        distance += 1

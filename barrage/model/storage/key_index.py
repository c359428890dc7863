"""Key values -> slot: an open-addressing hash table in one numpy array, probed for all rows of a
batch at once.

An entry packs 24 bits of the hash and the slot, so one gather per probe decides nearly always;
candidates are then compared cell by cell with the key columns of the table. Each round of a lookup
advances only the rows still undecided, so a batch costs a handful of vector operations, about three
per row. 8 bytes per entry, load at most 5/8, so 13 to 26 bytes per key.

A table that is full is not copied at once, which would take a second for ten million keys: its
entries move into the larger one with the keys that are added, a few for each, and until they have
all moved what is not found in one is looked for in the other. The memory of a large table is made
ready before it is needed: the system fills each page with zeros when it is written first, and keys
write to all pages at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from barrage.model.storage.equality import cells_differ
from barrage.model.storage.hashing import UInt64Array, hash_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.model.storage.growth import BoolArray
    from barrage.model.storage.hashing import Int64Array

_SLOT_BITS = np.uint64(40)
_SLOT_MASK = np.uint64((1 << 40) - 1)
_EMPTY = np.uint64(0)
_TOMBSTONE = np.uint64(1)
_SLOT_BIAS = np.uint64(2)

CAPACITY_MIN = 1 << 6
REBUILD_ROWS = 1 << 18
"""Keys hashed at a time while the table is rebuilt."""

MOVED_AT_ONCE_MAX = 1 << 16
"""So many keys, or fewer, move into a larger table at once."""

MOVED_TOGETHER = 1 << 12
"""Entries that are looked at together while keys move: each time has a cost of its own."""

SPARE_ENTRIES_MAX = 16
"""A table with more entries for each key is given up for a smaller one."""


READY_ENTRIES_MIN = 1 << 20
"""Memory of tables with fewer entries is not made ready before they are needed."""

PAGE_ENTRIES = 512
"""Entries in a page of memory."""


class KeyCells(Protocol):
    """One key column of the table."""

    def take(self, slots: Int64Array) -> pa.Array: ...


class KeyIndex:
    """Where each key lives. ``columns`` gives the key columns' stores, which the index compares
    with."""

    def __init__(self, columns: Callable[[], Sequence[KeyCells]]) -> None:
        self._columns = columns
        self._entries: UInt64Array = np.zeros(CAPACITY_MIN, dtype=np.uint64)
        self._used_count = 0
        """Entries that are not empty, tombstones included."""
        self._leaving: UInt64Array | None = None
        """A table whose keys are moving into this one."""
        self._leaving_count = 0
        self._moved_upto = 0
        """Its entries before are tombstones or empty."""
        self._moved_per_key = 0
        """How many of its entries are due for each key that is added; one for each that is looked
        for."""
        self._due = 0
        """Entries that are due and have not been looked at."""
        self._next: UInt64Array | None = None
        """The table that comes after this one, as far as one can tell."""
        self._next_ready = 0
        """Its entries before are in memory that was written."""
        self.count = 0
        """Keys present."""

    @property
    def nbytes(self) -> int:
        leaving = 0 if self._leaving is None else self._leaving.nbytes
        return int(self._entries.nbytes + leaving + self._next_ready * self._entries.itemsize)

    def lookup(self, keys: Sequence[pa.Array], hashes: UInt64Array) -> Int64Array:
        """The slot of each key, -1 where it is not present."""
        found = np.full(len(hashes), -1, dtype=np.int64)
        if self.count == 0:
            return found
        self._move_due(len(hashes))
        rows: Int64Array = np.arange(len(hashes), dtype=np.int64)
        self._find(keys, hashes, table=self._entries, rows=rows, found=found)
        if self._leaving is not None:
            rows = np.flatnonzero(found < 0)
            self._find(keys, hashes, table=self._leaving, rows=rows, found=found)
        return found

    def _find(
        self,
        keys: Sequence[pa.Array],
        hashes: UInt64Array,
        *,
        table: UInt64Array,
        rows: Int64Array,
        found: Int64Array,
    ) -> None:
        """Put the slots of these rows' keys that are in ``table`` into ``found``."""
        mask = np.uint64(len(table) - 1)
        places = hashes[rows] & mask
        prints = hashes[rows] >> _SLOT_BITS
        while len(rows):
            entries = table[places]
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
        used = self._used_count + self._leaving_count + len(slots)
        if used * 8 > len(self._entries) * 5:
            self._grow(self.count + len(slots))
        self._enter(hashes, slots)
        self.count += len(slots)
        self._move_due(self._moved_per_key * len(slots))
        self._make_ready(len(slots))

    def _make_ready(self, key_count: int) -> None:
        """Go on, by so many keys, with the memory of the next table. It is to be ready when half of
        the room is taken that is left now."""
        size = len(self._entries)
        room = size * 5 // 8 - self._used_count
        if self._leaving is not None or size < READY_ENTRIES_MIN or room * 8 > size:
            return
        if self._next is None:
            self._next = np.zeros(_capacity(self.count + max(room, 0) + 1), dtype=np.uint64)
        ready = self._next_ready
        share = (len(self._next) - ready) * key_count * 2 // max(room, 1) + PAGE_ENTRIES
        self._next_ready = min(ready + share, len(self._next))
        self._next[ready : self._next_ready : PAGE_ENTRIES] = _EMPTY

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
        places, others = _places_of(self._entries, hashes, slots)
        self._entries[places] = _TOMBSTONE
        if len(others):
            assert self._leaving is not None
            places, _ = _places_of(self._leaving, hashes[others], slots[others])
            self._leaving[places] = _TOMBSTONE
            self._leaving_count -= len(others)
        self.count -= len(slots)

    def moved(self, hashes: UInt64Array, slots: Int64Array, to: Int64Array) -> None:
        """Keys that are present at ``slots`` are at ``to`` from here on, and so are their cells in
        the columns."""
        places, others = _places_of(self._entries, hashes, slots)
        is_here = np.ones(len(slots), dtype=np.bool_)
        is_here[others] = False
        tables = [(self._entries, places, to[is_here])]
        if len(others):
            assert self._leaving is not None
            places, _ = _places_of(self._leaving, hashes[others], slots[others])
            tables.append((self._leaving, places, to[others]))
        # All have been found before any is changed: one may go where another one was.
        for table, found, now in tables:
            table[found] = (table[found] & ~_SLOT_MASK) | (now.astype(np.uint64) + _SLOT_BIAS)

    def give_up_spare(self) -> None:
        """Begin to move into a smaller table when this one has become far too large."""
        if self._leaving is None and len(self._entries) > SPARE_ENTRIES_MAX * max(self.count, 1):
            self._grow(self.count)

    def _grow(self, count: int) -> None:
        """A larger or cleaner table for ``count`` keys, into which those that are present move."""
        if self._leaving is not None:
            self._move(len(self._leaving))
        leaving, present = self._entries, self.count
        self._reset(count)
        self._leaving, self._leaving_count, self._moved_upto = leaving, present, 0
        # All have moved when two thirds of the room are taken.
        room = (len(self._entries) * 5 // 8 - present) * 2 // 3
        self._moved_per_key = len(leaving) // max(room, 1) + 1
        if present <= MOVED_AT_ONCE_MAX:
            self._move(len(leaving))

    def _move_due(self, entry_count: int) -> None:
        """So many more entries are due to move, if there are any."""
        if self._leaving is None:
            return
        self._due += entry_count
        if self._due >= MOVED_TOGETHER:
            due, self._due = self._due, 0
            self._move(due)

    def _move(self, entry_count: int) -> None:
        """Move what the next entries of the table that is left have."""
        assert self._leaving is not None
        part = self._leaving[self._moved_upto : self._moved_upto + entry_count]
        is_key = (part & _SLOT_MASK) > _TOMBSTONE
        slots = ((part[is_key] & _SLOT_MASK) - _SLOT_BIAS).astype(np.int64)
        part[is_key] = _TOMBSTONE
        self._leaving_count -= len(slots)
        self._moved_upto += len(part)
        if self._moved_upto == len(self._leaving):
            self._leaving = None
        # Cells are read fastest in the order in which they lie.
        self._enter_slots(np.sort(slots))

    def rebuild(self, slots: Int64Array) -> None:
        """Start over with the keys at ``slots`` of the columns as they are now."""
        self._reset(len(slots))
        self.count = len(slots)
        self._enter_slots(slots)

    def _reset(self, count: int) -> None:
        capacity, ready = _capacity(count), self._next
        if ready is None or len(ready) != capacity:
            ready = np.zeros(capacity, dtype=np.uint64)
        self._entries = ready
        self._next, self._next_ready = None, 0
        self._used_count = 0
        self._leaving, self._leaving_count, self._due = None, 0, 0

    def _enter_slots(self, slots: Int64Array) -> None:
        columns = self._columns()
        for start in range(0, len(slots), REBUILD_ROWS):
            part = slots[start : start + REBUILD_ROWS]
            self._enter(hash_rows([column.take(part) for column in columns]), part)


def _capacity(count: int) -> int:
    """Entries of a table for so many keys, which has room for more."""
    capacity = CAPACITY_MIN
    while capacity * 2 < count * 5:
        capacity *= 2
    return capacity


def _places_of(
    table: UInt64Array, hashes: UInt64Array, slots: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Where the entries with these slots are, of those that are in the table in their order; which
    of them are not."""
    mask = np.uint64(len(table) - 1)
    wanted = slots.astype(np.uint64) + _SLOT_BIAS
    found = np.full(len(slots), -1, dtype=np.int64)
    places = hashes & mask
    rows: Int64Array = np.arange(len(slots), dtype=np.int64)
    while len(rows):
        entries = table[places]
        here = (entries & _SLOT_MASK) == wanted[rows]
        found[rows[here]] = places[here].astype(np.int64)
        undecided = ~(here | (entries == _EMPTY))
        rows = rows[undecided]
        places = (places[undecided] + np.uint64(1)) & mask
    is_here = found >= 0
    return found[is_here], np.flatnonzero(~is_here)


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

"""Where every entry of a journal is, and what can be said of it without reading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from barrage.rowset.arrays import Int64Array

_ROOM_MIN: Final = 64


class IndexRow(NamedTuple):
    """One entry: its version, time and size, and its place in a file (0, 0 in memory)."""

    step: int
    wall_ns: int
    first_offset: int
    row_count: int
    byte_count: int
    segment: int
    place: int
    before_count: int
    """Rows that say what was there before a modification."""


INDEX_COLUMNS: Final = len(IndexRow._fields)
"""Numbers per entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryIndex:
    """Some consecutive entries of a journal, oldest first; all arrays are int64 of one length."""

    steps: Int64Array
    wall_ns: Int64Array
    row_counts: Int64Array
    byte_counts: Int64Array
    before_counts: Int64Array
    """How many of the rows say what was there before a modification."""

    def feed_counts(self, *, has_preimage: bool) -> Int64Array:
        """Rows of the change feed of each entry."""
        return self.row_counts if has_preimage else self.row_counts - self.before_counts

    def __len__(self) -> int:
        return len(self.steps)


class Index:
    """Rows in ascending order of steps. One thread at a time changes it; any thread reads, and what
    it was given stays as it is: rows are one array that is replaced as a whole."""

    __slots__ = ("_room", "_rows", "_start")

    def __init__(self) -> None:
        self._room: npt.NDArray[np.int64] = np.empty((0, INDEX_COLUMNS), dtype=np.int64)
        self._start = 0
        self._rows = self._room

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """All rows as an array of shape (entries, fields of :class:`IndexRow`)."""
        return self._rows

    @property
    def steps(self) -> Int64Array:
        """Versions, ascending."""
        return self._rows[:, 0]

    @property
    def last(self) -> IndexRow | None:
        """The newest entry."""
        rows = self._rows
        return IndexRow(*rows[-1].tolist()) if len(rows) else None

    @property
    def byte_count(self) -> int:
        """Bytes of all entries."""
        return int(self._rows[:, 4].sum())

    def extend(self, rows: Sequence[IndexRow] | npt.NDArray[np.int64]) -> None:
        """Add newer entries."""
        if len(rows) == 0:
            return
        kept = len(self._rows)
        stop = self._start + kept + len(rows)
        if stop > len(self._room):
            room = np.empty((max(_ROOM_MIN, 2 * (kept + len(rows))), INDEX_COLUMNS), dtype=np.int64)
            room[:kept] = self._rows
            self._room, self._start = room, 0
            stop = kept + len(rows)
        self._room[stop - len(rows) : stop] = rows
        self._rows = self._room[self._start : stop]

    def forget_upto(self, step: int) -> None:
        """Drop the entries with versions up to ``step``."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        self._start += count
        self._rows = self._rows[count:]

    def span(self, after: int, upto: int) -> npt.NDArray[np.int64]:
        """Rows of the versions in ``(after, upto]``."""
        rows = self.rows
        steps = rows[:, 0]
        start, stop = np.searchsorted(steps, [after, upto], side="right")
        return rows[start:stop]


def entry_index(rows: npt.NDArray[np.int64]) -> EntryIndex:
    """Rows of an index as named columns."""
    return EntryIndex(
        steps=rows[:, 0].copy(),
        wall_ns=rows[:, 1].copy(),
        row_counts=rows[:, 3].copy(),
        byte_counts=rows[:, 4].copy(),
        before_counts=rows[:, 7].copy(),
    )

"""Shifts: closed ranges of row keys that move by a delta without changing the order of rows.

Ranges may cover keys that do not exist and may be 2^62 wide; nothing here expands them. Rows are
copied into a new set, so the order in which shifts apply (negative ones from low to high, positive
ones from high to low, barrage-wire.md section 5) never arises: all move at once, which gives the
same result.

Well-formed updates keep every row that does not move out of the way of those that do: no unshifted
row lies between a shift's range and its destination, nor in the destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import arrays
from barrage.rowset.checks import checked_integers, checked_keys
from barrage.rowset.row_set import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from barrage.rowset.arrays import Int64Array, RangeList


class Shift(NamedTuple):
    """All rows with keys ``first`` .. ``last`` (closed) move by ``delta``."""

    first: int
    last: int
    delta: int


class RowSetShiftData:
    """Immutable list of shifts.

    Invariants: ranges ascend and are disjoint, so are their destinations, in the same order; no
    delta is 0; destinations are row keys; touching shifts with one delta are one shift.
    """

    __slots__ = ("_deltas", "_firsts", "_hash", "_lasts")

    _firsts: Int64Array
    _lasts: Int64Array
    _deltas: Int64Array
    _hash: int | None

    def __init__(self) -> None:
        raise TypeError("use RowSetShiftData.empty, from_shifts or from_arrays")

    @classmethod
    def _of(cls, firsts: Int64Array, lasts: Int64Array, deltas: Int64Array) -> RowSetShiftData:
        """Wrap arrays that satisfy the invariants, except that touching equal shifts are still
        apart.
        """
        if len(firsts) > 1:
            is_start = (firsts[1:] - 1 != lasts[:-1]) | (deltas[1:] != deltas[:-1])
            if not is_start.all():
                starts = np.concatenate(([0], np.flatnonzero(is_start) + 1))
                stops = np.append(starts[1:], len(firsts)) - 1
                firsts, lasts, deltas = firsts[starts], lasts[stops], deltas[starts]
        self = object.__new__(cls)
        for array in (firsts, lasts, deltas):
            array.flags.writeable = False
        self._firsts, self._lasts, self._deltas = firsts, lasts, deltas
        self._hash = None
        return self

    @classmethod
    def empty(cls) -> RowSetShiftData:
        """Nothing moves."""
        return _NO_SHIFTS

    @classmethod
    def from_shifts(cls, shifts: Iterable[Shift | tuple[int, int, int]]) -> RowSetShiftData:
        """From ascending ``(first, last, delta)`` triples; ValueError as in `from_arrays`."""
        triples = list(shifts)
        if not triples:
            return _NO_SHIFTS
        firsts, lasts, deltas = zip(*triples, strict=True)
        return cls.from_arrays(firsts, lasts, deltas)

    @classmethod
    def from_arrays(
        cls, firsts: npt.ArrayLike, lasts: npt.ArrayLike, deltas: npt.ArrayLike
    ) -> RowSetShiftData:
        """From three equally long sequences; ValueError if the invariants do not hold.

        A downward shift that starts below ``-delta`` gets its start raised to it: the keys below
        cannot move anywhere and so cannot exist (barrage-wire.md section 5).
        """
        starts, ends = checked_keys(firsts), checked_keys(lasts)
        moves = checked_integers(deltas, what="shift deltas")
        if not len(starts) == len(ends) == len(moves):
            raise ValueError(
                f"{len(starts)} first keys, {len(ends)} last keys, {len(moves)} deltas"
            )
        if len(starts) == 0:
            return _NO_SHIFTS
        if (moves == 0).any():
            raise ValueError("a shift by 0")
        if (moves < -ROW_KEY_MAX).any():
            raise ValueError("a shift moves all its keys below 0")
        starts = np.maximum(starts, -moves)
        if (starts > ends).any():
            raise ValueError("a shift ends before it starts, or moves all its keys below 0")
        if (moves > ROW_KEY_MAX - ends).any():
            raise ValueError("a shift moves keys past 2^63-1")
        if (starts[1:] <= ends[:-1]).any():
            raise ValueError("shifts overlap or do not ascend")
        if (starts[1:] + moves[1:] <= ends[:-1] + moves[:-1]).any():
            raise ValueError("destinations of shifts overlap or change the order of rows")
        return cls._of(starts, ends, moves)

    @property
    def is_empty(self) -> bool:
        return len(self._firsts) == 0

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[Shift]:
        columns = (self._firsts.tolist(), self._lasts.tolist(), self._deltas.tolist())
        return (Shift(*triple) for triple in zip(*columns, strict=True))

    @property
    def firsts(self) -> Int64Array:
        """First key of every shift before it moves, read-only."""
        return self._firsts

    @property
    def lasts(self) -> Int64Array:
        """Last key of every shift before it moves, read-only."""
        return self._lasts

    @property
    def deltas(self) -> Int64Array:
        """How far every shift moves, read-only, never 0."""
        return self._deltas

    @property
    def _ranges(self) -> RangeList:
        return self._firsts, self._lasts

    @property
    def nbytes(self) -> int:
        return self._firsts.nbytes + self._lasts.nbytes + self._deltas.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSetShiftData):
            return NotImplemented
        return (
            np.array_equal(self._firsts, other._firsts)
            and np.array_equal(self._lasts, other._lasts)
            and np.array_equal(self._deltas, other._deltas)
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(
                (self._firsts.tobytes(), self._lasts.tobytes(), self._deltas.tobytes())
            )
        return self._hash

    def __repr__(self) -> str:
        moves = ", ".join(f"{shift.first}-{shift.last}{shift.delta:+d}" for shift in self)
        return f"RowSetShiftData({moves})"

    def inverse(self) -> RowSetShiftData:
        """The shifts that undo these."""
        if self.is_empty:
            return self
        return RowSetShiftData._of(
            self._firsts + self._deltas, self._lasts + self._deltas, -self._deltas
        )

    def apply(self, rows: RowSet) -> RowSet:
        """Where the rows are after the shifts; ValueError if two would end up under one key."""
        if self.is_empty or rows.is_empty:
            return rows
        if len(self) == 1 and self._firsts[0] <= rows.first and rows.last <= self._lasts[0]:
            return rows.offset(int(self._deltas[0]))
        firsts, lasts, index, _ = arrays.overlap_pairs(self._ranges, rows.range_list)
        if len(firsts) == 0:
            return rows
        deltas = self._deltas[index]
        moved_pre = RowSet.from_ranges(firsts, lasts)
        return self._with_moved(
            rows - moved_pre, RowSet.from_ranges(firsts + deltas, lasts + deltas)
        )

    @staticmethod
    def _with_moved(stayed: RowSet, moved: RowSet) -> RowSet:
        if stayed.overlaps(moved):
            raise ValueError("a shift moves rows onto rows that stay")
        return stayed | moved

    def unapply(self, rows: RowSet) -> RowSet:
        """Where the rows were before the shifts; they must be rows that survived the shifts."""
        return self.inverse().apply(rows)

    def apply_keys(self, keys: npt.ArrayLike) -> Int64Array:
        """Where each key is after the shifts, in the order given."""
        values = np.asarray(keys, dtype=np.int64)
        if self.is_empty:
            return values
        index = arrays.range_index(self._ranges, values)
        is_inside = (index >= 0) & (values <= self._lasts[index])
        return values + np.where(is_inside, self._deltas[index], 0)

    def unapply_keys(self, keys: npt.ArrayLike) -> Int64Array:
        """Where each key was before the shifts, in the order given."""
        return self.inverse().apply_keys(keys)

    def restrict(self, rows: RowSet) -> RowSetShiftData:
        """Only what moves these rows (keys before the shifts): each range trimmed to its first and
        last row.
        """
        if self.is_empty or rows.is_empty:
            return _NO_SHIFTS
        row_firsts, row_lasts = rows.range_list
        low, high = arrays.overlap_spans(self._ranges, (row_firsts, row_lasts))
        used = low < high
        firsts = np.maximum(self._firsts[used], row_firsts[low[used]])
        lasts = np.minimum(self._lasts[used], row_lasts[high[used] - 1])
        return RowSetShiftData._of(firsts, lasts, self._deltas[used])

    def then(self, later: RowSetShiftData) -> RowSetShiftData:
        """One list that moves every surviving row as these shifts followed by ``later`` do.

        Keys that no row can survive under are left out: unshifted keys between a shift's range and
        its destination, in either step. That keeps the result in order and disjoint.
        """
        if self.is_empty or later.is_empty:
            return later if self.is_empty else self
        pieces = [
            *_chained(self, later),
            _shifted_once(self._destinations(), self._deltas, later._hulls(), is_post=True),
            _shifted_once(later._ranges, later._deltas, self._hulls(), is_post=False),
        ]
        firsts, lasts, deltas = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        moves = deltas != 0
        order = np.argsort(firsts[moves], kind="stable")
        return RowSetShiftData._of(firsts[moves][order], lasts[moves][order], deltas[moves][order])

    def _destinations(self) -> RangeList:
        return self._firsts + self._deltas, self._lasts + self._deltas

    def _hulls(self) -> RangeList:
        """Everything a shift passes over, its range and destination included, merged."""
        firsts = np.minimum(self._firsts, self._firsts + self._deltas)
        lasts = np.maximum(self._lasts, self._lasts + self._deltas)
        order = np.argsort(firsts, kind="stable")
        return arrays.merged(firsts[order], lasts[order])


def _chained(
    earlier: RowSetShiftData, later: RowSetShiftData
) -> list[tuple[Int64Array, Int64Array, Int64Array]]:
    """Keys that move twice, in keys before both."""
    firsts, lasts, first_index, second_index = arrays.overlap_pairs(
        earlier._destinations(), later._ranges
    )
    moved = earlier.deltas[first_index]
    return [(firsts - moved, lasts - moved, moved + later.deltas[second_index])]


def _shifted_once(
    ranges: RangeList, deltas: Int64Array, excluded: RangeList, *, is_post: bool
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The parts of shifts outside ``excluded``. ``is_post``: the ranges are destinations, give back
    origins.
    """
    firsts, lasts, index, _ = arrays.overlap_pairs(ranges, arrays.complement(excluded))
    moved = deltas[index]
    origin = moved if is_post else np.zeros_like(moved)
    return firsts - origin, lasts - origin, moved


def _no_shifts() -> RowSetShiftData:
    return RowSetShiftData._of(arrays.NO_KEYS, arrays.NO_KEYS, arrays.NO_KEYS)


_NO_SHIFTS: Final = _no_shifts()

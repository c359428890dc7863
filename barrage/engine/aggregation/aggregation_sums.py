"""Sums per group that rows can enter and leave: what count, sum, avg, var, std, wavg and wsum rest
on.

Whole numbers are added exactly, in two halves. Floating numbers are kept as pairs
(:class:`barrage.engine.aggregation.group_folds.PairSum`), with NaN and the infinities counted
apart, so that a group is right again once they have left. A pair sum has a bound of its error;
where rows leave and the bound has grown past ``ERROR_MAX`` of the sum (a huge number came and
went), the group is added up anew from its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.group_folds import PairSum, Segments, two_product
from barrage.model.storage.fixed import fixed_dtype, read_fixed, read_valid
from barrage.model.storage.growth import lengthened

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from barrage.engine.aggregation.grouping import GroupMoves
    from barrage.model.storage.hashing import Int64Array

    FloatArray = npt.NDArray[np.float64]
    BoolArray = npt.NDArray[np.bool_]

ERROR_MAX = 2.0**-52
"""Largest error, relative to the sum, that is left to stand when rows leave a group."""

SQUARES_ERROR_MAX = 2.0**-90
"""The same for sums behind a variance, which is a small difference of large squares: a mean of 10^8
standard deviations leaves eleven digits."""


@dataclass(frozen=True, slots=True)
class Term:
    """What is added up: ``present`` (1 for each cell that is not null), ``value``, ``float`` (the
    value as a floating number), ``abs``, ``square``, ``product`` of two columns, or ``weight``, the
    second of two where neither is null."""

    kind: str
    columns: tuple[int, ...]


class GroupSums:
    """Sums of one term for every group. ``count`` says how many terms each has."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.count: Int64Array = np.zeros(0, dtype=np.int64)

    def grow(self, size: int) -> None:
        """Make room for groups below ``size``."""
        self.count = lengthened(self.count, size)

    def reset(self, groups: Int64Array) -> None:
        """Let groups have no terms."""
        self.count[groups] = 0

    def move(self, moves: GroupMoves) -> None:
        """Move groups to other numbers."""
        for array in self._arrays():
            moves.apply(array, 0)

    def _arrays(self) -> list[npt.NDArray[Any]]:
        """All there is by number of the group, 0 where there are no terms."""
        return [self.count]

    def change(self, groups: Int64Array, cells: Sequence[pa.Array], is_leaving: BoolArray) -> None:
        """Let rows enter or leave: per row its group, its cells and which of the two."""
        valid = _all_valid(cells)
        if valid is not None:
            chosen = np.flatnonzero(valid)
            picked = pa.array(chosen)
            groups, is_leaving = groups[chosen], is_leaving[chosen]
            cells = [column.take(picked) for column in cells]
        if len(groups):
            segments = Segments(groups)
            signs = np.where(is_leaving, -1, 1)
            self.count[segments.groups] += segments.sums(signs)
            self._add(segments, cells, is_leaving)

    def _add(self, segments: Segments, cells: Sequence[pa.Array], is_leaving: BoolArray) -> None:
        """Add or subtract the terms of rows without nulls."""

    def is_imprecise(self, groups: Int64Array) -> BoolArray:
        """Which groups, having lost rows, must be added up anew."""
        return np.zeros(len(groups), dtype=np.bool_)

    def fits(self, groups: Int64Array) -> BoolArray:
        """Whose sums fit the type of the result."""
        return np.ones(len(groups), dtype=np.bool_)


class WholeSums(GroupSums):
    """Exact sums of whole numbers: ``high`` * 2^32 + ``low``, 0 <= low < 2^32. The halves of up to
    2^31 rows at a time cannot overflow."""

    def __init__(self, term: Term) -> None:
        super().__init__(term)
        self._high: Int64Array = np.zeros(0, dtype=np.int64)
        self._low: Int64Array = np.zeros(0, dtype=np.int64)

    def grow(self, size: int) -> None:
        super().grow(size)
        self._high, self._low = lengthened(self._high, size), lengthened(self._low, size)

    def reset(self, groups: Int64Array) -> None:
        super().reset(groups)
        self._high[groups] = 0
        self._low[groups] = 0

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [*super()._arrays(), self._high, self._low]

    def _add(self, segments: Segments, cells: Sequence[pa.Array], is_leaving: BoolArray) -> None:
        high, low = _whole_halves(cells[0])
        # The absolute value is taken of the number, hence of both halves together.
        is_negated = is_leaving ^ (high < 0) if self.term.kind == "abs" else is_leaving
        np.negative(high, out=high, where=is_negated)
        np.negative(low, out=low, where=is_negated)
        groups = segments.groups
        total = self._low[groups] + segments.sums(low)
        self._high[groups] += segments.sums(high) + (total >> 32)
        self._low[groups] = total & 0xFFFFFFFF

    def fits(self, groups: Int64Array) -> BoolArray:
        high = self._high[groups]
        return np.asarray((high >= -(1 << 31)) & (high < 1 << 31))

    def whole(self, groups: Int64Array) -> Int64Array:
        """The sums of groups where they fit."""
        return (self._high[groups] << 32) | self._low[groups]

    def totals(self, groups: Int64Array) -> FloatArray:
        """The sums as floating numbers."""
        return np.asarray(self._high[groups] * 2.0**32 + self._low[groups])


_POSITIVE, _NEGATIVE, _NAN = range(3)


class FloatSums(GroupSums):
    """Sums of floating numbers."""

    def __init__(self, term: Term) -> None:
        super().__init__(term)
        self.finite = PairSum.zeros(0)
        self.squares: FloatSums | None = None
        """The sums of squares that are compared with these, if any are."""
        self._specials: Int64Array = np.zeros((0, 3), dtype=np.int64)
        """Per group how many terms are inf, -inf and NaN."""

    def grow(self, size: int) -> None:
        super().grow(size)
        finite = self.finite
        self.finite = PairSum(
            lengthened(finite.high, size),
            lengthened(finite.low, size),
            lengthened(finite.lost, size),
        )
        self._specials = lengthened(self._specials, size)

    def reset(self, groups: Int64Array) -> None:
        super().reset(groups)
        self.finite.put(groups, PairSum.zeros(len(groups)))
        self._specials[groups] = 0

    def _arrays(self) -> list[npt.NDArray[Any]]:
        finite = self.finite
        return [*super()._arrays(), finite.high, finite.low, finite.lost, self._specials]

    def _add(self, segments: Segments, cells: Sequence[pa.Array], is_leaving: BoolArray) -> None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            high, low = _float_terms(self.term.kind, cells)
            is_special = ~np.isfinite(high)
            if is_special.any():
                self._count_specials(segments, high, is_leaving)
                high = np.where(is_special, 0.0, high)
                low = None if low is None else np.where(is_special, 0.0, low)
            signs = np.where(is_leaving, -1.0, 1.0)
            terms = PairSum.of(high * signs, None if low is None else low * signs)
            total = self.finite.at(segments.groups).plus(terms.folded(segments))
        self.finite.put(segments.groups, total)

    def _count_specials(
        self, segments: Segments, values: FloatArray, is_leaving: BoolArray
    ) -> None:
        signs = np.where(is_leaving, -1, 1)
        for lane, is_kind in (
            (_POSITIVE, values == np.inf),
            (_NEGATIVE, values == -np.inf),
            (_NAN, np.isnan(values)),
        ):
            self._specials[segments.groups, lane] += segments.sums(np.where(is_kind, signs, 0))

    def is_imprecise(self, groups: Int64Array) -> BoolArray:
        lost, high = self.finite.lost[groups], np.abs(self.finite.high[groups])
        if self.term.kind == "square":
            return np.asarray(lost > SQUARES_ERROR_MAX * high)
        is_imprecise = lost > ERROR_MAX * high
        if self.squares is not None:
            # The square root of count times squares is what the sum is at most.
            bound = np.sqrt(self.count[groups]) * np.sqrt(np.abs(self.squares.finite.high[groups]))
            is_imprecise |= lost > SQUARES_ERROR_MAX * bound
        return np.asarray(is_imprecise)

    def is_finite(self, groups: Int64Array) -> BoolArray:
        """Which groups have only finite terms."""
        return np.asarray(~self._specials[groups].any(axis=1))

    def totals(self, groups: Int64Array) -> FloatArray:
        """The sums; NaN and infinities as in any order of additions."""
        totals = self.finite.high[groups].copy()
        positive, negative, nan = self._specials[groups].T > 0
        totals[positive] = np.inf
        totals[negative] = -np.inf
        totals[nan | (positive & negative)] = np.nan
        return totals


def sums_of(term: Term, data_types: Sequence[pa.DataType]) -> GroupSums:
    """The state for sums of a term over columns of these types."""
    if term.kind == "present":
        return GroupSums(term)
    if term.kind in ("value", "abs") and not pa.types.is_floating(data_types[0]):
        return WholeSums(term)
    return FloatSums(term)


def _all_valid(cells: Sequence[pa.Array]) -> BoolArray | None:
    """In which rows no cell is null; None when in all."""
    valid: BoolArray | None = None
    for column in cells:
        here = read_valid(column)
        if here is not None:
            valid = here if valid is None else valid & here
    return valid


def _whole_halves(cells: pa.Array) -> tuple[Int64Array, Int64Array]:
    """Whole numbers and booleans as high * 2^32 + low, 0 <= low < 2^32."""
    dtype = fixed_dtype(cells.type)
    assert dtype is not None
    bits = read_fixed(cells, dtype)
    if pa.types.is_unsigned_integer(cells.type) or pa.types.is_boolean(cells.type):
        wide = bits.astype(np.uint64)
        return (wide >> np.uint64(32)).astype(np.int64), (wide & np.uint64(0xFFFFFFFF)).astype(
            np.int64
        )
    whole = bits.view(dtype.str.replace("u", "i")).astype(np.int64)
    return whole >> 32, whole & 0xFFFFFFFF


def _as_floats(cells: pa.Array) -> FloatArray:
    """Numbers without nulls as doubles."""
    return np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _float_terms(kind: str, cells: Sequence[pa.Array]) -> tuple[FloatArray, FloatArray | None]:
    """The terms of rows without nulls, with the low parts of products."""
    values = _as_floats(cells[0])
    if kind in ("value", "float"):
        return values, None
    if kind == "abs":
        return np.abs(values), None
    if kind == "square":
        return two_product(values, values)
    weights = _as_floats(cells[1])
    if kind == "weight":
        return weights, None
    return two_product(values, weights)

"""Result columns from sums per group. A group without terms shows null."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.aggregation_sums import FloatSums, GroupSums, WholeSums
from barrage.engine.aggregation.group_folds import two_product, two_sum
from barrage.model.storage.fixed import build_fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from barrage.model.storage.hashing import Int64Array

    FloatArray = npt.NDArray[np.float64]

NOISE = 2.0**-102
"""A difference of squares this small, per row and relative to the squares, is rounding."""

LARGE = 2.0**900


def result_of_sums(
    function: str, data_type: pa.DataType, sums: Sequence[GroupSums], *, groups: Int64Array
) -> pa.Array:
    """What ``function`` of a column of ``data_type`` gives for each group. ``sums`` are its terms'
    in the order of the functions' definition."""
    count = sums[0].count[groups]
    if function == "count":
        return pa.array(count)
    if function in ("sum", "abs_sum") and isinstance(sums[0], WholeSums):
        return build_fixed(pa.int64(), sums[0].whole(groups), count > 0)
    with np.errstate(all="ignore"):
        values = _floats(function, sums, groups, count=count)
        if function in ("sum", "abs_sum"):
            values = values.astype(data_type.to_pandas_dtype())
        else:
            data_type = pa.float64()
    # One NaN for all, since cells are compared by their bits.
    values[np.isnan(values)] = np.nan
    return build_fixed(data_type, values, count > 0)


def _floats(
    function: str, sums: Sequence[GroupSums], groups: Int64Array, *, count: Int64Array
) -> FloatArray:
    if function in ("var", "std"):
        variances = _variances(sums, groups, count)
        return np.sqrt(variances) if function == "std" else variances
    totals = _totals(sums[0], groups)
    if function == "avg":
        return totals / count
    if function == "wavg":
        return totals / _totals(sums[1], groups)
    return totals


def _totals(state: GroupSums, groups: Int64Array) -> FloatArray:
    assert isinstance(state, WholeSums | FloatSums)
    return state.totals(groups)


def _variances(sums: Sequence[GroupSums], groups: Int64Array, count: Int64Array) -> FloatArray:
    """(n * sum of squares - square of the sum) / (n * (n - 1)), in pairs of doubles, so that a mean
    far from zero costs no digits."""
    plain, squares = sums
    assert isinstance(plain, FloatSums)
    assert isinstance(squares, FloatSums)
    n = count.astype(np.float64)
    # Products of the largest squares would be infinite; a power of two costs no digits.
    scale = np.where(squares.finite.high[groups] > LARGE, 2.0**-50, 1.0)
    left, left_low = two_product(squares.finite.high[groups] * scale * scale, n)
    left_low += squares.finite.low[groups] * scale * scale * n
    high, low = plain.finite.high[groups] * scale, plain.finite.low[groups] * scale
    right, right_low = two_product(high, high)
    right_low += 2 * high * low
    difference, error = two_sum(left, -right)
    difference += error + (left_low - right_low)
    difference[difference <= NOISE * n * left] = 0
    is_bad = ~(plain.is_finite(groups) & squares.is_finite(groups)) | (count < 2)
    variances = difference / (n * (n - 1)) / scale / scale
    variances[is_bad] = np.nan
    return variances

"""Deephaven's BigInteger and BigDecimal bytes back as numbers, for columns that store numbers.

Source: deephaven-clients.md section 3.6. A BigInteger is its two's complement, big endian; a
BigDecimal is its scale as little-endian int32, then the unscaled value as BigInteger, and every
value has a scale of its own. Numbers of more than 256 bits do not fit any column.

Cost: 32 bytes per row, and one cast per scale that occurs; scales no column could have are refused
before, so there are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import RowError

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array = npt.NDArray[np.int64]
    Bytes1D = npt.NDArray[np.uint8]

WIDTH = 32
"""Bytes of the widest number Arrow has."""

DIGITS = 76
"""Decimal digits that always fit ``WIDTH`` bytes."""

SCALE_BYTES = 4


class _BadNumberError(ValueError):
    """A value of a column is no number of the wanted type."""


def holds_big_numbers(stored: pa.DataType, given: pa.DataType) -> bool:
    """Whether values of ``given`` for a column of ``stored`` are such bytes."""
    return _is_binary(given) and (pa.types.is_uint64(stored) or pa.types.is_decimal(stored))


def big_numbers(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The numbers in ``values`` as the type of ``field``; RowError names the first that does not
    fit."""
    return pa.chunked_array([_numbers(chunk, field) for chunk in values.chunks], type=field.type)


def _numbers(chunk: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _decoded(chunk, field.type)
    except (_BadNumberError, pa.ArrowInvalid) as error:
        row = _first_bad_row(chunk, field.type)
        raise RowError(
            f"value {chunk[row].as_py()!r:.60} is not a number that fits {field.type}",
            column=field.name,
            row=row,
        ) from error


def _first_bad_row(chunk: pa.Array, wanted: pa.DataType) -> int:
    """The first row that cannot be decoded, by halving."""
    start, stop = 0, len(chunk)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            _decoded(chunk.slice(start, middle - start), wanted)
        except (_BadNumberError, pa.ArrowInvalid):
            stop = middle
        else:
            start = middle
    return start


def _decoded(chunk: pa.Array, wanted: pa.DataType) -> pa.Array:
    is_valid = np.asarray(chunk.is_valid())
    present = chunk.drop_null().cast(pa.binary())
    count = len(present)
    offsets = np.frombuffer(present.buffers()[1], np.int32, count + 1, present.offset * 4)
    data = np.frombuffer(present.buffers()[2] or b"", np.uint8)
    begins, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    if pa.types.is_uint64(wanted):
        numbers = _integers(data, begins, ends).cast(wanted)
    else:
        numbers = _decimals(data, begins, ends, wanted=wanted)
    if count == len(chunk):
        return numbers
    return numbers.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _integers(data: Bytes1D, begins: Int64Array, ends: Int64Array, *, scale: int = 0) -> pa.Array:
    """BigIntegers at ``begins..ends`` as decimals of this scale."""
    lengths = ends - begins
    if len(lengths) and (lengths.min() < 1 or lengths.max() > WIDTH):
        raise _BadNumberError
    wide = np.zeros((len(lengths), WIDTH), np.uint8)
    if len(lengths):
        wide[data[begins] >= 0x80] = 0xFF
        for byte in range(int(lengths.max())):
            rows = np.flatnonzero(lengths > byte)
            wide[rows, byte] = data[ends[rows] - 1 - byte]
    kind = pa.decimal256(DIGITS, scale)
    numbers = pa.Array.from_buffers(kind, len(wide), [None, pa.py_buffer(wide.tobytes())])
    numbers.validate(full=True)
    return numbers


def _decimals(
    data: Bytes1D, begins: Int64Array, ends: Int64Array, *, wanted: pa.DataType
) -> pa.Array:
    if len(begins) == 0:
        return pa.array([], wanted)
    if (ends - begins).min() <= SCALE_BYTES:
        raise _BadNumberError
    scale_bytes = data[begins[:, np.newaxis] + np.arange(SCALE_BYTES)]
    scales = np.ascontiguousarray(scale_bytes).view("<i4").reshape(-1)
    if scales.min() < -DIGITS or scales.max() > DIGITS:
        raise _BadNumberError
    found, parts = [], []
    for scale in np.unique(scales):
        rows = np.flatnonzero(scales == scale)
        part = _integers(data, begins[rows] + SCALE_BYTES, ends[rows], scale=int(scale))
        parts.append(part.cast(wanted))
        found.append(rows)
    order = np.empty(len(begins), np.int64)
    order[np.concatenate(found)] = np.arange(len(begins))
    return pa.concat_arrays(parts).take(pa.array(order))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )

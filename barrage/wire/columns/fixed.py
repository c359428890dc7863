"""Columns whose values all have the same width: numbers, times, booleans, fixed binaries, null.

Source: barrage-wire.md sections 12.1 and 12.2. Types with a Deephaven null value ("sentinel") are
written without a bitmap when the subscriber asked for such nulls; the value under a null is the
sentinel either way. Booleans and the wide types always use a bitmap and have zeros under a null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.wire.columns.base import (
    BatchSink,
    BatchSource,
    BufferLike,
    ColumnCodec,
    add_validity,
    bits_to_mask,
    check_values,
    mask_to_bits,
    slice_bits,
    valid_mask,
)
from barrage.wire.columns.sliced_columns import (
    SlicedColumn,
    Slices,
    bit_buffer,
    fixed_buffer,
    sliced_validity,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

FLOAT_NULL = np.float32(-3.4028234663852886e38)
DOUBLE_NULL = np.float64(-1.7976931348623157e308)
CHAR_NULL = np.uint16(0xFFFF)


class SentinelCodec(ColumnCodec):
    """A type of 1, 2, 4 or 8 bytes with a Deephaven null value (table in section 12.2)."""

    node_count = 1
    buffer_count = 2

    def __init__(
        self, arrow_type: pa.DataType, dtype: DTypeLike, sentinel: np.generic, *, as_sentinel: bool
    ) -> None:
        self.arrow_type = arrow_type
        self.width = self.row_bytes = np.dtype(dtype).itemsize
        self._dtype = np.dtype(dtype)
        self._sentinel = sentinel
        self._as_sentinel = as_sentinel
        self._has_range = pa.types.is_time(arrow_type) or pa.types.is_date64(arrow_type)

    def _may_hold_sentinel(self, values: NDArray[np.generic]) -> bool:
        """Whether the extreme value is the sentinel or beyond it; cheaper than a mask."""
        if self._dtype.kind == "i":
            return bool(np.minimum.reduce(values) == self._sentinel)
        if self._dtype.kind == "f":
            return bool(np.fmin.reduce(values) <= self._sentinel)
        return bool(np.maximum.reduce(values) == self._sentinel)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows = len(array)
        width = self.width
        nulls = array.null_count
        data = array.buffers()[1]
        if nulls == 0:
            start = array.offset * width
            length = rows * width
            sink.plain(rows, memoryview(data)[start : start + length], length)
            return
        values = np.frombuffer(data, self._dtype, rows, array.offset * width).copy()
        values[np.flatnonzero(~valid_mask(array))] = self._sentinel
        if self._as_sentinel:
            sink.plain(rows, values, rows * width)
            return
        sink.node(rows, nulls)
        words = slice_bits(array.buffers()[0], array.offset, rows)
        sink.buffer(words, len(words))
        sink.buffer(values, rows * width)

    def slices(self, array: pa.Array, slices: Slices) -> SlicedColumn:
        values = np.frombuffer(
            array.buffers()[1], self._dtype, len(array), array.offset * self.width
        )
        is_valid = None
        if array.null_count:
            is_valid = valid_mask(array)
            values = np.where(is_valid, values, self._sentinel)
        nulls, bitmap = sliced_validity(None if self._as_sentinel else is_valid, slices)
        return SlicedColumn(nulls, (bitmap, fixed_buffer(values, slices)))

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        data = source.buffer(rows * self.width)
        if self._as_sentinel:
            values = np.frombuffer(data, self._dtype, rows)
            if self._may_hold_sentinel(values):
                valid = values != self._sentinel
                if validity is not None:
                    valid &= bits_to_mask(validity, 0, rows)
                validity = pa.py_buffer(mask_to_bits(valid))
        null_count = 0 if validity is None else -1
        array = pa.Array.from_buffers(self.arrow_type, rows, [validity, data], null_count)
        if self._has_range:
            check_values(array, source)
        return array


class BitmapCodec(ColumnCodec):
    """A fixed-width type that always uses a bitmap: decimals, fixed binaries, wide intervals."""

    node_count = 1
    buffer_count = 2

    def __init__(self, arrow_type: pa.DataType, width: int) -> None:
        self.arrow_type = arrow_type
        self.width = self.row_bytes = width
        self._has_range = pa.types.is_decimal(arrow_type)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows, width = len(array), self.width
        has_nulls = add_validity(array, sink)
        start = array.offset * width
        content = memoryview(array.buffers()[1] or b"")[start : start + rows * width]
        if not has_nulls or width == 0:
            sink.buffer(content, rows * width)
            return
        filled = np.frombuffer(content, np.uint8).reshape(rows, width).copy()
        filled[~valid_mask(array)] = 0
        sink.buffer(filled, rows * width)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        if self.width == 0 and rows > source.repeated_rows_max:
            raise source.fail(f"{rows} rows without bytes, the limit is {source.repeated_rows_max}")
        validity = source.validity(rows, nulls)
        data = source.buffer(rows * self.width)
        null_count = 0 if validity is None else -1
        array = pa.Array.from_buffers(self.arrow_type, rows, [validity, data], null_count)
        if self._has_range:
            check_values(array, source)
        return array


class BoolCodec(ColumnCodec):
    """Bool: a bitmap of values and always one of validity; false under a null."""

    node_count = 1
    buffer_count = 2
    arrow_type = pa.bool_()

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows, offset = len(array), array.offset
        has_nulls = add_validity(array, sink)
        data = array.buffers()[1]
        if has_nulls:
            words: BufferLike = mask_to_bits(bits_to_mask(data, offset, rows) & valid_mask(array))
        else:
            words = slice_bits(data, offset, rows)
        sink.buffer(words, len(words))

    def slices(self, array: pa.Array, slices: Slices) -> SlicedColumn:
        rows = len(array)
        flags = bits_to_mask(array.buffers()[1], array.offset, rows)
        is_valid = valid_mask(array) if array.null_count else None
        if is_valid is not None:
            flags = flags & is_valid
        nulls, bitmap = sliced_validity(is_valid, slices)
        return SlicedColumn(nulls, (bitmap, bit_buffer(flags[slices.rows], slices)))

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        data = source.buffer((rows + 7) >> 3)
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(self.arrow_type, rows, [validity, data], null_count)


class NullCodec(ColumnCodec):
    """Null: a node and nothing else."""

    node_count = 1
    buffer_count = 0
    arrow_type = pa.null()

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        sink.node(len(array), len(array))

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, _nulls = source.node()
        if rows > source.repeated_rows_max:
            raise source.fail(f"{rows} rows without bytes, the limit is {source.repeated_rows_max}")
        return pa.nulls(rows)

"""Utf8 and Binary columns, with 32 or 64-bit offsets.

Source: barrage-wire.md sections 3.4 and 12.2: always a bitmap, n + 1 offsets from 0, no bytes at
all for a column without rows, zero bytes under a null.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.wire.columns.base import (
    BatchSink,
    BatchSource,
    ColumnCodec,
    add_validity,
    check_values,
    valid_mask,
)
from barrage.wire.columns.sliced_columns import (
    SlicedColumn,
    Slices,
    sliced_validity,
    variable_buffers,
)

_NO_BYTES = np.empty(0, dtype=np.uint8)


class VariableCodec(ColumnCodec):
    """Utf8, Binary, LargeUtf8 or LargeBinary."""

    node_count = 1
    buffer_count = 3

    def __init__(self, arrow_type: pa.DataType) -> None:
        self.arrow_type = arrow_type
        is_large = pa.types.is_large_string(arrow_type) or pa.types.is_large_binary(arrow_type)
        self._dtype = np.dtype(np.int64 if is_large else np.int32)
        self._width = self._dtype.itemsize
        self._is_text = pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
        self._blank = "" if self._is_text else b""

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows = len(array)
        if array.null_count:
            add_validity(array, sink)
            offsets, data = self._buffers(array)
            if (offsets[1:] - offsets[:-1])[~valid_mask(array)].any():
                offsets, data = self._buffers(pc.fill_null(array, self._blank))
            first = int(offsets[0])
            sink.buffer(offsets - first, (rows + 1) * self._width)
        else:
            offsets, data = self._buffers(array)
            first = int(offsets[0])
            sink.plain(rows, offsets - first if first else offsets, (rows + 1) * self._width)
        last = int(offsets[-1])
        sink.buffer(memoryview(data)[first:last] if last > first else b"", last - first)

    def slices(self, array: pa.Array, slices: Slices) -> SlicedColumn:
        is_valid = valid_mask(array) if array.null_count else None
        offsets, data = self._buffers(array)
        if is_valid is not None and (offsets[1:] - offsets[:-1])[~is_valid].any():
            offsets, data = self._buffers(pc.fill_null(array, self._blank))
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES
        nulls, bitmap = sliced_validity(is_valid, slices)
        return SlicedColumn(nulls, (bitmap, *variable_buffers(offsets, content, slices)))

    def _buffers(self, array: pa.Array) -> tuple[np.ndarray, pa.Buffer]:
        """Offsets of the rows, and the bytes they point into."""
        _, offsets, data = array.buffers()
        start = array.offset * self._width
        return np.frombuffer(offsets, self._dtype, len(array) + 1, start), data

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        offset_buffer = source.buffer((rows + 1) * self._dtype.itemsize)
        data = source.buffer(0)
        check_offsets(source, offset_buffer, rows, end=data.size, dtype=self._dtype)
        null_count = 0 if validity is None else -1
        array = pa.Array.from_buffers(
            self.arrow_type, rows, [validity, offset_buffer, data], null_count
        )
        if self._is_text:
            check_values(array, source)
        return array


def check_offsets(
    source: BatchSource, buffer: pa.Buffer, rows: int, *, end: int, dtype: np.dtype
) -> int:
    """Refuse offsets that fall, start below 0 or pass ``end``; returns the last one."""
    offsets = np.frombuffer(buffer, dtype, rows + 1)
    last = int(offsets[-1])
    if offsets[0] < 0 or last > end or not (offsets[1:] >= offsets[:-1]).all():
        raise source.fail(f"offsets are not ascending within 0..{end}")
    return last

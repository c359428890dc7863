"""List columns in all their Arrow forms, and maps.

Source: barrage-wire.md sections 12.1, 12.2 and 12.5. A null list is a cleared bit, an empty one a
valid entry with equal offsets; elements follow their own type's null rule. The preview limit cuts
each variable-size list before it is encoded.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from barrage.wire.columns.base import BatchSink, BatchSource, ColumnCodec, add_validity, valid_mask
from barrage.wire.columns.variable import check_offsets


class ListCodec(ColumnCodec):
    """List or LargeList. ``preview`` k > 0 keeps the first k elements, k < 0 the last -k, 0 all."""

    def __init__(self, arrow_type: pa.DataType, child: ColumnCodec, *, preview: int = 0) -> None:
        self.arrow_type = arrow_type
        self._child = child
        self._preview = preview
        self._dtype = np.dtype(np.int64 if pa.types.is_large_list(arrow_type) else np.int32)
        self.node_count = 1 + child.node_count
        self.buffer_count = 2 + child.buffer_count

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self._child,)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows = len(array)
        dtype = self._dtype
        has_nulls = add_validity(array, sink)
        start = array.offset * dtype.itemsize
        offsets = np.frombuffer(array.buffers()[1], dtype, rows + 1, start)
        starts, stops = offsets[:-1], offsets[1:]
        if has_nulls:
            stops = np.where(valid_mask(array), stops, starts)
        if self._preview > 0:
            stops = np.minimum(stops, starts + self._preview)
        elif self._preview < 0:
            starts = np.maximum(starts, stops + self._preview)
        elements, offsets = _gather(array.values, starts, stops, offsets=offsets)
        sink.buffer(offsets, (rows + 1) * dtype.itemsize)
        self._child.encode_child(elements, sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        offsets = source.buffer((rows + 1) * self._dtype.itemsize)
        child = self._child.decode(source)
        check_offsets(source, offsets, rows, end=len(child), dtype=self._dtype)
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(
            self.arrow_type, rows, [validity, offsets], null_count, children=[child]
        )


def _gather(
    values: pa.Array, starts: np.ndarray, stops: np.ndarray, *, offsets: np.ndarray
) -> tuple[pa.Array, np.ndarray]:
    """Elements [start, stop) of every row laid end to end, and their offsets from 0.

    Without gaps this is a slice of ``values``; otherwise one vectorised take.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    lengths = stops - starts
    total = int(lengths.sum())
    if total == last - first:
        return values.slice(first, total), offsets - first if first else offsets
    packed = np.zeros(len(offsets), offsets.dtype)
    np.cumsum(lengths, out=packed[1:])
    indices = np.repeat(starts - packed[:-1], lengths) + np.arange(total, dtype=offsets.dtype)
    return values.take(pa.array(indices)), packed


class ListViewCodec(ColumnCodec):
    """ListView: an offset and a size per row, in any order. Read only: they are written as
    lists."""

    def __init__(self, arrow_type: pa.DataType, child: ColumnCodec) -> None:
        self.arrow_type = arrow_type
        self._child = child
        self._dtype = np.dtype(np.int64 if pa.types.is_large_list_view(arrow_type) else np.int32)
        self.node_count = 1 + child.node_count
        self.buffer_count = 3 + child.buffer_count

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self._child,)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        raise NotImplementedError("wire_schema turns list views into lists")

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        offset_buffer = source.buffer(rows * self._dtype.itemsize)
        size_buffer = source.buffer(rows * self._dtype.itemsize)
        child = self._child.decode(source)
        offsets = np.frombuffer(offset_buffer, self._dtype, rows)
        sizes = np.frombuffer(size_buffer, self._dtype, rows)
        end = len(child)
        if offsets.min() < 0 or sizes.min() < 0 or (sizes > end - offsets).any():
            raise source.fail(f"list views lie outside 0..{end}")
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(
            self.arrow_type, rows, [validity, offset_buffer, size_buffer], null_count, 0, [child]
        )


class FixedListCodec(ColumnCodec):
    """FixedSizeList: exactly ``list_size`` elements per row, under nulls too."""

    def __init__(self, arrow_type: pa.DataType, child: ColumnCodec) -> None:
        self.arrow_type = arrow_type
        self._child = child
        self._list_size = arrow_type.list_size
        self.node_count = 1 + child.node_count
        self.buffer_count = 1 + child.buffer_count

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self._child,)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows, size = len(array), self._list_size
        add_validity(array, sink)
        self._child.encode_child(array.values.slice(array.offset * size, rows * size), sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        if self._list_size == 0 and rows > source.repeated_rows_max:
            raise source.fail(f"{rows} rows without bytes, the limit is {source.repeated_rows_max}")
        validity = source.validity(rows, nulls)
        child = self._child.decode(source)
        if len(child) < rows * self._list_size:
            raise source.fail(f"{len(child)} elements for {rows} lists of {self._list_size}")
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(
            self.arrow_type, rows, [validity], null_count, children=[child]
        )


class MapCodec(ColumnCodec):
    """Map: a list of key and value pairs; the pairs are one never-null struct node."""

    def __init__(self, arrow_type: pa.DataType, key: ColumnCodec, item: ColumnCodec) -> None:
        self.arrow_type = arrow_type
        self._key = key
        self._item = item
        self.node_count = 2 + key.node_count + item.node_count
        self.buffer_count = 3 + key.buffer_count + item.buffer_count

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self._key, self._item)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows = len(array)
        has_nulls = add_validity(array, sink)
        offsets = np.frombuffer(array.buffers()[1], np.int32, rows + 1, array.offset * 4)
        stops = np.where(valid_mask(array), offsets[1:], offsets[:-1]) if has_nulls else offsets[1:]
        keys, packed = _gather(array.keys, offsets[:-1], stops, offsets=offsets)
        items, _ = _gather(array.items, offsets[:-1], stops, offsets=offsets)
        sink.buffer(packed, (rows + 1) * 4)
        sink.node(len(keys), 0)
        sink.no_buffer()
        self._key.encode_child(keys, sink)
        self._item.encode_child(items, sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        validity = source.validity(rows, nulls)
        offsets = source.buffer((rows + 1) * 4)
        pairs, pair_nulls = source.node()
        source.validity(pairs, pair_nulls)
        if pair_nulls:
            raise source.fail("a map entry is null")
        keys = self._key.decode(source)
        items = self._item.decode(source)
        if len(keys) < pairs or len(items) < pairs:
            raise source.fail(f"{len(keys)} keys and {len(items)} values for {pairs} map entries")
        if keys.null_count:
            raise source.fail("a map key is null")
        last = check_offsets(source, offsets, rows, end=pairs, dtype=np.dtype(np.int32))
        kind = self.arrow_type
        entries = pa.StructArray.from_arrays(
            [keys.slice(0, last), items.slice(0, last)], fields=[kind.key_field, kind.item_field]
        )
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(
            kind, rows, [validity, offsets], null_count, children=[entries]
        )

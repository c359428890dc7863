"""Structs: a node and a bitmap, then the fields in order.

Source: Arrow columnar format specification, "Struct Layout". Under a null every field has a cell,
whose value nobody reads.
"""

from __future__ import annotations

import pyarrow as pa

from barrage.wire.columns.base import BatchSink, BatchSource, ColumnCodec, add_validity


class StructCodec(ColumnCodec):
    """A struct of at least no fields, one child each."""

    def __init__(self, arrow_type: pa.DataType, children: tuple[ColumnCodec, ...]) -> None:
        self.arrow_type = arrow_type
        self._children = children
        self.node_count = 1 + sum(child.node_count for child in children)
        self.buffer_count = 1 + sum(child.buffer_count for child in children)

    def children(self) -> tuple[ColumnCodec, ...]:
        return self._children

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        add_validity(array, sink)
        for index, child in enumerate(self._children):
            child.encode_child(array.field(index), sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        if not self._children and rows > source.repeated_rows_max:
            raise source.fail(f"{rows} rows without bytes, the limit is {source.repeated_rows_max}")
        validity = source.validity(rows, nulls)
        children = [child.decode(source) for child in self._children]
        if any(len(child) < rows for child in children):
            raise source.fail(f"a field of a struct has fewer than {rows} rows")
        null_count = 0 if validity is None else -1
        return pa.Array.from_buffers(
            self.arrow_type,
            rows,
            [validity],
            null_count,
            children=[child.slice(0, rows) for child in children],
        )

"""Sparse and dense unions.

Source: barrage-wire.md section 12.4: parent node (n, 0) and no validity, then type ids, for dense
unions int32 offsets, then the children; a null is a null in the first child.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from barrage.wire.columns.base import BatchSink, BatchSource, ColumnCodec


class UnionCodec(ColumnCodec):
    """A union of ``children`` in the order of its type codes."""

    def __init__(self, arrow_type: pa.DataType, children: tuple[ColumnCodec, ...]) -> None:
        self.arrow_type = arrow_type
        self._children = children
        self._codes = tuple(arrow_type.type_codes)
        self._is_dense = arrow_type.mode == "dense"
        self._fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        self.node_count = 1 + sum(child.node_count for child in children)
        self.buffer_count = (2 if self._is_dense else 1) + sum(
            child.buffer_count for child in children
        )

    def children(self) -> tuple[ColumnCodec, ...]:
        return self._children

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        rows = len(array)
        type_ids = np.frombuffer(array.buffers()[1], np.int8, rows, array.offset)
        sink.node(rows, 0)
        sink.buffer(type_ids, rows)
        if not self._is_dense:
            for i, child in enumerate(self._children):
                child.encode_child(array.field(i), sink)
            return
        offsets = np.frombuffer(array.buffers()[2], np.int32, rows, array.offset * 4)
        packed = np.zeros(rows, np.int32)
        parts = []
        for i, code in enumerate(self._codes):
            chosen = type_ids == code
            taken = offsets[chosen]
            packed[chosen] = np.arange(len(taken), dtype=np.int32)
            parts.append(array.field(i).take(pa.array(taken)))
        sink.buffer(packed, rows * 4)
        for child, part in zip(self._children, parts, strict=True):
            child.encode_child(part, sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, nulls = source.node()
        if nulls:
            raise source.fail("a union has no nulls of its own")
        type_buffer = source.buffer(rows)
        offset_buffer = source.buffer(rows * 4) if self._is_dense else None
        children = [child.decode(source) for child in self._children]
        type_ids = np.frombuffer(type_buffer, np.int8, rows)
        if not np.isin(type_ids, self._codes).all():
            raise source.fail("a type id names no member of the union")
        if offset_buffer is None:
            if any(len(child) < rows for child in children):
                raise source.fail(f"a sparse union's child has fewer than {rows} rows")
            children = [child.slice(0, rows) for child in children]
            return pa.Array.from_buffers(
                self.arrow_type, rows, [None, type_buffer], 0, children=children
            )
        self._check_offsets(
            source, type_ids, np.frombuffer(offset_buffer, np.int32, rows), children=children
        )
        return pa.Array.from_buffers(
            self.arrow_type, rows, [None, type_buffer, offset_buffer], 0, children=children
        )

    def _check_offsets(
        self,
        source: BatchSource,
        type_ids: np.ndarray,
        offsets: np.ndarray,
        *,
        children: list[pa.Array],
    ) -> None:
        """Every offset must name a row of its child, and must not fall within one child."""
        for code, child in zip(self._codes, children, strict=True):
            used = offsets[type_ids == code]
            if len(used) and (
                used[0] < 0 or used[-1] >= len(child) or (used[1:] < used[:-1]).any()
            ):
                raise source.fail("a dense union's offsets leave its child")

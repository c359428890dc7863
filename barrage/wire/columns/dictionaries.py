"""Dictionary-encoded and run-end encoded columns.

Source: barrage-wire.md section 12.4. An encoder sends a column's whole dictionary again with every
update that needs it (``isDelta`` false), so it keeps nothing between updates; a decoder follows
replacements and deltas of any peer.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.wire.columns.base import (
    BatchSink,
    BatchSource,
    ColumnCodec,
    bits_to_mask,
    mask_to_bits,
)


class DictionaryCodec(ColumnCodec):
    """A column of indexes into a dictionary. ``index`` encodes the indexes: a sentinel codec, so
    that with Deephaven nulls the index itself says null (negative is null)."""

    buffer_count = 2
    node_count = 1

    def __init__(
        self,
        arrow_type: pa.DataType,
        index: ColumnCodec,
        values: ColumnCodec,
        *,
        dictionary_id: int,
        negative_is_null: bool,
    ) -> None:
        self.arrow_type = arrow_type
        self.index = index
        self.values = values
        self.dictionary_id = dictionary_id
        self.negative_is_null = negative_is_null

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self.values,)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        """Add ``array`` of indexes; the update encoder has sent the dictionary before."""
        self.index.encode(array, sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        indices = self.index.decode_rows(source)
        values = source.dictionaries.get(self.dictionary_id)
        rows = len(indices)
        validity, data = indices.buffers()
        positions = np.frombuffer(data, indices.type.to_pandas_dtype(), rows)
        valid = None
        if validity is not None:
            valid = bits_to_mask(validity, 0, rows)
        if self.negative_is_null and positions.min() < 0:
            valid = positions >= 0 if valid is None else valid & (positions >= 0)
        used = positions if valid is None else positions[valid]
        if len(used) and (used.min() < 0 or used.max() >= len(values)):
            raise source.fail(f"index outside a dictionary of {len(values)} values")
        if valid is None:
            return pa.DictionaryArray.from_buffers(
                self.arrow_type, rows, [None, data], values, null_count=0
            )
        clean = np.where(valid, positions, 0).astype(positions.dtype)
        return pa.DictionaryArray.from_buffers(
            self.arrow_type, rows, [pa.py_buffer(mask_to_bits(valid)), pa.py_buffer(clean)], values
        )


class RunEndCodec(ColumnCodec):
    """Runs of equal values: the logical length stands in the parent node, which has no buffers."""

    def __init__(self, arrow_type: pa.DataType, ends: ColumnCodec, values: ColumnCodec) -> None:
        self.arrow_type = arrow_type
        self._ends = ends
        self._values = values
        self.node_count = 1 + ends.node_count + values.node_count
        self.buffer_count = ends.buffer_count + values.buffer_count

    def children(self) -> tuple[ColumnCodec, ...]:
        return (self._values,)

    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        """Add ``array`` of plain values; runs are computed per batch."""
        runs = pc.run_end_encode(array, run_end_type=self.arrow_type.run_end_type)
        sink.node(len(array), 0)
        self._ends.encode(runs.run_ends, sink)
        self._values.encode(runs.values, sink)

    def decode_rows(self, source: BatchSource) -> pa.Array:
        rows, _nulls = source.node()
        if rows > source.repeated_rows_max:
            raise source.fail(f"{rows} repeated rows, the limit is {source.repeated_rows_max}")
        ends = self._ends.decode(source)
        values = self._values.decode(source)
        if len(ends) == 0 or len(values) < len(ends) or ends.null_count:
            raise source.fail(f"{len(ends)} run ends for {len(values)} values")
        stops = ends.to_numpy()
        if stops[0] < 1 or (stops[1:] <= stops[:-1]).any() or stops[-1] < rows:
            raise source.fail(f"run ends are not ascending to {rows}")
        return pa.RunEndEncodedArray.from_arrays(
            ends, values.slice(0, len(ends)), self.arrow_type
        ).slice(0, rows)

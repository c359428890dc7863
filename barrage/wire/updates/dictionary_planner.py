"""One dictionary for all rows of an update, and the rows as indexes into it.

Source: barrage-wire.md section 12.4. Chunks of a column may come with different dictionaries; they
are joined, entries no row uses are left out when there are many, and nulls of primitive types
become an entry of their own when the subscriber reads nulls from values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.wire.columns.fixed import SentinelCodec

if TYPE_CHECKING:
    from barrage.wire.columns.dictionaries import DictionaryCodec

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def plan_dictionary(
    added: Column, modified: Column, codec: DictionaryCodec
) -> tuple[pa.Array, Column, Column]:
    """The dictionary's values (of the codec's value type) and both columns as index arrays."""
    value_type = codec.values.arrow_type
    chunks = [*_chunks(added), *_chunks(modified)]
    rows = len(added) + len(modified)
    if rows == 0:
        nothing = pa.array([], codec.index.arrow_type)
        return pa.array([], value_type), nothing, nothing
    joined = pa.chunked_array(chunks).unify_dictionaries()
    values = joined.chunk(0).dictionary
    index = pa.chunked_array([chunk.indices for chunk in joined.chunks]).combine_chunks()
    index = index.cast(codec.index.arrow_type)
    if len(values) > rows:
        values, index = _used_only(values, index)
    if values.type != value_type:
        values = values.cast(value_type)
    if index.null_count and codec.negative_is_null and isinstance(codec.values, SentinelCodec):
        index = index.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, value_type)])
    return values, index.slice(0, len(added)), index.slice(len(added))


def _chunks(column: Column) -> list[pa.Array]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [chunk for chunk in chunks if len(chunk)]


def _used_only(values: pa.Array, index: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Leave out the entries no row points to."""
    valid = pc.is_valid(index).to_numpy(zero_copy_only=False)
    positions = index.fill_null(0).to_numpy()
    used, renumbered = np.unique(positions[valid], return_inverse=True)
    packed = np.zeros(len(index), positions.dtype)
    packed[valid] = renumbered
    return values.take(pa.array(used)), pa.array(packed, index.type, mask=~valid)

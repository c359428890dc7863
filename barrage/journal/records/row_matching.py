"""Which rows of an old state are which of a new one, when nothing but their cells can tell.

Rows with equal cells (of the key columns, or of all) belong together; where there are several, the
first old one and the first new one, and so on, so that as many rows as possible keep their
identity. Equal means the same bits: NaN is NaN, 0.0 is not -0.0, null is null. Cost: one hash per
cell and two sorts of the row count when there are repeats.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.rowset.arrays import Int64Array

Cells: TypeAlias = pa.Array | pa.ChunkedArray

_INTEGERS: Final = {
    pa.float16(): pa.int16(),
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
}
"""Floats are compared as the integers of their bits."""


def matching_rows(
    old: Sequence[Cells], new: Sequence[Cells], *, old_count: int, new_count: int
) -> tuple[Int64Array, Int64Array]:
    """Places of rows in ``old`` and of the same rows in ``new``, ascending by the latter.

    Columns come in the same order and types on both sides. Without columns all rows are equal.
    """
    codes = np.zeros(old_count + new_count, dtype=np.int64)
    for before, after in zip(old, new, strict=True):
        column = _codes(_joined(before, after))
        codes = _dense(codes * (column.max(initial=0) + 1) + column)
    ranks = np.concatenate((_ranks(codes[:old_count]), _ranks(codes[old_count:])))
    if ranks.any():
        codes = _dense(codes * (int(ranks.max()) + 1) + ranks)
    place = np.full(int(codes.max(initial=-1)) + 1, -1, dtype=np.int64)
    place[codes[:old_count]] = np.arange(old_count)
    in_old = place[codes[old_count:]]
    in_new = np.flatnonzero(in_old >= 0)
    return in_old[in_new], in_new


def _joined(before: Cells, after: Cells) -> pa.ChunkedArray:
    chunks: list[pa.Array] = []
    for cells in (before, after):
        chunks += cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]
    return pa.chunked_array(chunks, type=before.type)


def _codes(cells: pa.ChunkedArray) -> Int64Array:
    """The same number 0.. for the same cell; below the number of cells plus one."""
    if pa.types.is_dictionary(cells.type):
        return _codes(cells.cast(cells.type.value_type))
    if pa.types.is_run_end_encoded(cells.type):
        return _codes(pa.chunked_array([pc.run_end_decode(chunk) for chunk in cells.chunks]))
    if pa.types.is_null(cells.type):
        return np.zeros(len(cells), dtype=np.int64)
    if cells.type in _INTEGERS:
        whole = _INTEGERS[cells.type]
        cells = pa.chunked_array([chunk.view(whole) for chunk in cells.chunks], type=whole)
    try:
        encoded = cells.combine_chunks().dictionary_encode()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return _codes_of_rare(cells)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries()
        indices = pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32())
    else:
        indices = encoded.indices
    numbers = pc.fill_null(indices.cast(pa.int64()), -1).to_numpy()
    return np.asarray(numbers, dtype=np.int64) + 1


def _codes_of_rare(cells: pa.ChunkedArray) -> Int64Array:
    """Nested cells and others without a kernel, one by one through Python."""
    numbers: dict[object, int] = {}
    found = (numbers.setdefault(_frozen(cell), len(numbers)) for cell in cells.to_pylist())
    return np.fromiter(found, dtype=np.int64, count=len(cells))


def _frozen(cell: object) -> object:
    """A hashable value, equal for the same bits only."""
    if isinstance(cell, float):
        return struct.pack("<d", cell)
    if isinstance(cell, dict):
        return ("{", *((name, _frozen(value)) for name, value in cell.items()))
    if isinstance(cell, (list, tuple)):
        return ("[", *map(_frozen, cell))
    return cell


def _dense(numbers: Int64Array) -> Int64Array:
    """The same classes, numbered 0.. without gaps."""
    indices = pa.array(numbers).dictionary_encode().indices
    return np.asarray(indices.to_numpy(), dtype=np.int64)


def _ranks(codes: Int64Array) -> Int64Array:
    """How many equal codes come before each."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    places = np.arange(len(codes), dtype=np.int64)
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(is_first, places, 0))
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = places - starts
    return ranks

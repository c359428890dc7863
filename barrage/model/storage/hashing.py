"""Vectorised 64-bit hashes of key columns.

Hashes decide only where an entry of the key index is looked for; equality is always checked on the
cells, so a collision costs time and never correctness. Cells are hashed by their bits: 0.0 and -0.0
are different keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrage.model.storage.fixed import fixed_dtype, read_fixed, read_valid

if TYPE_CHECKING:
    from collections.abc import Sequence

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL_HASH = np.uint64(0x6E756C6C6E756C6C)

WORDS_MAX = 16
"""Strings up to this many 8-byte words are hashed word by word; the rest of longer ones byte by
byte."""

LONG_BYTES_AT_ONCE = 1 << 20


def mix(values: UInt64Array) -> UInt64Array:
    """Bijective scrambling of 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = values + _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def is_hashable(data_type: pa.DataType) -> bool:
    """Whether a column of this type can be part of a key."""
    if pa.types.is_dictionary(data_type):
        return is_hashable(data_type.value_type)
    return fixed_dtype(data_type) is not None or _is_text(data_type)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_large_binary(data_type)
    )


def hash_rows(columns: Sequence[pa.Array]) -> UInt64Array:
    """One hash per row over all ``columns`` (equal lengths, at least one column)."""
    combined = hash_column(columns[0])
    for column in columns[1:]:
        combined = mix(combined ^ (hash_column(column) + _GOLDEN))
    return combined


def hash_column(values: pa.Array) -> UInt64Array:
    """One hash per cell; nulls hash alike."""
    if pa.types.is_dictionary(values.type):
        return _hash_dictionary(values)
    dtype = fixed_dtype(values.type)
    hashes = _hash_text(values) if dtype is None else mix(_as_words(read_fixed(values, dtype)))
    valid = read_valid(values)
    if valid is not None:
        hashes[~valid] = _NULL_HASH
    return hashes


def _hash_dictionary(values: pa.Array) -> UInt64Array:
    by_code = np.append(hash_column(values.dictionary), _NULL_HASH)
    codes = values.indices.cast(pa.int64()).fill_null(len(values.dictionary))
    return np.asarray(by_code[codes.to_numpy()])


def _as_words(cells: npt.NDArray[np.generic]) -> UInt64Array:
    if cells.dtype.kind != "V":
        return cells.astype(np.uint64)
    width = cells.dtype.itemsize
    padded = np.zeros((len(cells), (width + 7) // 8 * 8), dtype=np.uint8)
    padded[:, :width] = np.ascontiguousarray(cells).view(np.uint8).reshape(-1, width)
    words = padded.view(np.uint64)
    combined = words[:, 0].copy()
    for lane in range(1, words.shape[1]):
        combined = mix(combined) ^ words[:, lane]
    return combined


def _hash_text(values: pa.Array) -> UInt64Array:
    """Word by word over all strings at once: round k mixes the k-th word of every string that has
    one."""
    offset_type = (
        np.int64
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
        else np.int32
    )
    buffers = values.buffers()
    count = len(values)
    if count == 0 or buffers[1] is None:
        return np.zeros(count, dtype=np.uint64)
    offsets = np.frombuffer(buffers[1], dtype=offset_type)[
        values.offset : values.offset + count + 1
    ].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    # Padding lets the last word of the last string be read whole.
    data = np.zeros(end - begin + 8, dtype=np.uint8)
    if end > begin:
        data[:-8] = np.frombuffer(buffers[2], dtype=np.uint8, count=end - begin, offset=begin)
    starts = offsets[:-1] - begin
    lengths = np.diff(offsets)
    hashes = mix(lengths.astype(np.uint64))
    _mix_words(hashes, data, starts=starts, lengths=lengths)
    long = np.flatnonzero(lengths > WORDS_MAX * 8)
    if len(long):
        _mix_long(
            hashes,
            data,
            long,
            starts=starts[long] + WORDS_MAX * 8,
            lengths=lengths[long] - WORDS_MAX * 8,
        )
    return hashes


_LOW_BYTES = np.array([0] + [(1 << (8 * count)) - 1 for count in range(1, 9)], dtype=np.uint64)
"""Mask of the first n bytes of a little-endian word."""


def _mix_words(
    hashes: UInt64Array, data: npt.NDArray[np.uint8], *, starts: Int64Array, lengths: Int64Array
) -> None:
    every_word = np.ndarray(
        shape=(len(data) - 7,), dtype=np.dtype("<u8"), buffer=data.data, strides=(1,)
    )
    # At least one round, so that an empty string hashes alike in every company.
    rounds = min(WORDS_MAX, max(1, (int(lengths.max()) + 7) // 8))
    active: Int64Array | None = None
    for word in range(rounds):
        if word:
            active = np.flatnonzero(lengths > word * 8)
        here = starts if active is None else starts[active]
        left = (lengths if active is None else lengths[active]) - word * 8
        words = every_word[here + word * 8] & _LOW_BYTES[np.minimum(left, 8)]
        if active is None:
            hashes[:] = mix(hashes ^ words)
        else:
            hashes[active] = mix(hashes[active] ^ words)


def _mix_long(
    hashes: UInt64Array,
    data: npt.NDArray[np.uint8],
    rows: Int64Array,
    *,
    starts: Int64Array,
    lengths: Int64Array,
) -> None:
    """Tails of long strings: a sum of bytes weighted by position, a bounded number of bytes at a
    time."""
    groups = np.cumsum(lengths) // LONG_BYTES_AT_ONCE
    cuts = np.flatnonzero(np.diff(groups)) + 1
    for part in np.split(np.arange(len(rows)), cuts):
        sizes = lengths[part]
        begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        position = np.arange(int(sizes.sum())) - np.repeat(begins, sizes)
        cells = data[np.repeat(starts[part], sizes) + position].astype(np.uint64)
        weighted = (cells + np.uint64(1)) * mix(position.astype(np.uint64))
        sums = np.add.reduceat(weighted, begins)
        hashes[rows[part]] = mix(hashes[rows[part]] ^ sums)

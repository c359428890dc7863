"""Digests of table contents that agree between clients, processes and Arrow versions.

A row has a 64-bit hash of its values by column name; whatever form a client gives a value
(chunked, sliced, other width of an integer), the hash is that of the value. The *multiset* digest
of a table is the sum of its rows' hashes: it can be kept up to date by adding and subtracting
what a client was told. The *ordered* digest also says where each row stands.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_NULL = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Digest:
    """``multiset`` and ``ordered`` are sums modulo 2**64."""

    rows: int
    multiset: int
    ordered: int


def digest(table: pa.Table) -> Digest:
    """The digest of the rows of ``table``."""
    hashes = row_hashes(dict(zip(table.column_names, table.columns, strict=True)), table.num_rows)
    places = _mixed(np.arange(len(hashes), dtype=np.uint64)) | np.uint64(1)
    return Digest(
        len(hashes), int(hashes.sum(dtype=np.uint64)), int((hashes * places).sum(dtype=np.uint64))
    )


def row_hashes(columns: dict[str, pa.ChunkedArray | pa.Array], count: int) -> np.ndarray:
    """One uint64 per row."""
    total = np.zeros(count, np.uint64)
    for name, column in columns.items():
        seed = np.uint64(_text_hash(name.encode()))
        total += _mixed(_value_hashes(column) ^ seed)
    return _mixed(total)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spread every bit over the whole word (the finaliser of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _text_hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _value_hashes(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _value_hashes(column.dictionary_decode())
    if pa.types.is_floating(kind):
        return _bits(column.cast(pa.float64()), np.float64)
    if pa.types.is_boolean(kind):
        return _bits(column.cast(pa.int8()).cast(pa.int64()), np.int64)
    if pa.types.is_integer(kind):
        return _bits(column.cast(pa.int64(), safe=False), np.int64)
    if pa.types.is_temporal(kind) and kind.bit_width == 64:
        return _bits(column.view(pa.int64()), np.int64)
    return _object_hashes(column)


def _bits(column: pa.Array, kind: type) -> np.ndarray:
    is_null = np.asarray(column.is_null())
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)
    if kind is np.float64:
        values = np.where(np.isnan(values), np.nan, values + 0.0)
    hashes = np.ascontiguousarray(values).view(np.uint64).copy()
    hashes[is_null] = _NULL
    return hashes


def _object_hashes(column: pa.Array) -> np.ndarray:
    """Strings, bytes and lists: each different value is hashed once."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        values = column.to_pylist()
        indices = np.arange(len(values))
    hashes = np.array([_text_hash(_bytes(value)) for value in values] or [0], np.uint64)[indices]
    hashes = hashes.astype(np.uint64)
    hashes[np.asarray(column.is_null())] = _NULL
    return hashes


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return repr(value).encode()

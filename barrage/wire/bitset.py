"""Column bit sets (barrage-wire.md section 6): byte i, bit j (least significant = 0) is column 8 i
+ j.

Trailing zero bytes are dropped; no columns is no bytes. "All columns" is not a bit set but its
absence, which is the caller's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from barrage.model.viewport import ColumnSet

_COLUMN_MAX = 8 * (1 << 24) - 1
"""Largest index encoded: a wrong index must not allocate memory without bound."""


def encode_bit_set(columns: ColumnSet) -> bytes:
    """The set as bytes. ValueError for an index that is negative or absurdly large."""
    if not columns:
        return b""
    if min(columns) < 0 or max(columns) > _COLUMN_MAX:
        raise ValueError(f"column indices must be 0..{_COLUMN_MAX}, not {columns}")
    bits = np.zeros(max(columns) + 1, dtype=np.uint8)
    bits[list(columns)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode_bit_set(
    buffer: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> ColumnSet:
    """Ascending column indices; bits past the last column are legal, so is a trailing zero byte."""
    data = memoryview(buffer).cast("B")
    if len(data) > limits.column_bit_set_bytes_max:
        raise RemoteProtocolError(
            f"column bit set of {len(data)} bytes, the limit is {limits.column_bit_set_bytes_max}"
        )
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    return tuple(np.flatnonzero(bits).tolist())

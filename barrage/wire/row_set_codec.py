"""Row sets and shift data to bytes and back (barrage-wire.md sections 4 and 5).

Encoding is canonical, byte for byte what the reference server writes. Decoding accepts every legal
form and raises nothing but RemoteProtocolError. Both work on whole arrays: the cost is a few passes
over the deltas, and does not depend on how long the ranges are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS, ROW_KEY_MAX, Limits
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.row_set_reader import AnyIntArray, read_deltas
from barrage.wire.row_set_writer import write_deltas

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array

Buffer = bytes | bytearray | memoryview


def encode_row_set(rows: RowSet) -> bytes:
    """The canonical encoding; the empty set is the one byte ``20``."""
    return write_deltas(_signed_deltas(rows))


def _signed_deltas(rows: RowSet) -> Int64Array:
    """Distance of every range end from the one before; negative for a last key that is not also a
    first.
    """
    firsts, lasts = rows.firsts, rows.lasts
    count = len(firsts)
    if lasts is firsts:
        deltas = np.empty(count, dtype=np.int64)
        if count:
            deltas[0] = firsts[0]
            np.subtract(firsts[1:], firsts[:-1], out=deltas[1:])
        return deltas
    pairs = np.empty((count, 2), dtype=np.int64)
    pairs[0, 0] = firsts[0]
    np.subtract(firsts[1:], lasts[:-1], out=pairs[1:, 0])
    np.subtract(firsts, lasts, out=pairs[:, 1])
    flat = pairs.reshape(-1)
    is_written = flat != 0  # a single key has no last key of its own
    is_written[0] = True
    return flat if is_written.all() else flat[is_written]


def decode_row_set(buffer: Buffer, limits: Limits = DEFAULT_LIMITS) -> RowSet:
    """The set encoded at the start of ``buffer``; bytes behind its END are not part of it."""
    rows, _ = _decode_at(memoryview(buffer).cast("B"), 0, limits)
    return rows


def _decode_at(data: memoryview, start: int, limits: Limits) -> tuple[RowSet, int]:
    """The set encoded at ``start`` and the index behind its END."""
    if len(data) - start > limits.row_set_bytes_max:
        raise RemoteProtocolError(
            f"encoded row set of {len(data) - start} bytes, the limit is {limits.row_set_bytes_max}"
        )
    # Two deltas make a range, so this bounds the memory before anything is allocated.
    deltas, stop = read_deltas(data, start, deltas_max=2 * limits.row_set_ranges_max)
    if len(deltas) == 0:
        return RowSet.empty(), stop
    rows = _row_set_of_deltas(deltas)
    if rows.range_count > limits.row_set_ranges_max:
        raise RemoteProtocolError(
            f"row set of {rows.range_count} ranges, the limit is {limits.row_set_ranges_max}"
        )
    return rows, stop


def _row_set_of_deltas(deltas: AnyIntArray) -> RowSet:
    """Rebuild the set (section 4.1). ``deltas`` is not empty and may be int8, int16 or int64."""
    smallest = int(deltas.min())
    if deltas[0] < 0:
        raise RemoteProtocolError("row set: a range ends that did not start")
    if smallest == -(2**63):
        raise RemoteProtocolError("row set: a key is past 2^63-1")
    is_end = deltas < 0 if smallest < 0 else None
    steps = deltas if is_end is None else np.abs(deltas, dtype=np.int64)
    if len(steps) > 1 and not (smallest > 0 or steps[1:].all()):
        raise RemoteProtocolError("row set: a key does not grow")
    keys = np.cumsum(steps, dtype=np.int64)
    # Steps are not negative and below 2^63: the first sum past 2^63-1 comes out negative.
    if len(steps) * int(steps.max()) > ROW_KEY_MAX and int(keys.min()) < 0:
        raise RemoteProtocolError("row set: a key is past 2^63-1")
    if is_end is None:
        return RowSet.from_trusted_ranges(keys, keys)
    if (is_end[1:] & is_end[:-1]).any():
        raise RemoteProtocolError("row set: a range ends that did not start")
    starts = np.flatnonzero(~is_end)
    ends_next = np.append(is_end[1:], False)[starts]
    return RowSet.from_trusted_ranges(keys[starts], keys[starts + ends_next])


def encode_shifts(shifts: RowSetShiftData) -> bytes:
    """Three row sets back to back: first keys, last keys, destinations of the first keys (section
    5).

    The clamp of downward shifts that start below their delta is an invariant of RowSetShiftData.
    """
    columns = (shifts.firsts, shifts.lasts, shifts.firsts + shifts.deltas)
    return b"".join(encode_row_set(RowSet.from_sorted_keys(keys)) for keys in columns)


def decode_shifts(buffer: Buffer, limits: Limits = DEFAULT_LIMITS) -> RowSetShiftData:
    """Shift data; bytes behind the third row set are ignored, touching equal shifts are joined."""
    data = memoryview(buffer).cast("B")
    columns = []
    start = count = 0
    for part in range(3):
        rows, start = _decode_at(data, start, limits)
        if part == 0:
            count = rows.size
        # Compared before any range is expanded: a few bytes can claim 2^63 keys.
        if rows.size != count or count > limits.row_set_ranges_max:
            raise RemoteProtocolError(
                f"shift data: row set {part + 1} of 3 has {rows.size} keys, expected {count} "
                f"and at most {limits.row_set_ranges_max}"
            )
        columns.append(rows)
    firsts, lasts, destinations = (rows.to_numpy() for rows in columns)
    try:
        return RowSetShiftData.from_arrays(firsts, lasts, destinations - firsts)
    except ValueError as error:
        raise RemoteProtocolError(f"shift data: {error}") from error

"""Row sets and shift data to bytes and back (barrage-wire.md sections 4 and 5).

Encoding is canonical, byte for byte what the reference server writes. Decoding accepts every legal
form and raises nothing but RemoteProtocolError. Both work on whole arrays: the cost is a few passes
over the deltas, and does not depend on how long the ranges are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS, ROW_KEY_MAX, Limits
from barrage.rowset import RowSet, RowSetShiftData
from barrage.rowset.arrays import NO_KEYS
from barrage.wire.row_sets.row_set_few import (
    ENCODED_BYTES_FEW_MAX,
    RANGES_FEW_MAX,
    decode_few,
    encode_few,
)
from barrage.wire.row_sets.row_set_reader import AnyIntArray, read_deltas
from barrage.wire.row_sets.row_set_writer import SHORT_DELTA_MAX, write_after, write_deltas

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array
    from barrage.wire.row_sets.row_set_writer import DeltaArray

Buffer = bytes | bytearray | memoryview

_KEYS_PER_RANGE_MAX = 4
"""Rows kept as bits are written from their keys, where these are not many more than ranges."""

REMEMBERED = 1024
"""Small row sets whose other form is remembered, in each direction."""


def encode_row_set(rows: RowSet) -> bytes:
    """The canonical encoding; the empty set is the one byte ``20``."""
    if rows.range_count == 1:
        return _encode_range(rows.first, rows.last)
    if rows.range_count <= RANGES_FEW_MAX:
        return encode_few(rows.firsts.tolist(), rows.lasts.tolist())
    per_range = _KEYS_PER_RANGE_MAX if rows.is_bits else 1
    if rows.size <= per_range * rows.range_count:
        keys = rows.to_numpy()
        return write_after(int(keys[0]), _deltas_between(keys))
    return write_deltas(_deltas_of_ranges(rows))


@lru_cache(maxsize=REMEMBERED)
def _encode_range(first: int, last: int) -> bytes:
    """Views of one size, and updates of one size, name the same few ranges over and over."""
    return encode_few([first], [last])


def _deltas_of_ranges(rows: RowSet) -> Int64Array:
    """Distance of every range end from the one before; negative for a last key that is not also a
    first.
    """
    firsts, lasts = rows.range_list
    count = len(firsts)
    # Every range has a first key, some a last key besides: insert those behind their first keys.
    has_last = np.flatnonzero(firsts != lasts)
    at = has_last + np.arange(1, len(has_last) + 1)
    is_first = np.ones(count + len(has_last), dtype=np.bool_)
    is_first[at] = False
    bounds = np.empty(len(is_first), dtype=np.int64)
    bounds[is_first] = firsts
    bounds[at] = lasts[has_last]
    deltas = np.empty_like(bounds)
    deltas[0] = bounds[0]
    np.subtract(bounds[1:], bounds[:-1], out=deltas[1:])
    deltas[at] *= -1
    return deltas


def _deltas_between(keys: Int64Array) -> DeltaArray:
    """Those behind the first key: steps, with each run of ones as minus its length."""
    deltas = _steps_between(keys)
    ones = np.flatnonzero(deltas == 1)
    if len(ones) == 0:
        return deltas
    is_start = np.concatenate(([True], ones[1:] != ones[:-1] + 1))
    starts = np.flatnonzero(is_start)
    lengths = np.append(starts[1:], len(ones)) - starts
    if int(lengths.max()) > SHORT_DELTA_MAX:
        deltas = deltas.astype(np.int64, copy=False)
    deltas[ones[starts]] = -lengths
    if len(starts) == len(ones):
        return deltas
    is_left = np.ones(len(deltas), dtype=np.bool_)
    is_left[ones[~is_start]] = False
    return deltas[is_left]


def _steps_between(keys: Int64Array) -> DeltaArray:
    """Of ascending keys; int16 when all fit, without an array as wide as the keys."""
    span = int(keys[-1]) - int(keys[0])
    if span <= SHORT_DELTA_MAX * (len(keys) - 1):
        steps = np.empty(len(keys) - 1, dtype=np.int16)
        np.subtract(keys[1:], keys[:-1], out=steps, casting="unsafe")
        # Steps are positive: cut off they are smaller or the same, and add up only if the same.
        whole = steps.view(np.uint16)
        if int(whole.sum(dtype=np.int64)) == span and int(whole.max(initial=0)) <= SHORT_DELTA_MAX:
            return steps
    return keys[1:] - keys[:-1]


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
    if len(data) - start <= ENCODED_BYTES_FEW_MAX:
        few = _decode_few(bytes(data[start:]))
        if few is not None and few[0].range_count <= limits.row_set_ranges_max:
            return few[0], start + few[1]
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


@lru_cache(maxsize=REMEMBERED)
def _decode_few(data: bytes) -> tuple[RowSet, int] | None:
    """The set at the start of ``data`` and its length; None when it takes the array reader. The
    same few sets come over and over, and are immutable."""
    few = decode_few(data)
    return None if few is None else (_row_set_of_few(few[0], few[1]), few[2])


def _row_set_of_few(firsts: list[int], lasts: list[int]) -> RowSet:
    if len(firsts) == 1:
        return RowSet.of_range(firsts[0], lasts[0])
    first_keys = np.array(firsts, dtype=np.int64)
    last_keys = first_keys if firsts == lasts else np.array(lasts, dtype=np.int64)
    return RowSet.from_trusted_ranges(first_keys, last_keys, is_touching=False)


def _row_set_of_deltas(deltas: AnyIntArray) -> RowSet:
    """Rebuild the set (section 4.1). ``deltas`` is not empty and may be int8, int16 or int64."""
    smallest = int(deltas.min())
    if deltas[0] < 0:
        raise RemoteProtocolError("row set: a range ends that did not start")
    if smallest == -(2**63):
        raise RemoteProtocolError("row set: a key is past 2^63-1")
    ends = np.flatnonzero(deltas < 0) if smallest < 0 else NO_KEYS
    if (ends[1:] - ends[:-1] == 1).any():
        raise RemoteProtocolError("row set: a range ends that did not start")
    # The canonical form never has a range that touches the one before: its step would be 1.
    is_touching = bool((deltas[1:] == 1).any())
    if smallest <= 0 and not bool(deltas[1:].all()):
        raise RemoteProtocolError("row set: a key does not grow")
    largest = max(int(deltas.max()), -smallest)
    # Narrow deltas may be a view of the peer's bytes; int64 ones are ours, and no longer needed.
    keys = np.abs(deltas, dtype=np.int64, out=deltas if deltas.dtype == np.int64 else None)
    np.cumsum(keys, out=keys)
    # Steps are not negative and below 2^63: the first sum past 2^63-1 comes out negative.
    if len(keys) * largest > ROW_KEY_MAX and int(keys.min()) < 0:
        raise RemoteProtocolError("row set: a key is past 2^63-1")
    if len(ends):
        is_first = np.ones(len(keys), dtype=np.bool_)
        is_first[ends] = False
        firsts = keys[is_first]
        lasts = firsts.copy()
        lasts[ends - np.arange(1, len(ends) + 1)] = keys[ends]
    else:
        firsts = lasts = keys
    return RowSet.from_trusted_ranges(firsts, lasts, is_touching=is_touching)


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

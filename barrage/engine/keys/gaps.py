"""Row keys for a table whose rows are inserted anywhere: gaps, and local re-spreading when one is
full.

Worked example, spacing 64: kept keys 0, 64, 65 and one new row between 64 and 65. The gap holds
nothing, so a window around it is chosen, say all three rows; nothing bounds it, so its four rows
get fresh spacing. A window inside a large table is bounded by the fixed keys on both sides and
widened until its rows fill at most a quarter of it; its rows are then spaced evenly. A row that
moves is told as a shift, never as a removal.

All steps handle every full gap of a cycle at once; widening doubles, so there are at most
log2(rows) rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from barrage.engine.keys.ascending import Entries

Int64Array = npt.NDArray[np.int64]

SPACING = 64
"""Distance between neighbours where nothing is crowded: small enough for one byte per key on the
wire."""

KEY_ORIGIN = 1 << 40
"""First key of a fresh table; leaves room for 2^34 rows put in front one at a time."""

KEY_LIMIT = 1 << 62
WINDOW_ROWS = 8
STEP_MIN = 2
"""Keys closer than this leave no room between them. Where there is room everywhere, a set of the
keys needs no other form than they have."""

SPREAD = 4
"""A re-spread window has at least this many keys per row."""


def fresh_keys(count: int) -> Int64Array:
    """Keys of a table that is numbered from scratch."""
    return KEY_ORIGIN + SPACING * np.arange(count, dtype=np.int64)


def assign_keys(kept: Entries, gaps: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Keys for rows inserted among rows that have keys.

    ``kept`` are ascending keys. ``gaps`` says for each new row, in order, before how many kept rows
    from the start it comes, i.e. new row j stands between kept[gaps[j]-1] and kept[gaps[j]].
    Returns which kept rows, ascending, get other keys, these keys, and the new rows' keys. Costs
    what the new rows and the windows around full gaps cost.
    """
    nobody = np.empty(0, dtype=np.int64)
    if len(kept) == 0:
        return nobody, nobody, fresh_keys(len(gaps))
    if len(gaps) == 0:
        return nobody, nobody, nobody
    is_first = np.ones(len(gaps), dtype=np.bool_)
    is_first[1:] = gaps[1:] != gaps[:-1]
    first = np.flatnonzero(is_first)
    used, count = gaps[first], np.diff(first, append=len(gaps))
    low, step = _bounds(kept, used, count)
    rank = np.arange(len(gaps)) - np.repeat(first, count)
    new = np.repeat(low, count) + np.repeat(step, count) * (rank + 1)
    rows, keys = nobody, nobody
    full = used[step < STEP_MIN]
    if len(full):
        rows, keys = _respread(kept, gaps, new, full=full)
    ends = np.concatenate((kept[np.array([0, len(kept) - 1])], keys[:1], keys[-1:], new[[0, -1]]))
    if ends.min() < 0 or ends.max() > KEY_LIMIT:
        rows = np.arange(len(kept))
        keys, new = _renumbered(len(kept), gaps)
    is_moved = keys != kept[rows]
    return rows[is_moved], keys[is_moved], new


def _bounds(kept: Entries, used: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Per used gap: the key just before it and the step between its new rows (less than
    ``STEP_MIN``: it is too small)."""
    size = len(kept)
    low = kept[np.maximum(used - 1, 0)]
    high = kept[np.minimum(used, size - 1)]
    step = (high - low) // (count + 1)
    is_front, is_back = used == 0, used == size
    step[is_front | is_back] = SPACING
    low[is_front] = high[is_front] - SPACING * (count[is_front] + 1)
    return low, step


def _respread(
    kept: Entries, gaps: Int64Array, new: Int64Array, *, full: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The kept rows of windows around the ``full`` gaps and new keys for them; those of the new
    rows in there are written in place."""
    size = len(kept)
    start, stop = _windows(kept, gaps, full)
    before = start + np.searchsorted(gaps, start, side="left")
    total = stop + np.searchsorted(gaps, stop, side="right") - before
    is_left_open, is_right_open = start == 0, stop == size
    low = kept[np.maximum(start - 1, 0)]
    high = kept[np.minimum(stop, size - 1)]
    step = (high - low) // (total + 1)
    step[is_left_open | is_right_open] = SPACING
    low[is_left_open] = (high - SPACING * (total + 1))[is_left_open]
    low[is_left_open & is_right_open] = KEY_ORIGIN - SPACING
    # In the merged order of kept and new rows, row number q of a window gets low + step * (q + 1).
    lengths = stop - start
    window = np.repeat(np.arange(len(start)), lengths)
    row = np.arange(len(window)) - np.repeat(np.cumsum(lengths) - lengths - start, lengths)
    place = row + np.searchsorted(gaps, row, side="right")
    keys = low[window] + step[window] * (place - before[window] + 1)
    window = np.searchsorted(start, gaps, side="right") - 1
    inside = np.flatnonzero((window >= 0) & (gaps <= stop[window]))
    window = window[inside]
    place = gaps[inside] + inside
    new[inside] = low[window] + step[window] * (place - before[window] + 1)
    return row, keys


def _windows(kept: Entries, gaps: Int64Array, full: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Disjoint half-open windows of kept rows with fixed rows between them, roomy enough to
    re-spread."""
    size = len(kept)
    start = np.maximum(full - WINDOW_ROWS, 0)
    stop = np.minimum(full + WINDOW_ROWS, size)
    while True:
        start, stop = _joined(start, stop)
        first = np.searchsorted(gaps, start, side="left")
        total = stop - start + np.searchsorted(gaps, stop, side="right") - first
        room = kept[np.minimum(stop, size - 1)] - kept[np.maximum(start - 1, 0)]
        tight = (room < SPREAD * (total + 1)) & (start > 0) & (stop < size)
        if not tight.any():
            return start, stop
        width = stop - start
        start = np.where(tight, np.maximum(start - width, 0), start)
        stop = np.where(tight, np.minimum(stop + width, size), stop)


def _joined(start: Int64Array, stop: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Windows that overlap or touch become one."""
    reach = np.maximum.accumulate(stop)
    is_first = np.concatenate(([True], start[1:] > reach[:-1]))
    firsts = np.flatnonzero(is_first)
    lasts = np.concatenate((firsts[1:], [len(start)])) - 1
    return start[firsts], reach[lasts]


def _renumbered(size: int, gaps: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Everything from scratch: only when one end of the key space is used up."""
    keys = fresh_keys(size + len(gaps))
    rows = np.arange(size, dtype=np.int64)
    kept = keys[rows + np.searchsorted(gaps, rows, side="right")]
    return kept, keys[gaps + np.arange(len(gaps))]

"""How much history goes: the version up to which a table's journal may forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.journal.records.options import JournalOptions


def forgettable_upto(
    rows: npt.NDArray[np.int64],
    options: JournalOptions,
    *,
    retain_bytes: int | None,
    keep_from: int,
    now_wall_ns: int,
) -> int | None:
    """The newest version whose entry may go, given all rows of the index; None for none.

    An entry may go when it is beyond any of the limits. ``keep_from`` is the oldest version a
    consumer holds: the entries after it stay, until there are more than ``hold_bytes_max`` bytes.
    """
    limits = (retain_bytes, options.retain_age_ns, options.retain_steps)
    if len(rows) == 0 or limits == (None, None, None):
        return None
    steps, wall_ns, byte_counts = rows[:, 0], rows[:, 1], rows[:, 4]
    behind = np.cumsum(byte_counts[::-1])[::-1]
    gone = 0
    if retain_bytes is not None:
        gone = max(gone, _first_true(behind <= retain_bytes))
    if options.retain_age_ns is not None:
        # Wall time may step back: what counts is the newest time at or before the entry.
        newest = np.maximum.accumulate(wall_ns)
        gone = max(gone, _first_true(newest >= now_wall_ns - options.retain_age_ns))
    if options.retain_steps is not None:
        gone = max(gone, len(rows) - options.retain_steps)
    held = int(np.searchsorted(steps, keep_from, side="right"))
    capped = _first_true(behind <= options.hold_bytes_max)
    gone = min(gone, max(held, capped))
    return int(steps[gone - 1]) if gone > 0 else None


def _first_true(flags: npt.NDArray[np.bool_]) -> int:
    """Index of the first True; the length when there is none."""
    return int(flags.argmax()) if flags.any() else len(flags)

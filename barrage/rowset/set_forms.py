"""When a set of keys is kept as bits instead of ranges.

It goes to bits at `RANGES_MIN` ranges, where these take at least `SMALLER_MIN` times the bytes, and
back only below half as many of either, so that a set near the border does not go back and forth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from barrage.rowset.containers import BITMAP_BYTES, KEY_BITS
from barrage.rowset.portable import container_count, starts_of_stretches

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array, RangeList
    from barrage.rowset.containers import Containers

RANGES_MIN: Final = 4096
RANGES_BACK: Final = RANGES_MIN // 2
"""A set of fewer ranges, or of fewer keys, goes back."""

SMALLER_MIN: Final = 4
SMALLER_BACK: Final = SMALLER_MIN // 2

STEPS_BETWEEN: Final = 16
"""Operations on a large set of ranges between two looks at its form."""

RANGE_BYTES: Final = 16
KEY_BYTES: Final = 8
"""What a range costs, and one that is a single key among such."""

OBJECT_BYTES: Final = 200
"""What a set costs beside its members, about."""

_CONTAINER_BYTES: Final = 8
_KEPT_CONTAINER_BYTES: Final = 40
"""What a container costs beside its content: serialized, and in memory."""

_RANGES_PER_BUCKET_MIN: Final = 2048
"""Each 2^32 keys are a bitmap of their own, which costs some time; so there may not be many."""

_BUCKET_BITS: Final = 32

_HASH_SAMPLES: Final = 16

WIDE_CONTAINERS_MAX: Final = 1 << 16
"""A set that touches more containers than this, and than a few for each of its ranges, is not
combined as bits."""


def hash_of_ranges(ranges: RangeList) -> int:
    """A hash of some of the ranges."""
    firsts, lasts = ranges
    step = max(1, len(firsts) // _HASH_SAMPLES)
    return hash((len(firsts), *firsts[::step].tolist(), *lasts[::step].tolist()))


def sampled_positions(size: int) -> list[int]:
    """Whose keys stand for all of a large set in its hash."""
    return [size * part // _HASH_SAMPLES for part in range(_HASH_SAMPLES)]


def pays(ranges: RangeList) -> bool:
    """Whether bits are so much smaller than these ranges, which are `RANGES_MIN` or more."""
    firsts, lasts = ranges
    is_single = lasts is firsts
    bytes_max = len(firsts) * (KEY_BYTES if is_single else RANGE_BYTES) // SMALLER_MIN
    if not _is_narrow(ranges, bytes_max // _CONTAINER_BYTES):
        return False
    starts = starts_of_stretches(firsts)
    counts = np.diff(starts, append=len(firsts))
    more = 0 if is_single else _further_bytes(ranges)
    # Every range is a key at least, and four bytes as a run.
    least, most = _bytes(counts, 2 * counts) + more, _bytes(counts, 2 + 4 * counts) + more
    if is_single or least > bytes_max:
        return least <= bytes_max
    if most <= bytes_max:
        return True
    sizes = np.add.reduceat(lasts - firsts, starts) + counts
    return _bytes(counts, np.minimum(2 * sizes, 2 + 4 * counts)) + more <= bytes_max


def paying_stretches(keys: Int64Array, range_count: int) -> Int64Array | None:
    """Where the stretches of keys start, if bits without runs are so much smaller than the ranges
    of these keys, so many; None if not."""
    width = KEY_BYTES if range_count == len(keys) else RANGE_BYTES
    bytes_max = range_count * width // SMALLER_MIN
    # A key takes a bit at least.
    if len(keys) > 8 * bytes_max or not _is_narrow((keys, keys), bytes_max // _CONTAINER_BYTES):
        return None
    starts = starts_of_stretches(keys)
    counts = np.diff(starts, append=len(keys))
    return starts if _bytes(counts, 2 * counts) <= bytes_max else None


def _bytes(counts: Int64Array, contents: Int64Array) -> int:
    """Bytes of containers, none of which is larger than a bitmap."""
    return _CONTAINER_BYTES * len(counts) + int(np.minimum(contents, BITMAP_BYTES).sum())


def _further_bytes(ranges: RangeList) -> int:
    """Bytes of containers in which a range goes on that began in an earlier one."""
    further = int(((ranges[1] >> KEY_BITS) - (ranges[0] >> KEY_BITS)).sum())
    return further * (_CONTAINER_BYTES + 6)


def _is_narrow(ranges: RangeList, containers_max: int) -> bool:
    """Whether the ranges may touch as few containers as that, and few enough buckets."""
    firsts, lasts = ranges
    buckets = (int(lasts[-1]) >> _BUCKET_BITS) - (int(firsts[0]) >> _BUCKET_BITS) + 1
    if buckets * _RANGES_PER_BUCKET_MIN > len(firsts) + _RANGES_PER_BUCKET_MIN:
        uppers = firsts >> _BUCKET_BITS
        buckets = int(np.count_nonzero(uppers[1:] != uppers[:-1])) + 1
        if buckets * _RANGES_PER_BUCKET_MIN > len(firsts) + _RANGES_PER_BUCKET_MIN:
            return False
    stretches = (int(lasts[-1]) >> KEY_BITS) - (int(firsts[0]) >> KEY_BITS) + 1
    return stretches <= containers_max or container_count(ranges) <= containers_max


def stays(range_count: int, containers: Containers) -> bool:
    """Whether a set that is kept as bits goes on so."""
    nbytes = containers.content_nbytes + _KEPT_CONTAINER_BYTES * len(containers.highs)
    return range_count >= RANGES_BACK and nbytes * SMALLER_BACK <= range_count * RANGE_BYTES


def is_wide(ranges: RangeList) -> bool:
    """Whether these ranges touch too many containers to be bits, even for a moment."""
    firsts, lasts = ranges
    if lasts.item(-1) - firsts.item(0) >> KEY_BITS < WIDE_CONTAINERS_MAX:
        return False
    return container_count(ranges) > WIDE_CONTAINERS_MAX + SMALLER_MIN * len(firsts)

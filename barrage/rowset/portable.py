"""Containers from ranges, and from and to Roaring's portable format for 64-bit keys
(RoaringFormatSpec): buckets of the upper 32 bits, each a 32-bit bitmap of containers.

The format knows bitmaps with runs (a cookie that holds the number of containers, a bit for each
that is runs, no offsets for fewer than four) and without (another cookie, always offsets).
Everything here is a few passes over arrays, and a loop over buckets, which `fits` keeps few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from barrage.rowset import words64
from barrage.rowset.arrays import NO_KEYS, expand
from barrage.rowset.containers import (
    ARRAY,
    ARRAY_KEYS_MAX,
    BITMAP,
    BITMAP_BYTES,
    KEY_BITS,
    LOW,
    RUNS,
    WORDS,
    Containers,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList
    from barrage.rowset.containers import HalfArray, KindArray

    ByteArray = npt.NDArray[np.uint8]

_BUCKET_BITS: Final = 32
_COOKIE_PLAIN: Final = 12346
_COOKIE_RUNS: Final = 12347
_WIDTHS: Final = np.array([2, 0, 4], dtype=np.int64)
_HEADS: Final = np.array([0, 0, 2], dtype=np.int64)
"""Bytes of each low half or run, and in front of them, by kind."""

_LOOKED_UP_DIVISOR: Final = 512
_UNINDEXED_MAX: Final = 3
"""With runs among them, so many containers or fewer have no offsets."""


# -- from ranges ----------------------------------------------------------------------------------


def container_count(ranges: RangeList) -> int:
    """How many containers the ranges touch; up to 2^48."""
    firsts = ranges[0] >> KEY_BITS
    lasts = firsts if ranges[1] is ranges[0] else ranges[1] >> KEY_BITS
    shared = int(np.count_nonzero(firsts[1:] == lasts[:-1]))
    return int((lasts - firsts).sum()) + len(firsts) - shared


def of_ranges(ranges: RangeList) -> Containers:
    """The containers of maximal ranges. The caller has looked at :func:`container_count`."""
    firsts, lasts = _within_stretches(ranges)
    starts = starts_of_stretches(firsts)
    highs = firsts[starts] >> KEY_BITS
    lengths = np.diff(starts, append=len(firsts))
    sizes = lengths
    if lasts is not firsts:
        sizes = np.add.reduceat(lasts - firsts, starts) + lengths
    kinds = np.where(sizes > ARRAY_KEYS_MAX, BITMAP, ARRAY).astype(np.uint8)
    kinds[2 + 4 * lengths < np.minimum(2 * sizes, BITMAP_BYTES)] = RUNS
    parts = [_of_kind((firsts, lasts), lengths, kinds, kind=kind) for kind in (ARRAY, BITMAP, RUNS)]
    runs = parts[RUNS]
    return Containers(
        highs,
        kinds,
        sizes,
        lengths=np.where(kinds == RUNS, lengths, sizes),
        halves=_keys(parts[ARRAY]).astype(np.uint16),
        words=_words(parts[BITMAP], highs[kinds == BITMAP], lengths[kinds == BITMAP]),
        run_firsts=runs[0].astype(np.uint16),
        run_spans=(runs[1] - runs[0]).astype(np.uint16),
    )


def of_keys(keys: Int64Array, starts: Int64Array) -> Containers:
    """The containers of ascending keys, few of which are neighbours; ``starts`` are those of their
    stretches."""
    highs = keys[starts] >> KEY_BITS
    sizes = np.diff(starts, append=len(keys))
    kinds = np.where(sizes > ARRAY_KEYS_MAX, BITMAP, ARRAY).astype(np.uint8)
    arrays, bitmaps = (_of_kind((keys, keys), sizes, kinds, kind=kind) for kind in (ARRAY, BITMAP))
    none = NO_KEYS.astype(np.uint16)
    return Containers(
        highs,
        kinds,
        sizes,
        lengths=sizes,
        halves=arrays[0].astype(np.uint16),
        words=_words(bitmaps, highs[kinds == BITMAP], sizes[kinds == BITMAP]),
        run_firsts=none,
        run_spans=none,
    )


def starts_of_stretches(firsts: Int64Array) -> Int64Array:
    """Where in ascending keys each stretch begins that has one."""
    low, high = int(firsts[0]) >> KEY_BITS, int(firsts[-1]) >> KEY_BITS
    if high - low < len(firsts) // _LOOKED_UP_DIVISOR:
        # Looking up the borders of all stretches is cheaper than looking at every key.
        borders = np.arange(low, high + 1, dtype=np.int64) << KEY_BITS
        found = firsts.searchsorted(borders)
        found[0] = 0
        return found[np.concatenate((found[1:] > found[:-1], [True]))]
    # Where a low half does not rise a stretch begins; where none is far behind the one before it,
    # these are all of them. Comparing halves takes a quarter of comparing keys.
    halves = firsts.astype(np.uint16)
    starts = np.concatenate(([0], np.flatnonzero(halves[1:] <= halves[:-1]) + 1))
    ends = np.append(starts[1:], len(firsts)) - 1
    if np.array_equal(firsts[starts] >> KEY_BITS, firsts[ends] >> KEY_BITS):
        return starts
    highs = firsts >> KEY_BITS
    return np.concatenate(([0], np.flatnonzero(highs[1:] != highs[:-1]) + 1))


def _within_stretches(ranges: RangeList) -> RangeList:
    """The same ranges, cut where one crosses from a stretch into the next."""
    firsts, lasts = ranges
    if lasts is firsts:
        return ranges
    crossed = (lasts >> KEY_BITS) - (firsts >> KEY_BITS)
    if not crossed.any():
        return ranges
    counts = crossed + 1
    highs = expand(firsts >> KEY_BITS, counts)
    return (
        np.maximum(np.repeat(firsts, counts), highs << KEY_BITS),
        np.minimum(np.repeat(lasts, counts), (highs << KEY_BITS) | LOW),
    )


def _of_kind(pieces: RangeList, lengths: Int64Array, kinds: KindArray, *, kind: int) -> RangeList:
    """The pieces in containers of one kind."""
    is_kind = kinds == kind
    if is_kind.all():
        return pieces
    if not is_kind.any():
        return NO_KEYS, NO_KEYS
    chosen = np.repeat(is_kind, lengths)
    firsts = pieces[0][chosen]
    return firsts, firsts if pieces[1] is pieces[0] else pieces[1][chosen]


def _keys(ranges: RangeList) -> Int64Array:
    """All keys of ranges."""
    firsts, lasts = ranges
    return firsts if firsts is lasts else expand(firsts, lasts - firsts + 1)


def _words(pieces: RangeList, highs: Int64Array, lengths: Int64Array) -> npt.NDArray[np.uint64]:
    """The bitmaps of containers, a row for each; ``lengths`` counts the pieces in each."""
    if len(highs) == 0:
        return np.empty((0, WORDS), dtype=np.uint64)
    firsts, lasts = pieces
    # Containers stand one after the other here, whatever lies between their stretches.
    moves = (np.arange(len(highs)) - highs) << KEY_BITS
    moved = moves[0] if moves[0] == moves[-1] else np.repeat(moves, lengths)
    placed = firsts + moved
    ranges = (placed, placed) if lasts is firsts else _joined_ranges(placed, lasts + moved)
    return words64.marked(len(highs) * WORDS, *ranges).reshape(len(highs), WORDS)


def _joined_ranges(firsts: Int64Array, lasts: Int64Array) -> RangeList:
    """Disjoint ranges, those that touch as one."""
    is_apart = firsts[1:] - 1 != lasts[:-1]
    if is_apart.all():
        return firsts, lasts
    return (
        firsts[np.concatenate(([True], is_apart))],
        lasts[np.concatenate((is_apart, [True]))],
    )


# -- to the portable format -----------------------------------------------------------------------


def to_portable(containers: Containers) -> bytes:
    """The set in the portable format."""
    buckets = containers.highs >> (_BUCKET_BITS - KEY_BITS)
    starts = np.flatnonzero(np.concatenate(([True], buckets[1:] != buckets[:-1])))
    payload = _Payload(containers)
    parts: list[bytes | memoryview] = [len(starts).to_bytes(8, "little")]
    stops = np.append(starts[1:], len(buckets))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        parts.append(int(buckets[start]).to_bytes(4, "little"))
        parts += _bucket_header(containers, payload.sizes[start:stop], start=start, stop=stop)
        parts += payload.parts(start, stop)
    return b"".join(parts)


def _bucket_header(
    containers: Containers, byte_sizes: Int64Array, *, start: int, stop: int
) -> list[bytes]:
    count = stop - start
    is_runs = containers.kinds[start:stop] == RUNS
    has_runs = bool(is_runs.any())
    keys = np.empty((count, 2), dtype="<u2")
    keys[:, 0] = containers.highs[start:stop] & LOW
    keys[:, 1] = np.diff(containers.before[start : stop + 1]) - 1
    if has_runs:
        head = (_COOKIE_RUNS | (count - 1) << 16).to_bytes(4, "little")
        head += np.packbits(is_runs, bitorder="little").tobytes()
    else:
        head = _COOKIE_PLAIN.to_bytes(4, "little") + count.to_bytes(4, "little")
    head += keys.tobytes()
    if has_runs and count <= _UNINDEXED_MAX:
        return [head]
    first = len(head) + 4 * count
    offsets = first + np.cumsum(byte_sizes) - byte_sizes
    return [head, offsets.astype("<u4").tobytes()]


class _Payload:
    """The contents of containers, as bytes in their order."""

    def __init__(self, of: Containers) -> None:
        self._of = of
        self.sizes = byte_sizes(of.kinds, of.lengths)
        self._halves = of.halves.astype("<u2", copy=False).data.cast("B")
        self._words = of.words.astype("<u8", copy=False).reshape(-1).data.cast("B")
        self._runs = _runs_with_counts(of)

    def parts(self, start: int, stop: int) -> list[bytes | memoryview]:
        """Stretches of containers of one kind, each as one piece."""
        kinds = self._of.kinds[start:stop]
        cuts = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1 + start
        sizes = np.add.reduceat(self.sizes[start:stop], np.append(0, cuts - start))
        pieces: list[bytes | memoryview] = []
        for first, size in zip([start, *cuts.tolist()], sizes.tolist(), strict=True):
            content, begin = self._begin(first)
            pieces.append(content[begin : begin + size])
        return pieces

    def _begin(self, index: int) -> tuple[memoryview, int]:
        """Where container ``index`` starts in the bytes of its kind."""
        kind, slot = int(self._of.kinds[index]), int(self._of.slots[index])
        if kind == ARRAY:
            return self._halves, 2 * slot
        if kind == BITMAP:
            return self._words, BITMAP_BYTES * slot
        earlier = int(np.count_nonzero(self._of.kinds[:index] == RUNS))
        return self._runs, 4 * slot + 2 * earlier


def _runs_with_counts(of: Containers) -> memoryview:
    """All runs as pairs, those of each container behind their number."""
    is_runs = of.kinds == RUNS
    counts = of.lengths[is_runs]
    content = np.empty(2 * len(of.run_firsts) + len(counts), dtype="<u2")
    heads = _places_of_counts(counts)
    is_pair = np.ones(len(content), dtype=np.bool_)
    is_pair[heads] = False
    content[heads] = counts
    pairs = np.empty((len(of.run_firsts), 2), dtype="<u2")
    pairs[:, 0], pairs[:, 1] = of.run_firsts, of.run_spans
    content[is_pair] = pairs.reshape(-1)
    return content.data.cast("B")


# -- from the portable format ---------------------------------------------------------------------


class _Collected:
    """What is read of one bucket."""

    __slots__ = ("halves", "highs", "kinds", "lengths", "runs", "sizes", "words")

    def __init__(self) -> None:
        self.highs: list[Int64Array] = []
        self.kinds: list[npt.NDArray[np.uint8]] = []
        self.sizes: list[Int64Array] = []
        self.lengths: list[Int64Array] = []
        self.halves: list[ByteArray] = []
        self.words: list[ByteArray] = []
        self.runs: list[ByteArray] = []


def from_portable(data: bytes) -> Containers:
    """The containers of a set in the portable format, which a bitmap library has written."""
    content = np.frombuffer(data, dtype=np.uint8)
    found = _Collected()
    at = 8
    for _ in range(int.from_bytes(data[:8], "little")):
        at = _read_bucket(content, data, at, found=found)
    kinds, lengths = np.concatenate(found.kinds), np.concatenate(found.lengths)
    runs = _without_counts(_joined(found.runs, "<u2"), lengths[kinds == RUNS])
    return Containers(
        np.concatenate(found.highs),
        kinds,
        np.concatenate(found.sizes),
        lengths=lengths,
        halves=_joined(found.halves, "<u2").astype(np.uint16, copy=False),
        words=_joined(found.words, "<u8").astype(np.uint64, copy=False).reshape(-1, WORDS),
        run_firsts=runs[:, 0].astype(np.uint16),
        run_spans=runs[:, 1].astype(np.uint16),
    )


def _joined(parts: list[ByteArray], dtype: str) -> npt.NDArray[Any]:
    whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)
    return whole.view(dtype)


def _without_counts(runs: HalfArray, lengths: Int64Array) -> HalfArray:
    """Pairs of first and span, from the runs of all containers behind their number."""
    is_pair = np.ones(len(runs), dtype=np.bool_)
    is_pair[_places_of_counts(lengths)] = False
    return runs[is_pair].reshape(-1, 2)


def _places_of_counts(lengths: Int64Array) -> Int64Array:
    """Where the numbers of runs stand among so many runs."""
    return 2 * (np.cumsum(lengths) - lengths) + np.arange(len(lengths))


def _read_bucket(content: ByteArray, data: bytes, at: int, *, found: _Collected) -> int:
    """Read the 32-bit bitmap at ``at``; where the next one starts."""
    begin = at + 4
    cookie = int.from_bytes(data[begin : begin + 4], "little")
    if cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        keys_at = begin + 4 + (count + 7) // 8
        flags = np.unpackbits(content[begin + 4 : keys_at], count=count, bitorder="little")
        has_offsets = count > _UNINDEXED_MAX
    elif cookie == _COOKIE_PLAIN:
        count = int.from_bytes(data[begin + 4 : begin + 8], "little")
        keys_at = begin + 8
        flags = np.zeros(count, dtype=np.uint8)
        has_offsets = True
    else:
        raise ValueError(f"unknown form of a bitmap: {cookie}")
    offsets_at = keys_at + 4 * count
    keys = content[keys_at:offsets_at].copy().view("<u2").reshape(-1, 2).astype(np.int64)
    lengths = keys[:, 1] + 1
    found.sizes.append(lengths.copy())
    kinds = np.where(lengths > ARRAY_KEYS_MAX, BITMAP, ARRAY).astype(np.uint8)
    kinds[flags.view(np.bool_)] = RUNS
    payload_at = offsets_at + 4 * count * has_offsets
    if has_offsets:
        offsets = content[offsets_at:payload_at].copy().view("<u4").astype(np.int64)
        lengths[kinds == RUNS] = _halves_at(content, begin + offsets[kinds == RUNS])
    else:
        lengths[kinds == RUNS] = _run_counts(content[payload_at:], kinds, lengths)
    found.highs.append((int.from_bytes(data[at:begin], "little") << KEY_BITS) | keys[:, 0])
    found.kinds.append(kinds)
    found.lengths.append(lengths)
    return payload_at + _contents(content[payload_at:], kinds, lengths, found=found)


def _halves_at(content: ByteArray, places: Int64Array) -> Int64Array:
    return content[places].astype(np.int64) | content[places + 1].astype(np.int64) << 8


def _run_counts(payload: ByteArray, kinds: KindArray, sizes: Int64Array) -> Int64Array:
    """How many runs each container of runs has, where it is not said where they are: that number
    stands in front of its runs, so one follows from the other."""
    counts = []
    at = 0
    for kind, size in zip(kinds.tolist(), sizes.tolist(), strict=True):
        if kind == RUNS:
            counts.append(int(payload[at]) | int(payload[at + 1]) << 8)
        at += 2 + 4 * counts[-1] if kind == RUNS else _byte_size(kind, size)
    return np.array(counts, dtype=np.int64)


def _byte_size(kind: int, size: int) -> int:
    return BITMAP_BYTES if kind == BITMAP else 2 * size


def _contents(
    payload: ByteArray, kinds: KindArray, lengths: Int64Array, *, found: _Collected
) -> int:
    """Take the contents of containers apart by kind; where they end."""
    ends = np.cumsum(byte_sizes(kinds, lengths))
    for kind, parts in ((ARRAY, found.halves), (BITMAP, found.words), (RUNS, found.runs)):
        firsts, lasts = _same_in_a_row(kinds == kind)
        begins = np.where(firsts > 0, ends[firsts - 1], 0)
        spans = zip(begins.tolist(), ends[lasts].tolist(), strict=True)
        parts += [payload[begin:end] for begin, end in spans]
    return int(ends[-1])


def byte_sizes(kinds: KindArray, lengths: Int64Array) -> Int64Array:
    """Bytes of the contents of containers."""
    sizes: Int64Array = _WIDTHS[kinds] * lengths + _HEADS[kinds]
    sizes[kinds == BITMAP] = BITMAP_BYTES
    return sizes


def _same_in_a_row(is_kind: BoolArray) -> tuple[Int64Array, Int64Array]:
    """First and last indices of the runs of true values."""
    edges = np.flatnonzero(np.diff(is_kind.view(np.int8), prepend=0, append=0))
    return edges[0::2], edges[1::2] - 1

"""Row set operations by shape: what `RowSet` does against the better of two pure forms.

The pure forms are ranges in numpy (`RowSet` with bits switched off) and `pyroaring.BitMap64`. Each
gets its operands in its own form and leaves its result there; what leaves a set as an array is an
array for all. Every line names the form that was better at it, and is met at 1.2 times its time at
most.

``from arrays`` lines are unions and intersections from keys in numpy to keys in numpy, as whoever
gathers rows by arrays needs them.
"""

from __future__ import annotations

import array
import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap64

from barrage.rowset import RowSet, set_forms
from benchmarks.report import Measurement, compared, result
from benchmarks.timing import best_ms

KEYS = 1_000_000
KEYS_QUICK = 50_000
LOOKUPS = 200
LOOKUPS_AT_ONCE = 10_000
TURNS = 5
REPEATS_MIN, REPEATS_MAX = 5, 200
TURN_MS = 2.0
"""A form is measured so many times in a row, or for so long where it is done sooner: the shorter a
call, the more of them a neighbour on the machine disturbs."""

RATIO_MAX = 1.2
MEMORY_RATIO_MAX = 1.5

Work = Callable[[], Any]


@contextmanager
def ranges_only() -> Iterator[None]:
    """Row sets made within are ranges, however many."""
    before = set_forms.RANGES_MIN
    set_forms.RANGES_MIN = sys.maxsize
    try:
        yield
    finally:
        set_forms.RANGES_MIN = before


@dataclass(frozen=True)
class Case:
    """Two sets of one shape, as keys and in all forms."""

    name: str
    keys_a: np.ndarray
    keys_b: np.ndarray
    ours: tuple[RowSet, RowSet]
    ranges: tuple[RowSet, RowSet]
    bitmaps: tuple[BitMap64, BitMap64]


def bitmap(keys: np.ndarray) -> BitMap64:
    """The fastest way in: one copy into an array the bitmap can read as a buffer."""
    values = array.array("Q")
    values.frombytes(np.ascontiguousarray(keys).tobytes())
    return BitMap64(values)


def bitmap_keys(bits: BitMap64) -> np.ndarray:
    """The fastest way out."""
    return np.frombuffer(bits.to_array(), dtype=np.int64)


def cases(keys: int) -> Iterator[Case]:
    draw = np.random.default_rng(2)

    def clustered() -> np.ndarray:
        firsts = np.sort(draw.choice(keys // 10, keys // 100, replace=False)) * 1000
        return RowSet.from_ranges(firsts, firsts + draw.integers(50, 150, len(firsts))).to_numpy()

    def drawn(spread: int) -> np.ndarray:
        return np.unique(draw.integers(0, spread * keys, keys))

    pairs = {
        "dense": lambda: (np.arange(keys), np.arange(keys // 2, keys * 2)),
        "half full": lambda: (drawn(2), drawn(2)),
        "scattered": lambda: (drawn(1000), drawn(1000)),
        "clustered": lambda: (clustered(), clustered()),
    }
    for name, pair in pairs.items():
        a, b = pair()
        with ranges_only():
            ranges = (RowSet.from_sorted_keys(a), RowSet.from_sorted_keys(b))
        ours = (RowSet.from_sorted_keys(a), RowSet.from_sorted_keys(b))
        yield Case(name, a, b, ours, ranges, (bitmap(a), bitmap(b)))


def lines_of(case: Case) -> list[Measurement]:
    keys_a, keys_b = case.keys_a, case.keys_b
    draw = np.random.default_rng(3)
    chosen = draw.choice(keys_a, LOOKUPS)
    probes, probes_sorted = chosen.tolist(), np.sort(draw.choice(keys_a, LOOKUPS_AT_ONCE))
    places_many = np.sort(draw.integers(0, len(keys_a), LOOKUPS_AT_ONCE))
    places = draw.choice(places_many, LOOKUPS).tolist()
    few = RowSet.from_keys(draw.choice(keys_a, 50) + 1)
    few_keys, last = few.to_numpy(), int(keys_a[-1])
    tail = RowSet.of_range(last + 2, last + 100)
    tail_keys = tail.to_numpy()

    def each(on_rows: Callable[[RowSet, RowSet], Any]) -> tuple[Work, Work]:
        return lambda: on_rows(*case.ours), lambda: on_rows(*case.ranges)

    def entered(a: np.ndarray, b: np.ndarray) -> tuple[RowSet, RowSet]:
        return RowSet.from_sorted_keys(a), RowSet.from_sorted_keys(b)

    def in_and_out(operation: Callable[[Any, Any], Any]) -> tuple[Work, Work, Work]:
        work = lambda: operation(*entered(keys_a, keys_b)).to_numpy()  # noqa: E731
        bits = lambda: bitmap_keys(operation(bitmap(keys_a), bitmap(keys_b)))  # noqa: E731
        return work, work, bits

    bits_a, bits_b = case.bitmaps
    made = lambda: RowSet.from_sorted_keys(keys_a)  # noqa: E731
    works: dict[str, tuple[Work, Work, Work | None]] = {
        "build from keys": (made, made, lambda: bitmap(keys_a)),
        "all keys as an array": (*each(lambda a, _: a.to_numpy()), lambda: bitmap_keys(bits_a)),
        "union": (*each(lambda a, b: a | b), lambda: bits_a | bits_b),
        "intersection": (*each(lambda a, b: a & b), lambda: bits_a & bits_b),
        "difference": (*each(lambda a, b: a - b), lambda: bits_a - bits_b),
        "union, from arrays": in_and_out(lambda a, b: a | b),
        "intersection, from arrays": in_and_out(lambda a, b: a & b),
        "add 50 keys": (*each(lambda a, _: a | few), lambda: bits_a | bitmap(few_keys)),
        "remove 50 keys": (*each(lambda a, _: a - few), lambda: bits_a - bitmap(few_keys)),
        "append 99 keys": (*each(lambda a, _: a | tail), lambda: bits_a | bitmap(tail_keys)),
        f"{LOOKUPS} ranks": (
            *each(lambda a, _: [a.rank(key) for key in probes]),
            lambda: [bits_a.rank(key) for key in probes],
        ),
        f"{LOOKUPS} selects": (
            *each(lambda a, _: [a.select(place) for place in places]),
            lambda: [bits_a[place] for place in places],
        ),
        f"{LOOKUPS_AT_ONCE:,} ranks at once": (
            *each(lambda a, _: a.rank_many(probes_sorted)),
            None,
        ),
        f"{LOOKUPS_AT_ONCE:,} selects at once": (
            *each(lambda a, _: a.select_many(places_many)),
            None,
        ),
        f"{LOOKUPS_AT_ONCE:,} memberships at once": (
            *each(lambda a, _: a.contains_many(probes_sorted)),
            None,
        ),
    }
    return [_line(case, what, *work) for what, work in works.items()]


def _line(case: Case, what: str, ours: Work, ranges: Work, bits: Work | None) -> Measurement:
    def as_ranges() -> Any:
        with ranges_only():
            return ranges()

    works = {"ranges": as_ranges, "ours": ours} | ({} if bits is None else {"BitMap64": bits})
    candidates = dict.fromkeys(works, float("inf"))
    # By turns, as what else the machine does comes and goes; several in a row, for warm caches.
    for _ in range(TURNS):
        for form, work in works.items():
            repeats = min(max(REPEATS_MIN, int(TURN_MS / candidates[form])), REPEATS_MAX)
            candidates[form] = min(candidates[form], best_ms(work, repeats=repeats))
    value = candidates.pop("ours")
    better = min(candidates, key=candidates.__getitem__)
    return compared(
        f"{case.name}: {what}",
        value,
        "ms",
        baseline=better,
        baseline_value=candidates[better],
        at_most=RATIO_MAX,
        detail={**candidates, "range count": case.ranges[0].range_count, "keys": len(case.keys_a)},
    )


def memory_of(case: Case) -> list[Measurement]:
    """Bytes of a set as entry from arrays leaves it, as algebra does, and after lookups too."""
    serialized = float(len(case.bitmaps[0].serialize()))
    made, operand = (RowSet.from_sorted_keys(case.keys_a) for _ in range(2))
    result, looked_up = (operand | RowSet.of_range(made.last + 2, made.last + 2) for _ in range(2))
    looked_up.rank(made.last)
    looked_up.select(made.size // 2)
    sizes = {"as built": made, "as algebra leaves it": result, "with lookups": looked_up}
    return [
        compared(
            f"{case.name}: memory, {what}",
            float(rows.nbytes),
            "bytes",
            baseline="BitMap64 serialized",
            baseline_value=serialized,
            at_most=MEMORY_RATIO_MAX,
        )
        for what, rows in sizes.items()
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure every shape."""
    lines = []
    for case in cases(KEYS_QUICK if quick else KEYS):
        common = (case.ours[0] & case.ours[1]).to_numpy()
        if not np.array_equal(common, bitmap_keys(case.bitmaps[0] & case.bitmaps[1])):
            raise AssertionError(f"{case.name}: the two disagree")
        memory = memory_of(case)
        gc.collect()
        lines += [*lines_of(case), *memory]
    return result("row_set_ops", lines)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))

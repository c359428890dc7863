"""Row set operations by shape: ranges in numpy (what `RowSet` is) against `pyroaring.BitMap64`.

The baseline of every line is the bitmap, doing the same from what the rest of the engine has, numpy
arrays of keys, and back where a result is needed as an array: Arrow gathers rows by arrays and the
wire writes ranges, so a bitmap that never leaves itself would be of no use. ``… (bitmap to
bitmap)`` shows the operation alone. Ratios below 1 mean that `RowSet` is faster.

Bitmap ranks and selects walk their containers; a viewport resolves positions on every update, which
decides the matter for sets that views are taken of.
"""

from __future__ import annotations

import array
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap64

from barrage.rowset import RowSet
from benchmarks.report import Measurement, compared, result
from benchmarks.timing import best_ms

KEYS = 1_000_000
KEYS_QUICK = 50_000
LOOKUPS = 200


@dataclass(frozen=True)
class Case:
    """Two sets of one shape, as both see them."""

    name: str
    a: RowSet
    b: RowSet
    a_bits: BitMap64
    b_bits: BitMap64


def bitmap(keys: np.ndarray) -> BitMap64:
    """The fastest way in: one copy into an array the bitmap can read as a buffer."""
    values = array.array("Q")
    values.frombytes(np.ascontiguousarray(keys).tobytes())
    return BitMap64(values)


def bitmap_keys(bits: BitMap64) -> np.ndarray:
    """The fastest way out."""
    return np.frombuffer(bits.to_array(), dtype=np.int64)


def cases(keys: int) -> list[Case]:
    draw = np.random.default_rng(2)

    def clustered() -> RowSet:
        firsts = np.sort(draw.choice(keys // 10, keys // 100, replace=False)) * 1000
        return RowSet.from_ranges(firsts, firsts + draw.integers(50, 150, len(firsts)))

    pairs = {
        "dense": (RowSet.of_span(0, keys), RowSet.of_span(keys // 2, keys * 2)),
        "half full": tuple(RowSet.from_keys(draw.integers(0, 2 * keys, keys)) for _ in range(2)),
        "scattered": tuple(RowSet.from_keys(draw.integers(0, 1000 * keys, keys)) for _ in range(2)),
        "clustered": (clustered(), clustered()),
    }
    return [
        Case(name, a, b, bitmap(a.to_numpy()), bitmap(b.to_numpy()))
        for name, (a, b) in pairs.items()
    ]


def lines_of(case: Case) -> list[Measurement]:
    keys_a, keys_b = case.a.to_numpy(), case.b.to_numpy()
    draw = np.random.default_rng(3)
    probes = draw.choice(keys_a, LOOKUPS).tolist()
    places = draw.integers(0, case.a.size, LOOKUPS).tolist()
    few = RowSet.from_keys(draw.choice(keys_a, 50) + 1)
    few_keys, last = few.to_numpy(), case.a.last
    tail = RowSet.of_range(last + 2, last + 100)
    a, b, a_bits, b_bits = case.a, case.b, case.a_bits, case.b_bits

    def line(what: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Measurement:
        return compared(
            f"{case.name}: {what}",
            best_ms(ours, repeats=7),
            "ms",
            baseline="BitMap64",
            baseline_value=best_ms(theirs, repeats=7),
            detail={"ranges": a.range_count, "keys": a.size},
        )

    return [
        line("build from keys", lambda: RowSet.from_keys(keys_a), lambda: bitmap(keys_a)),
        line("all keys as an array", lambda: a.to_numpy(), lambda: bitmap_keys(a_bits)),
        line("union", lambda: a | b, lambda: bitmap_keys(bitmap(keys_a) | bitmap(keys_b))),
        line("intersection", lambda: a & b, lambda: bitmap_keys(bitmap(keys_a) & bitmap(keys_b))),
        line("union (bitmap to bitmap)", lambda: a | b, lambda: a_bits | b_bits),
        line("intersection (bitmap to bitmap)", lambda: a & b, lambda: a_bits & b_bits),
        line("add 50 keys", lambda: a | few, lambda: a_bits | bitmap(few_keys)),
        line("remove 50 keys", lambda: a - few, lambda: a_bits - bitmap(few_keys)),
        line("append 99 keys", lambda: a | tail, lambda: a_bits | bitmap(tail.to_numpy())),
        line(
            f"{LOOKUPS} ranks",
            lambda: [a.rank(key) for key in probes],
            lambda: [a_bits.rank(key) for key in probes],
        ),
        line(
            f"{LOOKUPS} selects",
            lambda: [a.select(place) for place in places],
            lambda: [a_bits[place] for place in places],
        ),
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure every shape."""
    lines = []
    for case in cases(KEYS_QUICK if quick else KEYS):
        if not np.array_equal((case.a & case.b).to_numpy(), bitmap_keys(case.a_bits & case.b_bits)):
            raise AssertionError(f"{case.name}: the two disagree")
        lines += lines_of(case)
        lines.append(
            compared(
                f"{case.name}: memory",
                float(case.a.nbytes),
                "bytes",
                baseline="BitMap64 serialized",
                baseline_value=float(len(case.a_bits.serialize())),
            )
        )
    return result("row_set_ops", lines)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))

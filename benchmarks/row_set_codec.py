"""What encoding and decoding a row set costs, against one ``np.cumsum`` over as many int64 keys.

Reading 10^6 keys at all takes a pass over 8 MB; the running sum is the cheapest useful one and the
baseline of every line. Shapes: ``scattered`` are random keys below 10^9, ``every second`` a regular
pattern, ``clustered`` rows in slots of 65,536 keys (two commands per range), ``wide`` random keys
up to 2^40 (nearly one command per key), ``mixed`` gaps of 2, 2,000 and 70,000 (short arrays between
single values). Only the first two carry the goal; the others show what many commands cost.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from barrage.rowset import RowSet
from barrage.wire import decode_row_set, encode_row_set
from benchmarks.report import Measurement, compared, result
from benchmarks.timing import best_ms

GOAL_RATIO_MAX = 10.0
KEYS = 1_000_000
KEYS_QUICK = 100_000


def shapes(keys: int) -> dict[str, RowSet]:
    """Row sets of about ``keys`` keys (``clustered``: ranges), the same on every run."""
    draw = np.random.default_rng(1)
    slots = np.arange(keys // 2, dtype=np.int64) * 65_536

    def of_gaps(gaps: np.ndarray) -> RowSet:
        return RowSet.from_sorted_keys(np.cumsum(gaps))

    return {
        "scattered": RowSet.from_keys(draw.integers(0, 1000 * keys, keys)),
        "every second": of_gaps(np.full(keys, 2)),
        "clustered": RowSet.from_ranges(slots, slots + draw.integers(1, 200, len(slots))),
        "wide": of_gaps(draw.integers(2, 2**21, keys)),
        "mixed": of_gaps(draw.choice([2, 2, 2, 2, 2, 2000, 70_000], keys)),
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all shapes."""
    lines: list[Measurement] = []
    keys = KEYS_QUICK if quick else KEYS
    baseline = np.arange(keys, dtype=np.int64)
    for name, rows in shapes(keys).items():
        encoded = encode_row_set(rows)
        if decode_row_set(encoded) != rows:
            raise AssertionError(f"{name} does not round trip")
        has_goal = name in ("scattered", "every second")
        for what, work in (
            ("encode", lambda rows=rows: encode_row_set(rows)),
            ("decode", lambda encoded=encoded: decode_row_set(encoded)),
        ):
            lines.append(
                compared(
                    f"{what} {name}",
                    best_ms(work),
                    "ms",
                    baseline=f"np.cumsum of {keys:,} int64",
                    baseline_value=best_ms(lambda: np.cumsum(baseline)),
                    at_most=GOAL_RATIO_MAX if has_goal else None,
                    detail={"ranges": rows.range_count, "bytes": len(encoded)},
                )
            )
    lines += one_long_range()
    return result("row_set_codec", lines)


def one_long_range() -> list[Measurement]:
    """10^9 rows in one range, against ten rows in one range: the length must not matter."""
    lines = []
    long_range, short_range = RowSet.of_span(0, 10**9), RowSet.of_span(0, 10)
    for what, work, rows, few in (
        ("encode", encode_row_set, long_range, short_range),
        ("decode", decode_row_set, encode_row_set(long_range), encode_row_set(short_range)),
    ):
        lines.append(
            compared(
                f"{what} one range of 10^9 rows",
                best_ms(lambda work=work, rows=rows: work(rows), repeats=500),
                "ms",
                baseline="one range of 10 rows",
                baseline_value=best_ms(lambda work=work, few=few: work(few), repeats=500),
                at_most=3.0,
            )
        )
    return lines


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))

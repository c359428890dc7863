"""The tables of the interop matrix and their random updates, the same for every kind of server.

:class:`Workload` makes, from a seed, the first rows of every source table and then one
:class:`Step` of changes after another. It also keeps a naive model of what the tables must hold,
so the truth does not come from the server alone. Needs pyarrow and numpy only: the scripts that
run inside a Deephaven server import it too.
"""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEYS = 260
"""Keys of the keyed tables are below this."""

BIG_ROWS = 1_000_000
RING_ROWS = 64
SMALL_VALUE = 300

STAMP = pa.timestamp("ns", "UTC")
KEYED = pa.schema([("K", pa.int32()), ("V", pa.int64()), ("S", pa.string()), ("D", pa.float64())])
EXTRA = pa.schema([("K", pa.int32()), ("X", pa.int64())])
GROWN = pa.schema([("N", pa.int64()), ("T", pa.string()), ("W", STAMP)])
FEED = pa.schema([("N", pa.int64()), ("T", pa.string()), ("D", pa.float64())])
BIG = pa.schema(
    [
        ("A", pa.int64()),
        ("B", pa.int64()),
        ("C", pa.float64()),
        ("D", pa.int32()),
        ("E", pa.string()),
    ]
)
TYPES = pa.schema(
    [
        ("Byte", pa.int8()),
        ("Short", pa.int16()),
        ("Int", pa.int32()),
        ("Long", pa.int64()),
        ("Char", pa.uint16()),
        ("Float", pa.float32()),
        ("Double", pa.float64()),
        ("Bool", pa.bool_()),
        ("Text", pa.string()),
        ("Instant", STAMP),
        ("Date", pa.date64()),
        ("Time", pa.time64("ns")),
        ("Longs", pa.list_(pa.int64())),
        ("Texts", pa.list_(pa.string())),
    ]
)
"""What every client takes; lists are neither null nor empty, which the ticking client cannot
read (deephaven-clients.md section 8, trap 8)."""

SOURCES = {
    "keyed": KEYED,
    "extra": EXTRA,
    "grown": GROWN,
    "feed": FEED,
    "types": TYPES,
    "big": BIG,
}
KEY_COLUMNS = {"keyed": "K", "extra": "K", "big": "A"}
AFFECTED = {
    "keyed": (
        "keyed",
        "sorted_by_value",
        "small_values",
        "last_rows",
        "per_digit",
        "joined",
    ),
    "extra": ("extra", "joined"),
    "grown": ("grown",),
    "feed": ("feed", "ring"),
    "types": ("types",),
    "big": ("big",),
}
"""Tables that change when a source changes."""

TABLES = (
    "keyed",
    "extra",
    "sorted_by_value",
    "small_values",
    "last_rows",
    "per_digit",
    "joined",
    "grown",
    "feed",
    "ring",
    "types",
    "static_rows",
    "no_rows",
    "odd_lists",
    "big",
)
STATIC = ("static_rows", "no_rows", "odd_lists", "all_types")
ORDERED = ("sorted_by_value", "grown", "ring", "types", "static_rows", "no_rows", "odd_lists")
"""Tables whose order of rows the model knows."""


@dataclass(frozen=True)
class Change:
    """``verb`` is add, upsert or remove (``rows`` then has the keys only)."""

    table: str
    verb: str
    rows: pa.Table


@dataclass
class Step:
    number: int
    changes: list[Change] = field(default_factory=list)


def static_rows() -> pa.Table:
    return pa.table(
        {
            "A": pa.array(range(1000), pa.int32()),
            "B": [f"b{i % 10}" for i in range(1000)],
        }
    )


def no_rows() -> pa.Table:
    return pa.schema([("A", pa.int32()), ("B", pa.string())]).empty_table()


def odd_lists() -> pa.Table:
    """Null and empty lists, and nulls within lists."""
    return pa.table(
        {
            "Ints": pa.array([[1, None], None, [], [2]], pa.list_(pa.int32())),
            "Texts": pa.array([None, [], ["", None], ["x"]], pa.list_(pa.string())),
        }
    )


def all_types() -> pa.Table:
    """A column of each type a server of this package has beyond those in TYPES."""
    day = datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000)
    values: dict[str, tuple[pa.DataType, list]] = {
        "U8": (pa.uint8(), [0, None, 255]),
        "U32": (pa.uint32(), [0, None, 2**32 - 1]),
        "U64": (pa.uint64(), [1, None, 2**64 - 1]),
        "Half": (pa.float16(), [np.float16(0.5), None, np.float16(-2)]),
        "Large": (pa.large_string(), ["", None, "ü"]),
        "Raw": (pa.binary(), [b"", None, b"\x00\xff"]),
        "LargeRaw": (pa.large_binary(), [b"ab", None, b"\x01"]),
        "Fixed": (pa.binary(2), [b"ab", None, b"\x01\x02"]),
        "Day": (pa.date32(), [day, None, day]),
        "Second": (pa.time32("s"), [datetime.time(1, 2, 3), None, datetime.time(0)]),
        "Micro": (pa.time64("us"), [datetime.time(1, 2, 3, 4), None, datetime.time(0)]),
        "Local": (pa.timestamp("ms"), [moment, None, moment]),
        "Berlin": (pa.timestamp("us", "Europe/Berlin"), [moment, None, moment]),
        "Span": (pa.duration("ms"), [1500, None, -1]),
        "Price": (
            pa.decimal128(9, 3),
            [decimal.Decimal("12.345"), None, decimal.Decimal("-0.001")],
        ),
        "Word": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"]),
        "Shorts": (pa.list_(pa.uint8()), [[1, 2], [3], [255]]),
    }
    columns = {name: pa.array(data, kind) for name, (kind, data) in values.items()}
    return pa.table(columns)


def all_types_shown(family: str) -> pa.Table:
    """The columns of :func:`all_types` as a session of ``family`` ("deephaven" or "ticking") must
    see them, by hand (deephaven-clients.md section 3.6)."""
    day_ms, second_ns = 19_782 * 86_400_000, 10**9
    clock = 3600 + 2 * 60 + 3
    moment = (19_782 * 86_400 + 12 * 3600 + 34 * 60 + 56) * second_ns + 789 * 10**6
    days = pa.array([day_ms, None, day_ms], pa.int64()).cast(pa.date64())
    numbers: dict[str, pa.Array] = {
        "U8": pa.array([0, None, 255], pa.int16()),
        "U32": pa.array([0, None, 2**32 - 1], pa.int64()),
        "U64": pa.array([b"\x01", None, b"\x00" + b"\xff" * 8]),
        "Half": pa.array([0.5, None, -2.0], pa.float32()),
        "Large": pa.array(["", None, "ü"]),
        "Raw": pa.array([b"", None, b"\x00\xff"]),
        "LargeRaw": pa.array([b"ab", None, b"\x01"]),
        "Fixed": pa.array([b"ab", None, b"\x01\x02"]),
        "Day": days,
        "Second": pa.array([clock * second_ns, None, 0], pa.int64()).cast(pa.time64("ns")),
        "Micro": pa.array([clock * second_ns + 4000, None, 0], pa.int64()).cast(pa.time64("ns")),
        "Local": pa.array([moment, None, moment], pa.int64()).cast(STAMP),
        "Berlin": pa.array([moment, None, moment], pa.int64()).cast(STAMP),
        "Span": pa.array([1_500_000_000, None, -1_000_000], pa.int64()).cast(pa.duration("ns")),
        "Price": pa.array([b"\x03\x00\x00\x00\x30\x39", None, b"\x03\x00\x00\x00\xff"]),
        "Word": pa.array(["a", None, "b"]),
        "Shorts": pa.array([[1, 2], [3], [255]], pa.list_(pa.int16())),
    }
    if family == "ticking":
        numbers["U64"] = pa.array(["1", None, str(2**64 - 1)])
        numbers["Raw"] = pa.array(["", None, "00ff"])
        numbers["LargeRaw"] = pa.array(["6162", None, "01"])
        numbers["Fixed"] = pa.array(["6162", None, "0102"])
        numbers["Span"] = pa.array([1_500_000_000, None, -1_000_000], pa.int64())
        numbers["Price"] = pa.array(["12.345", None, "-0.001"])
    return pa.table(numbers)


def big_rows() -> pa.Table:
    number = np.arange(BIG_ROWS, dtype=np.int64)
    texts = pa.array([None] + [f"e{i}" for i in range(1, 100)])
    return pa.Table.from_arrays(
        [
            pa.array(number),
            pa.array(number * 3),
            pa.array(number * 0.25),
            pa.array((number % 1000).astype(np.int32)),
            texts.take(pa.array(number % 100)),
        ],
        schema=BIG,
    )


class Workload:
    """Random changes from ``seed``. ``initial`` has the first rows of every source; after
    ``next_step`` the model holds what the tables must hold then."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.number = 0
        self._text_count = 0
        self.initial = {
            "keyed": self._keyed_rows(self._some_keys(200)),
            "extra": self._extra_rows(self._some_keys(150)),
            "grown": self._grown_rows(10),
            "feed": FEED.empty_table(),
            "types": self._type_rows(5),
            "big": big_rows(),
            "static_rows": static_rows(),
            "no_rows": no_rows(),
            "odd_lists": odd_lists(),
        }
        self._rows = dict(self.initial)
        self._feed = FEED.empty_table()

    # --- changes ---

    def next_step(self) -> Step:
        """The next changes of all sources but ``big``; at least one row of each table."""
        self.number += 1
        step = Step(self.number)
        step.changes.append(Change("keyed", "upsert", self._some_upserts()))
        if self._random.random() < 0.8:
            step.changes.append(Change("keyed", "remove", _keys(self._some_keys(4))))
        step.changes.append(Change("extra", "upsert", self._extra_rows(self._some_keys(12))))
        if self._random.random() < 0.5:
            step.changes.append(Change("extra", "remove", _keys(self._some_keys(2))))
        step.changes.append(Change("grown", "add", self._grown_rows(self._size(1, 6))))
        step.changes.append(Change("feed", "add", self._feed_rows(self._size(1, 20))))
        step.changes.append(Change("types", "add", self._type_rows(self._size(1, 3))))
        for change in step.changes:
            self._apply(change)
        return step

    def next_big_step(self) -> Step:
        """A few hundred changed rows among the million."""
        self.number += 1
        count = self._size(100, 500)
        keys = np.sort(self._random.choice(BIG_ROWS, count, replace=False)).astype(np.int64)
        old = self._rows["big"].take(pa.array(keys))
        rows = old.set_column(1, "B", pa.array(self._random.integers(0, 10**9, count)))
        change = Change("big", "upsert", rows)
        self._apply(change)
        return Step(self.number, [change])

    def _some_upserts(self) -> pa.Table:
        """Whole rows for some keys; for others only one column differs from what is there."""
        fresh = self._keyed_rows(self._some_keys(self._size(3, 12)))
        known = self._rows["keyed"]
        count = min(known.num_rows, self._size(5, 25))
        kept = known.take(pa.array(self._random.choice(known.num_rows, count, replace=False)))
        kept = kept.filter(pc.invert(pc.is_in(kept["K"], value_set=fresh["K"].combine_chunks())))
        column = int(self._random.integers(1, 4))
        changed = self._keyed_rows(kept["K"].to_numpy())
        kept = kept.set_column(column, KEYED.field(column), changed.column(column))
        return pa.concat_tables([fresh, kept]).combine_chunks()

    def _some_keys(self, count: int) -> np.ndarray:
        return self._random.choice(KEYS, count, replace=False).astype(np.int32)

    def _size(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high, endpoint=True))

    def _texts(self, count: int) -> list[str | None]:
        self._text_count += count
        first = self._text_count
        words = ("", "plain", "ünï", "a longer text than sixteen bytes")
        return [
            None if pick == 4 else f"{words[pick]}{first + i}" if pick else ""
            for i, pick in enumerate(self._random.integers(0, 5, count))
        ]

    def _maybe(self, values: list, share: float = 0.2) -> list:
        gone = self._random.random(len(values)) < share
        return [None if is_gone else v for v, is_gone in zip(values, gone, strict=True)]

    def _keyed_rows(self, keys: np.ndarray) -> pa.Table:
        count = len(keys)
        columns = [
            pa.array(keys, pa.int32()),
            pa.array(self._random.integers(0, 1000, count), pa.int64()),
            pa.array(self._texts(count), pa.string()),
            pa.array(
                self._maybe((self._random.integers(-500, 500, count) * 0.5).tolist()), pa.float64()
            ),
        ]
        return pa.Table.from_arrays(columns, schema=KEYED)

    def _extra_rows(self, keys: np.ndarray) -> pa.Table:
        values = self._maybe(self._random.integers(0, 100, len(keys)).tolist())
        columns = [pa.array(keys, pa.int32()), pa.array(values, pa.int64())]
        return pa.Table.from_arrays(columns, schema=EXTRA)

    def _grown_rows(self, count: int) -> pa.Table:
        numbers = self._random.integers(-(10**15), 10**15, count)
        columns = [
            pa.array(numbers, pa.int64()),
            pa.array(self._texts(count), pa.string()),
            pa.array(self._maybe(numbers.tolist()), pa.int64()).cast(STAMP),
        ]
        return pa.Table.from_arrays(columns, schema=GROWN)

    def _feed_rows(self, count: int) -> pa.Table:
        columns = [
            pa.array(self._random.integers(0, 10**6, count), pa.int64()),
            pa.array(self._texts(count), pa.string()),
            pa.array(self._random.random(count), pa.float64()),
        ]
        return pa.Table.from_arrays(columns, schema=FEED)

    def _type_rows(self, count: int) -> pa.Table:
        def whole(bits: int, low: int | None = None) -> list:
            bottom = -(2 ** (bits - 1)) + 1 if low is None else low
            top = 2 ** (bits - 1) - 1
            return self._maybe(self._random.integers(bottom, top, count, endpoint=True).tolist())

        day_ms = 86_400_000
        days = self._maybe((self._random.integers(-30_000, 30_000, count) * day_ms).tolist())
        times = self._maybe(self._random.integers(0, day_ms * 10**6, count).tolist())
        sizes = self._random.integers(1, 4, count)
        columns = [
            pa.array(whole(8), pa.int8()),
            pa.array(whole(16), pa.int16()),
            pa.array(whole(32), pa.int32()),
            pa.array(whole(64), pa.int64()),
            pa.array(whole(16, 1), pa.uint16()),
            pa.array(
                self._maybe(self._random.random(count).astype(np.float32).tolist()), pa.float32()
            ),
            pa.array(self._maybe(self._random.normal(size=count).tolist()), pa.float64()),
            pa.array(self._maybe((self._random.random(count) < 0.5).tolist()), pa.bool_()),
            pa.array(self._texts(count), pa.string()),
            pa.array(whole(62), pa.int64()).cast(STAMP),
            pa.array(days, pa.int64()).cast(pa.date64()),
            pa.array(times, pa.int64()).cast(pa.time64("ns")),
            pa.array(
                [self._random.integers(-9, 9, size).tolist() for size in sizes],
                pa.list_(pa.int64()),
            ),
            pa.array([self._texts(size) for size in sizes], pa.list_(pa.string())),
        ]
        return pa.Table.from_arrays(columns, schema=TYPES)

    # --- model ---

    def _apply(self, change: Change) -> None:
        name = change.table
        if name == "feed":
            self._rows["feed"] = change.rows
            self._feed = pa.concat_tables([self._feed, change.rows])
        elif change.verb == "add":
            self._rows[name] = pa.concat_tables([self._rows[name], change.rows])
        else:
            key = KEY_COLUMNS[name]
            old = self._rows[name]
            gone = pc.is_in(old[key], value_set=change.rows[key].combine_chunks())
            kept = old.filter(pc.invert(gone))
            if change.verb == "upsert":
                kept = pa.concat_tables([kept, change.rows])
            self._rows[name] = kept.combine_chunks()

    def expected(self, name: str) -> pa.Table | None:
        """What the table must hold now (rows in any order unless it is in ORDERED). None when it
        depends on an order that is the server's own."""
        if name in self._rows:
            return self._rows[name]
        keyed = self._rows["keyed"]
        if name == "sorted_by_value":
            return keyed.sort_by([("V", "ascending"), ("K", "ascending")])
        if name == "small_values":
            return keyed.filter(pc.less(keyed["V"], SMALL_VALUE))
        if name == "per_digit":
            return per_digit(keyed)
        if name == "joined":
            return joined(keyed, self._rows["extra"])
        if name == "ring":
            return self._feed.slice(max(0, self._feed.num_rows - RING_ROWS))
        return None


def per_digit(keyed: pa.Table) -> pa.Table:
    """Number of rows and aggregates per last digit of V, naively."""
    rows: dict[int, list] = {}
    for row in keyed.to_pylist():
        rows.setdefault(row["V"] % 10, []).append(row)
    return pa.table(
        {
            "G": pa.array([float(digit) for digit in rows], pa.float64()),
            "n": pa.array([len(group) for group in rows.values()], pa.int64()),
            "total": pa.array([sum(r["V"] for r in g) for g in rows.values()], pa.int64()),
            "lowest": pa.array([min(r["V"] for r in g) for g in rows.values()], pa.int64()),
            "highest": pa.array(
                [
                    max((r["D"] for r in g if r["D"] is not None), default=None)
                    for g in rows.values()
                ],
                pa.float64(),
            ),
        }
    )


def joined(keyed: pa.Table, extra: pa.Table) -> pa.Table:
    """X of the row of ``extra`` with the same K; null without one."""
    values = dict(zip(extra["K"].to_pylist(), extra["X"].to_pylist(), strict=True))
    column = pa.array([values.get(key) for key in keyed["K"].to_pylist()], pa.int64())
    return keyed.append_column("X", column)


def _keys(keys: np.ndarray) -> pa.Table:
    return pa.table({"K": pa.array(keys, pa.int32())})

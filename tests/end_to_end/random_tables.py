"""A server with tables of every kind and derived tables, and writers that change them at random.

Everything that is written is drawn from one seed per writer; what the threads interleave is not
repeatable, what each of them does is.
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable

import pyarrow as pa

import barrage

UTC = datetime.UTC
WORDS = ["", "a", "bb", "zoë", "naïve 日本", "x" * 40, None]

ALL_TYPES = pa.schema(
    [
        ("n", pa.int64()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("u", pa.uint32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("money", pa.decimal128(18, 4)),
        ("at", pa.timestamp("ns", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("clock", pa.time64("ns")),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("list", pa.list_(pa.int64())),
        ("nested", pa.list_(pa.list_(pa.string()))),
    ]
)
QUOTE = pa.schema(
    [
        ("k", pa.int64()),
        ("price", pa.float64()),
        ("size", pa.int32()),
        ("text", pa.string()),
        ("money", pa.decimal128(12, 2)),
    ]
)
PAIR = pa.schema([("sym", pa.string()), ("venue", pa.int16()), ("bid", pa.float64())])


def a_value(rng: random.Random, data_type: pa.DataType) -> object:
    """A value of ``data_type``; null in one of six cases."""
    if rng.random() < 1 / 6:
        return None
    for matches, draw in DRAWS:
        if matches(data_type):
            return draw(rng, data_type)
    raise AssertionError(f"no values for {data_type}")


def _integer(rng: random.Random, data_type: pa.DataType) -> int:
    low = 0 if pa.types.is_unsigned_integer(data_type) else -100
    return rng.randint(low, 100)


def _list(rng: random.Random, data_type: pa.DataType) -> list:
    return [a_value(rng, data_type.value_type) for _ in range(rng.randint(0, 3))]


def _moment(rng: random.Random, data_type: pa.DataType) -> datetime.datetime:
    zone = UTC if data_type.tz else None
    return datetime.datetime(2026, 1, 1, tzinfo=zone) + datetime.timedelta(
        microseconds=rng.randint(0, 10**12)
    )


DRAWS: list[tuple[Callable[[pa.DataType], bool], Callable[..., object]]] = [
    (pa.types.is_boolean, lambda rng, _: rng.random() < 0.5),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, lambda rng, _: rng.randint(-64, 64) / 8),
    (pa.types.is_string, lambda rng, _: rng.choice(WORDS[:-1])),
    (pa.types.is_dictionary, lambda rng, _: rng.choice(WORDS[:-1])),
    (pa.types.is_binary, lambda rng, _: rng.randbytes(rng.randint(0, 9))),
    (pa.types.is_decimal, lambda rng, _: decimal.Decimal(rng.randint(-(10**6), 10**6)) / 100),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_date, lambda rng, _: datetime.date(2026, rng.randint(1, 12), 1)),
    (pa.types.is_time, lambda rng, _: datetime.time(rng.randint(0, 23), 30)),
    (pa.types.is_list, _list),
]


def some_rows(rng: random.Random, schema: pa.Schema, count: int) -> list[dict]:
    """``count`` random rows; null everywhere now and then."""
    return [{field.name: a_value(rng, field.type) for field in schema} for _ in range(count)]


def arrow_rows(schema: pa.Schema, rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def as_received(table: pa.Table) -> pa.Table:
    """``table`` with the types subscribers get: unsigned 32-bit numbers travel as signed ones, and
    dictionaries are shown as their values."""
    fields = []
    for field in table.schema:
        if pa.types.is_dictionary(field.type):
            field = field.with_type(field.type.value_type)
        elif field.type == pa.uint32():
            field = field.with_type(pa.int64())
        fields.append(field)
    return table.cast(pa.schema(fields))


class World:
    """The tables by name, and a writer for each that can be written."""

    def __init__(self, server: barrage.Server, seed: int) -> None:
        rng = random.Random(seed)
        self.log = server.create_table("log", ALL_TYPES)
        self.book = server.create_table("book", QUOTE, key="k")
        self.pairs = server.create_table("pairs", PAIR, key=["sym", "venue"])
        self.queue = server.create_table("queue", ALL_TYPES, kind="list")
        self.ring = server.create_table("ring", QUOTE, capacity=40)
        self.blink = server.create_table("blink", PAIR, kind="blink")
        static = arrow_rows(ALL_TYPES, some_rows(rng, ALL_TYPES, 75))
        self.fixed = server.create_table("fixed", data=static, kind="static")
        self.none = server.create_table("none", QUOTE)
        views = {
            "dear": self.book.where("price > 0 and not isnull(text)"),
            "ranked": self.book.sort("-price", "k"),
            "top": self.book.where("size > -50").sort("-size", "k").head(12),
            "newest": self.log.tail(9),
            "latest": self.log.last_by("word"),
            "value": self.pairs.select("sym", "venue", double="bid * 2").sort("double"),
            "front": self.queue.where("n >= 0").head(10),
            "window": self.ring.sort("price").tail(7),
            "late": self.queue.last_by("flag").sort("n"),
        }
        for name, view in views.items():
            server.publish(name, view)
        self.tables = {name: server.table(name) for name in server.table_names()}
        self.writers = [
            self.write_log,
            self.write_book,
            self.write_pairs,
            self.write_queue,
            self.write_ring_and_blink,
        ]

    def expected(
        self, name: str, positions: list[int] | None, columns: list[str] | None, reverse: bool
    ) -> pa.Table:
        """What a subscriber has to hold now: the rows and columns it asked for."""
        table = self.tables[name].to_arrow()
        if positions is not None:
            size = table.num_rows
            existing = [p for p in positions if p < size]
            rows = sorted(size - 1 - p for p in existing) if reverse else existing
            table = table.take(pa.array(rows, pa.int64()))
        return as_received(table if columns is None else table.select(columns))

    # --- one random change each ---

    def write_log(self, rng: random.Random) -> None:
        self.log.add(arrow_rows(ALL_TYPES, some_rows(rng, ALL_TYPES, rng.randint(1, 4))))

    def write_book(self, rng: random.Random) -> None:
        choice = rng.random()
        if choice < 0.2:
            self.book.remove([rng.randint(0, 60) for _ in range(rng.randint(1, 5))])
        elif choice < 0.23:
            self.book.replace(self.quotes(rng, rng.sample(range(60), 20)))
        elif choice < 0.6:
            self.change_one_cell_each(rng)
        else:
            self.book.upsert(self.quotes(rng, rng.sample(range(60), rng.randint(1, 6))))

    def quotes(self, rng: random.Random, keys: list[int]) -> pa.Table:
        rows = [
            row | {"k": k} for k, row in zip(keys, some_rows(rng, QUOTE, len(keys)), strict=True)
        ]
        return arrow_rows(QUOTE, rows)

    def change_one_cell_each(self, rng: random.Random) -> None:
        """Rewrite a few rows with one other value in each, in different columns."""
        rows = self.book.to_arrow().to_pylist()
        chosen = rng.sample(rows, min(len(rows), 4))
        for row in chosen:
            field = QUOTE.field(rng.randrange(1, len(QUOTE)))
            row[field.name] = a_value(rng, field.type)
        if chosen:
            self.book.upsert(arrow_rows(QUOTE, chosen))

    def write_pairs(self, rng: random.Random) -> None:
        rows = {
            (row["sym"], row["venue"]): row
            for row in some_rows(rng, PAIR, rng.randint(1, 6))
            if row["sym"] is not None and row["venue"] is not None
        }
        if not rows:
            return
        if rng.random() < 0.3:
            self.pairs.remove(list(rows))
        else:
            self.pairs.upsert(arrow_rows(PAIR, list(rows.values())))

    def write_queue(self, rng: random.Random) -> None:
        size = len(self.queue)
        choice = rng.random()
        rows = arrow_rows(ALL_TYPES, some_rows(rng, ALL_TYPES, rng.randint(1, 5)))
        if choice < 0.5 or size == 0:
            self.queue.insert(rng.randint(0, size), rows)
        elif choice < 0.55:
            self.queue.replace(rows)
        elif choice < 0.65:
            self.queue.add(rows)
        else:
            start = rng.randrange(size)
            self.queue.delete(start, min(size, start + rng.randint(1, 6)))

    def write_ring_and_blink(self, rng: random.Random) -> None:
        self.ring.add(self.quotes(rng, rng.sample(range(60), rng.randint(1, 9))))
        if rng.random() < 0.5:
            self.blink.add(arrow_rows(PAIR, some_rows(rng, PAIR, rng.randint(1, 4))))

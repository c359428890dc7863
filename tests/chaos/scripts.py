"""What every writer of the crash tests writes: its n-th write follows from its name and n alone.

So whoever knows how far a writer has got knows what its tables must hold, and nobody has to keep
what was written. The models here are plain Python and know nothing of the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

RING_ROWS = 60
LIVE_MAX = 40
"""Rows of one writer in the keyed table past which it removes more than it adds."""

EVENTS = pa.schema({"writer": pa.int64(), "n": pa.int64(), "part": pa.int64(), "text": pa.string()})
BOOK = pa.schema({"k": pa.int64(), "v": pa.int64(), "text": pa.string()})
RING = pa.schema({"row": pa.int64(), "text": pa.string()})
NOTES = pa.schema({"text": pa.string()})
PAIR = pa.schema({"n": pa.int64()})


def text_of(*numbers: int) -> str:
    """A text of uneven length that follows from the numbers."""
    return "-".join(map(str, numbers)) * (1 + sum(numbers) % 5)


@dataclass
class Write:
    """One write: an operation of a table and its rows."""

    operation: str
    rows: pa.RecordBatch


def batch(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class EventsScript:
    """Adds rows to a table that several writers add to."""

    def __init__(self, writer: int) -> None:
        self.writer = writer

    def rows(self, n: int) -> list[tuple[Any, ...]]:
        count = 1 + (n * 7 + self.writer) % 4
        return [(self.writer, n, part, text_of(n, part)) for part in range(count)]

    def write(self, n: int) -> Write:
        return Write("append", batch(EVENTS, self.rows(n)))

    def expected(self, upto: int) -> list[tuple[Any, ...]]:
        """This writer's rows after its first ``upto`` writes, in order."""
        return [row for n in range(1, upto + 1) for row in self.rows(n)]


@dataclass
class BookScript:
    """Upserts and removes rows of its own range of keys. A key that was removed never returns."""

    writer: int
    live: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    count: int = 0
    key_next: int = 0
    writes: list[Write] = field(default_factory=list)

    def write(self, n: int) -> Write:
        while len(self.writes) < n:
            self.writes.append(self._advance())
        return self.writes[n - 1]

    def _advance(self) -> Write:
        self.count += 1
        chance = random.Random(self.writer * 1_000_003 + self.count)
        known = sorted(self.live)
        is_removal = bool(known) and chance.random() < (0.7 if len(known) > LIVE_MAX else 0.25)
        if is_removal:
            gone = chance.sample(known, min(len(known), chance.randint(1, 3)))
            for key in gone:
                del self.live[key]
            schema = pa.schema([BOOK.field("k")])
            return Write("delete", batch(schema, [(key,) for key in gone]))
        keys = chance.sample(known, min(len(known), chance.randint(0, 3)))
        for _ in range(chance.randint(0 if keys else 1, 2)):
            keys.append(self.writer * 1_000_000 + self.key_next)
            self.key_next += 1
        rows = [(key, self.count, text_of(key % 1000, self.count)) for key in keys]
        self.live.update({row[0]: row for row in rows})
        return Write("upsert", batch(BOOK, rows))

    def expected(self, upto: int) -> dict[int, tuple[Any, ...]]:
        """This writer's rows by key after its first ``upto`` writes."""
        fresh = BookScript(self.writer)
        if upto:
            fresh.write(upto)
        return fresh.live


class RingScript:
    """Adds numbered rows to a ring."""

    @staticmethod
    def rows_of(n: int) -> int:
        return 1 + n * 5 % 9

    def __init__(self) -> None:
        self._starts = [0, 0]

    def start_of(self, n: int) -> int:
        """Number of the first row of write ``n``."""
        while len(self._starts) <= n:
            self._starts.append(self._starts[-1] + self.rows_of(len(self._starts) - 1))
        return self._starts[n]

    def write(self, n: int) -> Write:
        start = self.start_of(n)
        numbers = range(start, start + self.rows_of(n))
        return Write("append", batch(RING, [(number, text_of(number)) for number in numbers]))

    def expected(self, upto: int) -> list[tuple[Any, ...]]:
        """The rows after the first ``upto`` writes; the number of a row is its row key."""
        stop = self.start_of(upto + 1)
        return [(number, text_of(number)) for number in range(max(0, stop - RING_ROWS), stop)]


class NotesScript:
    """Edits a list anywhere: the operations of one table handle."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.count = 0

    def advance(self) -> tuple[str, tuple[Any, ...]]:
        """The next edit: a method's name and its arguments; the texts become what it makes."""
        self.count += 1
        chance = random.Random(self.count * 7919)
        size = len(self.texts)
        kind = chance.random()
        if size > 30 or (size and kind < 0.3):
            start = chance.randint(0, size - 1)
            stop = min(size, start + chance.randint(1, 6 if size > 30 else 2))
            del self.texts[start:stop]
            return "delete", (start, stop)
        if kind < 0.34:
            self.texts = [text_of(self.count, part) for part in range(chance.randint(0, 5))]
            return "replace", (self._rows(self.texts),)
        position = chance.randint(0, size)
        fresh = [text_of(self.count, part) for part in range(chance.randint(1, 3))]
        self.texts[position:position] = fresh
        return "insert", (position, self._rows(fresh))

    @staticmethod
    def _rows(texts: list[str]) -> pa.RecordBatch:
        return batch(NOTES, [(text,) for text in texts])

    @classmethod
    def after(cls, upto: int) -> NotesScript:
        """The script after its first ``upto`` edits."""
        made = cls()
        for _ in range(upto):
            made.advance()
        return made

"""A ticking table made of Python dictionaries: what the producer needs of an engine table, and
random updates for it that use every liberty the model allows (shifts, keys reused in one step,
per-column modifications)."""

from __future__ import annotations

from copy import copy
from itertools import count
from random import Random

import pyarrow as pa

from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData, Shift

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])


class FakeTable:
    """Rows are tuples by key. ``step`` counts updates."""

    def __init__(
        self,
        keys=(),
        *,
        schema: pa.Schema = SCHEMA,
        is_static: bool = False,
        is_blink: bool = False,
    ) -> None:
        self.schema = schema
        self.is_static = is_static
        self.is_blink = is_blink
        self.failure = None
        self.reading = 1
        self.serial = 0
        self.overwritten_nbytes = 0
        self.step = 0
        self._numbers = count()
        self.rows = {key: self.fresh_row() for key in keys}
        self.reads = 0

    def fresh_cell(self, column: int):
        """A value that never occurred before, sometimes null."""
        number = next(self._numbers)
        if number % 11 == 7:
            return None
        kind = self.schema.field(column).type
        return f"v{number}" if pa.types.is_string(kind) else kind.to_pandas_dtype()(number).item()

    def fresh_row(self) -> tuple:
        return tuple(self.fresh_cell(column) for column in range(len(self.schema)))

    @property
    def row_keys(self) -> RowSet:
        return RowSet(self.rows)

    @property
    def size(self) -> int:
        return len(self.rows)

    def pinned(self) -> FakeTable:
        """The rows as they are now."""
        pinned = copy(self)
        pinned.rows = dict(self.rows)
        return pinned

    def read(self, keys: RowSet, columns=None):
        self.reads += 1
        wanted = range(len(self.schema)) if columns is None else columns
        return tuple(
            pa.array([self.rows[key][column] for key in keys], type=self.schema.field(column).type)
            for column in wanted
        )

    def row_list(self) -> list[tuple]:
        """All rows in order."""
        return [self.rows[key] for key in sorted(self.rows)]

    def update(self, *, removed=(), shifts=(), added=(), modified=()) -> TableUpdate:
        """Apply a change and return it. ``modified`` is (key, column) pairs in the new key
        space."""
        self.step += 1
        for key in removed:
            del self.rows[key]
        moved = {}
        for key, row in self.rows.items():
            delta = next((d for first, last, d in shifts if first <= key <= last), 0)
            moved[key + delta] = row
        assert len(moved) == len(self.rows)
        assert sorted(moved) == [
            key + next((d for first, last, d in shifts if first <= key <= last), 0)
            for key in sorted(self.rows)
        ]
        self.rows = moved
        for key in added:
            assert key not in self.rows
            self.rows[key] = self.fresh_row()
        cells: list[set[int]] = [set() for _ in self.schema]
        for key, column in modified:
            assert key not in added
            row = list(self.rows[key])
            row[column] = self.fresh_cell(column)
            self.rows[key] = tuple(row)
            cells[column].add(key)
        return TableUpdate(
            first_step=self.step,
            last_step=self.step,
            removed_keys_pre=RowSet(removed),
            shifts=RowSetShiftData.from_shifts([Shift(*shift) for shift in shifts]),
            added_keys_post=RowSet(added),
            modified_keys_post=tuple(RowSet(keys) for keys in cells),
        )

    def blink(self, row_count: int) -> TableUpdate:
        """One cycle of a blink table."""
        first = 0 if not self.rows else max(self.rows) + 1
        return self.update(removed=sorted(self.rows), added=range(first, first + row_count))

    def random_update(
        self, draw: Random, *, kinds=frozenset("rsam"), scale: int = 3
    ) -> TableUpdate:
        """A random legal change: r removes, s shifts, a adds, m modifies."""
        keys = sorted(self.rows)
        removed = []
        if "r" in kinds and keys:
            removed = sorted(draw.sample(keys, min(len(keys), draw.randrange(scale + 1))))
        survivors = [key for key in keys if key not in set(removed)]
        shifts = _random_shifts(draw, survivors) if "s" in kinds else []
        moved = [
            key + next((d for first, last, d in shifts if first <= key <= last), 0)
            for key in survivors
        ]
        added: list[int] = []
        if "a" in kinds:
            top = max([*moved, 9]) + 6
            free = sorted(set(range(top)) - set(moved))
            added = sorted(draw.sample(free, min(len(free), draw.randrange(scale + 1))))
        modified = set()
        if "m" in kinds and moved:
            for _ in range(draw.randrange(2 * scale + 1)):
                modified.add((draw.choice(moved), draw.randrange(len(self.schema))))
        return self.update(removed=removed, shifts=shifts, added=added, modified=sorted(modified))


def _random_shifts(draw: Random, survivors: list[int]) -> list[tuple[int, int, int]]:
    """Up to two blocks of rows move as far as their neighbours allow."""
    shifts: list[tuple[int, int, int]] = []
    floor, start = -1, 0
    for _ in range(draw.randrange(3)):
        if start >= len(survivors):
            break
        first = draw.randrange(start, len(survivors))
        last = draw.randrange(first, min(len(survivors), first + 4))
        below = survivors[first - 1] if first > start else floor
        above = survivors[last + 1] if last + 1 < len(survivors) else survivors[last] + 20
        low, high = below + 1 - survivors[first], above - 1 - survivors[last]
        delta = draw.randint(low, high) if low <= high else 0
        if delta:
            shifts.append((survivors[first], survivors[last], delta))
            floor = survivors[last] + max(delta, 0)
        else:
            floor = survivors[last]
        start = last + 1
    return shifts

"""Tables whose every state is known, and followers that hold what updates told them to it.

A follower knows nothing of replicas: it applies each update's words (removed, shifts, added,
modified) to a list of rows, so that a resumed subscription must have told it exactly what it
missed.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable
from random import Random

import pyarrow as pa

from barrage.client import Update

Rows = list[tuple]
View = Callable[[Rows], Rows]


def rows_of(table: pa.Table) -> Rows:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class Past:
    """The rows of one table at every version."""

    def __init__(self, table) -> None:
        self._table = table
        self._versions: list[int] = []
        self._rows: list[Rows] = []
        self.note()

    def note(self) -> int:
        """Remember the table as it is; the version."""
        version = self._table.cursor.version
        if not self._versions or version > self._versions[-1]:
            self._versions.append(version)
            self._rows.append(rows_of(self._table.to_arrow()))
        return version

    def at(self, version: int) -> Rows:
        """The rows at the last version that is not later."""
        place = bisect.bisect_right(self._versions, version)
        assert place, f"nothing is known of version {version}"
        return self._rows[place - 1]


class Follower:
    """What one subscription said, update by update."""

    def __init__(self, live, *, view: View = lambda rows: rows) -> None:
        self.live = live
        self._view = view
        self._keys: list[int] = []
        self._rows: Rows = []
        self.seen: list[tuple[int, Rows]] = []
        self.replacements = 0
        self.failure: BaseException | None = None
        self._has_changed = threading.Condition()
        live.on_update(self._take)

    def _take(self, update: Update) -> None:
        try:
            if update.is_replacement:
                self.replacements += 1
                self._keys = update.added_rows.to_numpy().tolist()
                self._rows = rows_of(update.added)
            elif update.is_view:
                self._change_view(update)
            else:
                self._change_keys(update)
            with self._has_changed:
                self.seen.append((update.cursor.version, list(self._rows)))
                self._has_changed.notify_all()
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def _change_view(self, update: Update) -> None:
        removed = set(update.removed_rows.to_numpy().tolist())
        assert all(at < len(self._rows) for at in removed)
        assert rows_of(update.removed) == [self._rows[at] for at in sorted(removed)]
        self._rows = [row for at, row in enumerate(self._rows) if at not in removed]
        for at, row in zip(
            update.added_rows.to_numpy().tolist(), rows_of(update.added), strict=True
        ):
            self._rows.insert(at, row)
        self._modify(update, lambda at: at)

    def _change_keys(self, update: Update) -> None:
        held = dict(zip(self._keys, self._rows, strict=True))
        removed = update.removed_rows.to_numpy().tolist()
        assert rows_of(update.removed) == [held[key] for key in removed]
        for key in removed:
            del held[key]
        moved = update.shifts.apply_keys(list(held)).tolist()
        held = dict(zip(moved, held.values(), strict=True))
        for key, row in zip(
            update.added_rows.to_numpy().tolist(), rows_of(update.added), strict=True
        ):
            assert key not in held
            held[key] = row
        self._keys = sorted(held)
        self._rows = [held[key] for key in self._keys]
        places = {key: place for place, key in enumerate(self._keys)}
        self._modify(update, places.__getitem__)

    def _modify(self, update: Update, place_of: Callable[[int], int]) -> None:
        names = update.schema.names
        for name, rows in update.modified_rows.items():
            column = names.index(name)
            for key, value in zip(
                rows.to_numpy().tolist(), update.modified[name].to_pylist(), strict=True
            ):
                place = place_of(key)
                row = list(self._rows[place])
                row[column] = value
                self._rows[place] = tuple(row)

    def wait_for(self, version: int, timeout: float = 60) -> None:
        """Until a state at or after ``version`` has come."""
        with self._has_changed:
            came = self._has_changed.wait_for(
                lambda: self.failure or (self.seen and self.seen[-1][0] >= version), timeout
            )
        if self.failure:
            raise self.failure
        assert came, f"{self.live!r} is at {self.seen[-1:]} and not at {version}"

    def check(self, past: Past) -> None:
        """Every state that was told is the state there was."""
        assert self.failure is None, self.failure
        assert self.seen
        versions = [version for version, _ in self.seen]
        assert versions == sorted(versions)
        for version, rows in self.seen:
            assert rows == self._view(past.at(version)), version


def _added(update: Update) -> Iterable[tuple[int, tuple]]:
    return zip(update.added_rows.to_numpy().tolist(), rows_of(update.added), strict=True)


class Writer:
    """Random changes of one kind of table, every state noted."""

    def __init__(self, table, past: Past, random: Random) -> None:
        self._table = table
        self._past = past
        self._random = random
        self._count = 0

    def write(self) -> int:
        self._count += 1
        self._change(self._table, self._random)
        return self._past.note()

    def _change(self, table, random: Random) -> None:
        raise NotImplementedError

    def _row(self, key: int) -> dict:
        return {
            "k": [key],
            "v": [self._random.randrange(100)],
            "s": [f"{self._count}" * self._random.randrange(3)],
        }


class KeyedWriter(Writer):
    def _change(self, table, random):
        keys = [row[0] for row in rows_of(table.to_arrow())]
        if len(keys) > 20 and random.random() < 0.4:
            table.remove({"k": random.sample(keys, random.randrange(1, 5))})
            return
        many = [self._row(random.randrange(60)) for _ in range(random.randrange(1, 4))]
        for row in many:
            table.upsert(row)
            self._past.note()


class AppendWriter(Writer):
    def _change(self, table, random):
        for _ in range(random.randrange(1, 4)):
            table.add(self._row(self._count))
            self._past.note()


class ListWriter(Writer):
    def _change(self, table, random):
        size = len(table)
        if size > 10 and random.random() < 0.4:
            start = random.randrange(size)
            table.delete(start, min(size, start + random.randrange(1, 4)))
        else:
            table.insert(random.randrange(size + 1), self._row(self._count))


def where_v(rows: Rows) -> Rows:
    return [row for row in rows if row[1] > 40]


def by_v(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: -row[1])

"""Durable tables between threads: created, dropped and made anew under one name, written one by one
and together, while the server stops; then it starts again on what is on the disk.

What was acknowledged is there once after the restart; a transaction is in both of its tables or in
none; a name is there when it was made and not dropped."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import Counter
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

from barrage.errors import BarrageError, TableExistsError, TableNotFoundError
from barrage.journal.stores import orders
from barrage.server.journaling.journal_service import JournalService
from tests.interleaving.whole import Whole, run_whole

CALLERS = 3
CALLS = 4
SCHEMA = pa.schema([("x", pa.int64())])


def explore(seed: int) -> None:
    modules = [orders, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


class Scene:
    """Two tables that stay and one that comes and goes."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.values = itertools.count()
        self.rows: dict[str, list[int]] = {"a": [], "b": []}
        self.pairs: list[int] = []
        self.names = 0
        self.is_unknown = False

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            with self.whole.server(data=directory) as server:
                self.server = server
                self.tables = {name: server.create_table(name, SCHEMA) for name in self.rows}
                stopper = [self.stop] if self.random.random() < 0.6 else []
                self.whole.together(*[self.call] * CALLERS, *stopper)
            with self.whole.server(data=directory) as server:
                self.check(server)

    def stop(self) -> None:
        self.whole.pause()
        self.server.stop(self.random.choice((None, 0)))

    def call(self) -> None:
        works = (self.write, self.write_both, self.write_soon, self.create, self.drop)
        for _ in range(CALLS):
            try:
                self.random.choice(works)()
            except BarrageError as error:
                if "stop" not in str(error):
                    raise

    def write(self) -> None:
        name, row = self.random.choice(("a", "b")), next(self.values)
        self.tables[name].add({"x": [row]})
        self.rows[name].append(row)

    def write_soon(self) -> None:
        written = [(name, next(self.values)) for name in ("a", "b")]
        futures = [self.tables[name].add({"x": [row]}, wait=False) for name, row in written]
        for (name, row), future in zip(written, futures, strict=True):
            if future.exception() is None:
                self.rows[name].append(row)

    def write_both(self) -> None:
        row = next(self.values)
        self.pairs.append(row)
        with self.server.transaction() as transaction:
            for name in ("a", "b"):
                transaction.add(self.tables[name], {"x": [row]})
        for name in ("a", "b"):
            self.rows[name].append(row)

    def create(self) -> None:
        row = next(self.values)
        try:
            table = self.server.create_table("c", SCHEMA, data={"x": [row]})
        except TableExistsError:
            return
        except BaseException:
            self.is_unknown = True
            raise
        self.names += 1
        try:
            table.add({"x": [row + 1]})
        except TableNotFoundError:
            return

    def drop(self) -> None:
        try:
            self.server.drop_table("c")
        except TableNotFoundError:
            return
        except BaseException:
            self.is_unknown = True
            raise
        self.names -= 1

    def check(self, server) -> None:
        assert not server.damaged_tables(), server.damaged_tables()
        there = {}
        for name, rows in self.rows.items():
            there[name] = Counter(server.table(name).to_arrow().column("x").to_pylist())
            lost = set(rows) - set(there[name])
            assert not lost, f"{name} lost {lost}"
            assert max(there[name].values(), default=1) == 1, f"twice: {there[name]}"
        halves = [row for row in self.pairs if there["a"][row] != there["b"][row]]
        assert not halves, f"a half of a transaction: {halves}"
        if not self.is_unknown:
            assert ("c" in server.table_names()) == bool(self.names), self.names


# --- canaries -------------------------------------------------------------------------------------


def forget_what_was_dropped() -> AbstractContextManager[object]:
    """The journal of a dropped table stays on the disk."""
    return mock.patch.object(JournalService, "end", return_value=None)


CANARIES = (forget_what_was_dropped,)

"""``Server`` and its handles between threads: tables are created, written, published, dropped and
read by everybody, and the server may be stopped meanwhile.

What was acknowledged is there once, what was refused is not; a transaction is in all of its tables
or in none; of those who create one name at a time one succeeds; every future resolves."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

from barrage.errors import (
    BarrageError,
    LocalProtocolError,
    TableExistsError,
    TableNotFoundError,
    TransportError,
)
from barrage.server.api import publish, publish_tables, table_handle
from barrage.server.api.publish_tables import Transaction
from barrage.server.tables.table_service import Change, TableService
from tests.interleaving.whole import Whole, run_whole

CALLERS = 3
CALLS = 5
NAMES = ("one", "two")
SCHEMA = pa.schema([("x", pa.int64())])


def explore(seed: int) -> None:
    run_whole(
        lambda whole: Scene(whole).run(),
        seed,
        modules=[publish, publish_tables, table_handle, sys.modules[__name__]],
    )


class Scene:
    """Threads that do this and that with two tables everybody knows and two names everybody
    wants."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        journal = self.random.choice(("none", "memory"))
        self.server = whole.server(journal=journal)
        self.values = itertools.count()
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        self.refused: set[tuple[str, int]] = set()
        self.names: Counter[str] = Counter()
        self.pairs: list[int] = []

    def run(self) -> None:
        is_stopped = self.random.random() < 0.5
        with self.server:
            self.tables = {name: self.server.create_table(name, SCHEMA) for name in ("a", "b")}
            self.merged = self.tables["a"].merge(self.tables["b"])
            stopper = [self.stop] if is_stopped else []
            self.whole.together(*[self.call] * CALLERS, *stopper)
            if not is_stopped:
                self.check_names()
        self.check()

    def call(self) -> None:
        work = (self.write, self.write_soon, self.write_both, self.write_late, self.write_numbered)
        work += (self.create, self.drop, self.derive, self.look)
        for _ in range(CALLS):
            try:
                self.random.choice(work)()
            except TransportError as error:
                if "stop" not in str(error):
                    raise

    def stop(self) -> None:
        self.whole.pause()
        self.server.stop(self.random.choice((None, 0, 1)))

    # --- writing ---

    def rows(self, count: int) -> list[int]:
        return [next(self.values) for _ in range(count)]

    def told(self, name: str, rows: list[int], error: BaseException | None) -> None:
        if error is None:
            self.acknowledged.update((name, row) for row in rows)
        else:
            assert isinstance(error, BarrageError), error
            self.refused.update((name, row) for row in rows)

    def write(self) -> None:
        name, rows = self.random.choice(("a", "b")), self.rows(3)
        try:
            self.tables[name].add({"x": rows})
        except BarrageError as error:
            self.told(name, rows, error)
            raise
        self.told(name, rows, None)

    def write_soon(self) -> None:
        written = [(name, self.rows(2)) for name in ("a", "b", "a")]
        futures = [self.tables[name].add({"x": rows}, wait=False) for name, rows in written]
        for (name, rows), future in zip(written, futures, strict=True):
            self.told(name, rows, future.exception())

    def write_both(self) -> None:
        rows, error = self.rows(2), None
        self.pairs += rows
        try:
            with self.server.transaction() as transaction:
                for name in ("a", "b"):
                    transaction.add(self.tables[name], {"x": rows})
                if self.random.random() < 0.3:
                    # Rows are only added to it: the whole transaction is refused.
                    transaction.insert(self.tables["b"], 0, {"x": rows})
        except BarrageError as refusal:
            error = refusal
        for name in ("a", "b"):
            self.told(name, rows, error)

    def write_late(self) -> None:
        """One thread ends a transaction to which another still adds."""
        taken: list[int] = []
        transaction = self.server.transaction()

        def add() -> None:
            for row in self.rows(4):
                try:
                    transaction.add(self.tables["a"], {"x": [row]})
                except LocalProtocolError:
                    self.refused.add(("a", row))
                else:
                    taken.append(row)

        adding = threading.Thread(target=add, name="a late one")
        adding.start()
        self.whole.pause()
        error = None
        try:
            transaction.__exit__(None, None, None)
        except BarrageError as refusal:
            error = refusal
        adding.join()
        self.told("a", taken, error)

    def write_numbered(self) -> None:
        """Two threads that send one numbered write: it is applied once."""
        name, rows = self.random.choice(("a", "b")), self.rows(2)
        producer, errors = f"of {rows[0]}", []

        def send() -> None:
            try:
                self.tables[name].add({"x": rows}, producer=producer, sequence=1)
                errors.append(None)
            except BarrageError as error:
                errors.append(error)

        self.whole.together(send, send)
        is_there = None in errors
        if is_there:
            self.told(name, rows, None)
            assert self.tables[name].position(producer) == 1
        elif all(errors):
            self.told(name, rows, errors[0])

    # --- names ---

    def create(self) -> None:
        name, rows = self.random.choice(NAMES), self.rows(1)
        try:
            table = self.server.create_table(name, SCHEMA, data={"x": rows})
        except TableExistsError:
            return
        assert len(table) == 1
        self.names[name] += 1

    def drop(self) -> None:
        name = self.random.choice(NAMES)
        try:
            self.server.drop_table(name)
        except TableNotFoundError:
            return
        self.names[name] -= 1

    def derive(self) -> None:
        view = self.tables["a"].where("x >= 0").sort("-x")
        name = self.random.choice(NAMES)
        try:
            self.server.publish(name, view)
        except TableExistsError:
            return
        self.names[name] += 1
        rows = view.to_arrow().column("x").to_pylist()
        assert rows == sorted(set(rows), reverse=True)

    def look(self) -> None:
        before = {key for key in list(self.acknowledged) if key[0] == "a"}
        rows = self.server.table("a").to_arrow().column("x").to_pylist()
        assert {row for _, row in before} <= set(rows), "an acknowledged row is not to be seen"
        assert {"a", "b"} <= set(self.server.table_names())
        both = Counter(self.merged.to_arrow().column("x").to_pylist())
        assert not [row for row in list(self.pairs) if both[row] == 1], "a half of a transaction"

    # --- afterwards ---

    def check_names(self) -> None:
        there = set(self.server.table_names()) & set(NAMES)
        assert {name for name, count in self.names.items() if count} == there, self.names
        assert all(count in (0, 1) for count in self.names.values()), self.names

    def check(self) -> None:
        for name, table in self.tables.items():
            there = Counter(table._table.to_arrow().column("x").to_pylist())
            twice = [row for row, count in there.items() if count > 1]
            assert not twice, f"{name}: twice {twice}"
            for key in self.acknowledged:
                assert key[0] != name or key[1] in there, f"lost: {key}"
            for key in self.refused - set(self.acknowledged):
                assert key[0] != name or key[1] not in there, f"refused and there: {key}"


# --- canaries -------------------------------------------------------------------------------------


def take_what_comes_late() -> AbstractContextManager[object]:
    """As it was: a change that comes while the transaction ends is taken and forgotten."""

    def note(self: Transaction, change: Change) -> None:
        if not self._is_open:
            raise LocalProtocolError("the transaction has ended; open another one")
        self._changes.append(change)

    return mock.patch.object(Transaction, "_note", note)


def stage_one_by_one() -> AbstractContextManager[object]:
    """A transaction is a write for each of its changes."""

    def change(self, changes, producer=None, *, chain=None):
        futures = [honest(self, [each], producer, chain=chain) for each in changes]
        for future in futures[:-1]:
            future.result()
        return futures[-1]

    honest = TableService.change
    return mock.patch.object(TableService, "change", change)


CANARIES = (take_what_comes_late, stage_one_by_one)

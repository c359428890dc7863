"""The process that knows what was acknowledged. It writes, and after every crash it compares.

``python -m tests.chaos.checker ADDRESS DATA``. Commands come as JSON lines, each is answered by
one: ``run`` lets the writers write, ``pause`` keeps them from the next server, ``check`` compares
its tables with what they must hold, ``count`` tells how far the writers are.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight

from barrage.model.update import FullUpdate
from tests.chaos.naive_replay import replayed_rows
from tests.chaos.scripts import NotesScript
from tests.chaos.writers import Gate, Scripts
from tests.helpers.server_process import RawExchange, raw_channel, subscription_request

EPOCH_HEADER = "x-barrage-epoch"
LOCAL = "local"


@dataclass
class Content:
    """A table as a subscriber gets it."""

    keys: list[int]
    rows: list[tuple[Any, ...]]
    epoch: str
    step: int


def read(channel: grpc.Channel, table: str) -> Content:
    """The first state of a full subscription."""
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request(table))
        update = exchange.read_update()
        assert isinstance(update, FullUpdate)
        told = dict(exchange.call.initial_metadata())
    columns = [column.to_pylist() for column in update.added_columns]
    return Content(
        keys=update.data_keys_post.to_numpy().tolist(),
        rows=list(zip(*columns, strict=True)),
        epoch=told.get(EPOCH_HEADER, ""),
        step=update.last_step,
    )


@dataclass
class Known:
    """What the checker holds about the tables, through all crashes."""

    epochs: dict[str, str] = field(default_factory=dict)
    book_keys: dict[int, int] = field(default_factory=dict)
    """Key column of a row to its row key."""
    local: dict[str, int] = field(default_factory=dict)
    """The server's own writers: table to the last number it acknowledged."""


class Checker:
    """Writers, a subscriber, and what they were told."""

    def __init__(self, address: str, data: Path, *, has_local: bool) -> None:
        self.address = address
        self.location = f"grpc://{address}"
        self.data = data
        self.has_local = has_local
        self.gate = Gate()
        self.known = Known()
        scene = Scripts(self.location, self.gate)
        self.events, self.book, self.ring = scene.events, scene.book, scene.ring
        self.writers = scene.writers
        self.subscribers = [
            threading.Thread(target=self._subscribe, args=(name,), daemon=True)
            for name in ("events", "book")
        ]
        for thread in (*self.writers, *self.subscribers):
            thread.start()

    def _subscribe(self, table: str) -> None:
        """Note every step a subscriber is told of, on the disk or not."""
        while not self.gate.is_over.is_set():
            if not self.gate.is_open.wait(0.2):
                continue
            with (
                contextlib.suppress(grpc.RpcError, StopIteration),
                raw_channel(self.address) as channel,
                RawExchange(channel) as exchange,
            ):
                exchange.send(subscription_request(table))
                while True:
                    self.gate.saw_step(exchange.read_update().last_step)
            self.gate.is_over.wait(0.02)

    # --- commands ---

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        name = command["do"]
        if name == "run":
            self.gate.step_floor = self.gate.step_max
            self.gate.is_open.set()
        elif name == "progress":
            pass
        elif name == "pause":
            self.gate.is_open.clear()
        elif name == "check":
            for table, (number, step, first) in command["local"].items():
                self.known.local[table] = max(number, self.known.local.get(table, 0))
                if first <= self.gate.step_floor:
                    self.gate.complain(f"{table}: step {first} came again")
                self.gate.saw_step(step)
            self.check(with_replay=command["replay"])
        else:
            raise ValueError(f"there is no command {name!r}")
        problems, self.gate.problems = self.gate.problems, []
        return {
            "problems": problems,
            "acknowledged": {w.producer: w.acknowledged for w in self.writers},
            "resent": sum(w.resent for w in self.writers),
        }

    def check(self, *, with_replay: bool) -> None:
        """Compare every table with what it must hold."""
        with raw_channel(self.address) as channel, flight.connect(self.location) as client:
            contents = {}
            for name in self.table_names():
                contents[name] = read(channel, name)
                self._check_identity(name, contents[name])
            self._check_positions(client)
            for name, compare in (
                ("events", self._check_events),
                ("book", self._check_book),
                ("ring", self._check_ring),
                ("notes", self._check_notes),
                ("left", self._check_pair),
                ("right", self._check_pair),
            ):
                if name in contents:
                    compare(client, name, contents[name])
        if with_replay:
            for name, content in contents.items():
                self._check_replay(name, content)

    def table_names(self) -> list[str]:
        """The tables somebody was told that they exist."""
        made = {w.table for w in self.writers if w.was_created}
        return sorted(made) + (["notes", "left", "right"] if self.has_local else [])

    def _check_identity(self, name: str, content: Content) -> None:
        self._same(
            f"{name}: its epoch", self.known.epochs.setdefault(name, content.epoch), content.epoch
        )
        self._same(f"{name}: whether it has an epoch", True, len(content.epoch) == 16)

    def _check_positions(self, client: flight.FlightClient) -> None:
        for writer in self.writers:
            if writer.was_created:
                self._position(client, writer.table, writer.producer, writer.acknowledged)

    def _position(
        self, client: flight.FlightClient, table: str, producer: str, acknowledged: int
    ) -> int:
        """How far a producer has got in a table, as the server says."""
        command = json.dumps({"table": table, "producer": producer}).encode()
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = client.do_put(descriptor, client.get_schema(descriptor_of(table)).schema)
        position = json.loads(reader.read().to_pybytes())["sequence"] or 0
        writer.close()
        if position < acknowledged:
            self.gate.complain(
                f"{table}: {producer} was told of {acknowledged}, the server has {position}"
            )
        return position

    def _check_events(self, client: flight.FlightClient, name: str, content: Content) -> None:
        for script, writer in zip(self.events, self.writers, strict=False):
            found = [row for row in content.rows if row[0] == script.writer]
            upto = self._position(client, name, writer.producer, writer.acknowledged)
            self._same(f"{name} of {writer.producer} at {upto}", script.expected(upto), found)
        self._same(f"{name}: row keys", list(range(len(content.rows))), content.keys)

    def _check_book(self, client: flight.FlightClient, name: str, content: Content) -> None:
        expected: dict[int, tuple[Any, ...]] = {}
        for script in self.book:
            producer = f"book-{script.writer}"
            acknowledged = next(w.acknowledged for w in self.writers if w.producer == producer)
            expected |= script.expected(self._position(client, name, producer, acknowledged))
        self._same(f"{name}: rows", expected, {row[0]: row for row in content.rows})
        self._same(f"{name}: rows with a key", len(expected), len(content.rows))
        now = {row[0]: key for key, row in zip(content.keys, content.rows, strict=True)}
        before = {k: key for k, key in self.known.book_keys.items() if k in now}
        self._same(f"{name}: row keys", before, {k: now[k] for k in before})
        self.known.book_keys = now

    def _check_ring(self, client: flight.FlightClient, name: str, content: Content) -> None:
        writer = self.writers[-1]
        upto = self._position(client, name, writer.producer, writer.acknowledged)
        self._same(f"{name} at {upto}", self.ring.expected(upto), content.rows)
        self._same(f"{name}: row keys", [row[0] for row in content.rows], content.keys)

    def _check_notes(self, client: flight.FlightClient, name: str, content: Content) -> None:
        upto = self._position(client, name, LOCAL, self.known.local.get(name, 0))
        expected = [(text,) for text in NotesScript.after(upto).texts]
        self._same(f"{name} at {upto}", expected, content.rows)
        self._same(f"{name}: row keys", list(range(len(content.rows))), content.keys)

    def _check_pair(self, client: flight.FlightClient, name: str, content: Content) -> None:
        upto = self._position(client, name, LOCAL, self.known.local.get("pair", 0))
        self._same(f"{name} at {upto}", [(n,) for n in range(1, upto + 1)], content.rows)

    def _check_replay(self, name: str, content: Content) -> None:
        try:
            rows = replayed_rows(self.data, name)
        except (AssertionError, pa.ArrowException, OSError) as error:
            self.gate.complain(f"{name}: its journal cannot be replayed: {error}")
            return
        self._same(f"{name}: rows of its journal", sorted(rows.values()), sorted(content.rows))

    def _same(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.gate.complain(f"{what}: expected {_short(expected)}, found {_short(found)}")


def descriptor_of(table: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path(table)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) < 400 else f"{shown[:200]} ... {shown[-200:]}"


def main() -> None:
    checker = Checker(sys.argv[1], Path(sys.argv[2]), has_local=sys.argv[3] == "local")
    for line in sys.stdin:
        try:
            told = checker.do(json.loads(line))
        except Exception as error:  # The test must be told, whatever it is.
            told = {"problems": [f"the checker failed: {type(error).__name__}: {error}"]}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Relays and the server they follow are killed under load; clients move on to whoever is there.

One server owns two tables, two relays follow it, a third follows these. A writer that survives
everything adds the numbers 1, 2, 3 ... to one table and changes the rows of the other, at whatever
relay it reaches, which passes that on, or at the server itself. Every client reads where it likes
and, when that dies, resumes elsewhere from its cursor. Each must be told every number exactly once
and in order, and end with the rows the server has. Only a step that the killed server had shown
before it was on its disk is taken back, as it is without relays.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.client.subscriptions.state import State
from barrage.errors import BarrageError
from barrage.model.cursor import Cursor
from tests.chaos.processes import COMMAND, free_port

pytestmark = pytest.mark.chaos

SEED = 20_261_123
KILLS = 24
CLIENTS = 6
BEGUN_ANEW = (
    "lost that step in a crash",
    "ahead of the server",
    "the journal begins at step",
    "not found",
    "rows changed, more than the",
)
"""Why a client may have to begin anew: it was shown a step that the server, killed before it was on
the disk, does not have any more; or a relay began after its cursor, or at this very moment; or more
was written meanwhile than there are rows. Its rows then are those of one moment, and no others."""


@dataclass
class Place:
    """A server that is killed and started again on the same port."""

    words: tuple[str, ...]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Without waiting for it."""
        command = [sys.executable, "-c", COMMAND, *self.words, "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        """Without a warning."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Client:
    """Reads one table wherever it can, and remembers what it was told."""

    def __init__(self, table: str, places: list[Place], chance: random.Random) -> None:
        self.table = table
        self.places = places
        self.chance = chance
        self.cursor: Cursor | None = None
        self.rows: Any = None
        self.numbers: list[int] = []
        self.resumed = 0
        self.began_anew = 0
        self.may_shrink = False
        self.wrong: list[str] = []

    async def run(self) -> None:
        while True:
            place = self.chance.choice(self.places)
            with suppress(BarrageError, TimeoutError, OSError):
                await self._read_at(place)
            await asyncio.sleep(self.chance.uniform(0.01, 0.1))

    async def _read_at(self, place: Place) -> None:
        kept = {} if self.cursor is None else {"resume_from": self.cursor, "rows": self.rows}
        async with (
            aconnect(place.uri, timeout=2, bodies="inline") as session,
            session.table(self.table).subscribe(
                interval_ms=self.chance.choice([10, 50]),
                resume=self.chance.choice(["coalesced", "steps"]),
                reconnect=False,
                **kept,
            ) as live,
        ):
            await live.wait_ready(20)
            if kept:
                self._note(live.resumption)
            stays = time.monotonic() + self.chance.uniform(0.5, 4.0)
            try:
                while time.monotonic() < stays and live.state is State.LIVE:
                    await asyncio.sleep(0.05)
                    self._keep(live)
            finally:
                self._keep(live)

    async def shows(self, rows: Any) -> None:
        """Until it has these rows, of a table that nobody writes any more."""
        while True:
            if self.rows is not None and self.rows.equals(rows):
                return
            await asyncio.sleep(0.1)

    def _note(self, resumption: str | None) -> None:
        if resumption is not None and not resumption.startswith("resnapshot"):
            self.resumed += 1
        elif resumption is not None and any(reason in resumption for reason in BEGUN_ANEW):
            self.began_anew += 1
            self.may_shrink = True
        else:
            self.wrong.append(str(resumption))

    def _keep(self, live: Any) -> None:
        cursor, rows = live.checkpoint()
        if cursor is None:
            self.wrong.append("a table without a history")
            return
        if self.cursor is not None and cursor.epoch != self.cursor.epoch:
            self.wrong.append(f"{self.cursor} became {cursor}")
        self.cursor, self.rows = cursor, rows
        if self.table == "numbers":
            found = rows["n"].to_pylist()
            if found != list(range(1, len(found) + 1)):
                self.wrong.append("a number is missing, or there twice")
            if len(found) < len(self.numbers) and not self.may_shrink:
                self.wrong.append("rows are gone that had been told")
            self.numbers, self.may_shrink = found, False


async def write(uris: list[str], until: asyncio.Event) -> int:
    """Write wherever it can be until told to stop; the last number that was acknowledged."""
    again = Backoff(first_seconds=0.05, seconds_max=0.3)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aconnect(uris))
        numbers = await stack.enter_async_context(
            session.writer("numbers", producer="one", mode="append", reconnect=again)
        )
        rows = await stack.enter_async_context(
            session.writer("rows", producer="one", mode="upsert", key="k", reconnect=again)
        )
        chance = random.Random(SEED)
        count = 0
        while not until.is_set():
            first, count = count + 1, count + chance.randrange(1, 5)
            await numbers.write({"n": list(range(first, count + 1))})
            keys = chance.sample(range(200), 3)
            await rows.write({"k": keys, "v": [count] * len(keys)})
            await asyncio.sleep(0.002)
        await numbers.flush()
        await rows.flush()
        return count


async def reachable(place: Place) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(BarrageError, OSError):
                async with aconnect(place.uri, timeout=2) as session:
                    names = {info.name for info in await session.tables()}
                    if {"numbers", "rows"} <= names:
                        return
            await asyncio.sleep(0.05)


async def serves(place: Place, name: str, rows: Any) -> None:
    """Until the rows of a table are these there: a relay that keeps its state serves that of before
    until it has come to its upstream server's."""
    while True:
        with suppress(BarrageError, OSError):
            async with aconnect(place.uri, timeout=2) as session:
                if (await session.table(name).snapshot()).equals(rows):
                    return
        await asyncio.sleep(0.1)


async def story(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    engine = Place(("serve", "--data", str(tmp_path / "data")))
    first = Place(("relay", engine.uri, "--quiet", "--data", str(tmp_path / "states")))
    second = Place(("relay", engine.uri, "--quiet"))
    third = Place(("relay", first.uri, second.uri, "--quiet"))
    places = [engine, first, second, third]
    try:
        engine.start()
        async with asyncio.timeout(60):
            while True:
                with suppress(BarrageError, OSError):
                    async with aconnect(engine.uri, timeout=2) as session:
                        await session.create_table("numbers", {"n": "int64"})
                        await session.create_table("rows", {"k": "int64", "v": "int64"}, key="k")
                        break
                await asyncio.sleep(0.05)
        for place in places[1:]:
            place.start()
        for place in places:
            await reachable(place)
        ended = asyncio.Event()
        writing = asyncio.create_task(write([place.uri for place in reversed(places)], ended))
        clients = [
            Client(("numbers", "rows")[at % 2], places, random.Random(f"{SEED}/{at}"))
            for at in range(CLIENTS)
        ]
        reading = [asyncio.create_task(client.run()) for client in clients]
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            place = chance.choice(places)
            place.kill()
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            place.start()
            assert not writing.done(), writing
        for place in places:
            await reachable(place)
        ended.set()
        count = await asyncio.wait_for(writing, 60)
        async with aconnect(engine.uri) as session:
            oracle = {name: await session.table(name).snapshot() for name in ("numbers", "rows")}
        assert oracle["numbers"]["n"].to_pylist() == list(range(1, count + 1))
        async with asyncio.timeout(60):
            for client in clients:
                await client.shows(oracle[client.table])
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        told = [(c.table, c.resumed, c.began_anew, c.wrong) for c in clients]
        sys.stderr.write(f"\n{count} numbers, {KILLS} kills, clients: {told}\n")
        assert all(not client.wrong for client in clients), told
        assert all(client.resumed for client in clients)
        for place in places:
            for name, rows in oracle.items():
                async with asyncio.timeout(60):
                    await serves(place, name, rows)
    finally:
        for place in places:
            place.kill()


def test_clients_of_killed_relays_and_servers_miss_nothing(tmp_path: Path) -> None:
    asyncio.run(story(tmp_path))

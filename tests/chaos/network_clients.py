"""The clients of a network test, in a process of their own: ``python -m tests.chaos.network_clients
TOKEN URI...`` with the addresses of relays.

They make the tables and write them through the relays, and read them there. One writer adds the
numbers 1, 2, 3 ...; another changes rows. Every reader of numbers keeps count of each it is told
of. A line of JSON a few times a second says how far they are; a line ``stop`` on stdin ends the
writing, and when all have what was written, or have not in time, a last line says what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from contextlib import AsyncExitStack
from typing import Any

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.errors import ConnectionLostError, TableNotFoundError
from barrage.supervision import in_thread

READERS = 4
END_SECONDS_MAX = 60
WRONGS_TOLD = 10
"""Of each reader."""
AGAIN = Backoff(first_seconds=0.05, seconds_max=0.5)


class Reader:
    """Follows both tables and counts."""

    def __init__(self, uris: list[str], token: str) -> None:
        self._uris = uris
        self._token = token
        self.told = 0
        """The last number, all of which have come once and in their order."""
        self.resumptions: list[str] = []
        self.wrong: list[str] = []
        self.numbers: Any = None
        self.rows: Any = None

    async def run(self, stack: AsyncExitStack) -> None:
        session = await stack.enter_async_context(
            aconnect(self._uris, auth=self._token, bodies="inline")
        )
        options: dict[str, Any] = {"interval_ms": 20, "reconnect": AGAIN, "resume": "steps"}
        self.numbers = await stack.enter_async_context(
            session.table("numbers").subscribe(**options)
        )
        self.numbers.on_update(self._count)
        self.rows = await stack.enter_async_context(session.table("rows").subscribe(**options))
        for table in (self.numbers, self.rows):
            await table.wait_ready(60)

    def _count(self, update: Any) -> None:
        """Each number is told by one update, and never again, whatever happens in between."""
        for number in update.added["n"].to_pylist():
            if number != self.told + 1:
                self.wrong.append(f"{number} was told after {self.told}")
            self.told = max(self.told, number)
        if len(update.removed):
            self.wrong.append("rows are gone that had been told")

    def note(self) -> None:
        """How it went on the last time."""
        for table in (self.numbers, self.rows):
            told = table.resumption
            if told is not None and told not in self.resumptions:
                self.resumptions.append(told)


class Writing:
    """The two writers. ``count`` is the last number that was acknowledged."""

    def __init__(self) -> None:
        self.count = 0
        self.resends = 0
        self.is_over = asyncio.Event()

    async def run(self, uris: list[str], token: str) -> None:
        chance = random.Random(13)
        async with (
            aconnect(uris, auth=token) as session,
            session.writer("numbers", producer="w", mode="append", reconnect=AGAIN) as numbers,
            session.writer("rows", producer="w", mode="upsert", key="k", reconnect=AGAIN) as rows,
        ):
            number = 0
            while not self.is_over.is_set():
                first, number = number + 1, number + chance.randrange(1, 4)
                await numbers.write({"n": list(range(first, number + 1))}, sequence=number)
                keys = chance.sample(range(50), 3)
                await rows.write({"k": keys, "v": [number] * 3})
                self.count = numbers.position or 0
                self.resends = numbers.resends
                await asyncio.sleep(0.01)
            await numbers.flush()
            await rows.flush()
            self.count = numbers.position or 0


async def make_tables(uris: list[str], token: str) -> None:
    """At the first relay, and wait until the others have them."""
    tables: dict[str, tuple[dict[str, str], str | None]] = {
        "numbers": ({"n": "int64"}, None),
        "rows": ({"k": "int64", "v": "int64"}, "k"),
    }
    async with asyncio.timeout(60):
        async with aconnect(uris[0], auth=token) as session:
            for name, (columns, key) in tables.items():
                await session.create_table(name, columns, key=key)
        for uri in uris:
            async with aconnect(uri, auth=token) as session:
                while True:
                    if tables.keys() <= {each.name for each in await session.tables()}:
                        break
                    await asyncio.sleep(0.05)


def tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def main(token: str, uris: list[str]) -> None:
    await make_tables(uris, token)
    writing = Writing()
    async with AsyncExitStack() as stack:
        readers = []
        for at in range(READERS):
            turned = uris[at % len(uris) :] + uris[: at % len(uris)]
            readers.append(Reader(turned, token))
            await readers[-1].run(stack)
        work = asyncio.create_task(writing.run(uris, token))
        stopping = asyncio.create_task(in_thread(sys.stdin.readline))
        while not stopping.done() and not work.done():
            for reader in readers:
                reader.note()
            tell(count=writing.count, told=[reader.told for reader in readers])
            await asyncio.wait({stopping, work}, timeout=0.2, return_when="FIRST_COMPLETED")
        writing.is_over.set()
        await work
        await finish(readers, writing.count, uris, token)
        tell(
            end=True,
            count=writing.count,
            resends=writing.resends,
            told=[reader.told for reader in readers],
            wrong=[text for reader in readers for text in reader.wrong[:WRONGS_TOLD]],
            resumptions=[reader.resumptions for reader in readers],
        )


async def finish(readers: list[Reader], count: int, uris: list[str], token: str) -> None:
    """Until every reader and every relay has what was written."""
    try:
        async with asyncio.timeout(END_SECONDS_MAX):
            rows = await settled(readers, count, uris, token)
    except TimeoutError:
        readers[0].wrong.append(f"not all had all of {count} numbers in {END_SECONDS_MAX} s")
        return
    for reader in readers:
        reader.note()
        if reader.numbers.to_arrow()["n"].to_pylist() != list(range(1, count + 1)):
            reader.wrong.append("the rows are others than were told")
        if not reader.rows.to_arrow().sort_by("k").equals(rows):
            reader.wrong.append("the rows are others than the relay's")


async def settled(readers: list[Reader], count: int, uris: list[str], token: str) -> Any:
    """The changed rows, once they are the same wherever they are read."""
    while True:
        found = [reader.rows.to_arrow().sort_by("k") for reader in readers]
        try:
            for uri in uris:
                async with aconnect(uri, auth=token) as session:
                    found.append((await session.table("rows").snapshot()).sort_by("k"))
        except (TableNotFoundError, ConnectionLostError):
            # A relay that was started a moment ago has it soon, and says so.
            await asyncio.sleep(0.05)
            continue
        is_told = all(reader.told == count for reader in readers)
        if is_told and all(each.equals(found[0]) for each in found):
            return found[0]
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))

"""Rows of many calls that wait for room: some come, some are cancelled while they wait or just when
they are served. The rows that are pending stay within their bound, nobody waits for ever, and all
room comes back."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractContextManager
from unittest import mock

from barrage.server.tables import write_room
from barrage.server.tables.write_room import WriteRoom
from tests.interleaving.seeded_loop import run_seeded

ROOM = 10
CALLS = 8


def explore(seed: int) -> None:
    run_seeded(lambda: Scene(random.Random(seed)).run(), seed)


class Scene:
    def __init__(self, drawn: random.Random) -> None:
        self.random = drawn
        self.room = WriteRoom(ROOM)

    async def run(self) -> None:
        calls = [asyncio.create_task(self.call()) for _ in range(CALLS)]
        for call in calls:
            await self.pause()
            if self.random.random() < 0.4:
                call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() or call.exception() is None for call in calls)
        assert self.room.rows_pending == 0
        await asyncio.wait_for(self.room.take(ROOM), 1)

    async def call(self) -> None:
        for _ in range(3):
            await self.pause()
            count = self.random.choice((1, 4, 7, ROOM + 3))
            taken = await self.room.take(count)
            try:
                pending = self.room.rows_pending
                assert pending <= ROOM or pending == count, (pending, count)
                await self.pause()
                if self.random.random() < 0.5:
                    taken.applied()
                    await self.pause()
            finally:
                taken.give_back()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.01)))


# --- canaries -------------------------------------------------------------------------------------


def forget_who_was_just_served() -> AbstractContextManager[object]:
    """Who is cancelled after its turn came keeps the room."""

    async def turn(self, row_count):
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((row_count, turn))
        await turn

    return mock.patch.object(WriteRoom, "_turn", turn)


def let_in_whoever_waits() -> AbstractContextManager[object]:
    """Room is given back to the next, whether it is enough or not."""

    def admit(self):
        if self._waiting:
            row_count, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.rows_pending += row_count
                turn.set_result(None)

    return mock.patch.object(write_room.WriteRoom, "_admit", admit)


def give_back_twice() -> AbstractContextManager[object]:
    """Rows that are applied and then safe make room twice."""

    def give_back(self):
        self._room._give_back(self._row_count)

    return mock.patch.object(write_room.TakenRoom, "give_back", give_back)


CANARIES = (forget_who_was_just_served, let_in_whoever_waits, give_back_twice)

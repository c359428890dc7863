"""What takes long is done beside the event loop, one at a time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from barrage.server.runtime.aside import ON_LOOP_BYTES_MAX, aside
from barrage.server.tables.static_tables import static_table
from barrage.supervision import in_thread

LARGE = ON_LOOP_BYTES_MAX + 1


class Held:
    """Work that goes on until it is let through."""

    def __init__(self) -> None:
        self.begun, self.let_through = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let_through.wait(60)
        return "done"


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_the_turn_is_over_when_the_work_is_and_not_when_its_caller_goes() -> None:
    first, second = Held(), Held()
    second.let_through.set()

    async def go() -> None:
        gone = asyncio.create_task(aside(LARGE, first))
        assert await in_thread(first.begun.wait, 60)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        next_one = asyncio.create_task(aside(LARGE, second))
        await turns()
        assert not second.begun.is_set()
        first.let_through.set()
        assert await next_one == "done"

    asyncio.run(go())


def test_a_caller_that_goes_before_its_turn_takes_none() -> None:
    first, never, third = Held(), Held(), Held()
    third.let_through.set()

    async def go() -> None:
        holding = asyncio.create_task(aside(LARGE, first))
        waiting = asyncio.create_task(aside(LARGE, never))
        await turns()
        waiting.cancel()
        first.let_through.set()
        assert await holding == "done"
        assert await aside(LARGE, third) == "done"
        assert not never.begun.is_set()

    asyncio.run(go())


def test_an_error_is_the_callers_and_gives_the_turn_back() -> None:
    async def go() -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await aside(LARGE, lambda: 1 // 0)

    asyncio.run(go())


def test_tables_that_stay_are_stored_one_at_a_time_and_leave_the_threads_to_others() -> None:
    held = Held()
    stored: list[pa.Table] = []

    class Tables:
        def create_static(self, rows: pa.Table) -> Future[pa.Table]:
            stored.append(rows)
            held()
            made: Future[pa.Table] = Future()
            made.set_result(rows)
            return made

    rows = pa.table({"n": [1, 2, 3]})

    async def go() -> None:
        tables: Any = Tables()
        making = [asyncio.create_task(static_table(tables, rows)) for _ in range(40)]
        # Who only wants a thread gets one, however many tables there are to be stored.
        assert await in_thread(int) == 0
        assert await in_thread(held.begun.wait, 60)
        await turns()
        assert len(stored) == 1
        held.let_through.set()
        assert await asyncio.gather(*making) == [rows] * 40

    asyncio.run(go())

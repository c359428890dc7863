"""Room for rows of peers: first come, first served, and all of it comes back."""

from __future__ import annotations

import asyncio

import pytest

from barrage.server.tables.write_room import WriteRoom


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_first_that_waits_is_served_first() -> None:
    async def run() -> None:
        room, order = WriteRoom(10), []

        async def take(name: str, count: int) -> None:
            await room.take(count)
            order.append(name)

        held = await room.take(8)
        tasks = [asyncio.create_task(take(*who)) for who in (("large", 6), ("small", 1))]
        await settle()
        assert order == []  # The small one would fit, and would let the large one wait for ever.
        held.give_back()
        held.give_back()
        await settle()
        assert order == ["large", "small"]
        assert room.rows_pending == 7
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_what_never_fits_goes_alone() -> None:
    async def run() -> None:
        room = WriteRoom(10)
        held = await room.take(100)
        waiting = asyncio.create_task(room.take(1))
        await settle()
        assert not waiting.done()
        held.give_back()
        await waiting
        assert room.rows_pending == 1

    asyncio.run(run())


@pytest.mark.parametrize("is_served", [False, True], ids=["waiting", "just served"])
def test_who_leaves_takes_nothing_along(is_served: bool) -> None:
    async def run() -> None:
        room = WriteRoom(10)
        held = await room.take(10)
        leaving = asyncio.create_task(room.take(10))
        last = asyncio.create_task(room.take(4))
        await settle()
        if is_served:
            held.give_back()
        leaving.cancel()
        await settle()
        if not is_served:
            assert not last.done()
            held.give_back()
            await settle()
        assert leaving.cancelled()
        await last
        assert room.rows_pending == 4

    asyncio.run(run())


def test_rows_that_are_applied_make_room_from_another_thread() -> None:
    async def run() -> None:
        room = WriteRoom(10)
        held = [await room.take(5), await room.take(5)]
        waiting = asyncio.create_task(room.take(10))
        await settle()
        assert not waiting.done()
        await asyncio.to_thread(lambda: [taken.applied() for taken in held])
        await asyncio.wait_for(waiting, 30)
        held[0].give_back()  # It is safe on disk now, too.
        assert room.rows_pending == 10

    asyncio.run(run())


def test_a_loop_that_has_gone_is_not_told() -> None:
    room = WriteRoom(10)
    asyncio.run(room.take(5)).applied()

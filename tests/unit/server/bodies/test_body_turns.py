"""Clients that connect by UCX together take turns, and who gives up holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from barrage.server.bodies import body_turns
from barrage.server.bodies.body_turns import TURNS_MAX, BodyTurns


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_sixty_clients_take_their_turns_in_the_order_they_came() -> None:
    async def scenario() -> None:
        turns, order, most = BodyTurns(), [], 0

        async def connect(number: int) -> None:
            nonlocal most
            turn = await turns.wait(seconds_max=60)
            order.append(number)
            most = max(most, turns.running_count)
            await asyncio.sleep(0)
            turn.end()
            turn.end()

        await asyncio.gather(*(connect(number) for number in range(60)))
        assert order == list(range(60))
        assert most == TURNS_MAX
        assert (turns.running_count, turns.waiting_count) == (0, 0)

    run(scenario())


def test_who_waits_too_long_or_goes_leaves_no_gap() -> None:
    async def scenario() -> None:
        turns = BodyTurns()
        held = [await turns.wait(seconds_max=60) for _ in range(TURNS_MAX)]
        with pytest.raises(TimeoutError):
            await turns.wait(seconds_max=0)
        gone = asyncio.ensure_future(turns.wait(seconds_max=60))
        called = asyncio.ensure_future(turns.wait(seconds_max=60))
        last = asyncio.ensure_future(turns.wait(seconds_max=60))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        held[0].end()
        called.cancel()  # In the moment it was called.
        turn = await last
        turn.end()
        held[1].end()
        assert (turns.running_count, turns.waiting_count) == (0, 0)

    run(scenario())


def test_a_client_that_never_connects_keeps_its_turn_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_turns, "TURN_SECONDS_MAX", 0.0)

    async def scenario() -> None:
        turns = BodyTurns()
        for _ in range(3 * TURNS_MAX):
            await turns.wait(seconds_max=60)

    run(scenario())

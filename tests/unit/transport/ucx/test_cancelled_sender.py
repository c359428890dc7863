"""A sender that is cancelled in the very moment in which it may go on is cancelled all the same."""

from __future__ import annotations

import asyncio

import pytest

from barrage.clock import SystemClock
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx.sender import StreamSender


@pytest.mark.parametrize("turns", range(4))
def test_a_cancellation_is_never_lost(turns: int) -> None:
    async def scenario() -> bool:
        sender = StreamSender(
            (), metadata=None, bodies=None, limits=DEFAULT_LIMITS, clock=SystemClock()
        )
        waiting = asyncio.create_task(sender._until(lambda: False))
        for _ in range(3):
            await asyncio.sleep(0)
        sender._advance()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=60)
        is_cancelled = waiting in done and waiting.cancelled()
        waiting.cancel()
        return is_cancelled

    assert asyncio.run(scenario())

"""What a client of the protocol leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

from barrage.clock import SystemClock
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx import ErrorMode
from barrage.transport.ucx.stream_client import _Client
from tests.helpers.ucx_streams import until


class Closing:
    """A connection whose close takes a while, and is done all the same when it is called off."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_closed = False

    async def close(self, *, force: bool = True) -> None:
        self.has_begun = True
        try:
            await asyncio.sleep(60)
        finally:
            self.is_closed = True


def test_who_is_cancelled_while_closing_has_closed_both_connections() -> None:
    async def scenario() -> list[Any]:
        client = _Client(
            None, DEFAULT_LIMITS, SystemClock(), error_mode=ErrorMode.PEER, first_sequence=0
        )  # type: ignore[arg-type]
        connections: list[Any] = [Closing(), Closing()]
        client._metadata, client._bodies = connections
        closing = asyncio.create_task(client.close())
        await until(lambda: connections[0].has_begun)
        closing.cancel()
        await asyncio.wait([closing])
        return connections

    assert all(each.is_closed for each in asyncio.run(scenario()))

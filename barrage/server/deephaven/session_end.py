"""Calls that stay open as long as their session: what ends them, and how."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from barrage.errors import BarrageError
    from barrage.server.access.session_store import ClientSession


async def until_session_ends(
    session: ClientSession, work: Coroutine[None, None, None]
) -> BarrageError | None:
    """Do ``work``, which may go on for ever, until the session ends; returns what it ended with, or
    None when the work was done before. Errors of ``work`` are raised. No task is left then."""
    ended: asyncio.Future[BarrageError] = asyncio.get_running_loop().create_future()

    def end(error: BarrageError) -> None:
        if not ended.done():
            ended.set_result(error)

    unregister = session.on_close(end)
    working = asyncio.create_task(work)
    both: tuple[asyncio.Future[Any], ...] = (working, ended)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return None
        return ended.result()
    finally:
        unregister()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

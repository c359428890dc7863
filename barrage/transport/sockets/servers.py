"""How listeners of asyncio stop."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 5
"""Of the loop, in which asyncio makes a connection of what it has accepted."""


async def close_servers(servers: list[asyncio.Server]) -> None:
    """Take no more connections, and empty the list. Those that have been accepted are made first:
    asyncio fails to make one whose server is closed, and leaves its socket open
    (python/cpython#109564). May be called twice at once."""
    loop = asyncio.get_running_loop()
    closing = servers[:]
    try:
        for server in closing:
            for each in server.sockets:
                loop.remove_reader(each.fileno())
        if any(server.sockets for server in closing):
            for _ in range(_TURNS):
                await asyncio.sleep(0)
    finally:
        for server in closing:
            server.close()
        servers.clear()

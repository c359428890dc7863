"""Where the servers of end-to-end tests listen that need no socket, and what tests do on their
loops.

By default nowhere: they serve ``inproc://``. With ``SOCKETS_SUITE=1`` they listen on a port,
so that the same tests run over gRPC. Tests of raw clients, of cut connections and of other
processes always have sockets, and so does one test of each kind of call
(``tests/unit/transport/test_contract.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import barrage

HOST = "127.0.0.1" if os.environ.get("SOCKETS_SUITE") else "inproc://"


def on_loop(server: barrage.Server, work: Callable[[], object]) -> None:
    """Run it on the event loop of the server, to which most of what a server has belongs: it may be
    at it itself just now."""

    async def run() -> None:
        work()

    assert server._loop is not None
    asyncio.run_coroutine_threadsafe(run(), server._loop).result(60)

"""Two ends of one connection in one process, and what came at each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from barrage.errors import TransportError
from barrage.transport.ucx import (
    ErrorMode,
    Probed,
    UcxConnection,
    UcxContext,
    UcxLibrary,
    UcxListener,
    UcxSettings,
)

SECONDS_MAX = 30.0
"""What should come soon is waited for this long: the machine may be busy with much else."""


class Inbox:
    """Takes everything of a connection, or what ``takes`` says."""

    def __init__(self, connection: UcxConnection, *, takes_tagged: bool = True) -> None:
        self.connection = connection
        self.untagged: list[bytes] = []
        self.tagged: list[tuple[int, bytes]] = []
        self.lost: list[TransportError] = []
        self.story: list[str] = []
        connection.on_untagged = self._untagged
        connection.on_lost = self._lost
        if takes_tagged:
            connection.on_tagged = self._tagged

    def _untagged(self, message: bytes | memoryview) -> None:
        self.untagged.append(bytes(message))
        self.story.append("untagged")

    def _lost(self, error: TransportError) -> None:
        self.lost.append(error)
        self.story.append("lost")

    def _tagged(self) -> None:
        while (probed := self.connection.probe()) is not None:
            self._take(probed)

    def _take(self, probed: Probed) -> None:
        def came(future: asyncio.Future[pa.Buffer]) -> None:
            if future.exception() is None:
                self.tagged.append((probed.tag, future.result().to_pybytes()))
                self.story.append("tagged")

        self.connection.receive(probed).add_done_callback(came)


async def until(condition: Any, *, seconds: float = SECONDS_MAX) -> None:
    """Wait until ``condition()`` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


class Ends:
    """A client, its server's end, and the context and listener of both."""

    def __init__(self, context: UcxContext, listener: UcxListener) -> None:
        self.context = context
        self.listener = listener
        self.accepted: list[UcxConnection] = []
        self.opened: list[UcxConnection] = []

    async def connect(
        self, error_mode: ErrorMode = ErrorMode.PEER
    ) -> tuple[UcxConnection, UcxConnection]:
        """One more connection: the client's end and the server's."""
        count = len(self.accepted)
        client = await UcxConnection.connect(
            self.context,
            "127.0.0.1",
            self.listener.port,
            timeout=SECONDS_MAX,
            error_mode=error_mode,
        )
        self.opened.append(client)
        await until(lambda: len(self.accepted) > count)
        return client, self.accepted[-1]


@asynccontextmanager
async def ends(
    library: UcxLibrary, settings: UcxSettings | None = None, **options: Any
) -> AsyncIterator[Ends]:
    """A listener on a free port; everything is closed behind it."""
    context = UcxContext(library, settings or UcxSettings())
    made: list[Ends] = []
    listener = UcxListener(
        context, "127.0.0.1", 0, on_connection=lambda each: made[0].accepted.append(each), **options
    )
    made.append(Ends(context, listener))
    try:
        yield made[0]
    finally:
        for connection in (*made[0].opened, *made[0].accepted):
            await connection.close()
        listener.close()
        context.close()


@asynccontextmanager
async def pair(
    library: UcxLibrary,
    *,
    error_mode: ErrorMode = ErrorMode.PEER,
    settings: UcxSettings | None = None,
) -> AsyncIterator[tuple[UcxConnection, UcxConnection]]:
    """One connection: the client's end and the server's."""
    async with ends(library, settings) as both:
        yield await both.connect(error_mode)

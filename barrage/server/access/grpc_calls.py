"""What ``grpc.aio`` has under no name of its own, and what a call needs beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from barrage.transport.peer_identity import identity_of
from barrage.transport.whole_reads import WholeReads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.transport.base import CallContext

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""What ``context.read()`` gives after the client's last message."""


class ReadingContext:
    """The context of a call with many requests: the part that behaviors use, with reads that go to
    their end."""

    def __init__(
        self, context: CallContext, read: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        """``read`` in place of that of the call, where its messages come otherwise."""
        self.read = WholeReads(context.read if read is None else read).read
        self.write = context.write
        # Not every transport can send a message without anybody who waits for it.
        self.post = getattr(context, "post", None)
        # Calls from pages have these.
        self.announce = getattr(context, "announce", None)
        self.while_paused = getattr(context, "while_paused", None)
        self.send_initial_metadata = context.send_initial_metadata
        self.invocation_metadata = context.invocation_metadata
        self.abort = context.abort
        self.peer = context.peer
        self.peer_identity = partial(identity_of, context)


def reading_whole(
    behavior: Callable[[Any, Any], Awaitable[Any]],
) -> Callable[[Any, CallContext], Awaitable[Any]]:
    """``behavior`` with a :class:`ReadingContext`."""

    async def reading(requests: Any, context: CallContext) -> Any:
        return await behavior(requests, ReadingContext(context))

    return reading

"""What the streams of this package need of a connection: tagged and untagged messages.

:class:`barrage.transport.ucx.connection.UcxConnection` is one; tests have one without a library.
Everything happens on one event loop, callbacks included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    import pyarrow as pa

    from barrage.errors import TransportError
    from barrage.wire.columns.base import BufferLike

ANY_TAG = 0
"""Mask under which every tag matches."""


class ProbedMessage(Protocol):
    """A tagged message that has come and waits to be fetched."""

    @property
    def tag(self) -> int: ...

    @property
    def length(self) -> int:
        """In bytes."""
        ...


class TaggedChannel(Protocol):
    """One connection. Futures fail with TransportError when it is lost."""

    on_tagged: Callable[[], None] | None
    """Called when tagged messages may have come, so that they are probed for."""

    @property
    def on_untagged(self) -> Callable[[bytes | memoryview], None] | None:
        """Called with every untagged message; a view is valid during the call only."""
        ...

    @on_untagged.setter
    def on_untagged(self, listener: Callable[[bytes | memoryview], None] | None) -> None: ...

    @property
    def on_lost(self) -> Callable[[TransportError], None] | None:
        """Called once when the peer is gone, after everything it sent before."""
        ...

    @on_lost.setter
    def on_lost(self, listener: Callable[[TransportError], None] | None) -> None: ...

    def send_untagged(self, data: BufferLike) -> asyncio.Future[None]: ...

    def send_tagged(
        self, tag: int, buffers: BufferLike | Sequence[BufferLike], *, synchronous: bool = False
    ) -> asyncio.Future[None]:
        """Send the buffers as one message; they must not change until the future is done."""
        ...

    def probe(self, tag: int, mask: int) -> Any:
        """Take the oldest message whose tag agrees in the bits of ``mask`` out of those that
        wait: a :class:`ProbedMessage`, to be received or discarded, or None."""
        ...

    def receive(self, probed: Any) -> asyncio.Future[pa.Buffer]: ...

    def discard(self, probed: Any) -> asyncio.Future[None]: ...

    def flush(self) -> Awaitable[None]:
        """Until what was sent has left."""
        ...

    def seal(self) -> None:
        """The peer is known and connected: nobody may add to this connection any more."""
        ...

    async def close(self, *, force: bool = True) -> None: ...


def note(dropped: asyncio.Future[None]) -> None:
    """Callback for a message that was discarded: what became of it does not matter, and an error is
    not to be reported as forgotten."""
    if not dropped.cancelled():
        dropped.exception()

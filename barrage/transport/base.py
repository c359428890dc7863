"""What a client needs of a transport: a channel that makes calls, and streams of whole frames.

Frames are the raw bytes of one FlightData each. A stream keeps order and has back-pressure both
ways: ``write`` returns when the transport took the frame, and what nobody reads fills the peer's
window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pyarrow as pa

    from barrage.wire.dissociated.ways import BodyWay


class FrameStream(Protocol):
    """One call with frames in both directions. All methods raise BarrageError, and only that, when
    the call failed."""

    async def read(self) -> bytes | None:
        """The next frame; None when the peer completed the call with OK."""
        ...

    async def headers(self) -> Mapping[str, str]:
        """What the peer sent ahead of its first frame; after that has been read. Names are in
        lower case."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send one frame."""
        ...

    async def half_close(self) -> None:
        """Say that no more frames follow."""
        ...

    def cancel(self) -> None:
        """End the call now. Idempotent."""
        ...


class FlightConnector(Protocol):
    """A connection to one server."""

    target: str
    """Where it leads, for messages."""
    authorization: str | None
    """The header every call carries; replaced by the token a server's answer brings."""

    def exchange(
        self, *, headers: Mapping[str, str] | None = None, table: str | None = None
    ) -> FrameStream:
        """Open a DoExchange call. ``table`` is named in errors that do not name one."""
        ...

    def put(self, *, table: str | None = None) -> FrameStream:
        """Open a DoPut call; what is read are PutResult messages."""
        ...

    def get(self, ticket: bytes, *, table: str | None = None) -> FrameStream:
        """Open a DoGet call; nothing can be written."""
        ...

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> bytes:
        """One request, one answer. ``method`` is a full method name."""
        ...

    def results(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> AsyncIterator[bytes]:
        """One request, a stream of answers."""
        ...

    async def close(self) -> None:
        """Cancel all calls and give back the connection. Idempotent."""
        ...


class BodyReceiver(Protocol):
    """Where the bodies of one stream come in that do not come in its messages. Used on the loop of
    the stream only."""

    way: BodyWay

    def resolve(
        self, sequence: int, reference: bytes, *, is_kept: bool = False
    ) -> pa.Buffer | None:
        """The body of message number ``sequence``, which refers to it by ``reference``; None when
        it comes by itself, through :meth:`receive`. ``is_kept``: it will be used for as long as the
        stream lives. BodyChannelError when there is none."""
        ...

    async def receive(self) -> tuple[int, pa.Buffer]:
        """The next body that comes by itself, with the number of its message; in any order.
        BodyChannelError when no more will come. Waits for ever where none ever does."""
        ...

    def taken(self, sequence: int, size: int) -> None:
        """The message with this body, which came by itself, is handed out."""
        ...

    def finish_taking(self) -> None:
        """No more bodies come here; those that are out are still given back. Idempotent."""
        ...

    @property
    def lent_count(self) -> int:
        """Bodies of this stream that lie in memory of the peer and are still used."""
        ...

    def lent_ranges(self) -> list[tuple[int, int]]:
        """Where they are: address of the first byte and of the one after the last. From any
        thread; may name some that are not used any more."""
        ...

    async def finish_writing(self) -> None:
        """Write nothing more on the stream: it is about to be half-closed."""
        ...

    def close(self) -> None:
        """Take no more. Bodies that were handed out stay valid. Idempotent."""
        ...

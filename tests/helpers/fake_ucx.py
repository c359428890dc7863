"""Connections as UCX has them, without a library: two ends in one process and on one loop.

Like the real ones: untagged messages are delivered by a callback, tagged ones wait until they are
probed for, a synchronous send is done when its message is fetched, and the end of a connection is
told to the other side after everything that was sent before. Unlike them, a test may hold back
what comes, change its order, and send whatever it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from barrage.errors import TransportError

LARGE = 64 * 1024
"""From this size on an ordinary send, too, is done only when it is fetched."""


class FakeProbed(NamedTuple):
    tag: int
    length: int
    message: bytes
    done: asyncio.Future[None] | None


class FakeChannel:
    """One end. ``peer`` is the other."""

    def __init__(self) -> None:
        self.peer: FakeChannel = self
        self.on_tagged: Callable[[], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        self._on_untagged: Callable[[bytes | memoryview], None] | None = None
        self._on_lost: Callable[[TransportError], None] | None = None
        self._early: list[bytes] = []
        self._waiting: list[FakeProbed] = []
        self._sending: set[asyncio.Future[None]] = set()
        self.lost: TransportError | None = None
        self.is_closed = False
        self.is_sealed = False
        self.is_deaf = False
        """A stopped process: what comes waits."""
        self.fetched_tags: list[int] = []
        self.discarded_tags: list[int] = []
        self.waiting_bytes_max = 0

    @classmethod
    def pair(cls) -> tuple[FakeChannel, FakeChannel]:
        one, other = cls(), cls()
        one.peer, other.peer = other, one
        return one, other

    # --- sending ---

    def send_untagged(self, data: Any) -> asyncio.Future[None]:
        done = self._begin()
        message = bytes(memoryview(data).cast("B"))
        asyncio.get_running_loop().call_soon(self.peer._take_untagged, message)
        done.set_result(None)
        return done

    def send_tagged(
        self, tag: int, buffers: Any, *, synchronous: bool = False
    ) -> asyncio.Future[None]:
        done = self._begin()
        parts: Sequence[Any] = buffers if isinstance(buffers, list | tuple) else (buffers,)
        message = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        waits = synchronous or len(message) >= LARGE
        probed = FakeProbed(tag, len(message), message, done if waits else None)
        asyncio.get_running_loop().call_soon(self.peer._take_tagged, probed)
        if not waits:
            done.set_result(None)
        return done

    def _begin(self) -> asyncio.Future[None]:
        if self.is_closed or self.lost is not None:
            raise TransportError("the connection is closed")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sending.add(done)
        done.add_done_callback(self._sending.discard)
        return done

    def flush(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    # --- receiving ---

    @property
    def on_untagged(self) -> Callable[[bytes | memoryview], None] | None:
        return self._on_untagged

    @on_untagged.setter
    def on_untagged(self, listener: Callable[[bytes | memoryview], None] | None) -> None:
        self._on_untagged = listener
        early, self._early = self._early, []
        for message in early:
            asyncio.get_running_loop().call_soon(self._take_untagged, message)

    @property
    def on_lost(self) -> Callable[[TransportError], None] | None:
        return self._on_lost

    @on_lost.setter
    def on_lost(self, listener: Callable[[TransportError], None] | None) -> None:
        self._on_lost = listener
        if self.lost is not None and listener is not None:
            asyncio.get_running_loop().call_soon(listener, self.lost)

    def probe(self, tag: int = 0, mask: int = 0) -> FakeProbed | None:
        for place, probed in enumerate(self._waiting):
            if (probed.tag ^ tag) & mask == 0:
                return self._waiting.pop(place)
        return None

    def receive(self, probed: FakeProbed | None) -> asyncio.Future[pa.Buffer]:
        assert probed is not None
        assert not self.is_closed
        self.fetched_tags.append(probed.tag)
        self._complete(probed)
        fetched: asyncio.Future[pa.Buffer] = asyncio.get_running_loop().create_future()
        fetched.set_result(pa.py_buffer(probed.message))
        return fetched

    def discard(self, probed: FakeProbed) -> asyncio.Future[None]:
        self.discarded_tags.append(probed.tag)
        self._complete(probed)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    @staticmethod
    def _complete(probed: FakeProbed) -> None:
        if probed.done is not None and not probed.done.done():
            probed.done.set_result(None)

    def _take_untagged(self, message: bytes) -> None:
        if self.is_closed:
            return
        if self._on_untagged is None or self.is_deaf:
            self._early.append(message)
        else:
            self._on_untagged(memoryview(message))

    def _take_tagged(self, probed: FakeProbed) -> None:
        if self.is_closed:
            return
        self._waiting.append(probed)
        held = sum(each.length for each in self._waiting)
        self.waiting_bytes_max = max(self.waiting_bytes_max, held)
        if self.on_tagged is not None and not self.is_deaf:
            self.on_tagged()

    @property
    def waiting_tags(self) -> list[int]:
        return [probed.tag for probed in self._waiting]

    # --- end ---

    def cut(self, reason: str = "cut") -> None:
        """Both sides lose the connection."""
        for side in (self, self.peer):
            asyncio.get_running_loop().call_soon(side._lose, TransportError(reason))

    def _lose(self, error: TransportError) -> None:
        if self.lost is not None or self.is_closed:
            return
        self.lost = error
        for sending in tuple(self._sending):
            if not sending.done():
                sending.set_exception(error)
        if self._on_lost is not None:
            self._on_lost(error)

    def seal(self) -> None:
        self.is_sealed = True

    async def close(self, *, force: bool = True) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        error = TransportError("closed")
        for sending in tuple(self._sending):
            if not sending.done():
                sending.set_exception(error)
                sending.exception()  # Nobody has to look at it.
        asyncio.get_running_loop().call_soon(self.peer._lose, error)
        if self.on_closed is not None:
            self.on_closed()


class FakeListener:
    """Takes the place of a listener; a test connects by :meth:`connect`."""

    def __init__(
        self,
        context: object,
        host: str,
        port: int,
        on_connection: Callable[[Any], None],
        *,
        connections_max: int,
        patience_ns: int,
        is_guarded: bool,
    ) -> None:
        self.port = port or 4711
        self.host = host
        self.connections_max = connections_max
        self.admitted: Collection[object] | None = ()
        self._on_connection = on_connection
        self.is_closed = False

    def admit(self, hosts: Collection[object] | None) -> None:
        self.admitted = hosts

    def connect(self) -> FakeChannel:
        """A client's end; the server has the other."""
        client, server = FakeChannel.pair()
        self._on_connection(server)
        return client

    def close(self) -> None:
        self.is_closed = True

"""The server's side of calls that come as an :class:`InprocCall`, in the place of a
``grpc.aio.Server``.

Where the calls come from is for a listener to say: from this process
(:mod:`barrage.transport.inproc.inproc_listener`), or from a socket whose messages it puts into an
:class:`InprocCall` and takes out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.errors import ConnectionLostError
from barrage.transport.base import NOBODY
from barrage.transport.call_running import END_OF_REQUESTS, CallRunner, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from barrage.errors import StatusCode
    from barrage.transport.base import PeerIdentity
    from barrage.transport.inproc.inproc_call import InprocCall, Metadata


class CallServer(CallRunner):
    """Takes calls and runs the handlers of their methods. Made and used on one event loop, but for
    :meth:`accept`."""

    def __init__(self, uri: str, peer: str, *, message_bytes_max: int) -> None:
        """``uri``: what messages call it. ``peer``: who calls, as gRPC names it, unless the call
        says."""
        super().__init__()
        self._uri = uri
        self._peer = peer
        self._message_bytes_max = message_bytes_max
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Take calls from now on."""
        self._loop = asyncio.get_running_loop()

    async def stop(self, grace_s: float | None) -> None:
        """Take no more calls, wait for those there are, and cancel what is left after
        ``grace_s``."""
        self._loop = None
        await self.wait_for_calls(grace_s)
        await self.cancel_calls()

    def accept(self, call: InprocCall, peer: str | None = None) -> None:
        """Any thread: serve a call, of ``peer`` if that is known. ConnectionLostError when it
        cannot be served any more."""
        loop = self._loop
        try:
            if loop is None:
                raise RuntimeError("it takes no calls")
            loop.call_soon_threadsafe(self._begin, call, peer or self._peer)
        except RuntimeError as error:
            raise ConnectionLostError(f"{self._uri} has ended") from error

    def _begin(self, call: InprocCall, peer: str) -> None:
        task = self.run(ServedCall(peer, call, message_bytes_max=self._message_bytes_max))
        loop = asyncio.get_running_loop()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # The loop was closed, and the task ended.
                loop.call_soon_threadsafe(task.cancel)

        call.on_cancel(end)


class ServedCall:
    """One call as a :class:`~barrage.transport.base.CallContext`."""

    def __init__(self, peer: str, call: InprocCall, *, message_bytes_max: int) -> None:
        self._peer = peer
        self._call = call
        self._handler: Any = None
        self._message_bytes_max = message_bytes_max

    @property
    def method(self) -> str:
        return self._call.method

    @property
    def is_cancelled(self) -> bool:
        return self._call.is_cancelled

    def use(self, handler: Any) -> None:
        self._handler = handler

    def finish(self, code: StatusCode | None, details: str = "") -> None:
        self._call.finish(code, details)

    def invocation_metadata(self) -> Metadata:
        return self._call.metadata

    def peer(self) -> str:
        return self._peer

    def peer_identity(self) -> PeerIdentity:
        return NOBODY

    async def read(self) -> Any:
        message = await self._call.requests.read()
        if message is None:
            return END_OF_REQUESTS
        if len(message) > self._message_bytes_max:
            await self.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({len(message)} vs. {self._message_bytes_max})",
            )
        read = self._handler.request_deserializer
        return message if read is None else read(message)

    async def write(self, message: Any) -> None:
        self._call.send_headers(())
        write = self._handler.response_serializer
        if not await self._call.answers.write(message if write is None else write(message)):
            raise grpc.aio.InternalError("the client has gone")

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        headers = tuple((name.lower(), value) for name, value in metadata)
        if not self._call.send_headers(headers):
            raise grpc.aio.InternalError("the headers are out, or the call is over")

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str]] = (),
    ) -> NoReturn:
        """End the call with this status. Trailers are for clients that look at them, which ours do
        not."""
        del trailing_metadata
        self._call.finish(status_of(code), details)
        raise grpc.aio.AbortError(details)

"""The server's side of calls within one process, in the place of a ``grpc.aio.Server``.

It runs the same handlers: a behavior gets a context with the methods of ``grpc.aio`` that ours use,
is cancelled when the client ends its call, and its status is what the client reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.errors import ConnectionLostError, StatusCode
from barrage.supervision import Role, start_task
from barrage.transport.inproc_call import SCHEME, InprocCall, register, unregister

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from barrage.errors import WorkerDiedError
    from barrage.transport.inproc_call import Metadata

CALL = Role("barrage-inproc-call", "the call")

log = logging.getLogger(__name__)

_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_CODES = {code.value: code for code in StatusCode}


@dataclass(frozen=True, slots=True)
class _CallDetails:
    """What a generic handler looks at."""

    method: str
    invocation_metadata: Metadata


class InprocListener:
    """Takes the calls for one name. Made and used on one event loop, but for :meth:`accept`."""

    def __init__(self, name: str, *, message_bytes_max: int) -> None:
        self.name = name
        self._message_bytes_max = message_bytes_max
        self._handlers: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add_generic_rpc_handlers(
        self, handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Generated code registers what it also adds as a generic handler."""

    async def start(self) -> None:
        """Let clients find it; ConfigError when the name is taken."""
        self._loop = asyncio.get_running_loop()
        register(self.name, self)

    async def stop(self, grace_s: float | None) -> None:
        """Take no more calls, wait for those there are, and cancel what is left after
        ``grace_s``."""
        unregister(self.name, self)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s or 0)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def accept(self, call: InprocCall) -> None:
        try:
            if self._loop is None:
                raise RuntimeError("it has not been started")
            self._loop.call_soon_threadsafe(self._begin, call)
        except RuntimeError as error:
            raise ConnectionLostError(f"{SCHEME}://{self.name} has ended") from error

    def _begin(self, call: InprocCall) -> None:
        task = start_task(CALL, self._serve(call), on_death=partial(_fail, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop = asyncio.get_running_loop()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # The loop was closed, and the task ended.
                loop.call_soon_threadsafe(task.cancel)

        call.on_cancel(end)

    async def _serve(self, call: InprocCall) -> None:
        try:
            handler = self._handler_of(call)
            if handler is None:
                call.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
                return
            await self._run(handler, call)
            call.finish(None)
        except grpc.aio.AbortError:
            return  # The context has said how the call ends.
        except asyncio.CancelledError:
            call.finish(StatusCode.CANCELLED, "the server has cancelled the call")
            raise
        except Exception as error:
            if call.is_cancelled:
                return  # Nobody is there any more to be answered.
            log.exception("%s failed", call.method)
            call.finish(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _handler_of(self, call: InprocCall) -> Any:
        details: Any = _CallDetails(call.method, call.metadata)
        for handlers in self._handlers:
            handler = handlers.service(details)
            if handler is not None:
                return handler
        return None

    async def _run(self, handler: Any, call: InprocCall) -> None:
        context = InprocContext(self.name, call, handler, self._message_bytes_max)
        if handler.request_streaming and handler.response_streaming:
            await handler.stream_stream(iter(()), context)
            return
        request = await context.read()
        if request is _END:
            return  # The client has ended the call before it asked.
        if handler.response_streaming:
            await handler.unary_stream(request, context)
        else:
            await context.write(await handler.unary_unary(request, context))


def _fail(call: InprocCall, error: WorkerDiedError) -> None:
    call.finish(error.status_code, str(error))


class InprocContext:
    """What a behavior has of its call: the part of ``grpc.aio.ServicerContext`` that ours use."""

    def __init__(self, name: str, call: InprocCall, handler: Any, message_bytes_max: int) -> None:
        self._name = name
        self._call = call
        self._handler = handler
        self._message_bytes_max = message_bytes_max

    def invocation_metadata(self) -> Metadata:
        return self._call.metadata

    def peer(self) -> str:
        return f"{SCHEME}:{self._name}"

    async def read(self) -> Any:
        message = await self._call.requests.read()
        if message is None:
            return _END
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
        self._call.finish(_CODES.get(code.value[0], StatusCode.UNKNOWN), details)
        raise grpc.aio.AbortError(details)

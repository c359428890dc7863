"""Runs the handlers of ``grpc.aio`` for calls that do not come by it, wherever they come from.

A behavior gets its call as a context with the methods of ``grpc.aio`` that ours use, is cancelled
when the client ends the call, and its status is what the client reads. Behaviors may be coroutines
or asynchronous generators.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.errors import StatusCode
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from typing import Protocol

    from barrage.errors import WorkerDiedError
    from barrage.transport.base import CallContext

    class RunnableCall(CallContext, Protocol):
        """A call that can be run: its behavior's context, and what else has to be known of it."""

        @property
        def method(self) -> str:
            """The full name, with a leading slash."""
            ...

        @property
        def is_cancelled(self) -> bool:
            """Whether nobody is there any more to be answered."""
            ...

        def use(self, handler: Any) -> None:
            """Read and write with this handler's functions."""
            ...

        def finish(self, code: StatusCode | None, details: str = "") -> None:
            """The call has ended, None being OK. Only the first time counts."""
            ...


CALL = Role("barrage-call", "the call")

log = logging.getLogger(__name__)

END_OF_REQUESTS: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""What a context's ``read`` gives after the client's last message."""

_CODES = {code.value: code for code in StatusCode}


def status_of(code: grpc.StatusCode) -> StatusCode:
    """Our name for gRPC's; UNKNOWN for those that no call may be aborted with."""
    return _CODES.get(code.value[0], StatusCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class _CallDetails:
    """What a generic handler looks at."""

    method: str
    invocation_metadata: Any


class CallRunner:
    """The handlers of one server, and the tasks of its calls. Used on one event loop."""

    runs_generators = True

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(
        self, handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Generated code registers what it also adds as a generic handler."""

    @property
    def calls_count(self) -> int:
        """Calls whose behaviors have not ended."""
        return len(self._tasks)

    def run(self, call: RunnableCall) -> asyncio.Task[None]:
        """Serve a call. Who cancels the task ends it."""
        task = start_task(CALL, self._serve(call), on_death=partial(_fail, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_for_calls(self, grace_s: float | None) -> None:
        """Return when all calls have ended, or ``grace_s`` is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s or 0)

    async def cancel_calls(self) -> None:
        """Cut those there are, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, call: RunnableCall) -> None:
        try:
            handler = self._handler_of(call)
            if handler is None:
                call.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
                return
            call.use(handler)
            await _run(handler, call)
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

    def _handler_of(self, call: RunnableCall) -> Any:
        details: Any = _CallDetails(call.method, call.invocation_metadata())
        for handlers in self._handlers:
            handler = handlers.service(details)
            if handler is not None:
                return handler
        return None


async def _run(handler: Any, call: RunnableCall) -> None:
    asked: Any
    if handler.request_streaming:
        asked = _requests(call)
        behavior = handler.stream_stream if handler.response_streaming else handler.stream_unary
    else:
        asked = await call.read()
        if asked is END_OF_REQUESTS:
            return  # The client has ended the call before it asked.
        behavior = handler.unary_stream if handler.response_streaming else handler.unary_unary
    answers = behavior(asked, call)
    if hasattr(answers, "__aiter__"):
        async for message in answers:
            await call.write(message)
        return
    answer = await answers
    if not handler.response_streaming:
        await call.write(answer)


async def _requests(call: RunnableCall) -> AsyncIterator[Any]:
    while (message := await call.read()) is not END_OF_REQUESTS:
        yield message


def _fail(call: RunnableCall, error: WorkerDiedError) -> None:
    call.finish(error.status_code, str(error))

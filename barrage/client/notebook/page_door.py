"""The door of a kernel for its pages: the protocol they speak to a server (docs/web-protocol.md),
and behind it calls on the kernel's own connection.

A page opens the streams it would open at a server; each becomes a call of the session, whose
messages pass through as they are. So a page has the rights of the session and no others, and may
only read: subscriptions, snapshots and tables by name or query, nothing that logs in, writes, or
holds a journal for somebody. What a page does not take is not read from the server, which merges
what follows.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from barrage.client.connection.reconnect import was_ended
from barrage.client.notebook.page_port import PagePort
from barrage.client.notebook.view_answers import ViewAnswers
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    PermissionDeniedError,
    RemoteProtocolError,
    StatusCode,
)
from barrage.supervision import start_awaited
from barrage.transport import flight_messages
from barrage.transport.call_running import CallRunner
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.over_websocket.flight_socket import CALLER_METHOD, FlightSocket
from barrage.transport.over_websocket.http_messages import WebRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import NoReturn

    from barrage.client.connection.connection import Connection
    from barrage.client.notebook.page_port import Pace, SendToPage
    from barrage.transport.base import Address, FrameStream
    from barrage.transport.over_websocket.page_calls import PageCall

ACTIONS = frozenset({"barrage.describe", "barrage.tables", "barrage.boards"})
"""What a page may have the session run: it reads, and changes nothing."""

READ_ROUTES = (b"s/", b"q/")
"""Tickets of a page: tables by name, and queries. Those of journals can move consumers."""

READ_HEADERS = frozenset({"x-barrage-cursor", "x-barrage-extensions", "x-barrage-resume"})
"""Headers of a page that the server is told."""

CLOSED = "the session is closed: connect again, and run the cell again"

_TIMEOUT_SECONDS = 10.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_REQUEST = WebRequest(method="GET", target="/socket", headers=(), peer="kernel")


class PageDoor:
    """Of one session. On its loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runner = CallRunner()
        calls = {
            "DoExchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "DoGet": grpc.unary_stream_rpc_method_handler(self._get),
            "DoAction": grpc.unary_stream_rpc_method_handler(self._act),
        }
        service, method = CALLER_METHOD.strip("/").split("/")
        callers = {method: grpc.unary_stream_rpc_method_handler(self._call_in)}
        self._runner.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(FLIGHT.strip("/"), calls),
                grpc.method_handlers_generic_handler(service, callers),
            )
        )
        self._loss: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Of the connection as it is now; its result is why."""

    def open(self, page: str, send: SendToPage, pace: Pace) -> PagePort:
        """A page that has come."""
        limits = self._connection.limits
        port = PagePort(page, send, pace=pace, limits=limits)
        port.begin(FlightSocket(port, _REQUEST, runner=self._runner, limits=limits))
        return port

    # --- who calls --------------------------------------------------------------------------------

    async def _call_in(self, _request: bytes, context: Any) -> None:
        """Let a page in when the server can be reached, and out again when it cannot."""
        connection = self._connection
        if connection.is_closed:
            await _abort(context, StatusCode.UNAUTHENTICATED, CLOSED)
        if self._loss.done():
            self._loss = asyncio.get_running_loop().create_future()
        loss = self._loss
        try:
            await connection.ask(self._reach)
        except BarrageError as error:
            await _abort(context, _passing(error), str(error))
        caller: dict[str, Any] = {"name": "", "roles": [], "proof": "kernel", "expires_ns": None}
        await context.write(json.dumps(caller).encode())
        await _abort(context, StatusCode.UNAVAILABLE, await asyncio.shield(loss))

    async def _reach(self) -> None:
        channel = self._connection.channel
        calls = channel.results(FLIGHT + "ListActions", b"", timeout=_TIMEOUT_SECONDS)
        async for _ in calls:
            pass

    def _note(self, server: Address, error: BarrageError) -> None:
        """A call to ``server`` has failed: with the connection, all pages begin again. A derived
        table that the server has ended is asked for again by the page that shows it."""
        if was_ended(error):
            return
        if isinstance(error, ConnectionLostError) or self._connection.is_closed:
            self._connection.leave(server, error)
            if not self._loss.done():
                self._loss.set_result(str(error))

    # --- what pages ask ---------------------------------------------------------------------------

    async def _exchange(self, requests: AsyncIterator[bytes], context: PageCall) -> None:
        server = self._connection.address
        headers = {
            name: str(value)
            for name, value in context.invocation_metadata()
            if name in READ_HEADERS
        }
        try:
            stream = self._connection.open_exchange("", headers)
        except BarrageError as error:
            await self._fail(server, context, error)
        answers = ViewAnswers(self._connection.limits)
        asking = start_awaited(_ask(requests, stream, answers))
        try:
            is_first = True
            while (frame := await stream.read()) is not None:
                if is_first:
                    is_first = False
                    shown = (await stream.headers()).items()
                    await context.send_initial_metadata(
                        [(name, value) for name, value in shown if name.startswith("x-barrage-")]
                    )
                with suppress(RemoteProtocolError):  # The page reads it, too, and says so.
                    token = answers.answered(frame)
                    if token is not None:
                        context.announce(token)
                await context.write(frame)
        except BarrageError as error:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                error = asking.result() or error
            await self._fail(server, context, error)
        finally:
            asking.cancel()
            stream.cancel()

    async def _get(self, request: bytes, context: PageCall) -> None:
        server = self._connection.address
        try:
            if not flight_messages.decode_ticket(request).startswith(READ_ROUTES):
                raise PermissionDeniedError("a page of a notebook reads tables and queries only")
            self._connection.check_open()
            stream = self._connection.channel.get(request)
        except BarrageError as error:
            await self._fail(server, context, error)
        try:
            while (frame := await stream.read()) is not None:
                await context.write(frame)
        except BarrageError as error:
            await self._fail(server, context, error)
        finally:
            stream.cancel()

    async def _act(self, request: bytes, context: Any) -> None:
        server = self._connection.address
        try:
            action, _ = flight_messages.decode_action(request)
            if action not in ACTIONS:
                text = f"a page of a notebook cannot run {action!r}"
                await _abort(context, StatusCode.PERMISSION_DENIED, text)
            self._connection.check_open()
            channel = self._connection.channel
            method = FLIGHT + "DoAction"
            async for result in channel.results(method, request, timeout=_TIMEOUT_SECONDS):
                await context.write(result)
        except BarrageError as error:
            await self._fail(server, context, error)

    async def _fail(self, server: Address, context: Any, error: BarrageError) -> NoReturn:
        self._note(server, error)
        code = StatusCode.ABORTED if was_ended(error) else error.status_code
        await _abort(context, code, str(error))


async def _ask(
    requests: AsyncIterator[bytes], stream: FrameStream, answers: ViewAnswers
) -> BarrageError | None:
    """Pass on what a page asks. What it may not ask ends the stream, and is returned."""
    try:
        async for frame in requests:
            try:
                answers.asked(frame)
            except (RemoteProtocolError, PermissionDeniedError) as error:
                stream.cancel()
                return error
            await stream.write(frame)
        await stream.half_close()
    except BarrageError:
        pass  # Who reads the stream finds that out as well.
    return None


def _passing(error: BarrageError) -> StatusCode:
    """Why a page is not let in: what it is told decides whether it tries again."""
    refused = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED)
    return error.status_code if error.status_code in refused else StatusCode.UNAVAILABLE


async def _abort(context: Any, code: StatusCode, details: str) -> NoReturn:
    await context.abort(_CODES[code.value], details)
    raise AssertionError("a call that was aborted has ended")

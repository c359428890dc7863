"""Writes of clients passed on to the server that owns the tables, as bytes.

Nothing is kept here and nothing is made up: what the client sends goes on message by message, what
the owner answers comes back the same way, and so does the status it ends the call with. One message
is under way in each direction, so an owner that does not take more slows the client down. When the
owner is lost the call ends with UNAVAILABLE: what was not acknowledged is the client's, which sends
it again, and the owner knows by producer and number what it has already.

Calls to the owner carry the relay's credentials and have a connection of their own, where writes
that stand still do not hold up the tables that are followed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConnectionLostError,
    LimitExceededError,
    RequestRefusedError,
    StatusCode,
    SubscriptionClosedError,
    TableNotFoundError,
    TransportError,
    UnsupportedError,
)
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.flight.catalog_calls import CREATE_TABLE, ROW_EDITS
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from barrage.limits import Limits
    from barrage.relay.patterns import TablePatterns
    from barrage.relay.upstream_link import UpstreamLink
    from barrage.server.flight.writes_elsewhere import WrittenTable
    from barrage.transport.base import CallContext, FrameStream

    T = TypeVar("T")

SERVED_SECONDS_MAX: Final = 5.0
"""How long a call that has made a table waits until this relay serves it, too."""


class OwnerRefusedError(BarrageError):
    """The owner has ended a call with this status and text."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details or code.name)
        self.status_code = code


class PassedOnWrites:
    """A :class:`~barrage.server.flight.writes_elsewhere.WritesElsewhere` of one relay. Runs on the
    event loop."""

    def __init__(
        self,
        link: UpstreamLink,
        patterns: TablePatterns,
        *,
        limits: Limits,
        is_read_only: bool,
        is_own: Callable[[str], Awaitable[bool]],
        until_live: Callable[[str], Awaitable[object]],
    ) -> None:
        """``is_own`` says whether a name is that of a table which is not relayed, ``until_live``
        waits until a table is served here."""
        self._link = link
        self._patterns = patterns
        self._limits = limits
        self._is_read_only = is_read_only
        self._is_own = is_own
        self._until_live = until_live
        self._calls: set[_PutCall] = set()
        self._stopped_by: BarrageError | None = None

    @property
    def calls_count(self) -> int:
        """DoPut calls under way."""
        return len(self._calls)

    async def takes(self, name: str) -> bool:
        if await self._is_own(name):
            return False
        if self._is_read_only:
            raise UnsupportedError(
                f"table {name!r}: another server owns it, and this relay is read only; write to "
                "that server"
            )
        if not self._patterns.matches(name):
            # A table made here would be this relay's alone: rows that some other relay, or the
            # owner, is never told of.
            raise UnsupportedError(
                f"table {name!r} is none of those that this relay follows ({self._patterns}), and "
                "it makes none of its own; write to the server that owns it"
            )
        return True

    async def put(self, table: WrittenTable, first: bytes, context: CallContext) -> None:
        count = len(self._calls) + 1
        most = self._limits.relayed_writes_max
        if count > most:
            raise LimitExceededError(
                "number of writes passed on", actual=count, maximum=most, unit="calls"
            )
        is_known = self.knows(table.name)
        stream = self._link.writing(table.name).open_put(table.name)
        call = _PutCall(stream, context, has_producer=table.has_producer)
        self._calls.add(call)
        try:
            if self._stopped_by is not None:
                call.end(self._stopped_by)
            await self._told(table.name, call.run(first))
        finally:
            self._calls.discard(call)
        if not is_known:
            await self._served(table.name)

    def knows(self, name: str) -> bool:
        listing = self._link.listing
        return listing is not None and name in listing.tables

    async def act(self, kind: str, body: bytes, name: str) -> bytes:
        session = self._link.writing(name)
        acting = session.act(kind, body, timeout=None, table=name)
        answers = await self._told(name, _refused_alike(acting) if kind in ROW_EDITS else acting)
        if len(answers) != 1:
            raise ConnectionLostError(f"{kind} was answered {len(answers)} times")
        if kind == CREATE_TABLE:
            await self._served(name)
        else:
            self._link.look_now()
        return answers[0]

    async def describe(self, method: str, request: bytes, name: str) -> bytes | None:
        if not self._patterns.matches(name) or await self._is_own(name):
            return None
        session = self._link.writing(name)
        try:
            return await self._told(name, session.unary(method, request, table=name))
        except TableNotFoundError:
            return None

    def begin_stop(self, reason: BarrageError) -> None:
        self._stopped_by = reason
        for call in list(self._calls):
            call.end(reason)

    async def _told(self, name: str, call: Awaitable[T]) -> T:
        """What the owner answers; TransportError for what is a matter of this relay and not of
        its client."""
        try:
            return await call
        except SubscriptionClosedError as error:
            raise self._link.lost(name) from error
        except RequestRefusedError as error:
            raise OwnerRefusedError(error.code, error.details) from error
        except AuthenticationError as error:
            raise TransportError(
                f"table {name!r}: the server that owns it does not let this relay write: {error}"
            ) from error

    async def _served(self, name: str) -> None:
        """After a write that may have made a table: follow it, so that its writer finds it here. It
        is there in any case."""
        self._link.look_now()
        try:
            async with asyncio.timeout(SERVED_SECONDS_MAX):
                await self._until_live(name)
        except TimeoutError:
            return


async def _refused_alike(call: Awaitable[T]) -> T:
    """What the owner refuses, in its own words: a client's errors would be made up of them anew."""
    try:
        return await call
    except BarrageError as error:
        code, text = error.answered or (StatusCode.UNAVAILABLE, "")
        if code in _NO_REFUSALS:
            raise
        raise OwnerRefusedError(code, text) from error


_NO_REFUSALS = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.UNAUTHENTICATED})
"""Of a connection, and of who this relay is."""


class _PutCall:
    """One DoPut call, here and there."""

    def __init__(self, stream: FrameStream, context: CallContext, *, has_producer: bool) -> None:
        self._stream = stream
        self._context = context
        self._has_producer = has_producer
        self._sending: asyncio.Task[None] | None = None
        self._ended_by: BarrageError | None = None

    def end(self, reason: BarrageError) -> None:
        """Take no more from a producer; ``reason`` is told once what was sent is answered. Calls
        without one have an end of their own."""
        if self._has_producer and self._ended_by is None:
            self._ended_by = reason
            if self._sending is not None:
                self._sending.cancel()

    async def run(self, first: bytes) -> None:
        """Until both sides have ended."""
        sending = self._sending = start_awaited(self._send(first))
        answering = start_awaited(self._answer())
        try:
            if self._ended_by is not None:
                sending.cancel()
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await self._finish_sending(sending)
            await answering
            if self._ended_by is not None:
                raise self._ended_by
        finally:
            # First the stream, which may hold up who writes to it.
            self._stream.cancel()
            sending.cancel()
            answering.cancel()
            await asyncio.wait({sending, answering})

    async def _finish_sending(self, sending: asyncio.Task[None]) -> None:
        """The client has said all it will. A client that was cut off cancels this call before it
        comes here, so that half of an upload does not look like a whole one."""
        if not sending.cancelled():
            error = sending.exception()
            if isinstance(error, BarrageError):
                return  # The owner has ended the call: the answers say how.
            if error is not None:
                raise error
        await self._stream.half_close()

    async def _send(self, first: bytes) -> None:
        message = first
        while message is not END_OF_STREAM:
            await self._stream.write(message)
            message = await self._context.read()

    async def _answer(self) -> None:
        while (answer := await self._stream.read()) is not None:
            await self._context.write(answer)

"""Reads of journals by DoExchange: the answer of DoGet to readers that take bodies outside the
stream.

Such a reader claims a body channel as a subscription does and gives bodies back on the same stream;
window, leases, statistics and the way inline are those of :mod:`barrage.server.bodies.body_writer`.
Without a claim, or with one that is refused, all bodies are in their messages. Bodies are placed in
shared memory by the threads that read the journal.

A reader that half-closes early gives nothing back: its window fills, and the rest comes inline.

A watch is served here as by DoGet, and answers questions.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.errors import RemoteProtocolError, UnsupportedError
from barrage.proto.events import BodiesReleased, NewsAsked, ReadRequested
from barrage.proto.read_exchange import ReadExchange, encode_end
from barrage.server.access.call_guard import SessionCall
from barrage.server.access.counted_call import counted
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.history.journal_reading import FrameSink
from barrage.server.history.journal_tickets import WatchTicket, is_journal_request
from barrage.server.history.journal_watch import WatchQuestions
from barrage.server.identity.credentials import header_value
from barrage.transport.flight_messages import Descriptor
from barrage.wire.dissociated.negotiation import HEADER as BODIES_HEADER

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.bodies.body_writer import BodyWriter
    from barrage.server.exchange.exchange_messages import Headers
    from barrage.server.flight.journal_calls import JournalCalls
    from barrage.server.history.journal_tickets import ChangesTicket, SnapshotTicket
    from barrage.server.runtime.measures import TransferMeasures
    from barrage.transport.base import CallContext


WAIT_FACTOR = 20
"""How much longer than a subscription a read waits for room in its window. Nobody else waits with
it, and a reader that is only slow need not get bodies in its messages."""


class JournalExchanges:
    """The behavior. Runs on the event loop."""

    def __init__(
        self,
        calls: JournalCalls,
        bodies: BodyService,
        limits: Limits,
        *,
        transfers: TransferMeasures,
    ) -> None:
        self._transfers = transfers
        self._calls = calls
        self._bodies = bodies
        self._limits = limits

    async def run(
        self, context: CallContext | SessionCall, session: ClientSession | None, stream_id: int
    ) -> None:
        """Serve one read. ``stream_id`` names it in the log."""
        raw = context.raw if isinstance(context, SessionCall) else context
        raw = counted(raw, "DoExchange", self._transfers)
        exchange = ReadExchange(self._limits)
        ticket = self._calls.parsed(await _ticket(raw, exchange))
        if isinstance(ticket, WatchTicket):
            await _open(context, ())
            questions = WatchQuestions()
            taking = asyncio.ensure_future(_take_questions(raw, exchange, questions))
            await _while(taking, self._calls.watches.run(ticket, raw, questions))
            return
        claim = header_value(raw.invocation_metadata() or (), BODIES_HEADER)
        writer, outcome = self._bodies.claimed(
            *(claim, stream_id),
            is_session=session is not None,
            wait_ns_max=self._limits.body_wait_ns_max * WAIT_FACTOR,
        )
        try:
            await _open(context, () if outcome is None else ((BODIES_HEADER, outcome.header()),))
            if writer is None:
                await self._calls.read(ticket, FrameSink(write=raw.write))
            else:
                taking = asyncio.ensure_future(_take_back(raw, exchange, writer))
                await _while(taking, self._write(ticket, raw, writer))
                await asyncio.wait([taking], timeout=self._limits.body_deadline_ns / 1e9)
                await _stopped(taking)
        finally:
            if writer is not None:
                writer.close()

    async def _write(
        self, ticket: ChangesTicket | SnapshotTicket, context: CallContext, writer: BodyWriter
    ) -> None:
        detach = self._bodies.encoding(writer.way).detach
        write = partial(writer.write, context.write)
        await self._calls.read(ticket, FrameSink(write=write, detach=detach))
        await write(encode_end())


async def _ticket(context: CallContext, exchange: ReadExchange) -> bytes:
    """The ticket in the first message; RemoteProtocolError, UnsupportedError for one that is not a
    journal's."""
    message = await context.read()
    if message is END_OF_STREAM:
        raise RemoteProtocolError("a read ended before its ticket came")
    event = exchange.receive_frame(message)
    assert isinstance(event, ReadRequested)
    ticket = Descriptor.decode(event.descriptor).command
    if ticket is None or not is_journal_request(ticket):
        raise UnsupportedError("only journals are read by DoExchange; use DoGet")
    return ticket


async def _open(context: CallContext | SessionCall, headers: Headers) -> None:
    """Send the headers. Not cut short when the call is cancelled: gRPC would send them again with
    the status."""
    if isinstance(context, SessionCall):
        await context.open(headers)
        return
    opening = asyncio.ensure_future(context.send_initial_metadata(headers))
    # It fails when the client has gone, and then perhaps nobody waits for it any more.
    opening.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(opening)


async def _take_back(context: CallContext, exchange: ReadExchange, writer: BodyWriter) -> None:
    """Take what the client gives back until it half-closes."""
    while (message := await context.read()) is not END_OF_STREAM:
        event = exchange.receive_frame(message)
        if isinstance(event, NewsAsked):
            raise RemoteProtocolError("only a watch of a journal is asked for news")
        assert isinstance(event, BodiesReleased)
        writer.released(event.ids)
    exchange.receive_half_close()


async def _take_questions(
    context: CallContext, exchange: ReadExchange, questions: WatchQuestions
) -> None:
    """Take what the client of a watch asks until it half-closes; bodies it has none."""
    while (message := await context.read()) is not END_OF_STREAM:
        event = exchange.receive_frame(message)
        if isinstance(event, NewsAsked):
            questions.put(event.question)
    exchange.receive_half_close()


async def _while(taking: asyncio.Future[None], writing: Coroutine[Any, Any, None]) -> None:
    """Do ``writing``, unless ``taking`` fails before it is done; that may end early."""
    main = asyncio.ensure_future(writing)
    try:
        await asyncio.wait([main, taking], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            taking.result()
        await main
    except BaseException:
        await _stopped(main)
        await _stopped(taking)
        raise


async def _stopped(work: asyncio.Future[None]) -> None:
    """End ``work``, if it is not done; what it ended with does not matter any more."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)

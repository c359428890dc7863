"""The ways of bodies between this process and one server: prepared, proven, and what failed.

Before a stream the server is asked for a channel by an action, and the channel is tried: shared
memory by reading the proof in it, any other way by connecting. Shared memory is prepared once and
serves all streams of the connection, a connection for bodies serves one. Whatever goes wrong means
that bodies come inside their messages, and is not tried again for some minutes; a lost connection
makes the next stream ask anew, for the server may be another one then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from barrage.client.bodies.bodies import way_to_try
from barrage.client.bodies.body_channels import ConnectedChannel, SharedMemoryChannel
from barrage.client.bodies.body_stream import OfferedChannel
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    RemoteProtocolError,
    TransportUnavailableError,
    UnsupportedError,
)
from barrage.supervision import Role, no_dependants, start_task
from barrage.transport.registry import body_transport, shared_memory
from barrage.wire.dissociated.lending import Window
from barrage.wire.dissociated.negotiation import (
    ACTION,
    Answer,
    Claim,
    Offer,
    printable,
)
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from barrage.client.bodies.bodies import BodyChoice
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.bodies import BodyConnection, BodyDialer, SharedMemory

    Act = Callable[[str, bytes, float], Awaitable[list[bytes]]]
    """A Flight action: type, body, timeout in seconds; its results."""

CLOSER = Role("barrage-body-close", "nothing: its stream has ended")

logger = logging.getLogger(__name__)

REMEMBERED_NS = 5 * 60 * 1_000_000_000
"""How long a way that failed is not tried again."""

ANSWER_SECONDS_MAX = 5.0
"""How long a stream waits for the answer to an offer before it begins inline."""

TURN_SECONDS_MAX = 15.0
"""The same where clients that connect together are told one after the other: a server gives up
after ten seconds."""

CONNECT_SECONDS_MAX = 1.0
"""How long a stream waits for a connection for its bodies."""

SWITCHED_OFF = "inline was asked for"
CLOSED = "the session is closed"
SESSION = "bodies of a Deephaven session are always inline"
NOT_OFFERED = "the server has no other way"
NO_ANSWER = "the server did not answer the offer"


class BodyRoutes:
    """The ways to one server. On the event loop."""

    def __init__(
        self,
        choice: BodyChoice | BodyWay,
        act: Act,
        *,
        limits: Limits,
        clock: Clock,
        is_session: bool = False,
        memory: SharedMemory | None = None,
        dialer: BodyDialer | None = None,
    ) -> None:
        """``act`` calls an action of the server; ``is_session``: within a session there is no way
        but inline. The last two replace what reaches the memory and the network."""
        self._act = act
        self._limits = limits
        self._clock = clock
        self._way = BodyWay.INLINE if is_session else way_to_try(choice)
        self._inline_reason = SESSION if is_session else SWITCHED_OFF
        self._failure: tuple[str, int] | None = None
        """Why the way is not tried, and until when."""
        self._memory = memory
        self._dialer = dialer
        self._channel: SharedMemoryChannel | None = None
        self._preparing = asyncio.Lock()
        self._connecting = 0
        """Connections that are being made."""
        self._has_connected = asyncio.Event()
        """One of them is made, or has failed."""
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def note_actions(self, actions: Collection[str]) -> None:
        """The server has these actions: without ours nothing needs to be asked."""
        if self._way is not BodyWay.INLINE and ACTION not in actions:
            self._remember(NOT_OFFERED)

    @property
    def way(self) -> BodyWay:
        """The way that is tried."""
        return self._way

    @property
    def can_ask(self) -> bool:
        """Whether a channel may be had, as far as one knows without asking."""
        return self._refusal() is None

    @property
    def is_ready(self) -> bool:
        """Whether a channel is to be had without asking."""
        return self.can_ask and self._channel is not None and self._channel.is_fresh

    def _refusal(self) -> str | None:
        if self._way is BodyWay.INLINE:
            return self._inline_reason
        if self._is_closed:
            return CLOSED
        if self._failure is not None and self._clock.monotonic_ns() < self._failure[1]:
            return self._failure[0]
        return None

    async def channel(self) -> OfferedChannel:
        """A channel for one new stream, or the reason why its bodies come inline.

        ConnectionLostError when the server cannot be reached: a stream that got through a moment
        later, to a server that has just come back, would be inline for as long as it lives.
        """
        refusal = self._refusal()
        if refusal is not None:
            return OfferedChannel(None, refusal)
        try:
            if self._way is BodyWay.SHM:
                return OfferedChannel(await self._shared_channel())
            return OfferedChannel(await self._connected_channel())
        except ConnectionLostError:
            if not self._is_closed:
                raise
            return OfferedChannel(None, CLOSED)
        except BarrageError as error:
            reason = NOT_OFFERED if isinstance(error, UnsupportedError) else printable(str(error))
            self._remember(reason)
            return OfferedChannel(None, reason)

    def _remember(self, reason: str) -> None:
        logger.debug("bodies come inline for some minutes: %s", reason)
        self._failure = (reason, self._clock.monotonic_ns() + REMEMBERED_NS)

    async def _answer(self, offer: Offer) -> Answer:
        """The server's answer if it is the way that was offered; TransportUnavailableError with its
        reason otherwise."""
        try:
            seconds_max = TURN_SECONDS_MAX if offer.terms else ANSWER_SECONDS_MAX
            results = await self._act(ACTION, offer.to_json(), seconds_max)
        except TimeoutError:
            raise TransportUnavailableError(NO_ANSWER) from None
        if not results:
            raise TransportUnavailableError(NO_ANSWER)
        answer = Answer.from_json(results[0])
        if answer.way is not self._way:
            if answer.way is not BodyWay.INLINE:
                raise RemoteProtocolError(f"the server chose {answer.way.value}, unasked")
            raise TransportUnavailableError(answer.reason or NOT_OFFERED)
        return answer

    def _window(self, answer: Answer) -> Window:
        return Window(
            answer.window_bytes or self._limits.body_window_bytes,
            answer.window_count or self._limits.body_window_count,
        )

    # --- shared memory --------------------------------------------------------------------------

    async def _shared_channel(self) -> SharedMemoryChannel:
        async with self._preparing:
            if self._channel is None or not self._channel.is_fresh:
                self._let_go()
                self._channel = await self._prepare_shared_memory()
                if self._is_closed:
                    self._let_go()
                    raise ConnectionLostError(CLOSED)
            return self._channel

    async def _prepare_shared_memory(self) -> SharedMemoryChannel:
        if self._memory is None:
            self._memory = shared_memory().memory()
        offer = Offer(shm=self._memory.identity(), order=(BodyWay.SHM,))
        answer = await self._answer(offer)
        assert answer.arena is not None
        mapping, proof, let_go = self._memory.open(answer.arena)
        # Half of the time a server waits: what is claimed must still be known when the claim
        # arrives.
        unclaimed_ns = self._limits.body_ticket_ns // 2
        return SharedMemoryChannel(
            self,
            Claim(channel_id=answer.channel_id, proof=proof),
            mapping,
            window=self._window(answer),
            let_go=let_go,
            clock=self._clock,
            expires_ns=self._clock.monotonic_ns() + unclaimed_ns,
        )

    def _let_go(self) -> None:
        """New streams need a new channel; those that have this one keep it."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.leave()

    def forget(self, channel: SharedMemoryChannel) -> None:
        """The server, or the server's memory, may be another one: ask again."""
        if channel is self._channel:
            self._let_go()

    def failed(self, reason: str) -> None:
        """A stream could not get a body: new streams go another way for some minutes."""
        self._let_go()
        self._remember(reason)

    def begin_anew(self) -> None:
        """Another server is in use: what the last one offered or refused says nothing of it."""
        self._let_go()
        self._failure = None

    # --- connections ----------------------------------------------------------------------------

    async def _connected_channel(self) -> ConnectedChannel:
        way = self._way
        if self._dialer is None:
            self._dialer = body_transport(way).dial(self._limits)
        dialer = self._dialer
        answer = await self._answer(Offer(terms={way: dialer.terms()}, order=(way,)))
        connection = await self._connect(dialer, answer)
        claim = Claim(channel_id=answer.channel_id)
        return ConnectedChannel(
            self, way, claim, connection=connection, window=self._window(answer)
        )

    async def _connect(self, dialer: BodyDialer, answer: Answer) -> BodyConnection:
        assert answer.location is not None
        assert answer.ticket is not None
        self._connecting += 1
        try:
            connection = await dialer.connect(answer.location, answer.ticket, CONNECT_SECONDS_MAX)
            if self._is_closed:
                self.close_soon(connection)
                raise TransportUnavailableError(CLOSED)
        except ConnectionLostError as error:
            # Not the connection to the server that the caller knows.
            raise TransportUnavailableError(str(error)) from error
        except TimeoutError:
            raise TransportUnavailableError(
                f"no {self._way.name} connection within {CONNECT_SECONDS_MAX:g} seconds"
            ) from None
        finally:
            self._connecting -= 1
            self._has_connected.set()
        return connection

    def close_soon(self, connection: BodyConnection) -> asyncio.Task[None]:
        """Close a connection whose stream has ended."""
        task = start_task(CLOSER, _closed(connection), on_death=no_dependants)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    # --- end ------------------------------------------------------------------------------------

    async def close(self) -> None:
        """After the last stream: let go of memory and network. What was handed out stays valid.
        Idempotent."""
        self._is_closed = True
        self._let_go()
        # What connections are made of must outlive them.
        while self._connecting:
            self._has_connected.clear()
            await self._has_connected.wait()
        while self._closing:
            await asyncio.wait(self._closing)
        if self._dialer is not None:
            self._dialer.close()


async def _closed(connection: BodyConnection) -> None:
    try:
        await connection.close()
    except BarrageError as error:
        logger.debug("a connection for bodies was closed with %s", error)

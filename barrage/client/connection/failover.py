"""One connection to any of several servers: the one in use, and the next when that is lost.

Calls go to the server in use. When one of them finds the connection lost or refused, later calls go
to the next address of the list, round and round; what is open elsewhere stays as it is. Nothing is
repeated by itself here: a subscription asks again with its cursor as it does for a single server, a
writer sends again what was not acknowledged, and what only reads may be asked of each server in
turn (:meth:`FailoverConnector.ask_each`). Waiting between attempts is theirs, too. A server that
has ended a derived table is not lost: there the table is asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from barrage.client.connection.login import METHOD
from barrage.client.connection.reconnect import was_ended
from barrage.errors import ConnectionLostError, ServerFailedError, SubscriptionClosedError
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.status import DeadlineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from barrage.transport.base import Address, FlightConnector, FrameStream

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GREETINGS = frozenset({FLIGHT + "ListActions", METHOD})
"""First calls of a session: a server that does not answer them in time is as good as dead."""

ROUNDS_MAX = 2
"""How often one question goes round the servers: others who move on meanwhile may lead it past
one."""


class FailoverConnector:
    """A :class:`~barrage.transport.base.FlightConnector` over several addresses. On one loop."""

    def __init__(
        self, addresses: Sequence[Address], connect: Callable[[Address], FlightConnector]
    ) -> None:
        """``addresses``: at least one, in the order in which they are tried. ``connect`` makes a
        connection, which is asked for when its address is used for the first time."""
        self._addresses = tuple(addresses)
        self._connect = connect
        self._connectors: dict[int, FlightConnector] = {}
        self._at = 0
        self.target = self.address.target
        """Where the server in use is."""
        self._moved: list[Callable[[], None]] = []
        self._failed: set[Address] = set()
        """Servers that said, when they were asked last, that they must be restarted."""
        self._is_closed = False

    @property
    def address(self) -> Address:
        """Of the server in use."""
        return self._addresses[self._at]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All of them, that of the server in use first."""
        return self._addresses[self._at :] + self._addresses[: self._at]

    @property
    def authorization(self) -> str | None:
        """The header of calls to the server in use."""
        return self._connector.authorization

    @authorization.setter
    def authorization(self, value: str | None) -> None:
        self._connector.authorization = value

    def on_move(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when another server is in use."""
        self._moved.append(callback)

    @property
    def _connector(self) -> FlightConnector:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")
        if self._at not in self._connectors:
            self._connectors[self._at] = self._connect(self.address)
        return self._connectors[self._at]

    def leave(self, address: Address, error: Exception) -> None:
        """``error`` says that the server at ``address`` is of no use: go on at the next, unless
        somebody has moved on before."""
        if self._is_closed or address is not self.address or len(self._addresses) == 1:
            return
        authorization = self._connector.authorization
        self._at = (self._at + 1) % len(self._addresses)
        self.target = self.address.target
        # The token of a session that another server had is refused, and then one logs in.
        self._connector.authorization = authorization
        logger.info("%s is left (%s), going on at %s", address.target, error, self.target)
        for callback in self._moved:
            callback()

    def note_loss(self, address: Address, error: ConnectionLostError) -> ConnectionLostError:
        """What ``error`` of the server at ``address``, which is left, means to a caller: one that
        must be restarted is lost, as long as there may be another. One that has ended a derived
        table stays in use."""
        if was_ended(error):
            self.note_answer(address)
            return error
        self.leave(address, error)
        if not isinstance(error, ServerFailedError):
            self._failed.discard(address)
            return error
        self._failed.add(address)
        return (
            error if len(self._failed) == len(self._addresses) else ConnectionLostError(str(error))
        )

    def note_answer(self, address: Address) -> None:
        """The server at ``address`` has done something."""
        self._failed.discard(address)

    async def ask_each(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of the first server that can be reached, from the one in use on.
        ConnectionLostError that names every address and why, when none can, or that a table was
        ended; ServerFailedError when each of them is there and must be restarted."""
        failures: dict[Address, ConnectionLostError] = {}
        for _ in range(ROUNDS_MAX * len(self._addresses)):
            asked = self.address
            try:
                return await ask()
            except ConnectionLostError as error:
                if was_ended(error):
                    raise
                failures[asked] = error
                self.leave(asked, error)
            if len(failures) == len(self._addresses):
                break
        reasons = "; ".join(f"{address.target}: {error}" for address, error in failures.items())
        kind = ServerFailedError if self._failed >= set(self._addresses) else ConnectionLostError
        raise kind(f"none of {len(failures)} servers can be reached: {reasons}")

    # --- calls ------------------------------------------------------------------------------------

    def exchange(
        self, *, headers: Mapping[str, str] | None = None, table: str | None = None
    ) -> FailoverStream:
        return self._stream(self._connector.exchange(headers=headers, table=table))

    def put(self, *, table: str | None = None) -> FailoverStream:
        return self._stream(self._connector.put(table=table))

    def get(self, ticket: bytes, *, table: str | None = None) -> FailoverStream:
        return self._stream(self._connector.get(ticket, table=table))

    def _stream(self, stream: FrameStream) -> FailoverStream:
        return FailoverStream(self, self.address, stream)

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> bytes:
        asked = self.address
        with self._watched(asked, method):
            answer = await self._connector.unary(method, request, timeout=timeout, table=table)
        self.note_answer(asked)
        return answer

    async def results(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> AsyncIterator[bytes]:
        asked = self.address
        results = self._connector.results(method, request, timeout=timeout, table=table)
        try:
            with self._watched(asked, method):
                async for message in results:
                    self.note_answer(asked)
                    yield message
        finally:
            # Whoever stops in the middle ends the call.
            if isinstance(results, AsyncGenerator):
                await results.aclose()

    @contextmanager
    def _watched(self, asked: Address, method: str) -> Iterator[None]:
        """One call to the server at ``asked``, which is left when it is lost."""
        try:
            yield
        except DeadlineError as error:
            if method in _GREETINGS:
                self.leave(asked, error)
            raise
        except ConnectionLostError as error:
            meant = self.note_loss(asked, error)
            if meant is error:
                raise
            raise meant from error

    async def close(self) -> None:
        self._is_closed = True
        for connector in self._connectors.values():
            await connector.close()


class FailoverStream:
    """A call to one of the servers, which is left when the call finds its connection lost."""

    def __init__(self, servers: FailoverConnector, address: Address, stream: FrameStream) -> None:
        self._servers = servers
        self._address = address
        self._stream = stream
        self._is_cancelled = False

    async def read(self) -> bytes | None:
        return await self._checked(self._stream.read(), is_answer=True)

    async def headers(self) -> Mapping[str, str]:
        return await self._checked(self._stream.headers())

    async def write(self, frame: bytes) -> None:
        await self._checked(self._stream.write(frame))

    async def half_close(self) -> None:
        await self._checked(self._stream.half_close())

    def cancel(self) -> None:
        self._is_cancelled = True
        self._stream.cancel()

    async def _checked(self, call: Awaitable[T], *, is_answer: bool = False) -> T:
        try:
            answer = await call
        except ConnectionLostError as error:
            # What was cancelled from here says nothing about the server.
            if self._is_cancelled:
                raise
            meant = self._servers.note_loss(self._address, error)
            if meant is error:
                raise
            raise meant from error
        if is_answer:
            self._servers.note_answer(self._address)
        return answer

"""The asyncio client: :class:`AsyncSession`."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from barrage.client.bodies.bodies import BodyChoice, BodyStatus
from barrage.client.connection.address import LISTED, parse_addresses
from barrage.client.connection.dialing import Dialing
from barrage.client.connection.opening import Opening
from barrage.client.connection.table_info import TableInfo, info_of_flight
from barrage.client.connection.table_sources import NamedSource, TableSource, TicketSource
from barrage.client.deephaven.session_tables import DeephavenTables
from barrage.client.subscriptions.callback_calls import SessionCallbacks
from barrage.client.subscriptions.followed_stream import FollowedStream
from barrage.client.subscriptions.state import State
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.client.tables.journal_read import JournalRead
from barrage.client.tables.remote_table import TIMEOUT_SECONDS, AsyncInputTable, AsyncRemoteTable
from barrage.client.writing.put import PutProgress, put_rows
from barrage.client.writing.writer import AsyncWriter, writer_settings
from barrage.clock import SystemClock
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    SubscriptionClosedError,
    TicketError,
    UnsupportedError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.model.schema_like import schema_of
from barrage.supervision import Role, no_dependants, start_awaited, start_task
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.status import DeadlineError
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from barrage.client.bodies.bodies import BodyCounter
    from barrage.client.connection.address import Auth
    from barrage.client.connection.reconnect import Backoff
    from barrage.client.subscriptions.state import SubscriptionSettings
    from barrage.client.writing.arrow_input import TableLike
    from barrage.clock import Clock
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.model.cursor import Cursor
    from barrage.model.schema_like import SchemaLike
    from barrage.transport.base import TLS, Address, FlightConnector, FrameStream
    from barrage.wire.messages import SubscriptionOptions

SESSION_WORK = Role("barrage-session", "nothing: who uses the session finds out")


CONNECT_TIMEOUT_SECONDS = 10.0

_APPLICATION_FIELD = re.compile(r"a/[^/]+/f/.+")

_SHARED_ROUTE = b"h"


class AsyncSession:
    """A connection to one server, or to one of several. Made by :func:`aconnect`; belongs to the
    loop it was made on."""

    def __init__(
        self,
        address: Address,
        *,
        auth: Auth = None,
        tls: TLS | None = None,
        revision: WireRevision = WireRevision.R1_0_0,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        connector: FlightConnector | None = None,
        bodies: BodyChoice | BodyWay = BodyChoice.AUTO,
        others: Sequence[Address] = (),
        connect_seconds_max: float | None = None,
    ) -> None:
        """``connector`` replaces the connection, for tests and other transports. ``others``: where
        to go on when the server at ``address`` is lost; each may take ``connect_seconds_max`` to be
        reached."""
        self.revision = revision
        self.limits = limits
        self.clock = clock or SystemClock()
        self._dialing = Dialing(
            auth=auth,
            is_deephaven=address.is_deephaven,
            tls=tls,
            revision=revision,
            limits=limits,
            clock=self.clock,
            bodies=bodies,
            connect_seconds_max=connect_seconds_max,
        )
        self._connection = self._dialing.connect((address, *others), connector)
        self._channel = self._connection.channel
        self._session_tables: DeephavenTables | None = None
        self._opening_session = asyncio.Lock()
        self._connections = [self._connection]
        self._subscriptions: set[AsyncTickingTable] = set()
        self._writers: set[AsyncWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.callbacks = SessionCallbacks()
        """What callbacks of the session's tables left to be awaited."""
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address:
        """Of the server in use."""
        return self._connection.address

    # --- connection -----------------------------------------------------------------------------

    async def open(self, timeout: float | None = CONNECT_TIMEOUT_SECONDS) -> None:
        """Reach the server and check the credentials; ConnectionLostError or
        AuthenticationError."""
        if self._connection.login is not None:
            await self._session_calls(timeout)
            return
        try:
            names = await self._connection.ask(lambda: self._actions(timeout))
        except ConnectionLostError as error:
            raise await self._connection.explained(error, timeout) from error
        self._connection.bodies.note_actions(names)

    async def _actions(self, timeout: float | None) -> list[str]:
        actions = self._channel.results(FLIGHT + "ListActions", b"", timeout=timeout)
        try:
            return [flight_messages.decode_action_type(message) async for message in actions]
        except DeadlineError as error:
            raise ConnectionLostError(f"no answer within {timeout} seconds") from error

    async def _session_calls(self, timeout: float | None = None) -> DeephavenTables:
        """What needs a session on the server. One of our servers gets a second connection for it,
        when it is first needed: tables look different within a session (their types are those of
        Deephaven's clients)."""
        async with self._opening_session:
            self._check_open()
            if self._session_tables is None:
                self._session_tables = await self._open_session(timeout)
        return self._session_tables

    async def _open_session(self, timeout: float | None) -> DeephavenTables:
        connection = self._connection
        if connection.login is None:
            inside = [replace(each, is_deephaven=True) for each in connection.addresses]
            connection = self._dialing.connect(inside)
        try:
            await connection.open(timeout or CONNECT_TIMEOUT_SECONDS)
            self._check_open()
        except BaseException:
            if connection is not self._connection:
                await connection.close()
            raise
        if connection is not self._connection:
            self._connections.append(connection)
        assert connection.login is not None
        self.spawn(connection.login.keep_alive())
        self.spawn(connection.login.watch())
        return DeephavenTables(connection)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """End all subscriptions, the session on the server and the connection. Idempotent and
        quiet; goes on to its end when whoever waits for it is cancelled. Callbacks under way are
        waited for, those that never return for a few seconds; a callback may call this."""
        is_callback = self.callbacks.note_closer()
        if self._closing is None:
            self._is_closed = True
            self._closing = start_awaited(self._close())
        await asyncio.shield(self._closing)
        if not is_callback:
            await self.callbacks.closers_end()

    async def _close(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        for writer in list(self._writers):
            await writer.abandon()
        await self.callbacks.end()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self._connections:
            await connection.close()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._subscriptions)} subscriptions"
        return f"<{type(self).__name__} {self.address.target}, {state}>"

    # --- tables ---------------------------------------------------------------------------------

    async def tables(self, *, timeout: float | None = TIMEOUT_SECONDS) -> list[TableInfo]:
        """Every table of the server."""
        self._check_open()
        if self.address.is_deephaven:
            calls = await self._session_calls()
            async with asyncio.timeout(timeout):
                return await calls.connection.read(calls.tables)
        return await self._connection.ask(lambda: self._flights(timeout))

    async def _flights(self, timeout: float | None) -> list[TableInfo]:
        messages = self._channel.results(FLIGHT + "ListFlights", b"", timeout=timeout)
        return [info_of_flight(message) async for message in messages]

    def table(self, name: str) -> AsyncRemoteTable:
        """A handle; nothing is sent until it is used. A Deephaven application field is named by its
        ticket, ``a/app/f/field``."""
        if self.address.is_deephaven and _APPLICATION_FIELD.fullmatch(name):
            return self.table_from_ticket(name.encode())
        return AsyncRemoteTable(self, NamedSource(self._connection, name))

    async def open_table(
        self, name: str, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> AsyncRemoteTable:
        """A table that is there, with its columns known; TableNotFoundError names a near one.

        A Deephaven server holds it for this session until the handle is closed, also when the
        name changes its meaning.
        """
        if not self.address.is_deephaven:
            table = self.table(name)
            await table.info(timeout=timeout)
            return table
        calls = await self._session_calls()
        source = self.table(name)._query_source()
        async with asyncio.timeout(timeout):
            return AsyncRemoteTable(self, await calls.open(await source.ticket(), source.label))

    def shared(self, ticket: bytes) -> AsyncRemoteTable:
        """A table another session has published under a shared ticket (``publish_shared``)."""
        return self.table_from_ticket(_shared(ticket))

    def table_from_ticket(self, ticket: bytes) -> AsyncRemoteTable:
        """A table by its ticket, of any kind the server knows; nothing is sent until it is used."""
        if not isinstance(ticket, bytes) or not ticket:
            raise TicketError(f"a ticket is some bytes, not {ticket!r}")
        return AsyncRemoteTable(self, TicketSource(self._connection, ticket))

    async def info(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> TableInfo:
        """What the server says about one table; TableNotFoundError."""
        return await self.table(name).info(timeout=timeout)

    async def publish(
        self, source: TableSource, ticket: bytes | None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> bytes:
        """See :meth:`AsyncRemoteTable.publish_shared`."""
        shared = _SHARED_ROUTE + secrets.token_bytes(16) if ticket is None else _shared(ticket)
        calls = await self._session_calls()
        async with asyncio.timeout(timeout):
            await calls.connection.call(lambda: calls.publish(source, shared))
        return shared

    # --- writing --------------------------------------------------------------------------------

    async def upload(
        self,
        data: TableLike,
        *,
        name: str = "uploaded table",
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> AsyncRemoteTable:
        """Send rows as a table without a name, which the server holds for this session until the
        handle is closed. ``name`` is what messages call it. SchemaError when the server cannot
        hold a column."""
        calls = await self._session_calls()
        async with asyncio.timeout(timeout):
            source = await calls.connection.call(
                lambda: calls.upload(data, label=name, on_progress=on_progress)
            )
        return AsyncRemoteTable(self, source)

    async def put(
        self,
        name: str,
        data: TableLike,
        *,
        key: Sequence[str] | str | None = None,
        mode: str | None = None,
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> PutProgress:
        """Send rows and wait until all are committed. Creates the table if there is none.

        ``mode``: None (append, or upsert when ``key`` is given), ``"append"``, ``"upsert"``,
        ``"create"``, ``"replace"`` or ``"delete"``. ``on_progress`` is called with every
        acknowledgement. On a Deephaven server rows are added to input tables; any other name
        becomes a new table, static unless it has a key.
        """
        self._check_open()
        if self.address.is_deephaven:
            calls = await self._session_calls()
            async with asyncio.timeout(timeout):
                rows = await calls.connection.call(
                    lambda: calls.put(name, data, key=_names(key), mode=mode)
                )
            progress = PutProgress(rows=rows, total=rows)
            if on_progress is not None:
                on_progress(progress)
            return progress
        async with asyncio.timeout(timeout):
            return await put_rows(
                self._channel.put(table=name),
                name,
                data,
                key=key,
                mode=mode,
                on_progress=on_progress,
            )

    def writer(
        self,
        name: str,
        *,
        producer: str,
        mode: str | None = None,
        key: Sequence[str] | str | None = None,
        reconnect: Backoff | None = None,
    ) -> Opening[AsyncWriter]:
        """Write to a table so that nothing is lost and nothing doubled, whatever happens to the
        connection: ``async with session.writer("trades", producer="feed") as writer``.

        ``producer`` names who writes; the table remembers how far it has got. ``mode`` as for
        :meth:`put`, which makes the table when there is none.
        """
        self._check_open()
        if self.address.is_deephaven:
            raise UnsupportedError("a Deephaven server does not remember producers; use put()")
        settings = writer_settings(name, producer=producer, mode=mode, key=key, backoff=reconnect)
        writer = AsyncWriter(self, settings)

        async def open_it() -> AsyncWriter:
            self._check_open()
            self._writers.add(writer)
            try:
                await writer.open()
            except BaseException:
                await writer.abandon()
                raise
            return writer

        return Opening(open_it)

    def open_put(self, name: str) -> FrameStream:
        """A DoPut stream of one of our servers, for a writer."""
        self._check_open()
        return self._channel.put(table=name)

    def forget_writer(self, writer: AsyncWriter) -> None:
        self._writers.discard(writer)

    async def create_table(
        self,
        name: str,
        schema: SchemaLike,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        journal: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> AsyncRemoteTable:
        """Create an empty table; TableExistsError. ``schema`` is one of Arrow, or a mapping from
        column name to type (``{"Sym": "string"}``). ``kind`` is "keyed" when there is a key, else
        "append_only". ``journal`` is "durable", "memory" or "none", by default what the server
        does. On a Deephaven server it is an input table."""
        known = schema_of(schema)
        if self.address.is_deephaven:
            if capacity is not None or journal is not None:
                what = "journals" if capacity is None else "tables of limited capacity"
                raise ConfigError(f"a Deephaven server has no {what}")
            calls = await self._session_calls()
            async with asyncio.timeout(timeout):
                await calls.connection.call(
                    lambda: calls.create(name, known, key=_names(key), kind=kind)
                )
            return self.table(name)
        async with asyncio.timeout(timeout):
            await put_rows(
                self._channel.put(table=name),
                name,
                known.empty_table(),
                key=key,
                mode="create",
                kind=kind,
                capacity=capacity,
                journal=journal,
            )
        return self.table(name)

    async def drop_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> None:
        """Remove a table from the server; its subscribers are told. TableNotFoundError.

        On a Deephaven server the name is taken back; who holds the table keeps it.
        """
        if self.address.is_deephaven:
            calls = await self._session_calls()
            async with asyncio.timeout(timeout):
                await calls.connection.call(lambda: calls.drop(name))
            return
        body = json.dumps({"table": name}).encode()
        await self.act("barrage.drop_table", body, timeout=timeout, table=name)

    async def input_table(
        self,
        schema: SchemaLike,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        name: str = "input table",
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> AsyncInputTable:
        """A new table that rows are added to and deleted from, without a name on the server, held
        for this session until the handle is closed. ``kind``: "keyed" when there is a key, else
        "append_only"; or "blink". ``name`` is what messages call it."""
        known = schema_of(schema)
        calls = await self._session_calls()
        async with asyncio.timeout(timeout):
            source = await calls.connection.call(
                lambda: calls.input_table(known, key=_names(key), kind=kind, label=name)
            )
        return AsyncInputTable(self, source)

    async def open_input_table(
        self, name: str, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> AsyncInputTable:
        """An input table of the server by its name; TableNotFoundError, UnsupportedError when rows
        cannot be written to it."""
        calls = await self._session_calls()
        async with asyncio.timeout(timeout):
            return AsyncInputTable(self, await calls.open_input(name))

    async def act(
        self,
        kind: str,
        body: bytes = b"",
        *,
        timeout: float | None = TIMEOUT_SECONDS,
        table: str | None = None,
    ) -> list[bytes]:
        """A Flight action: its results."""
        request = flight_messages.encode_action(kind, body)
        return [
            flight_messages.decode_result(message)
            async for message in self._channel.results(
                FLIGHT + "DoAction", request, timeout=timeout, table=table
            )
        ]

    async def unary(self, method: str, request: bytes, *, table: str | None = None) -> bytes:
        """The answer to one call of this full name; for relays, which pass on what they were
        asked."""
        self._check_open()
        return await self._channel.unary(method, request, timeout=TIMEOUT_SECONDS, table=table)

    def read_journal(
        self, ticket: bytes, *, table: str, is_in_order: bool, counter: BodyCounter | None = None
    ) -> JournalRead:
        """The rows of a journal's ticket, which begins with ``j/``; see :class:`JournalRead`."""
        self._check_open()
        return JournalRead(
            self._connection, ticket, table=table, is_in_order=is_in_order, counter=counter
        )

    async def body_status(self) -> BodyStatus:
        """The way the bodies of a stream that began now might take, and why it is inline."""
        self._check_open()
        with await self._connection.body_channel() as offered:
            if offered.is_there:
                return BodyStatus(self._connection.bodies.way)
            return BodyStatus(BodyWay.INLINE, offered.reason)

    # --- for subscriptions ----------------------------------------------------------------------

    def subscribe(self, settings: SubscriptionSettings) -> AsyncTickingTable:
        self._check_open()
        subscription = AsyncTickingTable(
            settings, self.callbacks, clock=self.clock, on_end=self._subscriptions.discard
        )
        self._subscriptions.add(subscription)
        subscription.start()
        return subscription

    def follow(
        self, name: str, options: SubscriptionOptions, cursor: Cursor | None = None
    ) -> FollowedStream:
        """One stream of a whole table as it comes, from a cursor on or from its present state."""
        self._check_open()
        return FollowedStream(NamedSource(self._connection, name), options, cursor=cursor)

    def fail(self, error: BarrageError) -> None:
        """The loop has been ended by ``error``: whoever follows a table is told."""
        for subscription in list(self._subscriptions):
            subscription.finish(State.FAILED, error)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until the session closes."""
        task = start_task(SESSION_WORK, work, on_death=no_dependants)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")


def _names(key: Sequence[str] | str | None) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key or ())


def _shared(ticket: bytes) -> bytes:
    if not isinstance(ticket, bytes) or len(ticket) < 2 or not ticket.startswith(_SHARED_ROUTE):
        raise TicketError(f"a shared ticket is h and more bytes, not {ticket!r}")
    return ticket


def _revision_of(revision: WireRevision | str) -> WireRevision:
    if isinstance(revision, WireRevision):
        return revision
    by_name = {known.value: known for known in WireRevision}
    if revision not in by_name:
        raise ConfigError(f"revision {revision!r} is not one of {', '.join(by_name)}")
    return by_name[revision]


def aconnect(
    uri: str | Sequence[str],
    *,
    auth: Auth = None,
    tls: TLS | None = None,
    revision: WireRevision | str = WireRevision.R1_0_0,
    timeout: float | None = CONNECT_TIMEOUT_SECONDS,
    limits: Limits = DEFAULT_LIMITS,
    bodies: BodyChoice | BodyWay | str = BodyChoice.AUTO,
    order: str = LISTED,
) -> Opening[AsyncSession]:
    """Connect on the running loop: ``async with aconnect(uri) as session`` or ``session = await
    aconnect(uri)``.

    ``uri``: see :func:`barrage.client.connection.address.parse_address`; ``auth``: a token,
    "Anonymous", (user, password), or one of Basic, Bearer, PreSharedKey, Handler.
    ConnectionLostError when nobody answers, AuthenticationError when refused.

    Several addresses, separated by commas or as a sequence, are servers of the same tables: they
    are tried in this order (``order="random"``: from any of them on), each for at most ``timeout``
    seconds, and when the connection is lost the session goes on at the next. ConfigError when they
    are not all Deephaven's or all ours.

    ``bodies`` is the way large record batches take: ``"auto"``, shared memory where a server of
    ours on this host offers it; ``"shm"``, the same; ``"ucx"``, over UCX, which the server must
    have switched on; ``"inline"``, inside the messages; or the name of a plug-in's. Each falls back
    to inline, with the same rows; ``table.bodies`` says which it is and why.
    """
    first, *others = parse_addresses(uri, order=order, limits=limits)
    if tls is not None and not any(each.is_tls for each in (first, *others)):
        raise ConfigError(f"tls is given, and {first.target} would be in the clear: use grpcs://")
    choice = BodyChoice.parse(bodies)

    async def open_it() -> AsyncSession:
        session = AsyncSession(
            first,
            auth=auth,
            tls=tls,
            revision=_revision_of(revision),
            limits=limits,
            bodies=choice,
            others=others,
            connect_seconds_max=timeout,
        )
        try:
            await session.open(timeout)
        except BaseException:
            await session.close()
            raise
        return session

    return Opening(open_it)

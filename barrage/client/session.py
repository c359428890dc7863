"""The asyncio client: :class:`AsyncSession` and its tables."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.client.address import Address, authorization_header, parse_address
from barrage.client.bulk_snapshot import CELLS_MIN, fetch_bulk_snapshot
from barrage.client.deephaven.login import DeephavenLogin
from barrage.client.opening import Opening
from barrage.client.put import PutProgress, put_rows
from barrage.client.reconnect import Backoff
from barrage.client.rows_argument import RowsArgument, column_indices, column_names, viewport_of
from barrage.client.snapshot import fetch_snapshot
from barrage.client.subscription import AsyncTickingTable, SubscriptionSettings
from barrage.clock import SystemClock
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    RemoteProtocolError,
    SchemaError,
    SubscriptionClosedError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport import flight_messages
from barrage.transport.grpc_channel import FLIGHT, TLS, GrpcChannel
from barrage.transport.status import DeadlineError
from barrage.wire.messages import SnapshotOptions, SubscriptionOptions
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from barrage.client.address import Auth
    from barrage.client.arrow_input import TableLike
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.model.viewport import Viewport
    from barrage.transport.arrow_flight import ArrowFlightClient
    from barrage.transport.base import FrameStream

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0
"""Default timeout of calls that answer once."""

CONNECT_TIMEOUT_SECONDS = 10.0

DEEPHAVEN_MESSAGE_BYTES = 4 * 1024 * 1024
"""Messages asked of a Deephaven server, which would otherwise send up to 100 MiB at once."""

COLUMNS_USUAL_MAX = 100
"""Rows times this below the bulk threshold: do not even ask how many columns there are."""

_REVISION_HEADER = "x-barrage-revision"
_EXTENSIONS_HEADER = "x-barrage-extensions"
_SOURCE_TIME = "source-time"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What a server says about one of its tables."""

    name: str
    schema: pa.Schema
    total_records: int | None
    """Rows when asked; None when the server does not say."""
    kind: str | None = None
    """``append_only``, ``keyed``, ``ring``, ``blink``, ``list``, ``static`` or ``view``."""
    key: tuple[str, ...] = ()
    is_ticking: bool | None = None
    step: int | None = None


def _table_info(answer: bytes, name: str | None = None) -> TableInfo:
    info = flight_messages.FlightInfo.decode(answer)
    try:
        facts = json.loads(info.metadata) if info.metadata else {}
        message = info.schema_message
        schema = pa.ipc.read_schema(pa.py_buffer(message)) if message else pa.schema([])
    except (ValueError, pa.ArrowException) as error:
        raise RemoteProtocolError(f"flight info cannot be read: {error}") from error
    if not isinstance(facts, dict):
        facts = {}
    return TableInfo(
        name=name or (info.descriptor.path[-1] if info.descriptor.path else ""),
        schema=schema,
        total_records=info.total_records if info.total_records >= 0 else None,
        kind=facts.get("kind"),
        key=tuple(facts.get("key") or ()),
        is_ticking=facts.get("is_ticking"),
        step=facts.get("step"),
    )


class AsyncSession:
    """A connection to one server. Made by :func:`aconnect`; belongs to the loop it was made on."""

    def __init__(
        self,
        address: Address,
        *,
        auth: Auth = None,
        tls: TLS | None = None,
        revision: WireRevision = WireRevision.R1_0_0,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        connector: GrpcChannel | None = None,
    ) -> None:
        """``connector`` replaces the gRPC connection, for tests and other transports."""
        self.address = address
        self.revision = revision
        self.limits = limits
        self.clock = clock or SystemClock()
        self._tls = (tls or TLS()) if address.is_tls else None
        self._channel = connector or GrpcChannel(
            address.target,
            message_bytes_max=limits.message_bytes_max,
            authorization=authorization_header(auth, is_deephaven=address.is_deephaven),
            tls=self._tls,
        )
        self._login: DeephavenLogin | None = None
        if address.is_deephaven:
            self._login = DeephavenLogin(self._channel)
        self._headers: dict[str, str] = {}
        if not address.is_deephaven:
            if revision is WireRevision.DRAFT_2020:
                self._headers[_REVISION_HEADER] = revision.value
            self._headers[_EXTENSIONS_HEADER] = _SOURCE_TIME
        self._bulk: ArrowFlightClient | None = None
        self._subscriptions: set[AsyncTickingTable] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # --- connection -----------------------------------------------------------------------------

    async def open(self, timeout: float | None = CONNECT_TIMEOUT_SECONDS) -> None:
        """Reach the server and check the credentials; ConnectionLostError or
        AuthenticationError."""
        if self._login is not None:
            await self._login.open(timeout)
            self.spawn(self._login.keep_alive())
            return
        try:
            async for _ in self._channel.results(FLIGHT + "ListActions", b"", timeout=timeout):
                pass
        except DeadlineError as error:
            raise ConnectionLostError(f"no answer within {timeout} seconds") from error

    async def renew(self) -> None:
        """Before a stream is opened again: a Deephaven server that restarted does not know the old
        token."""
        if self._login is not None:
            await self._login.open(CONNECT_TIMEOUT_SECONDS)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """End all subscriptions and the connection. Idempotent and quiet."""
        if self._is_closed:
            return
        self._is_closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._channel.close()
        if self._bulk is not None:
            self._bulk.close()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._subscriptions)} subscriptions"
        return f"<{type(self).__name__} {self.address.target}, {state}>"

    # --- tables ---------------------------------------------------------------------------------

    async def tables(self, *, timeout: float | None = TIMEOUT_SECONDS) -> list[TableInfo]:
        """Every table of the server."""
        return [
            _table_info(message)
            async for message in self._channel.results(FLIGHT + "ListFlights", b"", timeout=timeout)
        ]

    def table(self, name: str) -> AsyncRemoteTable:
        """A handle; nothing is sent until it is used."""
        return AsyncRemoteTable(self, name)

    async def info(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> TableInfo:
        """What the server says about one table; TableNotFoundError."""
        descriptor = flight_messages.Descriptor(path=("scope", name)).encode()
        message = await self._channel.unary(
            FLIGHT + "GetFlightInfo", descriptor, timeout=timeout, table=name
        )
        return _table_info(message, name)

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
        acknowledgement.
        """
        self._check_open()
        async with asyncio.timeout(timeout):
            return await put_rows(
                self._channel.put(table=name),
                name,
                data,
                key=key,
                mode=mode,
                on_progress=on_progress,
            )

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> AsyncRemoteTable:
        """Create an empty table; TableExistsError. ``kind`` is "keyed" when there is a key, else
        "append_only"."""
        if not isinstance(schema, pa.Schema):
            raise SchemaError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        async with asyncio.timeout(timeout):
            await put_rows(
                self._channel.put(table=name),
                name,
                schema.empty_table(),
                key=key,
                mode="create",
                kind=kind,
                capacity=capacity,
            )
        return self.table(name)

    async def drop_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> None:
        """Remove a table from the server; its subscribers are told. TableNotFoundError."""
        body = json.dumps({"table": name}).encode()
        await self.act("barrage.drop_table", body, timeout=timeout, table=name)

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

    # --- for subscriptions ----------------------------------------------------------------------

    def ticket_of(self, name: str) -> bytes:
        """The ticket of a table. A Deephaven application field is named by its ticket,
        ``a/app/f/field``."""
        if self.address.is_deephaven and name.startswith(("a/", "h")) and "/" in name:
            return name.encode()
        return b"s/" + name.encode()

    def open_exchange(self, table: str) -> FrameStream:
        self._check_open()
        return self._channel.exchange(headers=self._headers, table=table)

    @property
    def has_bulk_client(self) -> bool:
        """Whether large snapshots can go through Arrow's own Flight client."""
        return self.revision is WireRevision.R1_0_0 and find_spec("pyarrow._flight") is not None

    def bulk_client(self) -> ArrowFlightClient:
        """Arrow's own client, connected when it connects for the first time."""
        self._check_open()
        if self._bulk is None:
            from barrage.transport.arrow_flight import ArrowFlightClient

            self._bulk = ArrowFlightClient(self.address.target, self._tls)
        return self._bulk

    def call_headers(self) -> dict[str, str]:
        """What every call carries."""
        authorization = self._channel.authorization
        return {} if authorization is None else {"authorization": authorization}

    def subscribe(self, settings: SubscriptionSettings) -> AsyncTickingTable:
        self._check_open()
        subscription = AsyncTickingTable(self, settings)
        self._subscriptions.add(subscription)
        subscription.start()
        return subscription

    def forget(self, subscription: AsyncTickingTable) -> None:
        self._subscriptions.discard(subscription)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until the session closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")


class AsyncRemoteTable:
    """A table on the server."""

    def __init__(self, session: AsyncSession, name: str) -> None:
        self._session = session
        self.name = name

    async def schema(self, *, timeout: float | None = TIMEOUT_SECONDS) -> pa.Schema:
        """The columns, asked of the server each time."""
        return (await self._session.info(self.name, timeout=timeout)).schema

    async def info(self, *, timeout: float | None = TIMEOUT_SECONDS) -> TableInfo:
        return await self._session.info(self.name, timeout=timeout)

    async def snapshot(
        self,
        *,
        columns: Sequence[str] | None = None,
        rows: RowsArgument = None,
        reverse: bool = False,
        timeout: float | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """The rows at one moment, in table order; ``on_progress`` gets the bytes received so far.

        ``rows`` are positions; with ``reverse`` counted from the end.
        """
        session = self._session
        viewport = viewport_of(rows, reverse=reverse)
        options = SnapshotOptions(max_message_size=_message_size(session.address))
        async with asyncio.timeout(timeout):
            if columns is None and await self._is_large(viewport):
                return await fetch_bulk_snapshot(
                    session.bulk_client(),
                    table=self.name,
                    ticket=session.ticket_of(self.name),
                    viewport=viewport,
                    options=options,
                    headers=session.call_headers(),
                    limits=session.limits,
                    on_progress=on_progress,
                )
            indices = None
            if columns is not None:
                indices = column_indices(await self.schema(), columns)
            table = await fetch_snapshot(
                session.open_exchange(self.name),
                ticket=session.ticket_of(self.name),
                columns=indices,
                viewport=viewport,
                options=options,
                revision=session.revision,
                limits=session.limits,
                on_progress=on_progress,
            )
        return table if columns is None else table.select(list(columns))

    async def _is_large(self, viewport: Viewport | None) -> bool:
        """Whether the answer is worth a connection of Arrow's own client, as far as one can
        know."""
        if not self._session.has_bulk_client:
            return False
        if viewport is not None and len(viewport.positions) * COLUMNS_USUAL_MAX < CELLS_MIN:
            return False
        info = await self._session.info(self.name)
        rows = info.total_records
        if viewport is not None:
            rows = len(viewport.resolve(rows) if rows is not None else viewport.positions)
        return rows is not None and rows * len(info.schema) >= CELLS_MIN

    def subscribe(
        self,
        *,
        columns: Sequence[str] | None = None,
        viewport: RowsArgument = None,
        reverse: bool = False,
        interval_ms: int = 0,
        preview_list_length_limit: int = 0,
        reconnect: bool | Backoff = True,
    ) -> Opening[AsyncTickingTable]:
        """Keep a copy up to date: ``async with table.subscribe() as live`` or ``live = await
        table.subscribe()``.

        ``viewport`` None is the whole table. ``interval_ms`` is the shortest time between two
        updates, 0 the server's default. Does not wait for data: ``await live.wait_ready(timeout)``
        does.
        """
        options = SubscriptionOptions(
            min_update_interval_ms=_whole("interval_ms", interval_ms, bits=32, minimum=0),
            max_message_size=_message_size(self._session.address),
            preview_list_length_limit=_whole(
                "preview_list_length_limit", preview_list_length_limit, bits=64
            ),
        )
        settings = SubscriptionSettings(
            table=self.name,
            columns=column_names(columns),
            viewport=viewport_of(viewport, reverse=reverse),
            options=options,
            reconnects=reconnect is not False,
            backoff=_backoff_of(reconnect),
        )

        async def open_it() -> AsyncTickingTable:
            return self._session.subscribe(settings)

        return Opening(open_it)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {self._session.address.target}>"


def _message_size(address: Address) -> int:
    """0 lets the server choose, which ours does well."""
    return DEEPHAVEN_MESSAGE_BYTES if address.is_deephaven else 0


def _whole(name: str, value: int, *, bits: int, minimum: int | None = None) -> int:
    """``value`` if it fits a signed number of so many bits and is not below ``minimum``."""
    lowest = -(2 ** (bits - 1)) if minimum is None else minimum
    highest = 2 ** (bits - 1) - 1
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value!r}, it must be a whole number {lowest} to {highest}")
    return value


def _backoff_of(reconnect: bool | Backoff) -> Backoff:
    """A backoff of the subscription's own: the caller may give one to several of them."""
    if isinstance(reconnect, bool):
        return Backoff()
    if not isinstance(reconnect, Backoff):
        raise ConfigError(f"reconnect is {reconnect!r}, it must be True, False or a Backoff")
    return replace(reconnect, attempt=0)


def _revision_of(revision: WireRevision | str) -> WireRevision:
    if isinstance(revision, WireRevision):
        return revision
    by_name = {known.value: known for known in WireRevision}
    if revision not in by_name:
        raise ConfigError(f"revision {revision!r} is not one of {', '.join(by_name)}")
    return by_name[revision]


def aconnect(
    uri: str,
    *,
    auth: Auth = None,
    tls: TLS | None = None,
    revision: WireRevision | str = WireRevision.R1_0_0,
    timeout: float | None = CONNECT_TIMEOUT_SECONDS,
    limits: Limits = DEFAULT_LIMITS,
) -> Opening[AsyncSession]:
    """Connect on the running loop: ``async with aconnect(uri) as session`` or ``session = await
    aconnect(uri)``.

    ``uri``: see :func:`barrage.client.address.parse_address`; ``auth``: a token, "Anonymous",
    (user, password), or one of Token, PreSharedKey, Basic. ConnectionLostError when nobody answers,
    AuthenticationError when refused.
    """
    address = parse_address(uri)

    async def open_it() -> AsyncSession:
        session = AsyncSession(
            address, auth=auth, tls=tls, revision=_revision_of(revision), limits=limits
        )
        try:
            await session.open(timeout)
        except BaseException:
            await session.close()
            raise
        return session

    return Opening(open_it)

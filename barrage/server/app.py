"""One serving instance on one event loop: gRPC server, services, start, drain, stop.

Frames travel as raw bytes through generic handlers: a Barrage modification batch may hold columns
of different lengths, which Arrow's own Flight server refuses to build.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from functools import partial
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from barrage.errors import BarrageError, ConfigError, TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.auth import Authenticator, is_loopback, new_token
from barrage.server.body_service import BodyService
from barrage.server.body_statistics import BodyStatistics
from barrage.server.deephaven.services import DeephavenServices
from barrage.server.exchange_driver import ExchangeHub
from barrage.server.flight.call_guard import DRAINING, CallGuard, SessionUse
from barrage.server.flight.catalog_calls import CatalogCalls
from barrage.server.flight.data_calls import DataCalls
from barrage.server.flight.dissociated_calls import DissociatedCalls
from barrage.server.flight.journal_exchange import JournalExchanges
from barrage.server.flight.journals_and_stages import JournalServices
from barrage.server.flight.put_calls import PutCalls
from barrage.server.method_table import MethodEntry, service_handler
from barrage.server.reflection import reflection_pool
from barrage.server.resolver import TicketResolver
from barrage.server.session_store import SessionStore
from barrage.server.spare_memory import SpareMemory, allocator_here
from barrage.server.thread_statistics import ThreadStatistics
from barrage.supervision import Role, no_dependants, start_awaited, start_task
from barrage.transport.flight_messages import SERVICE_NAME
from barrage.transport.inproc_call import SCHEME
from barrage.transport.inproc_listener import InprocListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.server.catalog import Catalog
    from barrage.server.config import ServerConfig
    from barrage.server.runtime import EngineRuntime
    from barrage.server.table_service import TableService
    from barrage.server.watchdog import Watchdog

log = logging.getLogger(__name__)

SWEEPER = Role("barrage-sessions", "health: sessions would never end")
STOP = Role("barrage-stop", "health, and whoever waits for the server to end")
COUNTER = Role("barrage-body-statistics", "subscriptions of the table of bodies; health")
THREADS = Role("barrage-thread-statistics", "subscriptions of the table of threads; health")
TRIMMER = Role("barrage-spare-memory", "nothing: memory that is free is kept")

_HEALTH_SERVICE = health.SERVICE_NAME
_PING_INTERVAL_MS_MIN = 5_000
_CALLS_WAITING = 10_000
"""Calls that have come and are not taken up yet, past which gRPC begins to cancel some at random,
and twice that all: a thousand by default, which many clients that connect again at once exceed."""
_RECEIVE_MARGIN_BYTES = 64 * 1024

_NO_COMPRESSION = 1
"""The set of message encodings with identity only. gRPC unpacks a message whole before anybody can
say what it may cost: 90 kB of gzip become 90 MiB. Arrow's own compression of bodies is taken, since
it says what it will be."""

SWEEP_INTERVAL_MS_MAX = 5_000
"""Longest time between two looks for sessions whose time is up."""


class ServerApp:
    """Serves the tables of one engine on one address. Made and used on one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        runtime: EngineRuntime,
        catalog: Catalog,
        tables: TableService,
        clock: Clock,
        *,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._config = config
        self._watchdog = watchdog
        self._runtime = runtime
        self._catalog = catalog
        self._tables = tables
        self.token = effective_token(config)
        self._authenticator = Authenticator(self.token)
        self.sessions = SessionStore(
            config.limits,
            clock,
            self._authenticator,
            lifetime_ns=config.session_lifetime_ms * NANOS_PER_MS,
            types=config.deephaven_types,
        )
        self._guard = CallGuard(self._authenticator, self.sessions)
        self._resolver = TicketResolver(catalog, tables, config.limits)
        self.bodies = BodyService(config, clock)
        self._hub = ExchangeHub(
            *(runtime, self._resolver, tables.journals),
            limits=config.limits,
            clock=clock,
            bodies=self.bodies,
        )
        self._deephaven = DeephavenServices(
            self._authenticator,
            self.sessions,
            self._resolver,
            tables,
            limits=config.limits,
            clock=clock,
        )
        self.journals = JournalServices(tables, catalog, limits=config.limits, clock=clock)
        self._puts = PutCalls(tables, config.limits, stages=self.journals.stages)
        self._services = self._all_services()
        self._health = HealthServicer()
        self._inproc_name = inproc_name(config.host)
        self._server: grpc.aio.Server | InprocListener | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._failed_stop: BarrageError | None = None
        self._is_stopping = asyncio.Event()
        self.port = 0

    @property
    def stream_count(self) -> int:
        """Open DoExchange streams."""
        return self._hub.stream_count

    @property
    def address(self) -> str:
        """``host:port`` as a gRPC target; ``inproc://name`` where there is no port."""
        if self._inproc_name is not None:
            return f"{SCHEME}://{self._inproc_name}"
        return _join(self._config.host, self.port)

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return self.address if self._inproc_name is not None else f"grpc://{self.address}"

    async def start(self) -> None:
        """Listen; ConfigError when the address cannot be had, TransportUnavailableError when a way
        of bodies that is switched on cannot."""
        server = self._new_listener()
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(name, methods, self._guard)
                for name, methods in self._services.items()
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, cast("grpc.aio.Server", server))
        if not isinstance(server, InprocListener):
            self._bind(server)
        await self.bodies.start(on_death=self._fail)
        await server.start()
        self._server = server
        self._runtime.attach(self._hub)
        self._sweeping = start_task(SWEEPER, self._sweep(), on_death=self._fail)
        self.journals.start(on_death=self._fail)
        if self.bodies.is_switched_on:
            counting = BodyStatistics(self.bodies, self._tables)
            died = partial(self._counter_died, counting)
            self._counting = start_task(COUNTER, counting.run(), on_death=died)
        if self._watchdog is not None:
            threads = ThreadStatistics(self._watchdog, self._tables)
            died = partial(self._counter_died, threads)
            self._watching = start_task(THREADS, threads.run(), on_death=died)
        allocator = allocator_here()
        if allocator is not None:
            spare = SpareMemory(allocator, bytes_max=self._config.limits.spare_memory_bytes_max)
            self._trimming = start_task(TRIMMER, spare.run(), on_death=no_dependants)
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        loop = asyncio.get_running_loop()
        self._runtime.on_death(partial(_on_loop, loop, self._engine_died))
        self._tables.journals.on_failure(partial(_on_loop, loop, self._journals_failed))
        self._announce()

    # --- what has died ---

    def _fail(self, error: BarrageError) -> None:
        """Something everybody depends on has died: only a restart brings it back, and who asks for
        the server's health is told so."""
        log.error("the server is not healthy any more: %s", error)
        if self._telling is None:
            self._telling = start_awaited(self._health.enter_graceful_shutdown())

    def _counter_died(
        self, counting: BodyStatistics | ThreadStatistics, error: BarrageError
    ) -> None:
        counting.fail(error)
        self._fail(error)

    def _engine_died(self, error: BarrageError) -> None:
        """Whoever waits for a change would wait for ever."""
        self._fail(error)
        self._hub.finish_all(error, is_flushed=False)
        self.journals.begin_stop(error)
        self.sessions.close_all(error)

    def _journals_failed(self, error: BarrageError) -> None:
        """Reading goes on; writers have been told."""
        self._fail(error)
        self.journals.fail(error)

    # --- life ---

    def _new_listener(self) -> grpc.aio.Server | InprocListener:
        name = self._inproc_name
        if name is None:
            return grpc.aio.server(options=channel_options(self._config))
        return InprocListener(name, message_bytes_max=_receive_bytes_max(self._config))

    def _bind(self, server: grpc.aio.Server) -> None:
        """Take the port, and offer reflection."""
        if self._config.reflection:
            names = (*self._services, _HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server, pool=reflection_pool())
        address = _join(self._config.host, self._config.port)
        try:
            self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from error
        if self.port == 0:
            raise ConfigError(f"cannot listen on {address}")

    async def _sweep(self) -> None:
        """End sessions whose time is up, for as long as the server runs."""
        interval_ms = min(self._config.session_lifetime_ms // 10, SWEEP_INTERVAL_MS_MAX)
        while True:
            await asyncio.sleep(interval_ms / 1000)
            self.sessions.sweep()

    def _announce(self) -> None:
        log.info("listening on %s", self.address)
        if self.token is not None and self._config.token is None:
            sys.stderr.write(
                f"barrage: {self.address} is not a loopback address, so calls need a token; "
                f"none is configured, this one was made up:\n{self.token}\n"
            )

    async def stop(self, grace_ms: int | None = None) -> None:
        """Drain and stop: health says NOT_SERVING, new calls are refused, what is queued is sent,
        streams end with UNAVAILABLE, and after ``grace_ms`` what is left is cut. Idempotent."""
        self.begin_stop(grace_ms)
        await self.wait_for_termination()

    def begin_stop(self, grace_ms: int | None = None) -> None:
        """Start what :meth:`stop` does and return at once."""
        if self._stopping is None:
            grace = self._config.drain_grace_ms if grace_ms is None else grace_ms
            self._stopping = start_task(STOP, self._stop(grace / 1000), on_death=self._stop_failed)
            self._is_stopping.set()

    async def _stop(self, grace_s: float) -> None:
        server, reason = self._server, TransportError(DRAINING)
        self._guard.is_draining = True
        await self._health.enter_graceful_shutdown()
        if server is None:
            return
        for task in (self._sweeping, self._counting, self._watching, self._trimming):
            if task is not None:
                task.cancel()
        await self._flush(grace_s)
        # The last one first, each of them whatever becomes of the others.
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self.bodies.close)
            ends.callback(self._runtime.attach, None)
            ends.callback(self._deephaven.close)
            ends.push_async_callback(self.journals.close)
            ends.push_async_callback(server.stop, grace_s)
            ends.callback(self.sessions.close_all, reason)
            ends.callback(self.journals.begin_stop, reason)
            ends.callback(self._puts.begin_stop, reason)
            ends.callback(self._deephaven.announce_stop, DRAINING)
            ends.callback(self._hub.finish_all, reason, is_flushed=True)

    def _stop_failed(self, error: BarrageError) -> None:
        self._failed_stop = error
        self._fail(error)

    async def _flush(self, grace_s: float) -> None:
        """Have what is staged sent, unless the engine is busy for longer than the grace or has no
        room for another command."""
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    flush = self._runtime.submit(self._runtime.flush)
                    made = await asyncio.wrap_future(flush)
                    if made is None:
                        break
                    await asyncio.wrap_future(made)
        except (TimeoutError, BarrageError):
            log.warning("the engine is busy; what was not sent yet is not sent any more")
            self._runtime.give_up_waiting()

    async def wait_for_termination(self) -> None:
        """Until :meth:`stop` has ended everything; WorkerDiedError when it could not."""
        await self._is_stopping.wait()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
        if self._failed_stop is not None:
            raise self._failed_stop

    def _all_services(self) -> dict[str, dict[str, MethodEntry]]:
        """Every service behind the guard with its methods."""
        limits = self._config.limits
        data = DataCalls(
            self._hub,
            self._authenticator,
            self.sessions,
            limits=limits,
            draft_2020=self._config.draft_2020,
            journals=self.journals.calls,
            journal_exchanges=JournalExchanges(self.journals.calls, self.bodies, limits),
        )
        put = MethodEntry("bidi", self._puts.do_put, SessionUse.OPTIONAL)
        catalog = CatalogCalls(
            *(self._resolver, self._catalog, self._tables),
            journals=self.journals,
            bodies=self.bodies,
            dissociated=DissociatedCalls(self.bodies, self._hub, limits),
        )
        methods = {**data.methods(), **catalog.methods(), "DoPut": put}
        offered = self._deephaven.services() if self._config.deephaven else {}
        return {SERVICE_NAME: methods, **offered}


def effective_token(config: ServerConfig) -> str | None:
    """The token calls need: the configured one, or a random one on an address others can reach."""
    if config.token is None and not is_loopback(config.host):
        return new_token()
    return config.token


def channel_options(config: ServerConfig) -> list[tuple[str, int]]:
    """gRPC settings: message sizes by the limits, pings that find dead peers, one process per
    port."""
    return [
        ("grpc.max_receive_message_length", _receive_bytes_max(config)),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.server.max_pending_requests", _CALLS_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _CALLS_WAITING),
        ("grpc.keepalive_time_ms", config.keepalive_ms),
        ("grpc.keepalive_timeout_ms", max(config.keepalive_ms // 2, 1)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
    ]


def _on_loop(
    loop: asyncio.AbstractEventLoop,
    told: Callable[[BarrageError], object],
    error: BarrageError,
) -> None:
    """Any thread: tell on the loop, unless it has ended and nobody is left to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told, error)


def _receive_bytes_max(config: ServerConfig) -> int:
    return config.limits.message_bytes_max + _RECEIVE_MARGIN_BYTES


def inproc_name(host: str) -> str | None:
    """The name of a server without a port, whose host is ``inproc://name``; one is made up for
    ``inproc://``, as a port is."""
    if not host.startswith(f"{SCHEME}://"):
        return None
    return host.removeprefix(f"{SCHEME}://") or secrets.token_hex(8)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

"""One serving instance on one event loop: its listener, services, start, drain, stop.

Where it listens is a matter of the transport that its ``host`` names. Frames travel as raw bytes
through generic handlers: a Barrage modification batch may hold columns of different lengths, which
Arrow's own Flight server refuses to build.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from barrage.errors import BarrageError, TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.access.call_guard import DRAINING, CallGuard, SessionUse
from barrage.server.access.method_table import MethodEntry, service_handler
from barrage.server.access.reflection import offer_reflection
from barrage.server.access.resolver import TicketResolver
from barrage.server.access.session_store import SessionStore
from barrage.server.bodies.body_service import BodyService
from barrage.server.deephaven.browser_streams import BrowserStreams
from barrage.server.deephaven.services import DeephavenServices
from barrage.server.exchange.delivery import EncodeTiming, EventOutlet
from barrage.server.exchange.exchange_driver import ExchangeHub
from barrage.server.exchange.stream_sending import SendingAccount
from barrage.server.exchange.subscription_dispatcher import DispatcherPort, SubscriptionDispatcher
from barrage.server.flight.catalog_calls import CatalogCalls
from barrage.server.flight.data_calls import DataCalls
from barrage.server.flight.dissociated_calls import DissociatedCalls
from barrage.server.flight.journal_exchange import JournalExchanges
from barrage.server.flight.journals_and_stages import JournalServices
from barrage.server.flight.put_calls import PutCalls
from barrage.server.flight.result_calls import ResultCalls
from barrage.server.flight.session_calls import SessionOptionCalls
from barrage.server.identity.setting_up import audit_log, authenticator_of, note_login
from barrage.server.ingest.connector.connector_worker import ConnectorWorker
from barrage.server.ingest.connector.source_callers import SourceCallers
from barrage.server.ingest.connector.sources_file import read_sources
from barrage.server.operations.server_operations import ServerOperations
from barrage.server.pages.page_actions import page_actions
from barrage.server.pages.page_calls import PAGE_SERVICE, PageCalls
from barrage.server.policy.policy_watch import PolicyWatch
from barrage.server.results.flight_sessions import FlightSessions
from barrage.server.results.pinned_results import PinnedResults
from barrage.server.results.query_jobs import QueryJobs
from barrage.server.results.row_transform import RowTransforms
from barrage.server.serving import interpreter, upkeep
from barrage.server.serving.certificates import CERTIFICATES, keep_fresh, tls_of
from barrage.server.serving.spare_memory import SpareMemory, allocator_here
from barrage.server.serving.web_serving import web_listener
from barrage.server.statistics.body_statistics import BodyStatistics
from barrage.server.statistics.caller_statistics import CALLERS, CallerStatistics
from barrage.server.statistics.connector_statistics import ConnectorStatistics
from barrage.server.statistics.thread_statistics import ThreadStatistics
from barrage.supervision import Role, in_thread, no_dependants, start_awaited, start_task
from barrage.transport.base import ListenOptions
from barrage.transport.deephaven_messages import BROWSER_SERVICE
from barrage.transport.flight_messages import SERVICE_NAME
from barrage.transport.host_names import is_loopback
from barrage.transport.registry import TRANSPORTS, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    import grpc.aio

    from barrage.clock import Clock
    from barrage.engine.tables.table import Table
    from barrage.server.flight.writes_elsewhere import WritesElsewhere
    from barrage.server.identity.ways import Hook
    from barrage.server.policy.rules import Policy
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.runtime.watchdog import Watchdog
    from barrage.server.settings.config import ServerConfig
    from barrage.server.tables.table_service import TableService
    from barrage.supervision import OnDeath
    from barrage.transport.base import Listener, Transport
    from barrage.transport.tls.server_tls import ServerTLS
    from barrage.wire.payloads.source_mapping import SourceMapping

log = logging.getLogger(__name__)

STOP = Role("barrage-stop", "health, and whoever waits for the server to end")
COUNTER = Role("barrage-body-statistics", "subscriptions of the table of bodies; health")
CONNECTORS = Role(
    "barrage-connector-statistics", "subscriptions of the tables of connectors; health"
)
THREADS = Role("barrage-thread-statistics", "subscriptions of the table of threads; health")
TRIMMER = Role("barrage-spare-memory", "nothing: memory that is free is kept")

_HEALTH_SERVICE = health.SERVICE_NAME
_RECEIVE_MARGIN_BYTES = 64 * 1024


class ServerApp:
    """Serves the tables of one engine on one address. Made and used on one event loop."""

    def __init__(
        self,
        config: ServerConfig,
        runtime: EngineRuntime,
        catalog: Catalog,
        *,
        tables: TableService,
        clock: Clock,
        watchdog: Watchdog | None = None,
        elsewhere: WritesElsewhere | None = None,
        authenticate: Hook | None = None,
        policy: Policy | None = None,
        sources: Sequence[SourceMapping] = (),
    ) -> None:
        """``elsewhere`` passes writes on to the servers that own the tables; ``authenticate`` is a
        further way to say who calls, and ``policy`` the rules, of the program, ``sources``
        what connectors may send beside those of the configuration's file."""
        of_file = config.connector_config
        self._sources = (*sources, *(() if of_file is None else read_sources(Path(of_file))))
        self._config = config
        self._clock = clock
        self._elsewhere = elsewhere
        self._watchdog = watchdog
        self._runtime = runtime
        self._catalog = catalog
        self._tables = tables
        self._let_callers_in(config, clock, authenticate)
        self.bodies = BodyService(config, clock)
        self._authenticator.on_revoke(self.bodies.revoke)
        self._policy = self._policy_of(config, policy)
        self._gate = self._policy.gate
        self._make_services(config, clock)
        self._services = self._all_services()
        self._health = HealthServicer()
        self._tls = tls_of(config, clock)
        self._listener = _listener(config, self._tls)
        self._web = web_listener(
            config, self._tls, self._authenticator, is_serving=self._is_healthy
        )
        self._is_listening = False
        self.operations.measure(
            authenticator=self._authenticator,
            sessions=self.sessions,
            connections=lambda: getattr(self._listener, "connections_count", 0),
            audit=self.audit,
            watchdog=watchdog,
            bodies=self.bodies,
        )
        self._background: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self.failed_stop: BarrageError | None = None
        self._is_stopping = asyncio.Event()

    def _let_callers_in(self, config: ServerConfig, clock: Clock, hook: Hook | None) -> None:
        """Make what finds out who calls, and what is kept of them."""
        connector = config.connector_address
        is_local = _transport(config).is_local(config.host) and (
            connector is None or is_loopback(connector[0])
        )
        self._authenticator = authenticator_of(config, clock, hook=hook, is_local=is_local)
        self.token = self._authenticator.key
        self.sessions = SessionStore(
            config.limits,
            clock,
            lifetime_ns=config.session_lifetime_ms * NANOS_PER_MS,
            types=config.deephaven_types,
        )
        self._authenticator.on_revoke(self.sessions.revoke)
        self.audit = audit_log(config, clock)
        if self.audit is not None:
            self._authenticator.on_tried(partial(note_login, self.audit))
        self._guard = CallGuard(
            self._authenticator, self.sessions, self.audit, measures=self._runtime.measures.calls
        )

    def _policy_of(self, config: ServerConfig, policy: Policy | None) -> PolicyWatch:
        """The rules; ConfigError when the file of them is wrong."""
        path = None if config.policy is None else Path(config.policy)
        watch = PolicyWatch(path, policy)
        self._catalog.suggests_names = watch.gate.policy is None
        for end in (self._authenticator.calls.end, self.sessions.revoke, self.bodies.revoke):
            watch.on_change(end)
        return watch

    def replace_policy(self, policy: Policy) -> None:
        """Let other rules hold from now on; who has others than before loses what is open.
        ConfigError where they stand in a file."""
        self._catalog.suggests_names = False
        self._policy.replace(policy)

    def _make_services(self, config: ServerConfig, clock: Clock) -> None:
        """Make what answers calls, each part behind the gate."""
        self._resolver = TicketResolver(self._catalog, self._tables, config.limits, gate=self._gate)
        self.transforms = RowTransforms(config.limits)
        dispatcher = SubscriptionDispatcher(
            self._runtime,
            self._tables.journals,
            limits=config.limits,
            clock=clock,
            bodies=self.bodies,
        )
        self._hub = ExchangeHub(
            DispatcherPort(self._runtime, dispatcher),
            self._resolver,
            limits=config.limits,
            bodies=self.bodies,
            account=SendingAccount(
                self._runtime.measures.sending, self._runtime.observation, clock
            ),
            transform=self.transforms.open,
            session_info=lambda event, session: self._data.session_info(event, session),
        )
        self.operations = ServerOperations(
            *(config, self._runtime, self._catalog),
            tables=self._tables,
            hub=self._hub,
            gate=self._gate,
            clock=clock,
        )
        self._resolver.on_demand = self.operations.on_demand
        self._deephaven = DeephavenServices(
            self._authenticator,
            self.sessions,
            self._resolver,
            tables=self._tables,
            gate=self._gate,
            limits=config.limits,
            clock=clock,
            is_naming=self._elsewhere is None,
        )
        self.journals = JournalServices(
            self._tables, self._catalog, gate=self._gate, limits=config.limits, clock=clock
        )
        self._resolver.past = self.journals.past.table
        self.results = self._keep_results(dispatcher.planner.epoch_of)
        self._puts = PutCalls(
            self._tables,
            config.limits,
            stages=self.journals.stages,
            gate=self._gate,
            transfers=self._runtime.measures.transfers,
            elsewhere=self._elsewhere,
        )
        self._connectors = ConnectorWorker(
            self._tables,
            self._catalog,
            limits=config.limits,
            callers=SourceCallers(self._authenticator),
            gate=self._gate,
            on_death=self.fail,
            sources=self._sources,
            audit=self.audit,
        )

    def _keep_results(self, epoch_of: Callable[[Table], str | None]) -> QueryJobs:
        """Make what keeps results of queries for their callers."""
        limits, clock = self._config.limits, self._clock
        self._epoch_of = epoch_of
        self.flight_sessions = FlightSessions(limits, clock)
        jobs = QueryJobs(
            *(self._hub, self._resolver, PinnedResults(limits, clock)), limits=limits, clock=clock
        )
        for revoke in (jobs.revoke, self.flight_sessions.revoke):
            self._authenticator.on_revoke(revoke)
            if self._policy is not None:
                self._policy.on_change(revoke)
        return jobs

    @property
    def stream_count(self) -> int:
        """Open DoExchange streams."""
        return self._hub.stream_count

    @property
    def port(self) -> int:
        """Known once it listens; 0 where there is none."""
        return self._listener.port

    @property
    def address(self) -> str:
        """``host:port`` as a gRPC target; a URI where there is no port."""
        return self._listener.address

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return self._listener.uri

    @property
    def connector_port(self) -> int | None:
        """Where sources of the connector protocol are served; None when they are not."""
        return None if self._config.connector_address is None else self._connectors.port

    @property
    def web_uri(self) -> str | None:
        """What browsers open; None when they are not served."""
        return None if self._web is None else self._web.uri

    async def _is_healthy(self) -> bool:
        return self._is_listening and self._telling is None and self._stopping is None

    async def start(self) -> None:
        """Listen; ConfigError when the address cannot be had, TransportUnavailableError when a way
        of bodies that is switched on cannot."""
        await in_thread(interpreter.import_for_arrow)
        await self._listen()
        self._is_listening = True
        interpreter.OF_THIS_PROCESS.begin_serving()
        timing = EncodeTiming(self._runtime.measures.sending, self._clock)
        self._runtime.attach(EventOutlet(self._hub.hand_over, timing))
        await self.operations.start(self._guard, on_death=self.fail)
        if self.audit is not None:
            self.audit.start(on_death=self.fail)
        self.journals.start(on_death=self.fail)
        self._start_background()
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        loop = asyncio.get_running_loop()
        self._runtime.on_death(partial(_on_loop, loop, self._engine_died))
        self._tables.journals.on_failure(partial(_on_loop, loop, self._journals_failed))
        self._announce()

    def _start_background(self) -> None:
        """Start what runs beside the calls until the server stops."""

        def start(role: Role, work: Coroutine[Any, Any, None], on_death: OnDeath) -> None:
            self._background.append(start_task(role, work, on_death=on_death))

        every_s = upkeep.interval_s(self._config.session_lifetime_ms)
        kept = (self.sessions, self.results, self.flight_sessions, self._authenticator)
        start(upkeep.SESSIONS, upkeep.sweep_for_ever(kept, every_s), self.fail)
        if self._authenticator.has_users:
            start(upkeep.USERS, upkeep.refresh_for_ever(self._authenticator, every_s), self.fail)
        if self._policy.has_file:
            start(upkeep.RULES, upkeep.refresh_for_ever(self._policy, every_s), self.fail)
        callers = CallerStatistics(self._authenticator, self.sessions, self._tables)
        start(CALLERS, callers.run(), partial(self._counter_died, callers))
        if self.bodies.is_switched_on:
            counting = BodyStatistics(self.bodies, self._tables)
            start(COUNTER, counting.run(), partial(self._counter_died, counting))
        if self._config.connector_address is not None:
            streams = ConnectorStatistics(self._connectors, self._tables)
            start(CONNECTORS, streams.run(), partial(self._counter_died, streams))
        if self._watchdog is not None:
            threads = ThreadStatistics(self._watchdog, self._tables)
            start(THREADS, threads.run(), partial(self._counter_died, threads))
        allocator = allocator_here()
        if allocator is not None:
            spare = SpareMemory(allocator, bytes_max=self._config.limits.spare_memory_bytes_max)
            start(TRIMMER, spare.run(), no_dependants)
        if self._tls is not None and self._config.tls_reload_ms:
            renewing = keep_fresh(
                self._tls,
                self._clock,
                interval_ms=self._config.tls_reload_ms,
                on_revoked=self._authenticator.revoke_certificates,
            )
            start(CERTIFICATES, renewing, self.fail)

    # --- what has died ---

    def fail(self, error: BarrageError) -> None:
        """Something everybody depends on has died: only a restart brings it back, and who asks for
        the server's health is told so."""
        log.error("the server is not healthy any more: %s", error)
        self.operations.readiness.fail(error)
        if self._telling is None:
            self._telling = start_awaited(self._health.enter_graceful_shutdown())

    def _counter_died(
        self,
        counting: BodyStatistics | CallerStatistics | ConnectorStatistics | ThreadStatistics,
        error: BarrageError,
    ) -> None:
        counting.fail(error)
        self.fail(error)

    def _engine_died(self, error: BarrageError) -> None:
        """Whoever waits for a change would wait for ever."""
        self.fail(error)
        self._hub.finish_all(error, is_flushed=False)
        self.journals.begin_stop(error)
        self._connectors.close()
        self.sessions.close_all(error)

    def _journals_failed(self, error: BarrageError) -> None:
        """Reading goes on; writers have been told."""
        self.fail(error)
        self.journals.fail(error)

    # --- life ---

    async def _listen(self) -> None:
        """Take the address, then calls; neither when one of them fails."""
        listener, web = self._listener, self._web
        services = self._services
        try:
            listener.bind()
            listener.add_generic_rpc_handlers(self._handlers(services))
            if web is not None:
                web.bind()
                pages = {PAGE_SERVICE: PageCalls().methods()}
                web.add_generic_rpc_handlers(self._handlers({**services, **pages}))
            server = cast("grpc.aio.Server", listener)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            if self._config.reflection and listener.runs_generators:
                offer_reflection((*self._services, _HEALTH_SERVICE), server)
            await self.bodies.start(on_death=self.fail)
            await self.operations.listen()
            await listener.start()
            if web is not None:
                await web.start()
            if self._config.connector_address is not None:
                tls = self._tls if self._config.connector_tls else None
                await self._connectors.start(*self._config.connector_address, tls)
        except BaseException:
            await self.operations.close()
            await listener.stop(0)
            if web is not None:
                await web.stop(0)
            raise

    def _handlers(
        self, services: Mapping[str, Mapping[str, MethodEntry]]
    ) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
        return tuple(
            service_handler(name, methods, self._guard) for name, methods in services.items()
        )

    def _announce(self) -> None:
        log.info("listening on %s", self.address)
        if self.token is not None and self._config.token is None:
            is_local = _transport(self._config).is_local(self._config.host)
            reached = self._config.connector if is_local else self.address
            sys.stderr.write(
                f"barrage: {reached} is not a loopback address, so calls need a token; "
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
        reason = TransportError(DRAINING)
        self._guard.is_draining = True
        self.operations.begin_stop(grace_s)
        await self._health.enter_graceful_shutdown()
        if not self._is_listening:
            return
        for task in self._background:
            task.cancel()
        await self._flush(grace_s)
        # The last one first, each of them whatever becomes of the others.
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(interpreter.OF_THIS_PROCESS.end_serving)
            ends.push_async_callback(self.operations.close)
            ends.push_async_callback(self.bodies.close)
            ends.callback(self._authenticator.close)
            if self.audit is not None:
                ends.push_async_callback(self.audit.close)
            ends.callback(self._runtime.attach, None)
            ends.callback(self._deephaven.close)
            ends.push_async_callback(self.journals.close)
            ends.push_async_callback(self._listener.stop, grace_s)
            ends.callback(self.results.close, reason)
            if self._web is not None:
                ends.push_async_callback(self._web.stop, grace_s)
            ends.callback(self.sessions.close_all, reason)
            ends.callback(self.journals.begin_stop, reason)
            ends.callback(self._puts.begin_stop, reason)
            ends.push_async_callback(self._connectors.stop, self._config.connector_restart)
            ends.callback(self._deephaven.announce_stop, DRAINING)
            ends.callback(self._hub.finish_all, reason, is_flushed=True)

    def _stop_failed(self, error: BarrageError) -> None:
        self.failed_stop = error
        self.fail(error)

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
        if self.failed_stop is not None:
            raise self.failed_stop

    def _all_services(self) -> dict[str, dict[str, MethodEntry]]:
        """Every service behind the guard with its methods."""
        limits, transfers = self._config.limits, self._runtime.measures.transfers
        results = ResultCalls(
            *(self.results, self._hub),
            journals=self.journals.calls,
            limits=limits,
            location=self._config.flight_location,
        )
        self._data = data = DataCalls(
            self._hub,
            self._authenticator,
            self.sessions,
            limits=limits,
            draft_2020=self._config.draft_2020,
            journals=self.journals.calls,
            journal_exchanges=JournalExchanges(
                self.journals.calls, self.bodies, limits, transfers=transfers
            ),
            results=results,
            transfers=transfers,
        )
        pages = page_actions(
            *(self._config, self._catalog, self._tables), gate=self._gate, clock=self._clock
        )
        put = MethodEntry("bidi", self._puts.do_put, SessionUse.OPTIONAL)
        catalog = CatalogCalls(
            *(self._resolver, self._catalog, self._tables),
            journals=self.journals,
            bodies=self.bodies,
            dissociated=DissociatedCalls(self.bodies, self._hub, limits),
            results=results,
            options=SessionOptionCalls(self.flight_sessions, self.sessions, limits),
            epoch_of=self._epoch_of,
            gate=self._gate,
            elsewhere=self._elsewhere,
            further={**self.operations.actions, **pages},
        )
        methods = {**data.methods(), **catalog.methods(), "DoPut": put}
        offered = self._deephaven.services() if self._config.deephaven else {}
        if offered:
            pieced = {"DoPut": self._puts.do_put, "DoExchange": data.do_exchange}
            offered[BROWSER_SERVICE] = BrowserStreams(pieced, limits).methods()
        return {SERVICE_NAME: methods, **offered}


def _transport(config: ServerConfig) -> Transport:
    """The backend of the server's address; ConfigError."""
    return TRANSPORTS.find(scheme_of(config.host))


def _listener(config: ServerConfig, tls: ServerTLS | None) -> Listener:
    options = ListenOptions(
        port=config.port,
        message_bytes_max=config.limits.message_bytes_max + _RECEIVE_MARGIN_BYTES,
        keepalive_ms=config.keepalive_ms,
        http=config.http,
        limits=config.limits,
        tls=tls,
    )
    return _transport(config).listen(config.host, options)


def _on_loop(
    loop: asyncio.AbstractEventLoop,
    told: Callable[[BarrageError], object],
    error: BarrageError,
) -> None:
    """Any thread: tell on the loop, unless it has ended and nobody is left to be told."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told, error)

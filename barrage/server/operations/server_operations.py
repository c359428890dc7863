"""What operators look at and turn, of one serving instance: put together, begun and ended."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.server.alerting.alert_service import AlertService
from barrage.server.alerting.watched_alert import AlertPlace
from barrage.server.operations.exposition import check_available, exposition
from barrage.server.operations.log_levels import LogLevelCalls
from barrage.server.operations.metrics_listener import HttpAnswer, MetricsListener
from barrage.server.operations.otel_spans import new_spans
from barrage.server.operations.readiness import Readiness
from barrage.server.operations.update_traces import TraceCalls, UpdateTraces, streams_tables
from barrage.server.statistics.measure_sources import (
    bodies_source,
    calls_source,
    engine_source,
    journal_source,
    threads_source,
)
from barrage.server.statistics.server_measures import Measure
from barrage.server.statistics.server_statistics import STATISTICS_TABLES, ServerStatistics
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from barrage.clock import Clock
    from barrage.server.access.call_guard import CallGuard
    from barrage.server.access.method_table import Action
    from barrage.server.access.session_store import SessionStore
    from barrage.server.alerting.alert import Alert
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.identity.audit import AuditLog
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.operations.metrics_listener import HttpRequest
    from barrage.server.operations.otel_spans import OtelSpans
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.runtime.watchdog import Watchdog
    from barrage.server.settings.config import ServerConfig
    from barrage.server.tables.table_service import TableService
    from barrage.supervision import OnDeath

log = logging.getLogger(__name__)

METRICS, LIVE, READY = "/metrics", "/healthz", "/readyz"

AGE_NS_MAX = 500_000_000
"""Scrapes that come within so long of each other are told the same."""


class ServerOperations:
    """Made and used on the event loop."""

    def __init__(
        self,
        config: ServerConfig,
        runtime: EngineRuntime,
        catalog: Catalog,
        *,
        tables: TableService,
        hub: ExchangeHub,
        gate: AccessGate,
        clock: Clock,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._catalog = catalog
        self._journals = tables.journals
        self._hub = hub
        self._clock = clock
        self.statistics = ServerStatistics(tables, hub, limits=config.limits, clock=clock)
        self.readiness = Readiness(tables.journals)
        self.traces = UpdateTraces(
            runtime.observation,
            clock,
            events_max=config.limits.traced_events_max,
            tables_of=streams_tables(hub),
        )
        self.actions: Mapping[str, Action] = {
            **LogLevelCalls(gate).actions,
            **TraceCalls(self.traces, clock, tables=tables, gate=gate).actions,
        }
        place = AlertPlace(runtime=runtime, catalog=catalog, tables=tables, limits=config.limits)
        self.alerts = AlertService(config, place)
        self.declared_alerts: Sequence[Alert] = ()
        """Of the program, beside those of the file."""
        self._listener = MetricsListener(self._answer, config.limits)
        self._spans: OtelSpans | None = None
        self._said: dict[str, tuple[int, bytes, str]] = {}

    def measure(
        self,
        *,
        authenticator: Authenticator,
        sessions: SessionStore,
        connections: Callable[[], int],
        audit: AuditLog | None,
        watchdog: Watchdog | None,
        bodies: BodyService,
    ) -> None:
        """Have the measures of these gathered too."""
        measures = self._runtime.measures
        self.statistics.sources += [
            self._own_measures,
            calls_source(measures, authenticator, sessions, connections=connections, audit=audit),
            engine_source(self._runtime),
            journal_source(self._journals, self._catalog),
            bodies_source(bodies),
            self.alerts.statistics.measures,
        ]
        if watchdog is not None:
            self.statistics.sources.append(threads_source(watchdog))

    async def _own_measures(self) -> list[Measure]:
        return [
            Measure("ready", float(self.readiness.unready() is None)),
            Measure("metrics_refused", self._listener.refused_count),
        ]

    # --- life ---

    @property
    def on_demand(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What makes the tables that are made when somebody asks for them."""
        return dict.fromkeys(STATISTICS_TABLES, self.statistics.begin_tables)

    @property
    def metrics_port(self) -> int | None:
        """Where metrics are; None when they are nowhere."""
        return None if self._config.metrics_port is None else self._listener.port

    async def listen(self) -> None:
        """Answer scrapes and probes where that was asked for, and set up tracing. ConfigError when
        the address or a package cannot be had, or an alert is not as it must be."""
        config = self._config
        await self.alerts.prepare(self.declared_alerts)
        if config.otel:
            call_of = self._hub.call_of
            percent = config.otel_sample_percent
            self._spans = await in_thread(new_spans, self._clock, percent, call_of)
        if config.metrics_port is not None:
            await in_thread(check_available)
            await self._listener.start(config.metrics_host, config.metrics_port)

    async def start(self, guard: CallGuard, *, on_death: OnDeath) -> None:
        """Begin what was asked for."""
        config = self._config
        self.statistics.prepare(on_death=on_death)
        if self._spans is not None:
            self._runtime.observation.add(self._spans)
            guard.spans = self._spans
        if config.trace:
            self.traces.always()
        if config.metrics_port is not None:
            self.statistics.start()
        if config.statistics:
            await self.statistics.begin_tables()
        self.alerts.start(on_death=on_death)

    def begin_stop(self, grace_s: float) -> None:
        """The server drains, for so long: it is not ready any more, and says so to the end."""
        self.readiness.is_draining = True
        self.alerts.begin_stop(grace_s)
        self.statistics.close()

    async def close(self) -> None:
        """After the last call. Idempotent."""
        await self.alerts.close()
        self.statistics.close()
        self.traces.close()
        await self._listener.close()
        spans, self._spans = self._spans, None
        if spans is not None:
            self._runtime.observation.remove(spans)
            await in_thread(spans.close)

    # --- answers ---

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if request.path == LIVE:
            return _health(self.readiness.ailment())
        if request.path == READY:
            return _health(self.readiness.unready())
        if request.path != METRICS:
            text = f"there are {METRICS}, {LIVE} and {READY}"
            return HttpAnswer.of_text(HTTPStatus.NOT_FOUND, text)
        try:
            return HttpAnswer(HTTPStatus.OK, *await self._metrics(request.accept))
        except Exception:
            log.exception("metrics could not be told")
            return HttpAnswer.of_text(
                HTTPStatus.INTERNAL_SERVER_ERROR, "metrics could not be told; see the log"
            )

    async def _metrics(self, accept: str) -> tuple[bytes, str]:
        now_ns = self._clock.monotonic_ns()
        said = self._said.get(accept)
        if said is None or now_ns - said[0] > AGE_NS_MAX:
            if not self.statistics.measures and not self.readiness.is_draining:
                await self.statistics.refresh()
            is_ready = Measure("ready", float(self.readiness.unready() is None))
            others = (each for each in self.statistics.measures if each.name != is_ready.name)
            measures = [is_ready, *others]
            body, content_type = await in_thread(partial(exposition, measures, accept))
            said = (now_ns, body, content_type)
            # What clients write there is not kept but for the last of them.
            self._said = {accept: said}
        return said[1], said[2]


def _health(trouble: str | None) -> HttpAnswer:
    if trouble is None:
        return HttpAnswer.of_text(HTTPStatus.OK, "ok")
    return HttpAnswer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, trouble)

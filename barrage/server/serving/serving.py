"""A server's parts put together once, and what the synchronous and the asynchronous API have in
common."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from barrage.clock import SystemClock
from barrage.engine import UpdateGraph
from barrage.errors import LocalProtocolError, TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.alerting.alert import AlertError
from barrage.server.alerting.alert_service import AlertNotFoundError
from barrage.server.journaling.journal_opening import (
    journal_options,
    open_journals,
    open_store,
    restore_tables,
)
from barrage.server.journaling.journal_service import JournalService, SyncedSignal
from barrage.server.runtime.catalog import Catalog
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.runtime.watchdog import Watchdog
from barrage.server.serving.app import ServerApp
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.table_service import TableService

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from barrage.clock import Clock
    from barrage.errors import BarrageError
    from barrage.server.alerting.alert import Alert
    from barrage.server.flight.writes_elsewhere import WritesElsewhere
    from barrage.server.identity.ways import Hook
    from barrage.server.journaling.journal_opening import Recovery
    from barrage.server.policy.rules import Policy
    from barrage.server.runtime.measures import RuntimeStats
    from barrage.wire.payloads.source_mapping import SourceMapping


class ServingParts:
    """Configuration, engine, catalog, journals and table service of one server.

    Tables of a data directory are read back here, before there is an engine thread, which starts
    with the first command. ConfigError when another process uses the directory.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        clock: Clock | None = None,
        on_progress: Callable[[Recovery], None] | None = None,
        authenticate: Hook | None = None,
        policy: Policy | None = None,
        sources: Sequence[SourceMapping] = (),
        alerts: Mapping[str, Alert] = MappingProxyType({}),
    ) -> None:
        """``alerts`` are those that are there, by name, when :meth:`make_app` is called."""
        self.config = config
        self._authenticate = authenticate
        self._policy = policy
        self._sources = tuple(sources)
        self._alerts = alerts
        self.clock = clock or SystemClock()
        self.catalog = Catalog()
        self.watchdog = Watchdog()
        synced = SyncedSignal()
        store = open_store(config, self.clock, synced)
        try:
            found = (
                [] if store is None else open_journals(store, self.catalog, on_progress=on_progress)
            )
            graph = UpdateGraph(config.limits, first_step=0 if store is None else store.first_step)
            self.journals = JournalService(
                limits=config.limits,
                clock=self.clock,
                default_class=config.journal_default,
                options=journal_options(config),
                store=store,
            )
            self.runtime = EngineRuntime(
                limits=config.limits,
                clock=self.clock,
                rest_ns_max=config.cycle_rest_ms_max * NANOS_PER_MS,
                graph=graph,
                recorder=self.journals,
                watch=self.watchdog.engine,
            )
            self.tables = TableService(
                self.runtime, self.catalog, limits=config.limits, journals=self.journals
            )
            synced.connect(self.runtime.post, self._settle)
            restore_tables(found, graph, self.catalog, journals=self.journals)
            if store is not None:
                store.start()
        except BaseException:
            if store is not None:
                store.close()
            raise

    def make_app(self, elsewhere: WritesElsewhere | None = None) -> ServerApp:
        """The serving instance; call on the event loop that will run it. ``elsewhere`` has the
        tables that other servers own."""
        app = ServerApp(
            self.config,
            self.runtime,
            self.catalog,
            tables=self.tables,
            clock=self.clock,
            watchdog=self.watchdog,
            elsewhere=elsewhere,
            authenticate=self._authenticate,
            policy=self._policy,
            sources=self._sources,
        )
        app.operations.declared_alerts = tuple(self._alerts.values())
        return app

    def _settle(self) -> None:
        self.journals.tell_ended()
        self.runtime.settle_durable()

    def close(self) -> None:
        """End the engine, then write what it has recorded; writers learn what became safe.
        Idempotent."""
        self.tables.queries.close()
        self.runtime.stop()
        self.journals.close()
        self.runtime.settle_durable()
        self.runtime.refuse_undurable(TransportError("the server has stopped"))
        self.watchdog.close()


class ServerBase(ABC):
    """What both forms of a server have: the arguments they are made with, and where they are. How
    they start and end is their own."""

    _ENTERED_BY: ClassVar[str]
    """How a program begins to use this form."""

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        token: str | None = None,
        data: str | Path | None = None,
        journal: str | None = None,
        bodies: str | None = None,
        config: ServerConfig | None = None,
        on_progress: Callable[[Recovery], None] | None = None,
        authenticate: Hook | None = None,
        policy: Policy | None = None,
        sources: Sequence[SourceMapping] = (),
    ) -> None:
        self._authenticate = authenticate
        self._policy = policy
        self._sources = tuple(sources)
        self._alerts: dict[str, Alert] = {}
        """Declared before the server starts."""
        self._config = effective_config(
            config,
            host=host,
            port=port,
            token=token,
            data=None if data is None else str(data),
            journal=journal,
            bodies=bodies,
        )
        self._on_progress = on_progress
        self._opened: ServingParts | None = None
        self._app: ServerApp | None = None
        self._is_stopped = False
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """The rest of being made: what the form keeps, and the parts unless :meth:`start` opens
        them."""

    def _open(self) -> ServingParts:
        """Make the parts, which reads the data directory."""
        return ServingParts(
            self._config,
            on_progress=self._on_progress,
            authenticate=self._authenticate,
            policy=self._policy,
            sources=self._sources,
            alerts=self._alerts,
        )

    @property
    def _parts(self) -> ServingParts:
        if self._opened is None:
            raise LocalProtocolError(
                f"the data directory is read by start(); use '{self._ENTERED_BY}' or start() first"
            )
        return self._opened

    def _declare_alert(self, alert: Alert) -> None:
        """Before the server starts."""
        if self._alerts.setdefault(alert.name, alert) is not alert:
            raise AlertError(alert.name, "name", "a name of its own: another alert has it")

    def _forget_alert(self, name: str) -> None:
        """Before the server starts."""
        if self._alerts.pop(name, None) is None:
            raise AlertNotFoundError(name)

    @property
    def port(self) -> int:
        """The TCP port; the chosen one when 0 was asked for."""
        return self._running.port

    @property
    def connector_port(self) -> int | None:
        """The TCP port for sources of the connector protocol; None when they are not served."""
        return self._running.connector_port

    @property
    def metrics_port(self) -> int | None:
        """The TCP port of metrics and probes; None when there is none."""
        return self._running.operations.metrics_port

    @property
    def web_uri(self) -> str | None:
        """What to open in a browser; None when browsers are not served."""
        return self._running.web_uri

    @property
    def address(self) -> str:
        """``host:port``, as gRPC wants it."""
        return self._running.address

    @property
    def uri(self) -> str:
        """What to pass to :func:`barrage.connect`."""
        return self._running.uri

    @property
    def token(self) -> str | None:
        """The bearer token calls need; None when they need none."""
        return self._running.token

    @property
    def stats(self) -> RuntimeStats:
        """Counters of the engine thread."""
        return self._parts.runtime.stats

    @property
    def config(self) -> ServerConfig:
        return self._config

    @property
    def stream_count(self) -> int:
        """Open subscriptions and snapshots."""
        return self._running.stream_count

    def damaged_tables(self) -> dict[str, BarrageError]:
        """Tables of the data directory that could not be read, and why. Their names are taken; the
        files are left as they are."""
        return dict(self._parts.catalog.blocked)

    @property
    def _running(self) -> ServerApp:
        if self._app is None:
            raise LocalProtocolError(
                f"the server has not been started; use '{self._ENTERED_BY}' or start()"
            )
        return self._app


def effective_config(config: ServerConfig | None, **overrides: Any) -> ServerConfig:
    """``config`` (or the defaults) with the arguments that were given."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return dataclasses.replace(config or ServerConfig(), **given)

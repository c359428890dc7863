"""A server's parts put together once, for both the synchronous and the asynchronous API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from barrage.clock import SystemClock
from barrage.engine import UpdateGraph
from barrage.errors import TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.app import ServerApp
from barrage.server.catalog import Catalog
from barrage.server.config import ServerConfig
from barrage.server.journal_opening import (
    journal_options,
    open_journals,
    open_store,
    restore_tables,
)
from barrage.server.journal_service import JournalService, SyncedSignal
from barrage.server.runtime import EngineRuntime
from barrage.server.table_service import TableService
from barrage.server.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.server.journal_opening import Recovery


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
    ) -> None:
        self.config = config
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
            synced.connect(self.runtime.post, self.runtime.settle_durable)
            restore_tables(found, graph, self.catalog, self.journals)
            if store is not None:
                store.start()
        except BaseException:
            if store is not None:
                store.close()
            raise

    def make_app(self) -> ServerApp:
        """The serving instance; call on the event loop that will run it."""
        return ServerApp(
            *(self.config, self.runtime, self.catalog, self.tables, self.clock),
            watchdog=self.watchdog,
        )

    def close(self) -> None:
        """End the engine, then write what it has recorded; writers learn what became safe.
        Idempotent."""
        self.tables.queries.close()
        self.runtime.stop()
        self.journals.close()
        self.runtime.settle_durable()
        self.runtime.refuse_undurable(TransportError("the server has stopped"))
        self.watchdog.close()


def effective_config(config: ServerConfig | None, **overrides: Any) -> ServerConfig:
    """``config`` (or the defaults) with the arguments that were given."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return dataclasses.replace(config or ServerConfig(), **given)

"""A server's parts put together once, for both the synchronous and the asynchronous API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from barrage.clock import SystemClock
from barrage.limits import NANOS_PER_MS
from barrage.server.app import ServerApp
from barrage.server.catalog import Catalog
from barrage.server.config import ServerConfig
from barrage.server.runtime import EngineRuntime
from barrage.server.table_service import TableService

if TYPE_CHECKING:
    from barrage.clock import Clock


class ServingParts:
    """Configuration, engine, catalog and table service of one server. The engine thread starts with
    the first command."""

    def __init__(self, config: ServerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.catalog = Catalog()
        self.runtime = EngineRuntime(
            limits=config.limits,
            clock=self.clock,
            rest_ns_max=config.cycle_rest_ms_max * NANOS_PER_MS,
        )
        self.tables = TableService(self.runtime, self.catalog, limits=config.limits)

    def make_app(self) -> ServerApp:
        """The serving instance; call on the event loop that will run it."""
        return ServerApp(self.config, self.runtime, self.catalog, self.tables, self.clock)


def effective_config(config: ServerConfig | None, **overrides: Any) -> ServerConfig:
    """``config`` (or the defaults) with the arguments that were given."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return dataclasses.replace(config or ServerConfig(), **given)

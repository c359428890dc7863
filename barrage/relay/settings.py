"""What a relay is told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.relay.state_keeping import KEEP_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from barrage.relay.patterns import TablePatterns
    from barrage.relay.upstream_link import UpstreamSettings
    from barrage.server.settings.config import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Whom it follows, and what."""

    upstream: UpstreamSettings
    patterns: TablePatterns
    lag_ms_max: int | None = None
    """A table that is further behind its upstream server, or has lost it for longer, is not served
    until it has caught up; None serves it however old it is."""

    is_read_only: bool = False
    """Whether writes are refused instead of passed on to the server that owns the tables."""

    data: Path | None = None
    """Directory in which the newest states of the tables are kept for the next start."""
    keep_seconds: float = KEEP_SECONDS
    """How often they are kept at most."""

    def check(self) -> None:
        """ConfigError for what cannot be."""
        self.upstream.check()
        if self.lag_ms_max is not None and self.lag_ms_max < 1:
            raise ConfigError(f"the limit of the lag is {self.lag_ms_max} ms, it must be 1 or more")


def relay_config(config: ServerConfig) -> ServerConfig:
    """The settings of the relay's own server. Histories are kept in memory: ConfigError for a
    directory, or for none at all."""
    if config.data is not None or config.journal == "durable":
        raise ConfigError(
            "a relay keeps the history of its tables in memory: its directory (RelaySettings.data, "
            "`barrage relay --data DIR`) has their newest states, and no journals"
        )
    if config.journal == "none":
        raise ConfigError("a relay keeps a history of its tables: journal must not be none")
    return dataclasses.replace(config, journal="memory")

"""Servers and relays in one process, and ways to compare what their clients see."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.relay.patterns import TablePatterns
from barrage.relay.relay_server import Relay
from barrage.relay.settings import RelaySettings, relay_config
from barrage.relay.upstream_link import UpstreamSettings
from barrage.server import AsyncServer
from barrage.server.settings.config import ServerConfig
from tests.helpers.serving import HOST
from tests.unit.client.scripted import run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pyarrow as pa

    from barrage.client.session import AsyncSession
    from barrage.client.subscriptions.subscription import AsyncTickingTable
    from barrage.relay.relay_follower import RelayFollower

__all__ = ["HOST", "Backoff", "engine", "follows", "live", "relay_of", "rows_of", "run", "until"]

SCHEMA = {"Sym": "string", "Price": "float64"}


def engine(**settings: Any) -> AsyncServer:
    """A server that owns tables and keeps their history in memory."""
    return AsyncServer(config=ServerConfig(**{"host": HOST, "journal": "memory", **settings}))


def relay_of(
    *addresses: str, tables: str = "*", config: ServerConfig | None = None, **settings: Any
) -> Relay:
    """A relay that looks and tries again at once."""
    upstream = UpstreamSettings(
        addresses=addresses,
        look_seconds=0.02,
        backoff=Backoff(first_seconds=0.005, seconds_max=0.02),
        auth=settings.pop("auth", None),
    )
    chosen = RelaySettings(patterns=TablePatterns.parse(tables), upstream=upstream, **settings)
    return Relay(chosen, config=relay_config(config or ServerConfig(host=HOST)))


@asynccontextmanager
async def live(uri: str, name: str, **options: Any) -> AsyncIterator[AsyncTickingTable]:
    """A subscription of a table that has its first state."""
    async with (
        aconnect(uri) as session,
        session.table(name).subscribe(
            interval_ms=10, reconnect=Backoff(first_seconds=0.005, seconds_max=0.02), **options
        ) as table,
    ):
        await table.wait_ready(30)
        yield table


async def follows(relay: Relay, name: str, step: int) -> RelayFollower:
    """Until the relay's table has come to a step, and whoever reads it sees that."""
    follower = await relay.wait_live(name)
    await until(lambda: follower.step >= step and not _is_behind(follower))
    return follower


def _is_behind(follower: RelayFollower) -> bool:
    """Whether it was told what no cycle has made visible yet."""
    return follower.table is not None and follower.table.has_pending


async def read(session: AsyncSession, name: str) -> pa.Table:
    """The rows of a table now."""
    return await session.table(name).snapshot()


def rows_of(table: AsyncTickingTable) -> list[dict[str, Any]]:
    """The rows shown."""
    rows: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return rows


async def pause() -> None:
    """Let others run."""
    await asyncio.sleep(0)

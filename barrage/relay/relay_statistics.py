"""The tables ``_relayed``, where each relayed table stands, and ``_upstreams``, whom they are
followed at.

They have a row for each table that is followed, and for each server that may be. They are looked at
every second and ticked when something is different.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.limits import NANOS_PER_MS
from barrage.relay.relay_follower import FollowerState
from barrage.server.statistics.server_measures import Measure
from barrage.server.statistics.statistics_table import StatisticsTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.relay.relay_follower import RelayFollower
    from barrage.relay.upstream_link import UpstreamLink, UpstreamServer
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

RELAYED_TABLE = "_relayed"
UPSTREAMS_TABLE = "_upstreams"
INTERVAL_S = 1.0

RELAYED_SCHEMA = pa.schema(
    {
        "table": pa.string(),
        "state": pa.string(),
        "upstream": pa.string(),
        "step": pa.int64(),
        "updates": pa.int64(),
        "merged": pa.int64(),
        "resumes": pa.int64(),
        "snapshots": pa.int64(),
        "lag_ms": pa.float64(),
        "kept_step": pa.int64(),
        "trouble": pa.string(),
    }
)
"""``upstream`` is the server followed now, null while there is none; ``merged`` counts updates that
covered several steps, from between which nobody resumes here; ``lag_ms`` is from the commit there
to the one here, of the newest update (clocks must agree); ``kept_step`` is that of the state kept
for the next start, null where none is; ``trouble`` is why nothing comes."""

UPSTREAMS_SCHEMA = pa.schema(
    {
        "upstream": pa.string(),
        "is_followed": pa.bool_(),
        "connections": pa.int64(),
        "trouble": pa.string(),
    }
)
"""``connections`` were made so far; ``trouble`` is why it could not be followed, or was lost, when
that was tried last, null once it is followed."""


class RelayStatistics:
    """Keeps the tables. Runs on the event loop."""

    def __init__(
        self,
        link: UpstreamLink,
        followers: Callable[[], Iterable[RelayFollower]],
        tables: TableService,
    ) -> None:
        self._link = link
        self._followers = followers
        self._table = StatisticsTable(tables, RELAYED_TABLE, key=("table",))
        self._upstreams = StatisticsTable(tables, UPSTREAMS_TABLE, key=("upstream",))

    async def run(self) -> None:
        """Keep the tables until cancelled."""
        while True:
            try:
                await self.refresh()
            except BarrageError as error:
                log.debug("the statistics of relayed tables were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Make the tables tell what is true now."""
        upstreams = [_upstream_row(each) for each in self._link.upstreams]
        await self._upstreams.show(pa.Table.from_pylist(upstreams, schema=UPSTREAMS_SCHEMA))
        rows = [self._row(follower) for follower in self._followers()]
        if rows or self._table.is_made:
            await self._table.show(pa.Table.from_pylist(rows, schema=RELAYED_SCHEMA))

    async def measures(self) -> list[Measure]:
        """What is measured of the relay beside the measures of every server."""
        followers = list(self._followers())
        states = Counter(follower.state.value for follower in followers)
        lags = [follower.lag_ns for follower in followers if follower.lag_ns is not None]
        return [
            *(Measure("relayed_tables", states[each.value], each.value) for each in FollowerState),
            Measure("relay_lag_seconds_max", max(lags, default=0) / 1e9),
            Measure("upstreams_followed", sum(each.is_followed for each in self._link.upstreams)),
        ]

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the tables any more."""
        self._table.fail(error)
        self._upstreams.fail(error)

    def _row(self, follower: RelayFollower) -> dict[str, object]:
        error = follower.error or self._link.error
        lag_ns = follower.lag_ns
        return {
            "table": follower.name,
            "state": follower.state.value,
            "upstream": self._link.address,
            "step": follower.step,
            "updates": follower.updates,
            "merged": follower.merged_count,
            "resumes": follower.resumes,
            "snapshots": follower.snapshots,
            "lag_ms": None if lag_ns is None else round(lag_ns / NANOS_PER_MS, 3),
            "kept_step": follower.kept_step,
            "trouble": None if error is None else str(error),
        }


def _upstream_row(upstream: UpstreamServer) -> dict[str, object]:
    return {
        "upstream": upstream.address,
        "is_followed": upstream.is_followed,
        "connections": upstream.connections,
        "trouble": None if upstream.error is None else str(upstream.error),
    }

"""The table ``_alerts``: how each alert is, and what has become of what it had to tell.

Looked at every second and ticked when something is different. A server without alerts has none.
Addresses and headers are not in it, as they may be secrets.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.server.statistics.server_measures import Measure
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.supervision import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.alerting.watched_alert import WatchedAlert
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

COUNTER = Role("barrage-alert-statistics", "subscriptions of the table of alerts; health")

ALERTS_TABLE = "_alerts"
INTERVAL_S = 1.0

ALERTS_SCHEMA = pa.schema(
    {
        "alert": pa.string(),
        "table": pa.string(),
        "host": pa.string(),
        "state": pa.string(),
        "detail": pa.string(),
        "firing": pa.int64(),
        "pending": pa.int64(),
        "further": pa.int64(),
        "waiting": pa.int64(),
        "sent": pa.int64(),
        "messages": pa.int64(),
        "retries": pa.int64(),
        "dropped": pa.int64(),
        "last_error": pa.string(),
        "last_sent": pa.timestamp("us", "UTC"),
    }
)
"""``firing`` and ``pending`` are keys, ``further`` those that are not told apart; ``waiting``,
``sent`` and ``dropped`` are events."""


class AlertStatistics:
    """Keeps the table. Runs on the event loop."""

    def __init__(self, alerts: Mapping[str, WatchedAlert], tables: TableService) -> None:
        self._alerts = alerts
        self._table = StatisticsTable(tables, ALERTS_TABLE, key=("alert",))

    async def run(self) -> None:
        """Keep the table until cancelled."""
        while True:
            try:
                await self.refresh()
            except BarrageError as error:
                log.debug("the statistics of alerts were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Make the table tell what is true now; does nothing while there was never an alert."""
        if self._alerts or self._table.is_made:
            rows = [_row(each) for _, each in sorted(self._alerts.items())]
            await self._table.show(pa.Table.from_pylist(rows, schema=ALERTS_SCHEMA))

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the table any more."""
        self._table.fail(error)

    async def measures(self) -> list[Measure]:
        """What Prometheus is told."""
        found = []
        for name, each in sorted(self._alerts.items()):
            counts = each.delivery.counts
            found += [
                Measure("alert_keys_firing", each.keys.firing_count, name),
                Measure("alert_events_sent", counts.events, name),
                Measure("alert_retries", counts.retries, name),
                Measure("alert_events_dropped", each.queue.dropped_in_all, name),
            ]
        return found


def _row(watched: WatchedAlert) -> dict[str, object]:
    alert, counts = watched.alert, watched.delivery.counts
    return {
        "alert": alert.name,
        "table": alert.parsed.table,
        "host": alert.host,
        "state": watched.state.value,
        "detail": watched.detail,
        "firing": watched.keys.firing_count,
        "pending": watched.keys.pending_count,
        "further": watched.further_count,
        "waiting": len(watched.queue),
        "sent": counts.events,
        "messages": counts.messages,
        "retries": counts.retries,
        "dropped": watched.queue.dropped_in_all,
        "last_error": counts.last_error,
        "last_sent": None if counts.last_sent_ns is None else counts.last_sent_ns // 1000,
    }

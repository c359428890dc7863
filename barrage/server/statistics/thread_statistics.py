"""The table ``_threads``: how long the engine thread and the event loop were held up by one thing.

There is a row for each of them once the server has a journal, as the watchdog measured it since the
start. It is looked at every second and ticked when a longer stretch has been seen, or another one
above the bound.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.limits import NANOS_PER_MS
from barrage.server.runtime.watchdog import BOUNDS_NS
from barrage.server.statistics.statistics_table import StatisticsTable

if TYPE_CHECKING:
    from barrage.server.runtime.watchdog import ThreadWatch, Watchdog
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

THREADS_TABLE = "_threads"
INTERVAL_S = 1.0

THREADS_SCHEMA = pa.schema(
    {
        "thread": pa.string(),
        "bound_ms": pa.float64(),
        "above_bound": pa.int64(),
        "longest_ms": pa.float64(),
        "longest_what": pa.string(),
        "longest_where": pa.string(),
    }
)
"""``above_bound`` counts the stretches at or above ``bound_ms``. The last three are of the longest
one: how long, what it was, and the innermost line in which it was seen."""


class ThreadStatistics:
    """Keeps the table. Runs on the event loop."""

    def __init__(self, watchdog: Watchdog, tables: TableService) -> None:
        self._watches = list(watchdog.watches.values())
        self._journals = tables.journals
        self._table = StatisticsTable(tables, THREADS_TABLE, key=("thread",))

    async def run(self) -> None:
        """Keep the table until cancelled."""
        while True:
            try:
                await self.refresh()
            except BarrageError as error:
                log.debug("the statistics of threads were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Make the table tell what is true now; does nothing while there is no journal."""
        if self._table.is_made or self._journals.journals:
            await self._table.show(thread_rows(self._watches))

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the table any more."""
        self._table.fail(error)


def thread_rows(watches: list[ThreadWatch]) -> pa.Table:
    """One row per thread."""
    return pa.Table.from_pylist([_row(watch) for watch in watches], schema=THREADS_SCHEMA)


def _row(watch: ThreadWatch) -> dict[str, object]:
    longest = watch.longest
    row: dict[str, object] = {
        "thread": watch.name,
        "bound_ms": BOUNDS_NS[watch.name] / NANOS_PER_MS,
        "above_bound": watch.above_count,
    }
    if longest is not None:
        row["longest_ms"] = round(longest.took_ns / NANOS_PER_MS, 3)
        row["longest_what"] = longest.what
        row["longest_where"] = longest.where
    return row

"""Two tables about the journals themselves: ``_journal`` and ``_journal_consumers``.

They are published once the server has a journal, looked at every second and ticked when something
is different. They have no journal of their own. Numbers are read on the event loop and on worker
threads; the engine thread gets finished rows.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError, HistoryLostError
from barrage.server.statistics.statistics_table import StatisticsTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from barrage.clock import Clock
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.server.history.journal_leases import Consumer, JournalLeases
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

JOURNAL_TABLE, CONSUMERS_TABLE = "_journal", "_journal_consumers"

INTERVAL_S = 1.0

_INSTANT = pa.timestamp("us", tz="UTC")

JOURNAL_SCHEMA = pa.schema(
    {
        "table": pa.string(),
        "epoch": pa.string(),
        "class": pa.string(),
        "version": pa.int64(),
        "latest": pa.int64(),
        "earliest": pa.int64(),
        "rows": pa.int64(),
        "offset": pa.int64(),
        "bytes": pa.int64(),
        "versions": pa.int64(),
        "timestamp": _INSTANT,
        "upkeep_failures": pa.int64(),
        "upkeep_failure": pa.string(),
    }
)
"""``version`` is the durable one, ``offset`` the rows of the history so far, ``bytes`` and
``versions`` what is kept, ``timestamp`` the time of the newest version kept, ``upkeep_failures``
how often in a row checkpoints and retention have failed, ``upkeep_failure`` the last reason."""

CONSUMERS_SCHEMA = pa.schema(
    {
        "table": pa.string(),
        "consumer": pa.string(),
        "version": pa.int64(),
        "versions_behind": pa.int64(),
        "rows_behind": pa.int64(),
        "seconds_behind": pa.float64(),
        "is_watching": pa.bool_(),
        "lease_until": _INSTANT,
    }
)
"""``seconds_behind``: age of the oldest version that is not finished. The lags are null when the
journal no longer has what is missing."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One consumer, copied on the event loop."""

    journal: TableJournal
    name: str
    version: int
    is_watching: bool
    lease_until_ns: int


class JournalStatistics:
    """Keeps the two tables. Runs on the event loop."""

    def __init__(
        self,
        journals: JournalService,
        tables: TableService,
        leases: JournalLeases,
        *,
        clock: Clock,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._journals = journals
        self._tables = tables
        self._leases = leases
        self._clock = clock
        self._pool = pool
        self._journal = StatisticsTable(tables, JOURNAL_TABLE, key=("table",))
        self._consumers = StatisticsTable(tables, CONSUMERS_TABLE, key=("table", "consumer"))

    async def run(self) -> None:
        """Keep the tables until cancelled."""
        while True:
            try:
                await self.refresh()
            except BarrageError as error:
                log.debug("the statistics of journals were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Make the tables tell what is true now; does nothing while there is no journal."""
        journals = list(self._journals.journals.values())
        if not journals and not self._journal.is_made:
            return
        places = [self._place(consumer) for consumer in self._leases.consumers]
        loop = asyncio.get_running_loop()
        now_ns = self._clock.wall_ns()
        store = self._journals.store
        trouble = no_trouble if store is None else store.upkeep_trouble
        facts = await loop.run_in_executor(
            self._pool, lambda: (journal_rows(journals, trouble), consumer_rows(places, now_ns))
        )
        await self._journal.show(facts[0])
        await self._consumers.show(facts[1])

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the tables any more: whoever follows them is told."""
        self._journal.fail(error)
        self._consumers.fail(error)

    def _place(self, consumer: Consumer) -> _Place:
        left_ns = consumer.expires_ns - self._clock.monotonic_ns()
        return _Place(
            consumer.journal,
            consumer.name,
            consumer.version,
            consumer.watch_count > 0,
            self._clock.wall_ns() + left_ns,
        )


def no_trouble(_: TableJournal) -> tuple[int, str | None]:
    """For a server without a store."""
    return 0, None


def journal_rows(
    journals: Sequence[TableJournal],
    trouble: Callable[[TableJournal], tuple[int, str | None]] = no_trouble,
) -> pa.Table:
    """One row per journal; ``trouble`` says how often in a row its upkeep failed, and of what."""
    columns: dict[str, Callable[[TableJournal], object]] = {
        "table": lambda journal: journal.identity.name,
        "epoch": lambda journal: journal.epoch,
        "class": lambda journal: journal.identity.journal_class,
        "version": lambda journal: journal.durable_version,
        "latest": lambda journal: journal.latest_version,
        "earliest": lambda journal: journal.earliest_version,
        "rows": lambda journal: journal.row_count,
        "offset": lambda journal: journal.next_offset,
        "bytes": lambda journal: journal.byte_count,
        "versions": lambda journal: len(journal.history.index),
        "timestamp": _time_us,
        "upkeep_failures": lambda journal: trouble(journal)[0],
        "upkeep_failure": lambda journal: trouble(journal)[1],
    }
    values = {name: [read(journal) for journal in journals] for name, read in columns.items()}
    return pa.table(values, schema=JOURNAL_SCHEMA)


def _time_us(journal: TableJournal) -> int | None:
    last = journal.history.index.last
    return None if last is None else last.wall_ns // 1000


def consumer_rows(places: Sequence[_Place], now_ns: int) -> pa.Table:
    """One row per consumer."""
    rows = [
        (
            place.journal.identity.name,
            place.name,
            place.version,
            *_lag(place.journal, place.version, now_ns),
            place.is_watching,
            place.lease_until_ns // 1000,
        )
        for place in places
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(CONSUMERS_SCHEMA)
    arrays = [
        pa.array(column, field.type)
        for column, field in zip(columns, CONSUMERS_SCHEMA, strict=True)
    ]
    return pa.table(arrays, schema=CONSUMERS_SCHEMA)


def _lag(
    journal: TableJournal, version: int, now_ns: int
) -> tuple[int | None, int | None, float | None]:
    try:
        index = journal.index(version, max(version, journal.durable_version))
    except HistoryLostError:
        return None, None, None
    seconds = max(0, now_ns - int(index.wall_ns[0])) / 1e9 if len(index) else 0.0
    return len(index), int(index.row_counts.sum()), round(seconds, 3)

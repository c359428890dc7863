"""The tables ``_server`` and ``_subscriptions``: what the server does, and for whom.

They are made when somebody first asks for one of them, or at the start (``statistics``). What they
tell is gathered every second and ticked when something is different. What Prometheus is told is
gathered with it, also while there are no tables.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.histogram import BOUNDS_S
from barrage.server.statistics.server_measures import MEASURES, Measure, MeasureKind
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.server.statistics.subscription_rows import SubscriptionTally, tallied
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from barrage.clock import Clock
    from barrage.errors import WorkerDiedError
    from barrage.limits import Limits
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.tables.table_service import TableService
    from barrage.supervision import OnDeath

    MeasureSource = Callable[[], Awaitable[Iterable[Measure]]]

log = logging.getLogger(__name__)

KEEPER = Role("barrage-server-statistics", "the tables about the server, and metrics; health")

SERVER_TABLE, SUBSCRIPTIONS_TABLE = "_server", "_subscriptions"
STATISTICS_TABLES = (SERVER_TABLE, SUBSCRIPTIONS_TABLE)

INTERVAL_S = 1.0

SERVER_SCHEMA = pa.schema(
    {
        "measure": pa.string(),
        "label": pa.string(),
        "kind": pa.string(),
        "value": pa.float64(),
        "per_second": pa.float64(),
        "sum": pa.float64(),
        "p50": pa.float64(),
        "p90": pa.float64(),
        "p99": pa.float64(),
        "longest": pa.float64(),
        "bounds": pa.list_(pa.float64()),
        "buckets": pa.list_(pa.int64()),
    }
)
"""A row for each measure and label. ``value`` of a histogram is how many were observed, ``sum``
what they took together, ``p50`` to ``longest`` in seconds since the start; ``buckets`` counts those
at most as long as each of ``bounds``, and all of them last. ``per_second`` is how fast a counter
or the count of a histogram has grown since the last look."""


class ServerStatistics:
    """Keeps the two tables. Runs on the event loop."""

    def __init__(
        self, tables: TableService, hub: ExchangeHub, *, limits: Limits, clock: Clock
    ) -> None:
        self._hub = hub
        self._limits = limits
        self._clock = clock
        self._server = StatisticsTable(tables, SERVER_TABLE, key=("measure", "label"))
        self._subscriptions = StatisticsTable(tables, SUBSCRIPTIONS_TABLE, key=("stream",))
        self.sources: list[MeasureSource] = []
        """What measures come from, beside the streams."""
        self.measures: tuple[Measure, ...] = ()
        """What was measured last."""
        self._before: dict[tuple[str, str], float] = {}
        self._bytes_before: dict[int, int] = {}
        self._looked_ns: int | None = None
        self._has_tables = False
        self._looking, self._beginning = asyncio.Lock(), asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._on_death: OnDeath | None = None

    def prepare(self, *, on_death: OnDeath) -> None:
        """From now on somebody may ask for the tables."""
        self._on_death = on_death

    def start(self) -> None:
        """Begin to look every second. Idempotent."""
        if self._task is None and self._on_death is not None:
            self._task = start_task(KEEPER, self._run(), on_death=self._died)

    async def begin_tables(self) -> None:
        """Make the tables and tell what is true now, unless they are there. BarrageError."""
        async with self._beginning:
            if not self._has_tables:
                self._has_tables = True
                self.start()
                await self.refresh()

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._on_death = None
        if self._task is not None:
            self._task.cancel()

    def _died(self, error: WorkerDiedError) -> None:
        self._server.fail(error)
        self._subscriptions.fail(error)
        if self._on_death is not None:
            self._on_death(error)

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except BarrageError as error:
                log.debug("the statistics of the server were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Measure, and make the tables tell what is true now if they are there."""
        async with self._looking:
            now_ns = self._clock.monotonic_ns()
            before_ns, self._looked_ns = self._looked_ns, now_ns
            seconds = 0.0 if before_ns is None else (now_ns - before_ns) / 1e9
            tally = await tallied(
                self._hub.streams,
                limits=self._limits,
                now_ns=now_ns,
                bytes_before=self._bytes_before,
                seconds=seconds,
            )
            self._bytes_before = tally.bytes_now
            measures = [*_of_streams(tally)]
            for source in self.sources:
                measures += await source()
            self.measures = tuple(measures)
            rows = server_rows(measures, self._before, seconds)
            self._before = {(each.name, each.label): each.value for each in measures}
            if self._has_tables:
                await self._server.show(rows)
                await self._subscriptions.show(tally.rows())


def _of_streams(tally: SubscriptionTally) -> Iterable[Measure]:
    yield Measure("streams", tally.streams)
    for table, count in sorted(tally.by_table.items()):
        yield Measure("subscriptions", count, table)
    yield Measure("subscriptions_held", tally.held)
    yield Measure("subscription_lag_seconds_max", tally.lag_ns_max / 1e9)
    yield Measure("outbox_bytes", tally.pending_bytes)


def server_rows(
    measures: Iterable[Measure], before: dict[tuple[str, str], float], seconds: float
) -> pa.Table:
    """The rows of ``_server``; ``before`` are the values of so many seconds ago."""
    bounds = list(BOUNDS_S)
    rows = []
    for measure in measures:
        kind = MEASURES[measure.name].kind
        row: dict[str, object] = {
            "measure": measure.name,
            "label": measure.label,
            "kind": kind.value,
            "value": measure.value,
        }
        if kind is not MeasureKind.GAUGE:
            grown = measure.value - before.get((measure.name, measure.label), measure.value)
            row["per_second"] = round(grown / seconds, 1) if seconds > 0 else 0.0
        reading = measure.reading
        if reading is not None:
            row |= {
                "sum": reading.total_ns / 1e9,
                "p50": reading.quantile_s(0.5),
                "p90": reading.quantile_s(0.9),
                "p99": reading.quantile_s(0.99),
                "longest": reading.longest_ns / 1e9,
                "bounds": bounds,
                "buckets": reading.cumulative,
            }
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SERVER_SCHEMA)

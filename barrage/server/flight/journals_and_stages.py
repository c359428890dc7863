"""Everything about journals and staging that one serving instance has, put together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from barrage.server.flight.journal_calls import JournalCalls
from barrage.server.flight.stage_calls import StageCalls
from barrage.server.history.journal_access import JournalAccess
from barrage.server.history.journal_leases import JournalLeases
from barrage.server.history.journal_reading import JournalReaders
from barrage.server.history.past_tables import PastTables
from barrage.server.ingest.stage_commit import StageCommitter
from barrage.server.ingest.staging import StagingArea
from barrage.server.statistics.journal_statistics import JournalStatistics
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.clock import Clock
    from barrage.errors import BarrageError, WorkerDiedError
    from barrage.limits import Limits
    from barrage.server.access.method_table import Action
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService
    from barrage.supervision import OnDeath

KEEPER = Role("barrage-journal-statistics", "subscriptions of the tables about journals; health")


class JournalServices:
    """Made and used on the event loop."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        gate: AccessGate,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.leases = JournalLeases(limits, clock)
        self.staging = StagingArea(limits, clock)
        self._readers = JournalReaders(limits)
        access = JournalAccess(tables.journals, tables, gate)
        self.past = PastTables(tables, access, self._readers, limits=limits)
        self.calls = JournalCalls(access, self.leases, self._readers, limits=limits)
        committer = StageCommitter(
            tables, catalog, self.staging, pool=self._readers.pool, limits=limits
        )
        self.stages = StageCalls(self.staging, committer, limits, gate=gate)
        self._statistics = JournalStatistics(
            tables.journals, tables, self.leases, clock=clock, pool=self._readers.pool
        )
        self._keeping: asyncio.Task[None] | None = None

    @property
    def actions(self) -> Mapping[str, Action]:
        """Every action by its name."""
        return {**self.calls.actions(), **self.past.actions, **self.stages.actions()}

    @property
    def read_count(self) -> int:
        """Fetches and watches under way."""
        return self._readers.read_count + self.calls.watches.watch_count

    def start(self, *, on_death: OnDeath) -> None:
        """Begin to keep the statistics."""

        def died(error: WorkerDiedError) -> None:
            self._statistics.fail(error)
            on_death(error)

        self._keeping = start_task(KEEPER, self._statistics.run(), on_death=died)

    def fail(self, reason: BarrageError) -> None:
        """Nothing more will be kept: end who waits for it. What there is can still be read."""
        self.calls.watches.finish(reason)

    def begin_stop(self, reason: BarrageError) -> None:
        """End what would never end by itself."""
        self.calls.watches.finish(reason)
        self.past.forget()
        if self._keeping is not None:
            self._keeping.cancel()

    async def close(self) -> None:
        """After the last call: end the worker threads."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await self._readers.close()

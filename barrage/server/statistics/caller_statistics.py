"""The table ``_callers``: who has calls under way, and how many, by name and by proof.

Looked at every second or so and ticked when something is different. A server that has no way to
prove who one is has no such table: all its callers are anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.supervision import Role

if TYPE_CHECKING:
    from barrage.server.access.session_store import SessionStore
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

CALLERS = Role("barrage-caller-statistics", "subscriptions of the table of callers; health")
CALLERS_TABLE = "_callers"
INTERVAL_S = 1.0

CALLERS_SCHEMA = pa.schema(
    {"user": pa.string(), "proof": pa.string(), "calls": pa.int64(), "sessions": pa.int64()}
)
"""``calls`` are those under way, a subscription being one of them."""


class CallerStatistics:
    """Keeps the table. Runs on the event loop."""

    def __init__(
        self, authenticator: Authenticator, sessions: SessionStore, tables: TableService
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._table = StatisticsTable(tables, CALLERS_TABLE, key=("user", "proof"))

    async def run(self) -> None:
        """Keep the table until cancelled. By itself: it waits for the engine thread, which those
        who see that users and rules hold must not."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._authenticator.tells_apart:
                await self._refresh()

    async def _refresh(self) -> None:
        """Make the table tell what is true now."""
        calls = Counter(caller.owner for caller in self._authenticator.calls.callers())
        sessions = Counter(session.caller.owner for session in self._sessions)
        rows = [
            {
                "user": name,
                "proof": proof.value,
                "calls": calls[name, proof],
                "sessions": sessions[name, proof],
            }
            for name, proof in {*calls, *sessions}
        ]
        try:
            told = pa.Table.from_pylist(rows, schema=CALLERS_SCHEMA)
            await self._table.show(told.sort_by([("user", "ascending"), ("proof", "ascending")]))
        except BarrageError as error:
            log.debug("the statistics of callers were not refreshed: %s", error)

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the table any more."""
        self._table.fail(error)

"""The table ``_callers``: who has calls under way, and how many, by name and by proof.

Looked at every second or so and ticked when something is different. A server that has no way to
prove who one is has no such table: all its callers are anybody.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.server.statistics.statistics_table import StatisticsTable

if TYPE_CHECKING:
    from barrage.server.access.session_store import SessionStore
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

CALLERS_TABLE = "_callers"

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

    async def refresh(self) -> None:
        """Make the table tell what is true now."""
        if not self._authenticator.tells_apart:
            return
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

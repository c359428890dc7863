"""The table ``_bodies``: what became of the bodies of each way that is switched on.

Looked at every second and ticked when something is different; it has no journal. A server whose
bodies are all inline has no such table.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from barrage.server.bodies.body_service import BodyService, WayFacts
    from barrage.server.tables.table_service import TableService
    from barrage.transport.shared_memory import Arena

log = logging.getLogger(__name__)

BODIES_TABLE = "_bodies"
INTERVAL_S = 1.0

_COUNTERS = (
    *("streams", "bodies_out", "bytes_out", "bodies_inline", "bytes_inline", "fallbacks"),
    *("refusals", "channels", "pending", "pending_bytes"),
)
_MEMORY = ("arena_bytes", "orphaned_bytes", "segments", "refused")

BODIES_SCHEMA = pa.schema(
    [("way", pa.string()), *((name, pa.int64()) for name in (*_COUNTERS, *_MEMORY))]
)
"""``bodies_out`` have left their stream, ``bodies_inline`` could have and did not, ``fallbacks``
are streams that went inline for good, ``refusals`` claims that were refused, ``pending`` bodies
their clients have not given back. The last columns are of the shared memory, and null for other
ways: bytes in use, bytes whose client has gone and may still read them, pieces of memory, and
bodies it had no room for."""


class BodyStatistics:
    """Keeps the table. Runs on the event loop."""

    def __init__(self, bodies: BodyService, tables: TableService) -> None:
        self._bodies = bodies
        self._table = StatisticsTable(tables, BODIES_TABLE, key=("way",))

    async def run(self) -> None:
        """Keep the table until cancelled."""
        while True:
            try:
                await self._table.show(body_rows(self._bodies.facts(), self._bodies.arena))
            except BarrageError as error:
                log.debug("the statistics of bodies were not refreshed: %s", error)
            await asyncio.sleep(INTERVAL_S)

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the table any more."""
        self._table.fail(error)


def body_rows(facts: list[WayFacts], arena: Arena | None) -> pa.Table:
    """One row per way."""
    return pa.Table.from_pylist([_row(each, arena) for each in facts], schema=BODIES_SCHEMA)


def _row(facts: WayFacts, arena: Arena | None) -> dict[str, object]:
    counts = facts.counts
    row: dict[str, object] = {
        "way": facts.way.value,
        "streams": counts.streams,
        "bodies_out": counts.bodies_out,
        "bytes_out": counts.bytes_out,
        "bodies_inline": counts.bodies_inline,
        "bytes_inline": counts.bytes_inline,
        "fallbacks": counts.fallbacks,
        "refusals": counts.refusals,
        "channels": facts.channels,
        "pending": facts.pending_count,
        "pending_bytes": facts.pending_bytes,
    }
    if arena is not None and facts.way is BodyWay.SHM:
        memory = arena.statistics()
        row["arena_bytes"] = memory.bytes_in_use
        row["orphaned_bytes"] = memory.bytes_orphaned
        row["segments"] = memory.segment_count
        row["refused"] = memory.refused_count
    return row

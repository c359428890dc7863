"""The tables ``_connectors`` and ``_streams``: who pushes what, and how far it has come.

Looked at every second and ticked when something is different; they have no journal. A server that
serves no connectors has none of them.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.server.statistics.statistics_table import StatisticsTable

if TYPE_CHECKING:
    from barrage.server.ingest.connector.connector_worker import ConnectorWorker
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

CONNECTORS_TABLE = "_connectors"
STREAMS_TABLE = "_streams"
INTERVAL_S = 1.0
STREAMS_SHOWN_MAX = 1_000
"""So that looking at them costs the event loop little."""

CONNECTORS_SCHEMA = pa.schema(
    {
        "connection": pa.int64(),
        "program": pa.string(),
        "instance": pa.string(),
        "state": pa.string(),
        "streams": pa.int64(),
        "credits": pa.int64(),
        "waiting": pa.int64(),
        "waiting_bytes": pa.int64(),
        "messages": pa.int64(),
        "rate": pa.float64(),
        "last_error": pa.string(),
    }
)
"""``credits`` may be sent without waiting, ``waiting`` messages are received and not safe, ``rate``
is messages a second."""

STREAMS_SCHEMA = pa.schema(
    {
        "table": pa.string(),
        "stream": pa.uint64(),
        "name": pa.string(),
        "is_owned": pa.bool_(),
        "last_position": pa.uint64(),
        "last_safe": pa.uint64(),
        "lag": pa.uint64(),
        "messages": pa.int64(),
        "rate": pa.float64(),
        "last_error": pa.string(),
    }
)
"""``lag`` is what lies between the last id that came and the last that is safe."""


class ConnectorStatistics:
    """Keeps the tables. Runs on the event loop."""

    def __init__(self, worker: ConnectorWorker, tables: TableService) -> None:
        self._worker = worker
        self._connectors = StatisticsTable(tables, CONNECTORS_TABLE, key=("connection",))
        self._streams = StatisticsTable(tables, STREAMS_TABLE, key=("table", "stream"))
        self._rates = _Rates()

    async def run(self) -> None:
        """Keep the tables until cancelled."""
        while True:
            now_s = asyncio.get_running_loop().time()
            try:
                await self._connectors.show(self._connector_rows(now_s))
                await self._streams.show(self._stream_rows(now_s))
            except BarrageError as error:
                log.debug("the statistics of connectors were not refreshed: %s", error)
            self._rates.forget_old(now_s)
            await asyncio.sleep(INTERVAL_S)

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the tables any more."""
        self._connectors.fail(error)
        self._streams.fail(error)

    def _connector_rows(self, now_s: float) -> pa.Table:
        rows = [
            {
                "connection": each.number,
                "program": each.program,
                "instance": each.instance,
                "state": each.state,
                "streams": each.streams,
                "credits": each.credits,
                "waiting": each.waiting,
                "waiting_bytes": each.waiting_bytes,
                "messages": each.messages,
                "rate": self._rates.of(each.number, each.messages, now_s),
                "last_error": each.last_error,
            }
            for each in sorted(self._worker.connections(), key=lambda facts: facts.number)
        ]
        return pa.Table.from_pylist(rows, schema=CONNECTORS_SCHEMA)

    def _stream_rows(self, now_s: float) -> pa.Table:
        # By columns: a thousand rows one by one would hold the loop up.
        names, streams = [], []
        for table, stream in islice(self._worker.streams(), STREAMS_SHOWN_MAX):
            names.append(table)
            streams.append(stream)
        columns: list[list[object]] = [
            list(names),
            [each.id for each in streams],
            [each.name for each in streams],
            [each.owner is not None for each in streams],
            [each.last_seen for each in streams],
            [each.last_safe for each in streams],
            [
                None if each.last_seen is None else each.last_seen - (each.last_safe or 0)
                for each in streams
            ],
            [each.message_count for each in streams],
            [
                self._rates.of((name, each.id), each.message_count, now_s)
                for name, each in zip(names, streams, strict=True)
            ],
            [each.last_error for each in streams],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, STREAMS_SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=STREAMS_SCHEMA)


class _Rates:
    """How fast counts grow, between two looks."""

    def __init__(self) -> None:
        self._before: dict[object, tuple[float, int]] = {}

    def of(self, what: object, count: int, now_s: float) -> float:
        before_s, before = self._before.get(what, (now_s, count))
        self._before[what] = (now_s, count)
        passed_s = now_s - before_s
        return round(max(0, count - before) / passed_s, 1) if passed_s > 0 else 0.0

    def forget_old(self, now_s: float) -> None:
        """What was not looked at this time is gone."""
        self._before = {what: each for what, each in self._before.items() if each[0] == now_s}

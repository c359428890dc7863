"""Tables of timestamps that grow with the server's clock.

Each has a source table and a task on the event loop that asks the engine thread, whenever a row is
due, to add the rows up to now. Nothing here keeps the table alive: when nobody uses it any more,
its task ends at its next look.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    RemoteProtocolError,
    StatusCode,
    TransportError,
)
from barrage.server.deephaven.text.time_text import instant_of
from barrage.server.tables.table_lease import TableLease
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.engine.tables.source import SourceTable
    from barrage.limits import Limits
    from barrage.server.tables.table_service import TableService

TICKER = Role("barrage-time-table", "the subscriptions of the time table")

TIMESTAMP = "Timestamp"
SCHEMA = pa.schema([(TIMESTAMP, pa.timestamp("ns", "UTC"))])

PERIOD_NS_MIN = 1_000_000
"""Shortest period: a client may not make the server write more than a thousand rows a second."""

SLEEP_S_MIN = 0.01
"""Rows that come due within this time come together."""

SLEEP_S_MAX = 10.0
"""Longest time after which a task notices that its table is gone."""

INSTANT_NS_MAX = 2**62
"""Latest time of a row, in the year 2116; leaves room to add a period."""


class PeriodError(BarrageError):
    """A period of 0 or less."""

    status_code = StatusCode.FAILED_PRECONDITION


class TimeTables:
    """The time tables of one server. Runs on the event loop, but for the tickers."""

    def __init__(self, tables: TableService, clock: Clock, limits: Limits) -> None:
        self._tables = tables
        self._clock = clock
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._making_count = 0
        self._is_closed = False

    async def create(
        self, *, start_ns: int | None, period_ns: int, is_blink: bool = False
    ) -> TableLease:
        """A table with a row for ``start_ns`` (in nanoseconds since 1970; None: the last multiple
        of the period that has passed) and one more whenever another period has passed.

        PeriodError or RemoteProtocolError for a period or a start that cannot be,
        LimitExceededError for a start so long ago that there would be too many rows.
        """
        now_ns = self._clock.wall_ns()
        if period_ns <= 0:
            raise PeriodError(f"the period of a time table must be more than 0, not {period_ns} ns")
        if period_ns < PERIOD_NS_MIN:
            raise RemoteProtocolError(
                f"the period of a time table must be {PERIOD_NS_MIN} ns or more, not {period_ns} ns"
            )
        first_ns = now_ns // period_ns * period_ns if start_ns is None else start_ns
        if max(first_ns, period_ns) > INSTANT_NS_MAX:
            raise RemoteProtocolError("the times of the table are too far away")
        rows = (now_ns - first_ns) // period_ns + 1
        if rows > self._limits.created_rows_max:
            raise LimitExceededError(
                "time table", actual=rows, maximum=self._limits.created_rows_max, unit="rows"
            )
        kind = "blink" if is_blink else "append_only"
        self._take_place()
        try:
            table = await asyncio.wrap_future(self._tables.create_input(kind, SCHEMA))
        finally:
            self._making_count -= 1
        if self._is_closed:
            raise TransportError("the server is stopping")
        lease = TableLease(self._tables, table)
        ticker = Ticker(table, first_ns, period_ns, rows_max=self._limits.created_rows_max)
        failed = partial(self._tables.fail, weakref.ref(table))
        task = start_task(TICKER, self._drive(ticker), on_death=failed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lease

    def _take_place(self) -> None:
        """LimitExceededError when there are too many, those that are being made included."""
        count = len(self._tasks) + self._making_count
        if count >= self._limits.time_tables_max:
            raise LimitExceededError(
                "number of time tables",
                actual=count + 1,
                maximum=self._limits.time_tables_max,
                unit="tables",
            )
        self._making_count += 1

    async def _drive(self, ticker: Ticker) -> None:
        while True:
            now_ns = self._clock.wall_ns()
            try:
                due_ns = await asyncio.wrap_future(self._tables.run(partial(ticker.tick, now_ns)))
            except LimitExceededError:
                due_ns = now_ns  # The engine is behind; rows that are late are not lost.
            except TransportError:
                return  # The engine has stopped.
            if due_ns is None:
                return
            sleep_s = (due_ns - self._clock.wall_ns()) / 1e9
            await asyncio.sleep(min(max(sleep_s, SLEEP_S_MIN), SLEEP_S_MAX))

    @property
    def ticking_count(self) -> int:
        """Tables that are driven now."""
        return len(self._tasks)

    def close(self) -> None:
        """Drive nothing any more, nor what is being made."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()


class Ticker:
    """What is due for one table. Belongs to the engine thread."""

    def __init__(self, table: SourceTable, first_ns: int, period_ns: int, *, rows_max: int) -> None:
        self._table = weakref.ref(table)
        self._next_ns = first_ns
        self._period_ns = period_ns
        self._rows_max = rows_max

    def tick(self, now_ns: int) -> int | None:
        """Stage the rows that are due; when the next one is, or None when the table is no more."""
        table = self._table()
        if table is None or table.failure is not None or self._next_ns > INSTANT_NS_MAX:
            return None
        count = min((now_ns - self._next_ns) // self._period_ns + 1, self._rows_max)
        if count > 0:
            times = self._next_ns + self._period_ns * np.arange(count, dtype=np.int64)
            table.stage_add(pa.table([pa.array(times).cast(SCHEMA.field(0).type)], schema=SCHEMA))
            self._next_ns += self._period_ns * count
        return self._next_ns


_PERIOD = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>\d{1,6})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_UNITS_NS = {
    "days": 86_400 * 10**9,
    "hours": 3_600 * 10**9,
    "minutes": 60 * 10**9,
    "seconds": 10**9,
}


def period_of(text: str) -> int:
    """Nanoseconds of an ISO 8601 duration such as ``PT1.5S``. RemoteProtocolError."""
    match = _PERIOD.fullmatch(text.strip())
    if match is None or not any(match[name] for name in _UNITS_NS):
        raise RemoteProtocolError(f"{text[:40]!r} is no period; write one as 'PT1S'")
    nanos = sum(int(match[name] or 0) * unit for name, unit in _UNITS_NS.items())
    nanos += int((match["fraction"] or "").ljust(9, "0"))
    return -nanos if match["sign"] == "-" else nanos


def start_of(text: str) -> int:
    """Nanoseconds since 1970 of an instant such as ``2026-01-01T09:30:00Z``.
    RemoteProtocolError."""
    instant = instant_of(text.strip())
    if instant is None:
        raise RemoteProtocolError(f"{text[:40]!r} is no time; write one as '2026-01-01T09:30:00Z'")
    return instant

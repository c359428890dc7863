"""Tables that grow with the clock."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    RemoteProtocolError,
    TableFailedError,
    TransportError,
)
from barrage.server.deephaven.operations import time_tables
from barrage.server.deephaven.operations.time_tables import (
    INSTANT_NS_MAX,
    PERIOD_NS_MIN,
    PeriodError,
    Ticker,
    TimeTables,
    period_of,
    start_of,
)
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.server.deephaven.conftest import Bench, run

SECOND = 10**9
NOW = 1_700_000_000 * SECOND + 123


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for happens on the engine thread
        await asyncio.sleep(0.001)


class Timed:
    """Time tables of a bench, on a clock that stands still."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.clock = VirtualClock(NOW)
        self.time_tables = TimeTables(bench.tables, self.clock, bench.limits)

    def stamps(self, lease: Any) -> list[int]:
        rows = self.bench.tables.run(lambda: lease.table.to_arrow()).result()
        return rows.column(0).cast(pa.int64()).to_pylist()

    async def settled(self, lease: Any, count: int) -> list[int]:
        """The timestamps, once there are ``count`` of them."""
        await until(lambda: len(self.stamps(lease)) >= count)
        return self.stamps(lease)


@pytest.fixture
def timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Timed:
    monkeypatch.setattr(time_tables, "SLEEP_S_MIN", 0.001)
    monkeypatch.setattr(time_tables, "SLEEP_S_MAX", 0.001)
    return Timed(bench)


def test_rows_come_when_they_are_due(timed: Timed) -> None:
    async def grow() -> None:
        lease = await timed.time_tables.create(start_ns=None, period_ns=SECOND)
        assert lease.table.is_append_only
        first = NOW - 123
        assert await timed.settled(lease, 1) == [first]
        timed.clock.advance(SECOND - 124)
        await asyncio.sleep(0.01)
        assert timed.stamps(lease) == [first]
        timed.clock.advance(1)
        assert await timed.settled(lease, 2) == [first, first + SECOND]
        timed.clock.advance(3 * SECOND)
        assert await timed.settled(lease, 5) == [first + n * SECOND for n in range(5)]
        timed.time_tables.close()

    run(grow())


def test_a_start_in_the_past_and_in_the_future(timed: Timed) -> None:
    async def grow() -> None:
        past = await timed.time_tables.create(start_ns=NOW - 2 * SECOND - 1, period_ns=SECOND)
        later = await timed.time_tables.create(start_ns=NOW + SECOND, period_ns=SECOND)
        expected = [NOW - 2 * SECOND - 1 + n * SECOND for n in range(4)]
        assert await timed.settled(past, 3) == expected[:3]
        assert timed.stamps(later) == []
        timed.clock.advance(SECOND)
        assert await timed.settled(later, 1) == [NOW + SECOND]
        assert await timed.settled(past, 4) == expected
        timed.time_tables.close()

    run(grow())


def test_a_blink_table(timed: Timed) -> None:
    """Its rows live for one cycle, so they are counted on their way in."""

    async def blink() -> None:
        lease = await timed.time_tables.create(start_ns=NOW, period_ns=SECOND, is_blink=True)
        assert lease.table.is_blink
        staged: list[int] = []
        monkey = pytest.MonkeyPatch()
        stage = type(lease.table).stage_add
        monkey.setattr(
            type(lease.table),
            "stage_add",
            lambda table, rows: (staged.append(len(rows)), stage(table, rows)),
        )
        timed.clock.advance(3 * SECOND)
        await until(lambda: sum(staged) >= 3)
        monkey.undo()
        timed.time_tables.close()

    run(blink())


def test_a_table_nobody_uses_is_driven_no_more(timed: Timed) -> None:
    async def forget() -> None:
        lease = await timed.time_tables.create(start_ns=None, period_ns=SECOND)
        kept = await timed.time_tables.create(start_ns=None, period_ns=SECOND)
        await timed.settled(lease, 1)
        assert timed.time_tables.ticking_count == 2
        del lease
        gc.collect()
        await until(lambda: timed.time_tables.ticking_count == 1)
        assert await timed.settled(kept, 1)
        timed.time_tables.close()
        await until(lambda: timed.time_tables.ticking_count == 0)

    run(forget())


def test_an_engine_that_is_behind_or_stops(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late rows are not lost, and nobody drives a table of an engine that is no more."""
    tables, work = timed.bench.tables, timed.bench.tables.run
    behind = LimitExceededError("engine command queue", actual=2, maximum=1, unit="commands")

    def refuse(error: BarrageError) -> Any:
        def run_none(_: Any) -> Any:
            raise error

        return run_none

    async def struggle() -> None:
        lease = await timed.time_tables.create(start_ns=NOW, period_ns=SECOND)
        await timed.settled(lease, 1)
        monkeypatch.setattr(tables, "run", refuse(behind))
        timed.clock.advance(2 * SECOND)
        await asyncio.sleep(0.01)
        monkeypatch.setattr(tables, "run", work)
        assert len(await timed.settled(lease, 3)) == 3
        monkeypatch.setattr(tables, "run", refuse(TransportError("the server has stopped")))
        await until(lambda: timed.time_tables.ticking_count == 0)
        monkeypatch.setattr(tables, "run", work)

    run(struggle())


@pytest.mark.parametrize(
    ("start_ns", "period_ns", "error"),
    [
        (None, 0, PeriodError),
        (None, -1, PeriodError),
        (None, PERIOD_NS_MIN - 1, RemoteProtocolError),
        (None, INSTANT_NS_MAX + 1, RemoteProtocolError),
        (INSTANT_NS_MAX + 1, SECOND, RemoteProtocolError),
        (-(2**63), SECOND, LimitExceededError),
        (NOW - 10 * SECOND, SECOND, LimitExceededError),
    ],
)
def test_times_that_cannot_be(
    bench: Bench, start_ns: int | None, period_ns: int, error: type[BarrageError]
) -> None:
    bench.limits = dataclasses.replace(bench.limits, created_rows_max=10)
    timed = Timed(bench)
    with pytest.raises(error):
        run(timed.time_tables.create(start_ns=start_ns, period_ns=period_ns))
    assert timed.time_tables.ticking_count == 0


def test_time_tables_at_the_limit_and_one_past_it(bench: Bench) -> None:
    bench.limits = dataclasses.replace(bench.limits, time_tables_max=2)
    timed = Timed(bench)

    async def scene() -> None:
        leases = [await timed.time_tables.create(start_ns=None, period_ns=SECOND) for _ in "ab"]
        with pytest.raises(LimitExceededError, match="time tables"):
            await timed.time_tables.create(start_ns=None, period_ns=SECOND)
        assert len(leases) == timed.time_tables.ticking_count == 2
        timed.time_tables.close()

    run(scene())


def test_time_tables_that_are_made_at_the_same_time_count_too(bench: Bench) -> None:
    bench.limits = dataclasses.replace(bench.limits, time_tables_max=2)
    timed = Timed(bench)

    async def scene() -> None:
        making = [timed.time_tables.create(start_ns=None, period_ns=SECOND) for _ in range(5)]
        made = await asyncio.gather(*making, return_exceptions=True)
        assert sum(isinstance(each, LimitExceededError) for each in made) == 3
        assert timed.time_tables.ticking_count == 2
        timed.time_tables.close()

    run(scene())


def test_a_time_table_that_is_made_while_the_server_stops_is_not_driven(bench: Bench) -> None:
    timed = Timed(bench)

    async def scene() -> None:
        making = asyncio.ensure_future(timed.time_tables.create(start_ns=None, period_ns=SECOND))
        await asyncio.sleep(0)
        timed.time_tables.close()
        with pytest.raises(TransportError):
            await making
        assert timed.time_tables.ticking_count == 0

    run(scene())


def test_as_many_rows_at_once_as_may_be_made(bench: Bench) -> None:
    table = bench.tables.create_input("append_only", time_tables.SCHEMA).result()
    ticker = Ticker(table, NOW, SECOND, rows_max=10)
    ticks = [bench.tables.run(lambda: ticker.tick(NOW + 14 * SECOND)).result() for _ in range(3)]
    assert ticks == [NOW + 10 * SECOND, NOW + 15 * SECOND, NOW + 15 * SECOND]
    run(until(lambda: len(bench.rows(table)) == 15))


def test_nothing_is_due_for_a_failed_table(bench: Bench) -> None:
    table = bench.tables.create_input("append_only", time_tables.SCHEMA).result()
    ticker = Ticker(table, NOW, SECOND, rows_max=10)
    bench.tables.run(lambda: table.fail(TableFailedError("it broke"))).result()
    assert bench.tables.run(lambda: ticker.tick(NOW)).result() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1S", SECOND),
        ("pt0.25s", SECOND // 4),
        ("PT1.000000001S", SECOND + 1),
        ("PT1M", 60 * SECOND),
        ("P1DT2H3M4S", (86_400 + 7_200 + 180 + 4) * SECOND),
        ("P2D", 172_800 * SECOND),
        ("-PT1S", -SECOND),
        ("+PT1S", SECOND),
    ],
)
def test_periods(text: str, expected: int) -> None:
    assert period_of(text) == expected


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1s", "PT1", "PTS", "P1Y", "PT.5S", "PT1S1S", "\u0663"]
)
def test_what_is_no_period(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="PT1S"):
        period_of(text)


def test_starts() -> None:
    assert start_of(" 1970-01-01T00:00:01.5Z") == 1_500_000_000
    with pytest.raises(RemoteProtocolError, match="noon"):
        start_of("noon")

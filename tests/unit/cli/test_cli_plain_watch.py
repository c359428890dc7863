"""Watching without a terminal."""

from __future__ import annotations

import asyncio
import json

import pytest

from barrage.cli.watch.plain import PlainWatch
from barrage.cli.watch.run import PlainOptions, print_until_done
from barrage.errors import BarrageError
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.cli.fake_feed import FakeFeed

NOON_NS = 12 * 3600 * 1_000_000_000


def printed(source: FakeFeed, options: PlainOptions) -> tuple[list[str], VirtualClock]:
    clock = VirtualClock(NOON_NS)
    lines: list[str] = []
    watch = PlainWatch(
        source, title="h:1/t", clock=clock, is_json=options.is_json, write=lines.append
    )

    async def wait(seconds: float) -> None:
        clock.advance(round(seconds * 1e9))

    asyncio.run(print_until_done(watch, options, clock=clock, wait=wait))
    return lines, clock


def test_once_prints_one_picture() -> None:
    lines, clock = printed(FakeFeed(2), PlainOptions(is_once=True))
    assert lines == [
        "12:00:00  h:1/t  live  2 rows  9.5 updates/s  lag 12 ms  bodies shm",
        "id  name   price",
        " 0  row-0    1.0",
        " 1  row-1    1.0",
        "",
    ]
    assert clock.monotonic_ns() == NOON_NS


def test_seconds_ends_after_so_long() -> None:
    lines, clock = printed(FakeFeed(0), PlainOptions(seconds=2.5))
    assert [line[:8] for line in lines if line.startswith("12:")] == [
        "12:00:00",
        "12:00:01",
        "12:00:02",
        "12:00:02",
    ]
    assert clock.monotonic_ns() == NOON_NS + 2_500_000_000


def test_json_is_one_object_a_picture() -> None:
    lines, _ = printed(FakeFeed(1), PlainOptions(is_once=True, is_json=True))
    assert [json.loads(line) for line in lines] == [
        {
            "time": "1970-01-01T12:00:00.000+00:00",
            "state": "live",
            "resumption": None,
            "table_size": 1,
            "first_row": 0,
            "lag_ms": 12.0,
            "bodies": {
                "way": "shm",
                "reason": "",
                "inline": {"count": 1, "bytes": 80},
                "shm": {"count": 2, "bytes": 70_000},
                "ucx": {"count": 0, "bytes": 0},
            },
            "rows": [{"id": 0, "name": "row-0", "price": 1.0}],
        }
    ]


def test_what_has_no_stream_has_no_way_of_bodies() -> None:
    source = FakeFeed(0)
    source.bodies = None
    assert "bodies" not in printed(source, PlainOptions(is_once=True))[0][0]
    lines, _ = printed(source, PlainOptions(is_once=True, is_json=True))
    assert json.loads(lines[0])["bodies"] is None


def test_a_subscription_that_ended_raises_why() -> None:
    source = FakeFeed(1)
    source.failure = BarrageError("table 't' was dropped")
    with pytest.raises(BarrageError, match="dropped"):
        printed(source, PlainOptions())


def test_any_plain_option_forbids_the_grid() -> None:
    assert not PlainOptions(rows=3).is_forced
    assert PlainOptions(is_once=True).is_forced
    assert PlainOptions(is_json=True).is_forced
    assert PlainOptions(seconds=1).is_forced

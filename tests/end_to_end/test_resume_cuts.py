"""Subscriptions whose connections are cut in the middle of writes go on without a gap."""

from __future__ import annotations

import asyncio
import threading
from random import Random

import pytest

import barrage
from barrage.cli.target import parse_table
from barrage.cli.watch.run import open_source
from barrage.cli.watch.scroller import RowWindow
from barrage.client import Backoff, State
from barrage.client.subscriptions.resume import NO_HISTORY
from tests.end_to_end.resume_scene import (
    AppendWriter,
    Follower,
    KeyedWriter,
    ListWriter,
    Past,
    by_v,
    where_v,
)
from tests.helpers.cutter import Cutter
from tests.helpers.server_process import wait_until

SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
SOON = Backoff(first_seconds=0.01, seconds_max=0.1)


def make_table(server, kind):
    key = "k" if kind == "keyed" else None
    capacity = 30 if kind == "ring" else None
    return server.create_table(
        "t", SCHEMA, key=key, kind=None if kind in ("keyed", "ring") else kind, capacity=capacity
    )


WRITERS = {
    "keyed": KeyedWriter, "append_only": AppendWriter, "list": ListWriter, "ring": AppendWriter,
}  # fmt: skip


@pytest.fixture
def pause():
    return threading.Event()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cuts", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["coalesced", "steps"])
@pytest.mark.parametrize("kind", list(WRITERS))
def test_every_state_told_is_one_there_was(kind, mode, cuts, pause):
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = make_table(server, kind)
        server.publish("hot", table.where("v > 40").sort("-v"))
        past = Past(table)
        random = Random(f"{kind} {mode}")
        writer = WRITERS[kind](table, past, random)
        for _ in range(20):
            writer.write()
        with barrage.connect(cutter.uri) as session:

            def follow(remote, view=lambda rows: rows, **options):
                live = remote.subscribe(
                    interval_ms=10, reconnect=SOON, resume=mode, **options
                ).wait_ready(60)
                return Follower(live, view=view)

            t = session.table("t")
            followers = [
                follow(t),
                follow(t, lambda rows: rows[2:12], viewport=(2, 12)),
                follow(t, lambda rows: rows[-5:], viewport=(0, 5), reverse=True),
                follow(t, lambda rows: [row[:2] for row in rows], columns=["k", "v"]),
                follow(t.where("v > 40"), where_v),
                follow(t.where("v > 40").sort("-v"), lambda rows: by_v(where_v(rows))),
                follow(t.sort("-v"), lambda rows: by_v(rows)[:4], viewport=(0, 4)),
                follow(
                    session.table("hot"),
                    lambda rows: [row[2:] for row in by_v(where_v(rows))[1:6]],
                    viewport=(1, 6),
                    columns=["s"],
                ),
            ]
            for _ in range(cuts):
                for _ in range(random.randrange(1, 8)):
                    writer.write()
                    pause.wait(random.random() * 0.02)
                cutter.close()
                for _ in range(random.randrange(5)):
                    last = writer.write()
                cutter.open()
                last = past.note()
                for follower in followers[:4]:
                    follower.wait_for(last)
                wait_until(lambda: all(f.live.stats.reconnects >= cutter.cuts for f in followers))
                wait_until(lambda: all(f.live.state is State.LIVE for f in followers))
                for follower in followers:
                    assert follower.live.resumption.startswith(("live", "replayed"))
            for follower in followers:
                follower.live.close()
                assert follower.replacements == 1
                follower.check(past)
            assert cutter.cuts == cuts


def test_what_was_missed_comes_as_one_update_or_as_its_steps(pause):
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = make_table(server, "keyed")
        table.upsert({"k": range(5), "v": range(5), "s": ["a"] * 5})
        with barrage.connect(cutter.uri) as session:
            lives = {
                mode: session.table("t").subscribe(interval_ms=10, reconnect=SOON, resume=mode)
                for mode in ("coalesced", "steps")
            }
            followers = {mode: Follower(live.wait_ready(60)) for mode, live in lives.items()}
            wait_until(lambda: all(len(each.seen) == 1 for each in followers.values()))
            cutter.close()
            versions = []
            for number in range(4):
                table.upsert({"k": [number], "v": [100 + number], "s": ["b"]})
                versions.append(table.cursor.version)
            cutter.open()
            for mode, follower in followers.items():
                follower.wait_for(versions[-1])
                told = [version for version, _ in follower.seen[1:]]
                assert told == (versions if mode == "steps" else versions[-1:])
                assert lives[mode].resumption == "replayed 4 steps"
                assert lives[mode].cursor == table.cursor


def test_nothing_missed_is_live():
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = make_table(server, "keyed")
        table.upsert({"k": [1], "v": [1], "s": ["a"]})
        with barrage.connect(cutter.uri) as session:
            full = session.table("t").subscribe(interval_ms=10, reconnect=SOON).wait_ready(60)
            view = session.table("t").subscribe(
                viewport=(0, 1), interval_ms=10, reconnect=SOON
            )  # fmt: skip
            view.wait_ready(60)
            cutter.cut()
            wait_until(lambda: full.resumption is not None and view.resumption is not None)
            full.wait_ready(60)
            view.wait_ready(60)
            assert full.resumption == view.resumption == "live"
            assert full.cursor == table.cursor
            assert len(full) == len(view) == 1


def test_a_view_that_moves_while_away(pause):
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = make_table(server, "append_only")
        for number in range(30):
            table.add({"k": [number], "v": [number], "s": ["a"]})
        with barrage.connect(cutter.uri) as session:
            live = session.table("t").subscribe(
                viewport=(0, 5), columns=["k"], interval_ms=10, reconnect=SOON
            )
            live.wait_ready(60)
            cutter.close()
            wait_until(lambda: live.state is State.RECONNECTING)
            live.set_viewport((10, 12))
            live.set_columns(["v", "k"])
            table.add({"k": [99], "v": [99], "s": ["a"]})
            cutter.open()
            live.wait_ready(60)
            assert live.to_arrow().to_pydict() == {"v": [10, 11], "k": [10, 11]}
            assert live.resumption == "replayed 1 step"
            assert live.table_size == 31


def test_watching_says_what_became_of_the_time_in_between():
    async def test(server, cutter, table):
        address = parse_table(f"{cutter.uri}/t")
        window = RowWindow(start=0, stop=3)
        async with open_source(
            address, token=None, columns=None, interval_ms=10, window=window
        ) as feed:
            assert feed.status().label == "live"
            await asyncio.to_thread(cutter.close)
            await asyncio.to_thread(table.upsert, {"k": [2], "v": [2], "s": ["b"]})
            await asyncio.to_thread(cutter.open)
            async with asyncio.timeout(60):
                while feed.status().label != "live, replayed 1 step":
                    await asyncio.to_thread(wait_until, lambda: feed.status().resumption)
            await asyncio.to_thread(wait_until, lambda: feed.frame().table_size == 2)

    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = make_table(server, "keyed")
        table.upsert({"k": [1], "v": [1], "s": ["a"]})
        asyncio.run(test(server, cutter, table))


def test_a_table_without_journal_is_taken_anew():
    with barrage.Server(port=0, journal="none") as server, Cutter(server.address) as cutter:
        table = make_table(server, "keyed")
        with barrage.connect(cutter.uri) as session:
            live = session.table("t").subscribe(interval_ms=10, reconnect=SOON).wait_ready(60)
            assert live.cursor is None
            cutter.cut()
            wait_until(lambda: live.resumption is not None)
            assert live.resumption == f"resnapshot ({NO_HISTORY})"
            table.upsert({"k": [1], "v": [1], "s": ["a"]})
            wait_until(lambda: len(live) == 1)


def test_blink_tables_and_groups_are_taken_anew():
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        blink = server.create_table("blink", SCHEMA, kind="blink")
        table = make_table(server, "append_only")
        server.publish("sums", table.agg_by("v", n="count()"))
        table.add({"k": [1, 2], "v": [1, 1], "s": ["a", "b"]})
        with barrage.connect(cutter.uri) as session:
            lives = [
                session.table(name).subscribe(interval_ms=10, reconnect=SOON).wait_ready(60)
                for name in ("blink", "sums")
            ]
            cutter.cut()
            wait_until(lambda: all(live.resumption is not None for live in lives))
            for live in lives:
                live.wait_ready(60)
            assert "blink" in lives[0].resumption
            assert "groups" in lives[1].resumption
            blink.add({"k": [1], "v": [1], "s": ["a"]})
            table.add({"k": [1], "v": [2], "s": ["a"]})
            wait_until(lambda: len(lives[1]) == 2)

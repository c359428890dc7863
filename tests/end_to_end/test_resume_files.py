"""What is written to files while a plan is made is not read from there by the engine thread, whose
file calls fail these tests."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server.exchange.resume_planner import ResumePlanner
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until

HANG_SECONDS = 180
WIDE = "x" * 1000


@pytest.fixture
def held(monkeypatch):
    """Plans that are built, but not finished before the test lets them go on."""
    made = ResumePlanner._build
    is_built, goes_on = threading.Event(), threading.Event()

    def build(self, work):
        made(self, work)
        is_built.set()
        assert goes_on.wait(HANG_SECONDS)

    monkeypatch.setattr(ResumePlanner, "_build", build)
    yield is_built, goes_on
    goes_on.set()


@pytest.mark.parametrize("name", ["t", "sorted"])
@pytest.mark.parametrize("mode", ["coalesced", "steps"])
def test_changes_that_are_on_the_disk_before_a_plan_is_finished(tmp_path, held, name, mode):
    is_built, goes_on = held
    with barrage.Server(port=0, data=str(tmp_path / "data")) as server:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        server.publish("sorted", table.sort("-v"))
        table.upsert({"k": [1], "v": [1]})
        with barrage.connect(server.uri) as session:
            with session.table(name).subscribe(interval_ms=10).wait_ready(HANG_SECONDS) as live:
                wait_until(lambda: len(live) == 1)
                cursor, rows = live.checkpoint()
            table.upsert({"k": [2], "v": [2]})
            with session.table(name).subscribe(
                interval_ms=10, resume_from=cursor, rows=rows, resume=mode
            ) as live:
                assert is_built.wait(HANG_SECONDS)
                for number in (3, 4, 5):
                    table.upsert({"k": [number], "v": [number]})  # returns when it is on the disk
                goes_on.set()
                live.wait_ready(HANG_SECONDS)
                assert live.resumption.startswith("replayed 4 steps")
                wanted = [5, 4, 3, 2, 1] if name == "sorted" else [1, 2, 3, 4, 5]
                assert live.to_arrow().column("k").to_pylist() == wanted


@pytest.mark.parametrize("is_one_too_many", [False, True])
def test_what_changes_while_a_plan_is_made_has_a_limit(tmp_path, held, is_one_too_many):
    is_built, goes_on = held
    config = ServerConfig(
        port=0,
        data=str(tmp_path / "data"),
        limits=replace(DEFAULT_LIMITS, resume_bytes_max=8_000),
    )
    with barrage.Server(config=config) as server:
        table = server.create_table("t", {"k": "int64", "v": "string"}, key="k")
        table.upsert({"k": [1], "v": ["a"]})
        cursor, rows = table.cursor, table.to_arrow()
        with (
            barrage.connect(server.uri) as session,
            session.table("t").subscribe(
                interval_ms=10, resume_from=cursor, rows=rows, resume="steps"
            ) as live,
        ):
            assert is_built.wait(HANG_SECONDS)
            for number in range(7 + is_one_too_many):
                table.upsert({"k": [number + 2], "v": [WIDE]})
            goes_on.set()
            live.wait_ready(HANG_SECONDS)
            if is_one_too_many:
                assert "more than 8000 bytes changed meanwhile" in live.resumption
            else:
                assert live.resumption.startswith("replayed 7 steps")
            assert live.to_arrow() == table.to_arrow()


@pytest.mark.parametrize("name", ["t", "sorted"])
@pytest.mark.parametrize("mode", ["coalesced", "steps"])
def test_much_that_happens_meanwhile_is_gone_through_beside_the_engine(
    held, name, mode, monkeypatch
):
    is_built, goes_on = held
    followed = []
    follow = ResumePlanner.follow

    def noted(self, work):
        followed.append(threading.current_thread().name)
        follow(self, work)

    monkeypatch.setattr(ResumePlanner, "follow", noted)
    limits = replace(DEFAULT_LIMITS, turn_work_max=1)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        server.publish("sorted", table.sort("-v"))
        table.upsert({"k": range(5), "v": range(5)})
        with (
            barrage.connect(server.uri) as session,
            session.table(name).subscribe(interval_ms=10).wait_ready(HANG_SECONDS) as live,
        ):
            cursor, rows = live.checkpoint()
        table.upsert({"k": [2], "v": [20]})
        with (
            barrage.connect(server.uri) as session,
            session.table(name).subscribe(
                interval_ms=10, resume_from=cursor, rows=rows, resume=mode
            ) as live,
        ):
            assert is_built.wait(HANG_SECONDS)
            for number in range(9):
                table.upsert({"k": [number * 2], "v": [number * 3 + 50]})
            goes_on.set()
            live.wait_ready(HANG_SECONDS)
            assert live.resumption.startswith("replayed 10 steps")
            wanted = table.sort("-v") if name == "sorted" else table
            assert live.to_arrow() == wanted.to_arrow()
    assert followed
    assert all(name.startswith("barrage-resume") for name in followed)

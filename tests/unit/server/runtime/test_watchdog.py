"""What holds a thread up is measured and named, and in tests it fails them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

import pytest

import barrage
from barrage.clock import SystemClock
from barrage.limits import Limits
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.runtime.watchdog import (
    BOUNDS_NS,
    ENGINE,
    LOOP,
    Stretch,
    Watchdog,
    WatchedLoop,
    watch_iterations,
)
from barrage.supervision import living
from tests.helpers.held_up import load_everything, strict
from tests.helpers.server_process import wait_until

HANG_SECONDS = 180
MS = 1_000_000


class HandClock:
    """Time is what the test says."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def watchdog():
    made = Watchdog(clock=HandClock())
    yield made
    made.close()


def burn(cpu_ns: int) -> None:
    """Compute, on this thread."""
    until = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < until:
        sum(range(100))


def test_the_longest_stretch_is_told_with_what_it_was(watchdog):
    clock, watch = watchdog.clock, watchdog.engine
    for took_ms, what in (
        (3, burn),
        (7, test_the_longest_stretch_is_told_with_what_it_was),
        (2, 5),
    ):
        watch.begin(what)
        clock.now_ns += took_ms * MS
        watch.end()
    longest = watch.longest
    assert (longest.thread, longest.took_ns) == (ENGINE, 7 * MS)
    assert longest.where == "test_the_longest_stretch_is_told_with_what_it_was"


def test_time_between_stretches_is_nobodys(watchdog):
    clock, watch = watchdog.clock, watchdog.loop
    watch.begin("a")
    clock.now_ns += MS
    watch.turn("b")
    clock.now_ns += 2 * MS
    watch.end()
    clock.now_ns += 1000 * MS
    watch.end()
    watch.begin("c")
    watch.end()
    assert watch.longest.took_ns == 2 * MS
    assert watch.longest.what == "b"


@pytest.mark.parametrize("name", [ENGINE, LOOP])
def test_a_stretch_above_its_bound_is_told_at_once(name):
    told: list[Stretch] = []
    clock = HandClock()
    watchdog = Watchdog(clock=clock, on_breach=told.append)
    watch = watchdog.watches[name]
    for took_ns in (BOUNDS_NS[name] - 1, BOUNDS_NS[name], BOUNDS_NS[name] - 1):
        watch.begin("work")
        clock.now_ns += took_ns
        watch.end()
    assert [stretch.took_ns for stretch in told] == [BOUNDS_NS[name]]
    watchdog.close()


def test_the_stack_is_seen_while_a_stretch_lasts():
    watchdog = Watchdog(sample_ns=MS)
    watch = watchdog.engine
    watch.begin("work")
    wait_until(lambda: watch._seen[0] == watch.serial)
    watch.end()
    told = watch.longest
    assert any("test_the_stack_is_seen_while_a_stretch_lasts" in line for line in told.stack)
    assert told.cpu_ns >= 0
    assert "ms in work" in str(told)
    watchdog.close()


def test_the_sampler_sleeps_while_nothing_happens():
    watchdog = Watchdog(sample_ns=MS)
    for _ in range(3):
        watchdog.engine.begin("work")
        watchdog.engine.end()
        wait_until(lambda: watchdog.is_asleep)
    watchdog.engine.begin("work")
    assert not watchdog.is_asleep
    watchdog.engine.end()
    watchdog.close()
    watchdog.close()
    assert not [worker for role, worker in living() if role.name == "barrage-watchdog"]


def test_the_engine_tells_commands_cycles_and_propagations():
    class Told:
        def __init__(self) -> None:
            self.stretches: list[str] = []

        def begin(self, what: object) -> None:
            self.stretches.append(getattr(what, "__name__", str(what)))

        def end(self) -> None:
            self.stretches.append("end")

    told = Told()
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock(), watch=told)
    runtime.submit(burned := lambda: None).result(HANG_SECONDS)
    runtime.stop()
    assert burned.__name__ in told.stretches
    assert "a propagation" in told.stretches
    assert told.stretches[1::2] == ["end"] * (len(told.stretches) // 2)


def test_each_callback_of_our_loop_is_a_stretch():
    clock = HandClock()
    watchdog = Watchdog(clock=clock)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        for took_ms in (4, 9, 5):
            loop.call_soon(lambda ms=took_ms: setattr(clock, "now_ns", clock.now_ns + ms * MS))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: WatchedLoop(watchdog.loop)) as runner:
        runner.run(scene())
    assert watchdog.loop.longest.took_ns == 9 * MS
    watchdog.close()


def test_iterations_of_a_loop_that_is_not_ours_are_stretches():
    clock = HandClock()
    watchdog = Watchdog(clock=clock)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        stop = watch_iterations(loop, watchdog.loop)
        await asyncio.sleep(0)
        for took_ms in (4, 9, 5):
            loop.call_soon(lambda ms=took_ms: setattr(clock, "now_ns", clock.now_ns + ms * MS))
        for _ in range(3):
            await asyncio.sleep(0)
        stop()
        clock.now_ns += 1000 * MS
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert watchdog.loop.longest.took_ns == 18 * MS
    watchdog.close()


def test_servers_of_both_kinds_are_watched():
    with barrage.Server() as server:
        server.create_table("t", {"x": "int64"}).add({"x": [1]})
        assert {name: w.longest is not None for name, w in server._parts.watchdog.watches.items()}
        assert server._parts.watchdog.engine.longest is not None
        assert server._parts.watchdog.loop.longest is not None

    async def scene() -> None:
        async with barrage.AsyncServer() as server:
            await server.create_table("t", {"x": "int64"})
            await asyncio.sleep(0)
            assert server._parts.watchdog.loop.longest is not None

    asyncio.run(scene())


# --- faults put back on purpose: the machine must find each ---------------------------------------


def block_the_loop(server: barrage.Server) -> None:
    done = threading.Event()

    def block() -> None:
        burn(2 * BOUNDS_NS[LOOP])
        done.set()

    server._loop.call_soon_threadsafe(block)
    assert done.wait(HANG_SECONDS)


def block_the_engine(server: barrage.Server) -> None:
    server._parts.tables.run(lambda: burn(2 * BOUNDS_NS[ENGINE])).result(HANG_SECONDS)


def touch_a_file(server: barrage.Server) -> None:
    server._parts.tables.run(lambda: os.stat(__file__)).result(HANG_SECONDS)


def open_a_file(server: barrage.Server) -> None:
    server._parts.tables.run(lambda: open(__file__).close()).result(HANG_SECONDS)


CANARIES = {
    block_the_loop: "loop: ",
    block_the_engine: "engine: ",
    touch_a_file: "os.stat on the engine thread",
    open_a_file: "open('",
}


@pytest.mark.parametrize("fault", list(CANARIES), ids=lambda fault: fault.__name__)
def test_the_guard_finds_what_was_put_there(fault):
    with strict() as findings, barrage.Server() as server:
        fault(server)
    found = [text for text in findings.violations() if CANARIES[fault] in text]
    assert found
    assert any(fault.__name__ in text or "test_watchdog.py" in text for text in found)


def test_a_server_that_does_its_work_is_not_found_fault_with():
    load_everything()
    with strict() as findings, barrage.Server() as server:
        table = server.create_table("t", {"x": "int64"})
        with barrage.connect(server.uri) as session:
            for number in range(10):
                table.add({"x": [number]})
            assert session.table("t").snapshot().num_rows == 10
    assert findings.violations() == []
    assert set(findings.longest) == {ENGINE, LOOP}


def test_passes_of_the_garbage_collector_are_not_counted():
    with strict() as findings, barrage.Server() as server:
        kept = [[number] for number in range(100_000)]

        def collect() -> None:
            until = time.thread_time_ns() + 2 * BOUNDS_NS[ENGINE]
            while time.thread_time_ns() < until:
                gc.collect()

        server._parts.tables.run(collect).result(HANG_SECONDS)
        del kept
    assert [stretch for stretch in findings.breaches if stretch.thread == ENGINE] == []

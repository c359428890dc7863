"""The engine thread: commands, cycles, hand-overs, its end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.engine import AppendOnlyTable, KeyedTable
from barrage.engine.changelog.making import ViewDelivery
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.errors import LimitExceededError, RowError, TableFailedError, TransportError
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.server.runtime.runtime import COMMANDS_NS_MAX, HANDOVERS_MAX, EngineRuntime
from tests.helpers.server_process import wait_until
from tests.helpers.virtual_clock import VirtualClock

SCHEMA = pa.schema({"x": pa.int64()})
ONE = pa.table({"x": [1]})


class Collector:
    """An outlet that keeps what it gets and says it has taken it when told to."""

    def __init__(self, runtime: EngineRuntime, *, takes: bool = True) -> None:
        self.runtime = runtime
        self.takes = takes
        self.handovers: list[list[object]] = []

    def convert(self, item: object) -> list[object]:
        return [item]

    def hand_over(self, items: list[object]) -> None:
        self.handovers.append(list(items))
        if self.takes:
            self.runtime.handover_taken()


@pytest.fixture
def runtime():
    made = EngineRuntime(limits=Limits(), clock=SystemClock())
    yield made
    made.stop()


def make_table(runtime: EngineRuntime) -> AppendOnlyTable:
    return runtime.submit(lambda: AppendOnlyTable(runtime.graph, SCHEMA)).result()


def append(runtime: EngineRuntime, table: AppendOnlyTable, rows: pa.Table = ONE):
    return runtime.write(lambda: (table.stage_add(rows), (table,))[1])


def subscribe(runtime: EngineRuntime, table: AppendOnlyTable, number: int) -> None:
    spec = SubscriptionSpec(
        columns=None, viewport=None, interval_ns=10_000_000, is_key_space=True, encoding="e"
    )
    now = SystemClock().monotonic_ns()
    runtime.submit(lambda: runtime.producer(table).add(number, spec, now)).result()


def test_commands_run_in_order_on_one_thread(runtime):
    seen: list[tuple[int, str]] = []
    futures = [
        runtime.submit(lambda n=n: seen.append((n, threading.current_thread().name)))
        for n in range(100)
    ]
    for future in futures:
        future.result()
    assert seen == [(n, "barrage-engine") for n in range(100)]


def test_an_error_goes_to_its_caller_and_the_thread_lives(runtime):
    with pytest.raises(ZeroDivisionError):
        runtime.submit(lambda: 1 // 0).result()
    assert runtime.submit(lambda: 7).result() == 7


def test_a_posted_command_that_fails_is_logged(runtime, caplog):
    runtime.post(lambda: 1 // 0)
    assert runtime.submit(lambda: 7).result() == 7
    assert "ZeroDivisionError" in caplog.text


def test_a_write_resolves_to_the_step_that_committed_it(runtime):
    table = make_table(runtime)
    assert append(runtime, table).result() == 1
    assert append(runtime, table).result() == 2
    assert table.size == 2
    assert runtime.stats.cycles == 2
    assert runtime.stats.cycle_ns_percentile(50) > 0


@contextmanager
def held(runtime: EngineRuntime) -> Iterator[None]:
    """Keep the engine thread in a command: what is given to it inside waits together. It counts
    the commands of a turn before it runs them, so the turn has to have begun."""
    has_begun, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        may_go_on.wait()

    runtime.submit(hold)
    try:
        assert has_begun.wait(60)
        yield
    finally:
        may_go_on.set()


def test_writes_that_wait_together_share_a_cycle(runtime):
    table = make_table(runtime)
    with held(runtime):
        futures = [append(runtime, table) for _ in range(50)]
    assert {future.result() for future in futures} == {1}


def test_commands_that_take_long_are_done_between_updates():
    clock = VirtualClock()
    runtime = EngineRuntime(limits=Limits(), clock=clock)
    turns: dict[str, list[int]] = {"long": [], "short": []}

    def note(kind: str, took_ns: int) -> None:
        turns[kind].append(runtime.turn)
        clock.advance(took_ns)

    try:
        for kind, took_ns in (("long", COMMANDS_NS_MAX // 2), ("short", 0)):
            with held(runtime):
                futures = [runtime.submit(partial(note, kind, took_ns)) for _ in range(9)]
            for future in futures:
                future.result()
    finally:
        runtime.stop()
    # What passes the bound is done; the next one is not begun.
    assert Counter(Counter(turns["long"]).values()) == {3: 3}
    assert len(set(turns["short"])) == 1


def test_a_write_that_changes_nothing_resolves_too(runtime):
    table = make_table(runtime)
    assert append(runtime, table, ONE.slice(0, 0)).result() == 0


def test_a_refused_write_does_not_harm_the_others(runtime):
    table = runtime.submit(lambda: KeyedTable(runtime.graph, SCHEMA, key="x")).result()
    with held(runtime):
        bad = runtime.write(lambda: (table.stage_upsert(pa.table({"x": [None]})), (table,))[1])
        good = runtime.write(lambda: (table.stage_upsert(ONE), (table,))[1])
    with pytest.raises(RowError):
        bad.result()
    assert good.result() == 1


def test_writers_of_a_table_that_fails_are_told(runtime, monkeypatch):
    table = make_table(runtime)
    monkeypatch.setattr(AppendOnlyTable, "commit", lambda *_: 1 // 0)
    with pytest.raises(TableFailedError):
        append(runtime, table).result()


def test_the_queue_is_bounded():
    runtime = EngineRuntime(limits=Limits(command_queue_max=3), clock=SystemClock())
    gate = threading.Event()
    entered = threading.Event()
    runtime.submit(lambda: (entered.set(), gate.wait()))
    entered.wait()
    for _ in range(3):
        runtime.submit(int)
    with pytest.raises(LimitExceededError, match="is 4 commands, the limit is 3"):
        runtime.submit(int)
    gate.set()
    runtime.stop()


def test_updates_are_handed_over_once_per_turn(runtime):
    outlet = Collector(runtime)
    runtime.attach(outlet)
    table = make_table(runtime)
    for number in range(5):
        subscribe(runtime, table, number)
    wait_until(lambda: sum(len(items) for items in outlet.handovers) >= 5)
    before = len(outlet.handovers)
    append(runtime, table).result()
    wait_until(lambda: len(outlet.handovers) > before)
    [item] = outlet.handovers[before]
    assert item.subscription_ids == (0, 1, 2, 3, 4)


def test_views_told_together_are_handed_over_in_portions(monkeypatch):
    monkeypatch.setattr("barrage.server.runtime.runtime.HANDOVER_VIEWS", 8)
    # Time stands still, so that all who wait are let in in one turn.
    runtime = EngineRuntime(limits=Limits(), clock=VirtualClock())
    outlet = Collector(runtime)
    runtime.attach(outlet)
    try:
        table = make_table(runtime)
        append(runtime, table, pa.table({"x": range(100)})).result()
        with held(runtime):
            for number in range(20):
                runtime.submit(partial(subscribe_to_view, runtime, table, number))
        wait_until(lambda: len(told(outlet)) >= 20)
    finally:
        runtime.stop()
    assert sorted(told(outlet)) == list(range(20))
    views = [item for items in outlet.handovers for item in items if is_views(item)]
    assert [len(item.subscription_ids) for item in views] == [8, 8, 4]
    assert all(sum(map(is_views, items)) <= 1 for items in outlet.handovers)


def subscribe_to_view(runtime: EngineRuntime, table: AppendOnlyTable, number: int) -> None:
    spec = SubscriptionSpec(
        columns=None,
        viewport=Viewport.of(number, number + 2),
        interval_ns=10_000_000,
        is_key_space=False,
        encoding="e",
    )
    runtime.producer(table).add(number, spec, 0)


def is_views(item: object) -> bool:
    return isinstance(item, ViewDelivery)


def told(outlet: Collector) -> list[int]:
    return [
        number for items in outlet.handovers for item in items for number in item.subscription_ids
    ]


def test_nothing_is_propagated_while_the_loop_is_behind(runtime):
    outlet = Collector(runtime, takes=False)
    runtime.attach(outlet)
    table = make_table(runtime)
    subscribe(runtime, table, 1)
    wait_until(lambda: len(outlet.handovers) == 1)
    append(runtime, table).result()
    wait_until(lambda: len(outlet.handovers) == HANDOVERS_MAX)
    for _ in range(5):
        append(runtime, table).result()
    assert len(outlet.handovers) == HANDOVERS_MAX
    outlet.takes = True
    runtime.handover_taken()
    runtime.handover_taken()
    wait_until(lambda: len(outlet.handovers) > HANDOVERS_MAX)
    rows = [len(item.message.added_columns[0]) for items in outlet.handovers for item in items]
    assert sum(rows) == 6


def test_propagation_that_fails_ends_the_subscriptions_of_that_table_only(
    runtime, monkeypatch, caplog
):
    outlet = Collector(runtime)
    runtime.attach(outlet)
    sound, broken = make_table(runtime), make_table(runtime)
    subscribe(runtime, sound, 1)
    subscribe(runtime, broken, 2)
    wait_until(lambda: sum(len(items) for items in outlet.handovers) == 2)
    producer = runtime.existing_producer(broken)
    monkeypatch.setattr(producer, "propagate", lambda _: 1 // 0)
    append(runtime, broken).result()
    append(runtime, sound).result()
    wait_until(lambda: sum(len(items) for items in outlet.handovers) == 4)
    ended = [item for items in outlet.handovers for item in items if hasattr(item, "error")]
    assert [item.subscription_id for item in ended] == [2]
    assert "ZeroDivisionError" in caplog.text
    assert runtime.existing_producer(broken) is None


def test_a_cycle_that_raises_tells_the_writers_and_the_thread_lives(runtime, monkeypatch, caplog):
    table = make_table(runtime)
    monkeypatch.setattr(runtime.graph, "run_cycle", lambda: 1 // 0)
    with pytest.raises(Exception, match="internal error, details"):
        append(runtime, table).result()
    monkeypatch.undo()
    assert runtime.submit(lambda: 7).result() == 7


def test_after_the_end_commands_are_refused_not_forgotten():
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock())
    gate = threading.Event()
    runtime.submit(gate.wait)
    waiting = runtime.submit(lambda: 7)
    gate.set()
    runtime.stop()
    assert waiting.result() == 7
    with pytest.raises(TransportError):
        runtime.submit(int)
    runtime.stop()


def test_a_runtime_that_never_ran_stops(runtime):
    runtime.stop()
    with pytest.raises(TransportError):
        runtime.submit(int)


def test_no_write_begins_after_others_were_given_up(runtime):
    """Else one could be applied after one before it was refused, which looks like a resend then."""
    table = make_table(runtime)
    may_go_on, is_busy = threading.Event(), threading.Event()

    def occupy() -> None:
        is_busy.set()
        may_go_on.wait(60)

    busy = runtime.submit(occupy)
    assert is_busy.wait(60)
    waiting = append(runtime, table)
    runtime.give_up_waiting()
    later = append(runtime, table)
    may_go_on.set()
    for future in (waiting, later):
        with pytest.raises(TransportError, match="stopping"):
            future.result(60)
    busy.result(60)
    assert runtime.submit(lambda: table.size).result(60) == 0

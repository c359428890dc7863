"""Heavy queries: what is done where, who waits for whom, and what happens when something goes
away."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.engine import BlinkTable, KeyedTable, Table
from barrage.engine.operators import derive, where
from barrage.engine.planning.derivation import Derivation
from barrage.engine.planning.work_meter import WorkMeter
from barrage.errors import (
    BarrageError,
    EngineError,
    ExpressionError,
    LimitExceededError,
    RowError,
    TableFailedError,
    TransportError,
    WorkerDiedError,
)
from barrage.limits import Limits
from barrage.server.access.query import QueryRun
from barrage.server.runtime.catalog import Catalog, Publication
from barrage.server.runtime.query_dispatcher import QueryDispatcher
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.runtime.turns import Turns
from tests.helpers.server_process import wait_until

HANG_S = 180
"""Only for a test that hangs."""

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64())])
COUNT = 100
LIMITS = Limits(
    turn_work_max=1_000,
    queries_beside_max=3,
    queries_beside_per_client_max=2,
    query_work_max=1_000_000,
)
"""A sort of 100 rows is heavy, a filter of them is not."""


class Scene:
    """An engine with one table of 100 rows, and a dispatcher. ``hold`` makes the thread of the
    worker wait before it makes an operator."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.runtime = EngineRuntime(limits=limits, clock=SystemClock())
        self.dispatcher = QueryDispatcher(self.runtime, limits)
        self.catalog = Catalog()
        self.opened = threading.Event()
        self.opened.set()
        self.reached = threading.Semaphore(0)
        self.made: list[Derivation] = []
        self.table: KeyedTable = self.runtime.submit(self._table).result(HANG_S)
        self.catalog.add(Publication(name="t", table=self.table, kind="keyed"))
        self.upsert(0, COUNT)

    def _table(self) -> KeyedTable:
        return KeyedTable(self.runtime.graph, SCHEMA, key="k")

    def upsert(self, start: int, count: int, factor: int = 37) -> None:
        rows = pa.table(
            {"k": range(start, start + count), "a": [i * factor % 101 for i in range(count)]},
            schema=SCHEMA,
        )

        def stage() -> tuple[Table, ...]:
            self.table.stage_upsert(rows)
            return (self.table,)

        self.runtime.write(stage).result(HANG_S)

    def run(self, derive: Callable[[Table], Table], owner: Any = None) -> Any:
        return self.dispatcher.run(lambda: derive(self.table), owner)

    def shown(self, table: Table) -> pa.Table:
        return self.runtime.submit(table.to_arrow).result(HANG_S)

    def hold(self) -> None:
        self.opened.clear()

    def close(self) -> None:
        self.opened.set()
        self.dispatcher.close()
        self.runtime.stop()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from made_scene(monkeypatch)


def made_scene(monkeypatch: pytest.MonkeyPatch, limits: Limits = LIMITS) -> Iterator[Scene]:
    scene = Scene(limits)
    make = Derivation.make

    def held(derivation: Derivation) -> None:
        scene.made.append(derivation)
        scene.reached.release()
        assert scene.opened.wait(HANG_S)
        make(derivation)

    monkeypatch.setattr(Derivation, "make", held)
    yield scene
    scene.close()


def by_a(table: Table) -> Table:
    return derive.sort(table, "a")


def reached(scene: Scene) -> None:
    assert scene.reached.acquire(timeout=HANG_S)


def test_a_light_operator_is_made_on_the_engine_thread(scene) -> None:
    found = scene.run(lambda table: derive.where(table, "a > 50")).result(HANG_S)
    assert scene.shown(found)["a"].to_pylist() == [
        a for i in range(COUNT) if (a := i * 37 % 101) > 50
    ]
    assert not scene.made


def test_a_heavy_operator_sees_what_changed_while_it_was_made(scene) -> None:
    scene.hold()
    wanted = scene.run(by_a)
    reached(scene)
    scene.upsert(50, 100, factor=53)
    assert not wanted.done()
    scene.opened.set()
    found = wanted.result(HANG_S)
    scene.upsert(120, 100, factor=11)
    expected = scene.shown(scene.table).sort_by([("a", "ascending"), ("k", "ascending")])
    assert scene.shown(found).equals(expected)
    again = scene.runtime.submit(lambda: derive.sort(scene.table, "a")).result(HANG_S)
    assert again is found


class Result:
    """Stands for the leases a query returns."""


def test_what_a_query_returned_goes_with_its_last_holder(scene) -> None:
    """It waits for no collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        future = scene.dispatcher.run(Result)
        seen = weakref.ref(future.result(HANG_S))
        del future
        wait_until(lambda: seen() is None)  # The frame of the engine thread ends by itself.
    finally:
        gc.enable()


def test_two_who_want_the_same_operator_wait_for_one(scene) -> None:
    scene.hold()
    first, second = scene.run(by_a, "one"), scene.run(by_a, "two")
    reached(scene)
    scene.opened.set()
    assert first.result(HANG_S) is second.result(HANG_S)
    assert len(scene.made) == 1


def test_every_operator_of_a_query_is_made_where_it_belongs(scene) -> None:
    found = scene.run(
        lambda t: derive.head(derive.sort(derive.where(derive.sort(t, "a"), "a > 3"), "-k"), 5)
    ).result(HANG_S)
    assert scene.shown(found)["k"].to_pylist() == [99, 98, 97, 96, 95]
    assert len(scene.made) == 2


def test_a_query_that_nobody_waits_for_any_more_ends_and_leaves_nothing(scene) -> None:
    scene.hold()
    wanted = scene.run(by_a)
    reached(scene)
    assert wanted.cancel()
    scene.runtime.submit(lambda: None).result(HANG_S)
    assert scene.dispatcher.beside_count == 0
    [derivation] = scene.made
    scene.opened.set()
    wait_until(lambda: not derivation._stand_ins)
    assert scene.table.trails == []
    assert scene.runtime.submit(scene.table.live_children).result(HANG_S) == []


def test_a_query_that_is_cancelled_while_another_waits_goes_on(scene) -> None:
    scene.hold()
    gone, stays = scene.run(by_a, "one"), scene.run(by_a, "two")
    reached(scene)
    gone.cancel()
    scene.opened.set()
    assert scene.shown(stays.result(HANG_S)).num_rows == COUNT
    with pytest.raises(CancelledError):
        gone.result(HANG_S)


def test_a_query_that_waits_for_the_thread_can_be_cancelled(scene) -> None:
    scene.hold()
    first = scene.run(by_a)
    reached(scene)
    second = scene.run(lambda table: derive.sort(table, "-a"))
    wait_until(lambda: scene.dispatcher.beside_count == 2)
    second.cancel()
    wait_until(lambda: scene.dispatcher.beside_count == 1)
    scene.opened.set()
    first.result(HANG_S)
    assert len(scene.made) == 1


def test_a_table_that_fails_meanwhile_fails_the_query(scene) -> None:
    scene.hold()
    wanted = scene.run(by_a)
    reached(scene)
    failure = TableFailedError("it broke")
    scene.runtime.submit(lambda: scene.table.fail(failure)).result(HANG_S)
    scene.opened.set()
    with pytest.raises(TableFailedError, match="it broke"):
        wanted.result(HANG_S)
    assert scene.table.trails == []


def test_an_operator_that_raises_is_told_to_each_with_its_place(scene) -> None:
    """The place in the query is known only where the query is."""
    query = '{"table":"t","ops":[["head",99],["natural_join",{"table":"t"},[],["x=a"]]]}'
    run = QueryRun(scene.catalog, query, LIMITS)
    with pytest.raises(RowError, match=r"operation 2 of the query, natural_join: .* at most one"):
        scene.dispatcher.run(run).result(HANG_S)
    assert len(scene.made) == 1
    assert scene.dispatcher.beside_count == 0


def test_a_server_that_stops_fails_what_is_under_way(scene) -> None:
    scene.hold()
    running = scene.run(by_a)
    reached(scene)
    waiting = scene.run(lambda table: derive.sort(table, "-a"))
    wait_until(lambda: scene.dispatcher.beside_count == 2)
    scene.dispatcher.close()
    for each in (running, waiting):
        with pytest.raises(TransportError):
            each.result(HANG_S)
    scene.opened.set()
    scene.runtime.stop()
    with pytest.raises(TransportError):
        scene.run(by_a)


def test_an_engine_that_ends_first_leaves_no_query_without_an_answer(scene) -> None:
    scene.hold()
    running = scene.run(by_a)
    reached(scene)
    scene.runtime.stop()
    scene.opened.set()
    with pytest.raises(TransportError):
        running.result(HANG_S)


def test_a_thread_that_dies_fails_its_queries_and_the_next_one_gets_another(
    scene, monkeypatch
) -> None:
    make = Derivation.make

    def die(derivation: Derivation) -> None:
        raise SystemExit

    with monkeypatch.context() as patches:
        patches.setattr(Derivation, "make", die)
        with pytest.raises(WorkerDiedError):
            scene.run(by_a).result(HANG_S)
    monkeypatch.setattr(Derivation, "make", make)
    assert scene.shown(scene.run(by_a).result(HANG_S)).num_rows == COUNT


def test_tables_that_change_faster_than_it_can_follow_end_a_query(monkeypatch) -> None:
    limits = Limits(turn_work_max=1_000, query_rounds_max=2)
    for scene in made_scene(monkeypatch, limits):
        follow = Derivation.follow

        def busy(derivation: Derivation, scene=scene, follow=follow) -> None:
            follow(derivation)
            scene.upsert(0, COUNT, factor=len(scene.made) + 3)
            scene.made.append(derivation)

        monkeypatch.setattr(Derivation, "follow", busy)
        scene.hold()
        wanted = scene.run(by_a)
        reached(scene)
        scene.upsert(0, COUNT, factor=2)
        scene.opened.set()
        with pytest.raises(EngineError, match=r"change faster .* \(2 rounds"):
            wanted.result(HANG_S)


def test_the_work_of_a_query_is_bounded_over_all_its_operators(monkeypatch) -> None:
    one = COUNT * 101  # 100 for the column, one to read it.
    ranges = 1
    for scene in made_scene(monkeypatch, Limits(turn_work_max=1, query_work_max=one + ranges)):
        scene.run(by_a).result(HANG_S)
        with pytest.raises(LimitExceededError, match="work of a query") as caught:
            scene.run(lambda table: derive.head(derive.sort(table, "-a"), 1)).result(HANG_S)
        assert caught.value.actual > caught.value.maximum == one + ranges
    for scene in made_scene(monkeypatch, Limits(turn_work_max=1, query_work_max=one)):
        with pytest.raises(LimitExceededError, match="work of a query"):
            scene.run(by_a).result(HANG_S)
        assert not scene.made


def test_so_many_heavy_queries_may_be_under_way(scene) -> None:
    scene.hold()
    keys = ["a", "-a", "k", "-k"]
    runs = [
        scene.run(lambda table, key=key: derive.sort(table, key), owner)
        for key, owner in zip(keys[:3], ["one", "one", "two"], strict=True)
    ]
    wait_until(lambda: scene.dispatcher.beside_count == 3)
    with pytest.raises(LimitExceededError, match="number of heavy queries is 4"):
        scene.run(lambda table: derive.sort(table, "-k"), "three").result(HANG_S)
    runs[2].cancel()
    wait_until(lambda: scene.dispatcher.beside_count == 2)
    with pytest.raises(LimitExceededError, match="of one client is 3"):
        scene.run(lambda table: derive.sort(table, "-k"), "one").result(HANG_S)
    more = scene.run(lambda table: derive.sort(table, "-k"), "two")
    scene.opened.set()
    for each in (*runs[:2], more):
        each.result(HANG_S)


def test_blink_tables_are_derived_at_once_or_not_at_all(scene) -> None:
    def blink() -> Table:
        table = BlinkTable(scene.runtime.graph, SCHEMA)
        table.stage_add(pa.table({"k": range(COUNT), "a": range(COUNT)}, schema=SCHEMA))
        scene.runtime.graph.run_cycle()
        return derive.sort(table, "a")

    with pytest.raises(LimitExceededError, match="blink"):
        scene.dispatcher.run(blink).result(HANG_S)


def test_light_operators_share_the_turns_of_the_engine(scene) -> None:
    """Each is little work; all of them are more than one turn has."""
    turns: list[int] = []

    def many(table: Table) -> Table:
        turns.append(scene.runtime.turn)
        for number in range(5):
            table = derive.where(table, f"a > {number}")
        return table

    found = scene.run(many).result(HANG_S)
    assert len(set(turns)) == len(turns) == 5
    assert scene.shown(found).num_rows == COUNT - 5


def test_one_turn_of_the_engine_does_the_work_of_few_queries(scene) -> None:
    """However many come at once: what other commands wait for is one of them."""
    gate = threading.Event()
    held = scene.runtime.submit(lambda: gate.wait(HANG_S))
    turns: list[int] = []

    def light(table: Table, number: int) -> Table:
        turns.append(scene.runtime.turn)
        return derive.where(table, f"a > {number}")

    runs = [scene.run(lambda table, n=n: light(table, n)) for n in range(6)]
    gate.set()
    held.result(HANG_S)
    for run in runs:
        run.result(HANG_S)
    assert len(set(turns)) == 6


def test_what_a_query_made_goes_with_it(scene) -> None:
    found = scene.run(lambda table: derive.where(derive.sort(table, "a"), "a > 3")).result(HANG_S)
    watched = weakref.ref(found)
    scene.dispatcher.run(lambda: None).result(HANG_S)
    del found
    scene.runtime.submit(gc.collect).result(HANG_S)
    assert watched() is None
    assert scene.runtime.submit(scene.table.live_children).result(HANG_S) == []


def test_errors_that_are_not_ours_reach_who_asked(scene, monkeypatch) -> None:
    def broken(_: Derivation) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Derivation, "make", broken)
    with pytest.raises(ZeroDivisionError):
        scene.run(by_a).result(HANG_S)
    assert scene.dispatcher.beside_count == 0


def test_clients_take_turns() -> None:
    turns: Turns[str] = Turns()
    for item in ("a1", "a2", "a3"):
        turns.put("a", item)
    turns.put("b", "b1")
    turns.put("c", "c1")
    assert len(turns) == 5
    assert turns.discard("a", "a2")
    assert not turns.discard("a", "a2")
    assert not turns.discard("d", "a2")
    assert [turns.take(), turns.take_now(), turns.take()] == ["a1", "b1", "c1"]
    assert turns.take_now() == "a3"
    assert turns.take_now() is None
    turns.put("a", "left")
    assert turns.end() == ["left"]
    assert turns.take() is None


def test_the_meter_is_asked_nothing_outside_of_queries(scene, monkeypatch) -> None:
    def never(*_: object) -> None:
        raise BarrageError("asked")

    monkeypatch.setattr(WorkMeter, "admit", never)
    found = scene.runtime.submit(lambda: derive.sort(scene.table, "a")).result(HANG_S)
    assert scene.shown(found).num_rows == COUNT


LONG = "a" + " + a" * 200 + " > -1"


def test_a_long_text_is_read_once_and_beside_the_engine(scene, monkeypatch) -> None:
    threads = []
    bind = where.bind_condition

    def noting(*arguments):
        threads.append(threading.current_thread().name)
        return bind(*arguments)

    monkeypatch.setattr(where, "bind_condition", noting)
    found = scene.run(lambda table: derive.where(table, LONG)).result(HANG_S)
    assert scene.runtime.submit(lambda: found.size).result(HANG_S) == COUNT
    assert threads == ["barrage-queries"]


def test_a_long_text_that_is_wrong_is_refused_where_it_stands(scene) -> None:
    run = scene.run(lambda table: derive.where(table, "b" + LONG[1:]))
    with pytest.raises(ExpressionError, match="unknown column 'b'"):
        run.result(HANG_S)
    assert scene.dispatcher.beside_count == 0


def test_texts_of_middle_length_are_read_in_several_turns_each_of_them_once(
    scene, monkeypatch
) -> None:
    bound, bind = [], where.bind_condition

    def noting(*arguments):
        bound.append(scene.runtime.turn)
        return bind(*arguments)

    monkeypatch.setattr(where, "bind_condition", noting)
    texts = ["a" + " + a" * 20 + f" > -{number}" for number in range(1, 4)]

    def work(table):
        for text in texts:
            table = derive.where(table, text)
        return table

    scene.run(work).result(HANG_S)
    assert len(bound) == len(set(bound)) == len(texts)

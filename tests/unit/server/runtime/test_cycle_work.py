"""What clients keep is run in every cycle: its work is bounded, for each of them and for all."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import barrage
from barrage.engine import Table
from barrage.engine.operators import derive
from barrage.engine.operators.snapshot import snapshot
from barrage.engine.planning.cycle_work import CycleWork
from barrage.engine.tables.work import (
    CHANGED_COLUMN,
    CHANGED_SORTED,
    FOUND_ROW,
    GROUPED,
    RESERVED_BEHIND,
    RUN,
    SORTED_ROW,
    TERM,
)
from barrage.errors import BarrageError, LimitExceededError
from barrage.limits import Limits
from barrage.server.runtime.query_dispatcher import THE_SERVER
from barrage.server.settings.config import ServerConfig
from tests.helpers.serving import HOST
from tests.unit.server.runtime.test_query_dispatcher import (
    COUNT,
    HANG_S,
    LIMITS,
    Scene,
    by_a,
    made_scene,
    reached,
)

ROOM = Limits(turn_work_max=4_000_000)
ONE = RUN + 100 + TERM
"""A filter of one term."""

SORTED = RUN + 100 * (CHANGED_SORTED + CHANGED_COLUMN) + SORTED_ROW * COUNT
"""A sort by one column."""

Derive = Callable[[Table], Table]


def above(number: int) -> Derive:
    return lambda table: derive.where(table, f"a > {number}")


@pytest.fixture
def scene(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from made_scene(monkeypatch, replace(ROOM, **request.param))


def kept(scene: Scene, *numbers: int, owner: Any = "a") -> list[Table]:
    return [scene.run(above(number), owner).result(HANG_S) for number in numbers]


def total(scene: Scene) -> int:
    return scene.runtime.submit(lambda: scene.dispatcher.cycle_work.total).result(HANG_S)


def freed(scene: Scene, tables: list[Table]) -> None:
    """As leases do: the last reference goes on the engine thread."""
    scene.runtime.submit(tables.clear).result(HANG_S)


per_client = pytest.mark.parametrize(
    "scene", [{"cycle_work_per_client_max": 3 * ONE}], indirect=True
)
for_all = pytest.mark.parametrize("scene", [{"cycle_work_max": 3 * ONE}], indirect=True)
unbounded = pytest.mark.parametrize("scene", [{}], indirect=True)


@per_client
def test_a_client_keeps_so_much_and_no_more(scene: Scene) -> None:
    tables = kept(scene, 1, 2, 3)
    with pytest.raises(LimitExceededError, match=r"this client keeps \(release some") as refused:
        kept(scene, 4)
    assert (refused.value.actual, refused.value.maximum) == (3 * ONE, 3 * ONE)
    assert kept(scene, 1, 2, 3)  # They are there: asking again costs nothing.
    others = kept(scene, 4, 5, owner="b")
    assert total(scene) == 5 * ONE
    assert kept(scene, 4)[0] is others[0]
    freed(scene, tables)
    assert total(scene) == 2 * ONE
    assert kept(scene, 6, 7, 8)


@per_client
def test_one_operator_may_pass_the_bound(scene: Scene) -> None:
    """Else a table could be too large to be sorted at all."""
    tables = kept(scene, 1, 2)
    condition = "a" + " + a" * 50 + " > 0"
    terms = scene.run(lambda table: derive.where(table, condition), "a").result(HANG_S)
    assert total(scene) > 4 * ONE
    with pytest.raises(LimitExceededError):
        kept(scene, 3)
    del tables, terms


@per_client
def test_what_is_made_of_one_that_passed_the_bound_is_let_in_with_it(scene: Scene) -> None:
    condition = "a" + " + a" * 50 + " > 0"

    def filters(table: Table, *more: str) -> Table:
        for text in (condition, *more):
            table = derive.where(table, text)
        return table

    found = scene.run(filters, "a")
    kept_one = found.result(HANG_S)
    with pytest.raises(LimitExceededError):
        kept(scene, 3)
    freed(scene, [kept_one])
    del found, kept_one
    scene.runtime.submit(gc.collect).result(HANG_S)
    both = scene.run(lambda table: filters(table, "a > 1"), "a").result(HANG_S)
    freed(scene, [both])
    del both
    scene.runtime.submit(gc.collect).result(HANG_S)
    with pytest.raises(LimitExceededError):
        scene.run(lambda table: filters(table, f"{condition}1", f"{condition}2"), "a").result(
            HANG_S
        )


@per_client
def test_what_the_server_itself_keeps_does_not_count(scene: Scene) -> None:
    own = kept(scene, *range(10), owner=THE_SERVER)
    assert total(scene) == 0
    assert kept(scene, 1)[0] is own[1]
    assert total(scene) == 0


@for_all
def test_all_clients_together_keep_so_much_and_no_more(scene: Scene) -> None:
    """Those who have no session cannot be told apart, and have this bound alone."""
    tables = kept(scene, 1, owner="a") + kept(scene, 2, owner="b") + kept(scene, 3, owner=None)
    for owner in ("a", "c", None):
        with pytest.raises(LimitExceededError, match="all clients keep"):
            kept(scene, 4, owner=owner)
    freed(scene, tables)
    assert kept(scene, 4, owner="c")


@unbounded
def test_equal_operators_count_once_and_as_long_as_anybody_has_them(scene: Scene) -> None:
    first, second = kept(scene, 1, owner="a"), kept(scene, 1, owner="b")
    assert total(scene) == ONE
    freed(scene, first)
    assert total(scene) == ONE
    freed(scene, second)
    assert total(scene) == 0


OPERATORS: dict[str, tuple[Derive, int]] = {
    "where": (above(1), ONE),
    "sort": (by_a, SORTED),
    "agg_by": (
        lambda table: derive.agg_by(table, "a", n="count()"),
        RUN + 100 * 105 + GROUPED + 300,
    ),
    "update_by": (
        lambda table: derive.update_by(table, "k", total="cum_sum(a)"),
        RUN + 100 * 105 + GROUPED + (FOUND_ROW + RESERVED_BEHIND) * COUNT,
    ),
    "head": (lambda table: derive.head(table, 3), RUN),
    "join": (
        lambda table: derive.natural_join(table, derive.select(table, "k", b="a"), on=["k"]),
        RUN + 100 * 100 + GROUPED + RUN,
    ),
    "merge": (lambda table: derive.merge(table, derive.where(table, "a > 1")), RUN + ONE),
}


@unbounded
@pytest.mark.parametrize("name", list(OPERATORS))
def test_every_operator_counts_and_gives_back(scene: Scene, name: str) -> None:
    make, work = OPERATORS[name]
    tables = [scene.run(make, "a").result(HANG_S)]
    assert total(scene) == pytest.approx(work, abs=2 * TERM + 300)
    freed(scene, tables)
    gc.collect()
    assert total(scene) == 0


@unbounded
def test_operators_upon_static_tables_cost_nothing_in_cycles(scene: Scene) -> None:
    static = scene.run(snapshot, "a").result(HANG_S)
    found = scene.dispatcher.run(lambda: derive.sort(static, "a"), "a").result(HANG_S)
    assert found.size == COUNT
    assert total(scene) == 0


def test_what_is_being_made_counts_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heavy operators that are under way cannot pass the bound together."""
    limits = replace(LIMITS, cycle_work_per_client_max=1)
    for scene in made_scene(monkeypatch, limits):
        scene.hold()
        wanted = scene.run(by_a, "a")
        reached(scene)
        with pytest.raises(LimitExceededError, match="this client keeps"):
            scene.run(lambda table: derive.sort(table, "-a"), "a").result(HANG_S)
        scene.opened.set()
        tables = [wanted.result(HANG_S)]
        one = total(scene)
        assert one == SORTED
        del wanted
        freed(scene, tables)
        gc.collect()
        assert total(scene) == 0


def test_what_was_given_up_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for scene in made_scene(monkeypatch):
        scene.hold()
        wanted = scene.run(by_a, "a")
        reached(scene)
        assert total(scene) > 0
        wanted.cancel()
        scene.opened.set()
        scene.run(above(1), "b").result(HANG_S)
        cycle_work = scene.dispatcher.cycle_work
        assert scene.runtime.submit(partial(cycle_work.of_client, "a")).result(HANG_S) == 0


def test_a_client_that_keeps_nothing_leaves_nothing_behind() -> None:
    cycle_work = CycleWork(Limits())
    cycle_work.reserve("key", "a", 5)
    cycle_work.release("key")
    cycle_work.release("key")
    assert cycle_work.total == 0
    assert not cycle_work._of_clients


def test_who_derives_too_much_is_told_so_and_what_to_do() -> None:
    config = ServerConfig(limits=replace(Limits(), cycle_work_max=2 * ONE))
    with barrage.Server(HOST, config=config) as server:
        server.create_table("t", {"x": "int64"}, kind="append_only")
        with barrage.connect(server.uri) as session:
            table = session.table("t")
            followed = [table.where(f"x > {number}").subscribe() for number in (1, 2)]
            for each in followed:
                each.wait_ready(HANG_S)
            with pytest.raises(BarrageError, match="release some of them"):
                table.where("x > 3").snapshot()
            assert table.where("x > 2").snapshot().num_rows == 0
            assert server.table("t").where("x > 4").to_arrow().num_rows == 0

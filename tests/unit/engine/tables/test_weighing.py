"""What hangs below a source is worked out again where it may have changed, and never takes long:
however many sources and operators there are, few operators are looked at in a turn."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.engine import KeyedTable, Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.tables import graph as graphs
from barrage.engine.tables.graph import LOOKED_AT_MAX, WEIGHED_STEPS
from barrage.engine.tables.source import StaticTable
from barrage.engine.tables.work import WEIGHT_MAX, Price, weight_below
from barrage.errors import EngineError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.runtime.runtime import EngineRuntime
from tests.helpers.server_process import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64())])
HANG_S = 60

FEW = replace(DEFAULT_LIMITS, cycle_work_max=4_500_000)
"""Of few hundred views the weight is the greater the more they are."""


class Looks:
    """Counts the operators that are looked at. Those of the program are not priced in a cycle."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self) -> int:
        """Since this was asked last."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found, of_cycle = Looks(), Price.of_cycle

    def counted(self: Price, changed: int, standing: int) -> int:
        found.count += 1
        return of_cycle(self, changed, standing)

    monkeypatch.setattr(Price, "of_cycle", counted)
    return found


def keyed(graph: UpdateGraph) -> KeyedTable:
    return KeyedTable(graph, SCHEMA, key="k")


def heads(table: Table, count: int, first: int = 1) -> list[Table]:
    """So many views that cost the same, whatever they show."""
    return [derive.head(table, first + number) for number in range(count)]


def put(table: KeyedTable, salt: int = 0) -> None:
    table.stage_upsert(pa.table({"k": [salt], "a": [salt]}, schema=SCHEMA))


def weight_of_heads(count: int) -> int:
    return weight_below(0, Price().of_cycle(0, 0) * count, FEW.cycle_work_max)


# --- nothing but the estimate fails ---------------------------------------------------------------


def test_where_clients_may_keep_nothing_there_is_a_weight_nevertheless() -> None:
    assert weight_below(0, 0, 0) == 1
    assert weight_below(0, 1, 0) == weight_below(0, 10**12, 10**7) == 4
    assert weight_below(1e12, 1, 0) == WEIGHT_MAX


def test_where_clients_may_keep_nothing_cycles_and_the_program_go_on() -> None:
    graph = UpdateGraph(replace(DEFAULT_LIMITS, cycle_work_max=0))
    table = keyed(graph)
    view = None
    for number in range(2 * WEIGHED_STEPS + 2):
        put(table, number)
        result = graph.run_cycle()
        assert result.step == number + 1
        assert table in result.updates
        if number == WEIGHED_STEPS:
            view = derive.sort(table, "-a")
    assert view is not None
    assert view.size == table.size == 2 * WEIGHED_STEPS + 2
    assert table.weight_below > 1


class Unpriced(Price):
    """Cannot be told."""

    def of_cycle(self, changed: int, standing: int) -> int:
        raise EngineError("an estimate that fails")


def test_an_estimate_that_fails_loses_neither_a_cycle_nor_an_operator() -> None:
    graph = UpdateGraph()
    table = keyed(graph)
    view = derive.head(table, 3)
    view.price = Unpriced()  # type: ignore[attr-defined]
    for number in range(WEIGHED_STEPS):
        put(table, number)
        assert set(graph.run_cycle().updates) >= {table}
    assert table.weight_below == WEIGHT_MAX
    table.weight_below = 1
    other = derive.head(table, 2)
    assert table.weight_below == WEIGHT_MAX
    assert (view.size, other.size) == (3, 2)
    assert graph.run_cycle().failed == {}


# --- few operators are looked at ------------------------------------------------------------------


def test_a_static_table_is_not_weighed(looks: Looks) -> None:
    graph = UpdateGraph()
    static = StaticTable(graph, pa.table({"k": [1], "a": [2]}, schema=SCHEMA))
    kept = heads(static, 50)
    kept += [derive.natural_join(static, static, on="k", add="b=a")]
    graph.run_cycle()
    graph.weigh_due()
    assert looks.taken() == 0
    assert static.weight_below == 1


def test_few_operators_are_looked_at_for_a_new_one_and_in_a_cycle(looks: Looks) -> None:
    """Of a hundred sources with a hundred views of all of them: 10,000 for the last one alone."""
    graph = UpdateGraph()
    sources = [keyed(graph) for _ in range(100)]
    merged = derive.merge(*sources)
    kept = heads(merged, 100)
    most = LOOKED_AT_MAX + len(kept) + 1
    assert looks.taken() <= most
    kept += heads(merged, 20, first=1_000)
    assert looks.taken() == 0, "others have to wait for the next turn"
    counts = []
    for number in range(2 * len(sources)):
        for source in sources:
            put(source, number)
        assert graph.run_cycle().updates.keys() >= set(sources)
        counts.append(looks.taken())
    assert max(counts) <= most + 20
    # Each has had its turn meanwhile, and none was due twice before the others.
    weights = [source.weight_below for source in sources]
    assert set(weights) == {2}
    assert min(source.weighed_step for source in sources) > graph.step - len(sources)


def test_every_cycle_weighs_one_source_at_least(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LOOKED_AT_MAX", 1)
    graph = UpdateGraph()
    sources = [keyed(graph) for _ in range(5)]
    kept = [derive.where(derive.merge(*sources), "k > 3")]
    looks.taken()
    for _ in sources:
        graph.run_cycle()
        assert looks.taken() == 2
    assert {source.weight_below for source in sources} == {2}
    graph.run_cycle()
    assert looks.taken() == 0
    assert len(kept) == 1


def test_a_source_that_nobody_holds_any_more_is_not_waited_for(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LOOKED_AT_MAX", 1)
    graph = UpdateGraph()
    for _ in range(3):
        derive.head(keyed(graph), 1)
    looks.taken()
    graph.run_cycle()
    assert looks.taken() == 0


def test_no_more_is_looked_at_than_makes_the_greatest_weight(looks: Looks) -> None:
    graph = UpdateGraph()
    table = keyed(graph)
    kept = [derive.where(table, f"k > {number}") for number in range(100)]
    kept += [derive.sort(each, "a") for each in kept]
    looks.taken()
    for number in range(WEIGHED_STEPS):
        put(table, number)
        graph.run_cycle()
    assert 100 < looks.taken() < len(kept)
    assert table.weight_below == WEIGHT_MAX


def test_of_very_many_operators_the_nearest_count(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "BELOW_MAX", 300)
    graph = UpdateGraph(FEW)
    table = keyed(graph)
    kept = heads(table, 400)
    kept.append(derive.sort(kept[-1], "a"))
    graph.weigh_due()
    looks.taken()
    for number in range(WEIGHED_STEPS):
        put(table, number)
        graph.run_cycle()
    assert looks.taken() == 300
    assert table.weight_below == weight_of_heads(300) < weight_of_heads(400)


# --- and soon -------------------------------------------------------------------------------------


def test_a_write_right_after_an_operator_was_made_comes_in_smaller_portions() -> None:
    graph = UpdateGraph()
    table = keyed(graph)
    kept = heads(table, 150)
    assert table.weight_below == 2
    graph.weigh_due()
    kept.append(derive.sort(table, "a"))
    assert table.weight_below == 4
    graph.weigh_due()
    kept.append(derive.sort(table, "-a"))
    assert table.weight_below == 6


def test_the_engine_thread_weighs_between_cycles() -> None:
    """An idle table upon which much was derived at once: a large write that comes then finds out
    before its first portion."""
    runtime = EngineRuntime(limits=FEW, clock=SystemClock())
    kept: list[Table] = []
    try:
        table = runtime.submit(lambda: keyed(runtime.graph)).result(HANG_S)
        runtime.submit(lambda: kept.extend(heads(table, 400))).result(HANG_S)
        right = weight_of_heads(400)
        assert right > weight_of_heads(100)
        wait_until(
            lambda: runtime.submit(lambda: table.weight_below).result(HANG_S) == right, HANG_S
        )
        assert runtime.graph.step == 0
    finally:
        runtime.submit(kept.clear).result(HANG_S)
        runtime.stop()

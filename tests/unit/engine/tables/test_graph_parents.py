"""Operators with several parents: each runs once per cycle after all of them, fails with any of
them, is shared, and lives as long as it is used."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.errors import EngineError, ExpressionError, RowError, TableFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def rows(k: Sequence[int], s: Sequence[str | None]) -> pa.Table:
    return pa.table({"k": k, "s": s}, schema=SCHEMA)


def count_runs(table: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Per run of the operator which of its parents had changed."""
    runs: list[list[bool]] = []
    inner = table.advance_all

    def advance_all(updates: Sequence[Any]) -> Any:
        runs.append([not update.is_empty for update in updates])
        return inner(updates)

    monkeypatch.setattr(table, "advance_all", advance_all)
    return runs


def test_a_diamond_runs_once_after_both_of_its_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    counts = derive.agg_by(source, "s", n="count()", total="sum(k)")
    joined = derive.natural_join(
        derive.where(source, "k >= 0"), derive.where(counts, "n > 1"), ["s"]
    )
    assert joined.depth == 3
    runs = count_runs(joined, monkeypatch)
    source.stage_add(rows([1, 2, 3], ["x", "y", "x"]))
    result = graph.run_cycle()
    assert runs == [[True, True]]
    assert joined.to_arrow().to_pylist() == [
        {"k": 1, "s": "x", "n": 2, "total": 4},
        {"k": 2, "s": "y", "n": None, "total": None},
        {"k": 3, "s": "x", "n": 2, "total": 4},
    ]
    source.stage_add(rows([4, 5], ["y", "z"]))
    result = graph.run_cycle()
    assert runs == [[True, True]] * 2
    update = result.updates[joined]
    assert update.added_keys_post.to_text() == "3-4"
    assert [keys.to_text() for keys in update.modified_keys_post] == ["", "", "1", "1"]


def test_two_changed_sources_run_a_common_operator_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = UpdateGraph()
    first, second = AppendOnlyTable(graph, SCHEMA), KeyedTable(graph, SCHEMA, key="k")
    merged = derive.merge(derive.sort(first, "k"), second, first)
    below = derive.flatten(merged)
    runs, runs_below = count_runs(merged, monkeypatch), count_runs(below, monkeypatch)
    first.stage_add(rows([2, 1], ["a", "b"]))
    second.stage_upsert(rows([3], ["c"]))
    graph.run_cycle()
    assert runs == [[True, True, True]]
    assert runs_below == [[True]]
    assert merged.to_arrow()["k"].to_pylist() == [1, 2, 3, 2, 1]
    second.stage_upsert(rows([4], ["d"]))
    graph.run_cycle()
    assert runs[1:] == [[False, True, False]]
    graph.run_cycle()
    assert len(runs) == len(runs_below) == 2, "nothing runs when nothing changed"


@pytest.mark.parametrize("is_left_bad", [True, False])
def test_a_failing_parent_fails_its_dependents_and_nothing_else(is_left_bad: bool) -> None:
    graph = UpdateGraph()
    good, bad = KeyedTable(graph, SCHEMA, key="k"), KeyedTable(graph, SCHEMA, key="k")
    computed = derive.select(bad, "k", twice="k * 4611686018427387904")
    joined = (
        derive.natural_join(computed, good, ["k"])
        if is_left_bad
        else derive.natural_join(good, computed, ["k"])
    )
    below = derive.merge(joined, joined)
    for table in (good, bad):
        table.stage_upsert(rows([0, 1], ["a", "b"]))
    assert not graph.run_cycle().failed
    for table in (good, bad):
        table.stage_upsert(rows([5], ["c"]))
    result = graph.run_cycle()
    assert list(result.failed) == [computed, joined, below]
    assert set(result.updates) == {good, bad}
    assert isinstance(computed.failure, ExpressionError)
    assert isinstance(joined.failure, TableFailedError)
    assert "overflow" in str(below.failure)
    good.stage_upsert(rows([6], ["c"]))
    result = graph.run_cycle()
    assert not result.failed, "a failure is reported once"
    assert set(result.updates) == {good}
    with pytest.raises(TableFailedError, match="overflow"):
        derive.natural_join(good, computed, ["k"])
    with pytest.raises(TableFailedError, match="overflow"):
        derive.merge(good, bad, computed)


def test_equal_operators_with_equal_parents_are_shared() -> None:
    graph = UpdateGraph()
    table, other = KeyedTable(graph, SCHEMA, key="k"), KeyedTable(graph, SCHEMA, key="k")
    joined = derive.natural_join(table, other, ["k"], ["t=s"])
    assert joined is derive.natural_join(table, other, ["k=k"], ["t = s"])
    assert joined is not derive.natural_join(table, other, ["k"], ["u=s"])
    assert joined is not derive.natural_join(table, table, ["k"], ["t=s"])
    merged = derive.merge(table, other)
    assert merged is derive.merge(table, other)
    assert merged is not derive.merge(other, table)
    assert merged is not derive.merge(table, other, other)
    assert derive.merge(merged, table) is derive.merge(table, other, table)
    assert derive.merge(table) is table


def test_a_failed_join_is_not_shared_any_more() -> None:
    graph = UpdateGraph()
    left, right = KeyedTable(graph, SCHEMA, key="k"), AppendOnlyTable(graph, SCHEMA)
    joined = derive.natural_join(left, right, ["k"], ["t=s"])
    right.stage_add(rows([1, 1], ["a", "b"]))
    assert joined in graph.run_cycle().failed
    with pytest.raises(RowError, match="key 1 occurs twice"):
        derive.natural_join(left, right, ["k"], ["t=s"])
    assert derive.natural_join(left, derive.last_by(right, "k"), ["k"], ["t=s"]).failure is None


def test_an_operator_is_freed_with_its_last_user_on_every_side() -> None:
    graph = UpdateGraph()
    left, right = KeyedTable(graph, SCHEMA, key="k"), KeyedTable(graph, SCHEMA, key="k")
    leaf: Table = derive.head(
        derive.natural_join(derive.where(left, "k > 0"), derive.sort(right, "k"), ["k"], ["t=s"]), 2
    )
    middle = weakref.ref(leaf.parent)  # type: ignore[attr-defined]
    gc.collect()
    assert len(left.live_children()) == len(right.live_children()) == 1
    del leaf
    gc.collect()
    assert middle() is None
    assert not left.live_children()
    assert not right.live_children()


def test_an_operator_keeps_all_its_parents_alive() -> None:
    graph = UpdateGraph()
    left, right = KeyedTable(graph, SCHEMA, key="k"), KeyedTable(graph, SCHEMA, key="k")
    merged = derive.merge(left, right)
    gone = weakref.ref(right)
    right.stage_upsert(rows([1], ["a"]))
    del right
    gc.collect()
    assert merged in graph.run_cycle().updates
    del merged
    gc.collect()
    assert gone() is None


def test_an_operator_fed_twice_by_one_table_is_one_child_of_it() -> None:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="k")
    doubled = derive.merge(table, table)
    joined = derive.natural_join(table, table, ["k"], ["t=s"])
    assert sorted(map(id, table.live_children())) == sorted((id(doubled), id(joined)))


def test_tables_of_different_graphs_do_not_mix() -> None:
    table, other = (KeyedTable(UpdateGraph(), SCHEMA, key="k") for _ in range(2))
    with pytest.raises(EngineError, match="different update graphs"):
        derive.merge(table, other)
    with pytest.raises(EngineError, match="different update graphs"):
        derive.natural_join(table, other, ["k"], ["t=s"])

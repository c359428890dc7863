"""The update graph: failures stay where they belong, tables live as long as they are used."""

from __future__ import annotations

import gc
import weakref

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.errors import ExpressionError, TableFailedError
from barrage.rowset import RowSet

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def rows(k: list[int], s: list[str | None]) -> pa.Table:
    return pa.table({"k": k, "s": s}, schema=SCHEMA)


def test_a_failing_operator_takes_its_dependents_and_nothing_else() -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    good = derive.where(source, "k > 0")
    bad = derive.select(source, "k", twice="k * 4611686018427387904")
    dependent = derive.where(bad, "k > 0")
    below = derive.head(dependent, 1)
    source.stage_add(rows([0, 1], ["a", "b"]))
    assert not graph.run_cycle().failed
    source.stage_add(rows([5], ["c"]))
    result = graph.run_cycle()
    assert set(result.failed) == {bad, dependent, below}
    assert set(result.updates) == {source, good}
    assert isinstance(bad.failure, ExpressionError)
    assert "overflow" in str(bad.failure)
    assert isinstance(dependent.failure, TableFailedError)
    assert str(below.failure) == str(dependent.failure)
    with pytest.raises(TableFailedError, match="overflow"):
        below.read(RowSet.empty())
    with pytest.raises(TableFailedError):
        derive.sort(dependent, "k")
    source.stage_add(rows([7], ["d"]))
    result = graph.run_cycle()
    assert not result.failed, "a failure is reported once"
    assert set(result.updates) == {source, good}


def test_an_unexpected_exception_fails_only_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    head, tail = derive.head(source, 3), derive.tail(source, 3)
    monkeypatch.setattr(head, "choose", lambda update, survivors: 1 // 0)
    source.stage_add(rows([1], ["a"]))
    result = graph.run_cycle()
    assert list(result.failed) == [head]
    assert "ZeroDivisionError" in str(result.failed[head])
    assert tail in result.updates
    assert derive.head(source, 3) is not head, "a failed table is not shared any more"


def test_a_failing_source_stops_itself_and_its_dependents(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = UpdateGraph()
    source, other = AppendOnlyTable(graph, SCHEMA), AppendOnlyTable(graph, SCHEMA)
    head = derive.head(source, 3)
    monkeypatch.setattr(source, "_take_staged", lambda: 1 // 0)
    source.stage_add(rows([1], ["a"]))
    other.stage_add(rows([1], ["a"]))
    result = graph.run_cycle()
    assert set(result.failed) == {source, head}
    assert set(result.updates) == {other}
    assert not graph.has_pending
    with pytest.raises(TableFailedError):
        source.stage_add(rows([1], ["a"]))


def test_equal_operators_are_shared() -> None:
    table = KeyedTable(UpdateGraph(), SCHEMA, key="k")
    assert derive.where(table, " k > 1") is derive.where(table, "k > 1")
    first = derive.sort(table, "k", "-s")
    assert first is derive.sort(table, ("k", "asc"), ("s", "descending"))
    assert first is not derive.sort(table, "k")
    chosen = derive.select(table, "k", t="s")
    assert chosen is derive.select(table, "k", t="s")
    assert chosen.key_columns == ("k",)
    assert derive.drop(table, "k").key_columns == ()
    assert derive.head(table, 3) is not derive.tail(table, 3)
    assert derive.last_by(table, "s").key_columns == ("s",)


def test_dropping_the_last_reference_frees_a_table() -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    leaf = derive.head(derive.sort(derive.where(source, "k > 0"), "k"), 2)
    middle = weakref.ref(leaf.parent)
    gc.collect()
    assert middle() is not None, "an operator keeps its parents"
    assert len(source.live_children()) == 1
    del leaf
    gc.collect()
    assert middle() is None
    assert not source.live_children()
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None
    assert not graph.run_cycle().updates


def test_updates_that_touch_no_selected_column_are_not_reported() -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    keys = derive.select(source, "k")
    source.stage_upsert(rows([1], ["a"]))
    graph.run_cycle()
    source.stage_upsert(rows([1], ["b"]))
    result = graph.run_cycle()
    assert source in result.updates
    assert keys not in result.updates

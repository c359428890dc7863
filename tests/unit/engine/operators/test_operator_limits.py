"""How many operators may stand one upon another, and that every one of them can be read there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.errors import LimitExceededError, TableNotFoundError
from barrage.limits import DEFAULT_LIMITS, Limits

STEPS = {
    "head": lambda top, number, _: derive.head(top, 1000 + number),
    "where": lambda top, number, _: derive.where(top, f"x > -{number}"),
    "select": lambda top, _, __: derive.select(top, "k", x="x+1"),
    "sort": lambda top, number, _: derive.sort(top, "x" if number % 2 else "-x"),
    "natural_join": lambda top, number, source: derive.natural_join(
        top, derive.last_by(source, "k"), ["k"], [f"x{number}=x"]
    ),
    "agg_by": lambda top, _, __: derive.agg_by(top, "k", x="sum(x)"),
    "select_distinct": lambda top, _, __: derive.select_distinct(top),
    "last_by": lambda top, _, __: derive.last_by(top, "k"),
    "head_by": lambda top, number, _: derive.head_by(top, 10 + number, "k"),
    "tail_by": lambda top, number, _: derive.tail_by(top, 10 + number),
}


def source_of(graph):
    table = AppendOnlyTable(graph, pa.schema([("k", pa.int64()), ("x", pa.int64())]))
    table.stage_add(pa.table({"k": [1, 2, 3], "x": [1, 2, 3]}))
    graph.run_cycle()
    return table


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STEPS)
def test_the_deepest_table_can_be_read_and_follows_its_source(name):
    graph = UpdateGraph()
    source = top = source_of(graph)
    number = 0
    while top.depth < DEFAULT_LIMITS.operators_depth_max:
        top = STEPS[name](top, number, source)
        number += 1
    with pytest.raises(LimitExceededError, match="one upon another is 151 operators"):
        STEPS[name](top, number, source)
    assert len(top.to_arrow()) == 3
    source.stage_add(pa.table({"k": [4], "x": [5]}))
    assert graph.run_cycle().failed == {}
    assert top.to_arrow()["k"].to_pylist() in ([1, 2, 3, 4], [4, 3, 2, 1])


def test_a_table_joined_with_itself_again_and_again_is_refused():
    graph = UpdateGraph(Limits(operators_ways_max=64))
    top = source_of(graph)
    for _ in range(6):
        top = derive.select(derive.natural_join(top, top, ["k"], ["y=x"]), "k", x="x + y")
    assert top.ways == 64
    assert top.to_arrow()["x"].to_pylist() == [64, 128, 192]
    with pytest.raises(LimitExceededError, match="128 ways"):
        derive.natural_join(top, top, ["k"], ["y=x"])


def test_merges_are_bounded_in_tables_and_rows():
    graph = UpdateGraph(Limits(merged_tables_max=4, merged_rows_max=9))
    table = source_of(graph)
    assert derive.merge(table, table, table).size == 9
    with pytest.raises(LimitExceededError, match="merge is 12 rows"):
        derive.merge(table, table, table, table)
    few = derive.head(table, 1)
    assert derive.merge(derive.merge(few, few), derive.merge(few, few)).size == 4
    with pytest.raises(LimitExceededError, match="merge is 5 tables"):
        derive.merge(derive.merge(few, few), derive.merge(few, few), few)


def test_only_short_names_are_compared_for_a_hint():
    assert "did you mean 'quotes'" in str(TableNotFoundError("quote", known=["quotes"]))
    assert "did you mean" not in str(TableNotFoundError("q" * 65, known=["q" * 64]))
    assert "did you mean" not in str(TableNotFoundError("q" * 64, known=["q" * 65]))
    assert "did you mean" not in str(TableNotFoundError("quote", known=["-"] * 1000 + ["quotes"]))

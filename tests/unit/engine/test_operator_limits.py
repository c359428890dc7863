"""How many operators may stand one upon another, and that every one of them can be read there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, UpdateGraph
from barrage.errors import LimitExceededError, TableNotFoundError
from barrage.limits import DEFAULT_LIMITS, Limits

STEPS = {
    "head": lambda top, number, _: top.head(1000 + number),
    "where": lambda top, number, _: top.where(f"x > -{number}"),
    "select": lambda top, _, __: top.select("k", x="x+1"),
    "sort": lambda top, number, _: top.sort("x" if number % 2 else "-x"),
    "natural_join": lambda top, number, source: top.natural_join(
        source.last_by("k"), ["k"], [f"x{number}=x"]
    ),
    "agg_by": lambda top, _, __: top.agg_by("k", x="sum(x)"),
    "select_distinct": lambda top, _, __: top.select_distinct(),
    "last_by": lambda top, _, __: top.last_by("k"),
}


def source_of(graph):
    table = AppendOnlyTable(graph, pa.schema([("k", pa.int64()), ("x", pa.int64())]))
    table.stage_add(pa.table({"k": [1, 2, 3], "x": [1, 2, 3]}))
    graph.run_cycle()
    return table


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
        top = top.natural_join(top, ["k"], ["y=x"]).select("k", x="x + y")
    assert top.ways == 64
    assert top.to_arrow()["x"].to_pylist() == [64, 128, 192]
    with pytest.raises(LimitExceededError, match="128 ways"):
        top.natural_join(top, ["k"], ["y=x"])


def test_merges_are_bounded_in_tables_and_rows():
    graph = UpdateGraph(Limits(merged_tables_max=4, merged_rows_max=9))
    table = source_of(graph)
    assert table.merge(table, table).size == 9
    with pytest.raises(LimitExceededError, match="merge is 12 rows"):
        table.merge(table, table, table)
    few = table.head(1)
    assert few.merge(few).merge(few.merge(few)).size == 4
    with pytest.raises(LimitExceededError, match="merge is 5 tables"):
        few.merge(few).merge(few.merge(few), few)


def test_only_short_names_are_compared_for_a_hint():
    assert "did you mean 'quotes'" in str(TableNotFoundError("quote", known=["quotes"]))
    assert "did you mean" not in str(TableNotFoundError("q" * 65, known=["q" * 64]))
    assert "did you mean" not in str(TableNotFoundError("q" * 64, known=["q" * 65]))
    assert "did you mean" not in str(TableNotFoundError("quote", known=["-"] * 1000 + ["quotes"]))

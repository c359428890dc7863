"""Lists as rows: types, lengths that change and differ, and the limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, StaticTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.errors import LimitExceededError, RowError, SchemaError
from barrage.limits import Limits
from tests.helpers import model

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.list_(pa.int64())), ("b", pa.list_(pa.string()))])


def rows(*parts: tuple[int, list | None, list | None]) -> pa.Table:
    columns = dict(zip(SCHEMA.names, map(list, zip(*parts, strict=True)), strict=True))
    return pa.table(columns, schema=SCHEMA)


def shown(table) -> list[tuple]:
    return [tuple(row.values()) for row in model.rows_of(table)]


@pytest.fixture
def source() -> KeyedTable:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="k")
    table.stage_upsert(rows((1, [1, 2], ["x", "y"]), (2, [], None), (3, [3], ["z"])))
    graph.run_cycle()
    return table


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)], ids=str
)
def test_every_kind_of_list(kind: pa.DataType) -> None:
    cells = pa.array([[9, 9], [1, 2], None, [3, None]], kind)
    data = pa.table({"k": [0, 1, 2, 3], "l": pa.chunked_array([cells.slice(0, 2), cells.slice(2)])})
    table = derive.ungroup(StaticTable(UpdateGraph(), data.slice(1)))
    assert table.to_arrow().to_pydict() == {"k": [1, 1, 3, 3], "l": [1, 2, 3, None]}
    assert table.schema.field("l").type == pa.int64()


def test_a_list_that_grows_or_shrinks_changes_rows_at_its_end(source: KeyedTable) -> None:
    view = derive.ungroup(source, "b", "a")
    assert shown(view) == [(1, 1, "x"), (1, 2, "y"), (3, 3, "z")]
    before = model.content_of(view)
    source.stage_upsert(rows((1, [7], ["x"]), (2, [8, 9], ["u", "v"])))
    update = source.graph.run_cycle().updates[view]
    assert shown(view) == [(1, 7, "x"), (2, 8, "u"), (2, 9, "v"), (3, 3, "z")]
    model.check_update(before, update, model.content_of(view))
    assert update.removed_keys_pre.to_text() == "1"
    assert update.added_keys_post.to_text() == "1-2"


def test_what_only_grows_only_grows() -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    view = derive.ungroup(source, "a")
    assert view.is_append_only
    for number in range(5):
        source.stage_add(rows((number, [number] * number, None)))
        result = graph.run_cycle()
        if number:
            assert result.updates[view].shifts.is_empty
    assert shown(view) == [(n, n, None) for n in range(5) for _ in range(n)]


def test_lists_of_one_row_that_differ_in_length_are_an_error(source: KeyedTable) -> None:
    view = derive.ungroup(source)
    source.stage_upsert(rows((2, [1], []), (3, [3], ["z"])))
    failure = source.graph.run_cycle().failed[view]
    assert isinstance(failure, RowError)
    assert (failure.column, failure.row) == ("b", 1)
    with pytest.raises(RowError, match="1 cells in 'a', 0 here"):
        derive.ungroup(source)
    assert len(shown(derive.ungroup(source, "a"))) == 4


def test_what_cannot_be_ungrouped(source: KeyedTable) -> None:
    for columns, message in (
        (["k"], "has no lists"),
        (["c"], "unknown column 'c'"),
        (["a", "a"], "named twice"),
    ):
        with pytest.raises(SchemaError, match=message):
            derive.ungroup(source, *columns)
    with pytest.raises(SchemaError, match="no column of lists"):
        derive.ungroup(derive.select(source, "k"))
    assert derive.ungroup(source) is derive.ungroup(source, "b", "a")
    assert derive.ungroup(derive.ungroup(source, "b"), "a").size == 5


def test_rows_are_bounded_when_it_is_made_and_later() -> None:
    graph = UpdateGraph(Limits(ungrouped_rows_max=3))
    source = AppendOnlyTable(graph, SCHEMA)
    source.stage_add(rows((1, [1, 2, 3], None)))
    graph.run_cycle()
    view = derive.ungroup(source, "a")
    source.stage_add(rows((2, [4], None)))
    assert isinstance(graph.run_cycle().failed[view], LimitExceededError)
    with pytest.raises(LimitExceededError, match="ungrouped table"):
        derive.ungroup(source, "a")

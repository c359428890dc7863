"""The first and last rows of groups: when all rows of a group are looked at; what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, RingTable, UpdateGraph
from barrage.engine.aggregation.grouping import RowGroups
from barrage.engine.operators import derive
from barrage.errors import EngineError, SchemaError
from tests.helpers import model

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("l", pa.list_(pa.int64()))])


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    keys, groups = [list(part) for part in zip(*pairs, strict=True)]
    return pa.table({"k": keys, "g": groups, "l": [None] * len(keys)}, schema=SCHEMA)


def keys(table) -> list[int]:
    return table.to_arrow()["k"].to_pylist()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The groups of which all rows were asked for."""
    found: list[list[int]] = []
    rows_in = RowGroups.rows_in

    def noting(groups: RowGroups, wanted):
        found.append(wanted.tolist())
        return rows_in(groups, wanted)

    monkeypatch.setattr(RowGroups, "rows_in", noting)
    return found


def test_only_a_group_that_lost_a_row_it_showed_and_has_others_is_gone_through(passes) -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    source.stage_upsert(rows(*((i, "AB"[i % 2]) for i in range(8)), (8, "C")))
    graph.run_cycle()
    first, last = derive.head_by(source, 2, "g"), derive.tail_by(source, 2, "g")
    assert (keys(first), keys(last)) == ([0, 1, 2, 3, 8], [4, 5, 6, 7, 8])
    source.stage_upsert(rows((9, "A"), (10, None)))
    graph.run_cycle()
    assert (keys(first), keys(last)) == ([0, 1, 2, 3, 8, 10], [5, 6, 7, 8, 9, 10])
    source.stage_remove(pa.table({"k": [4, 8]}))  # shown by nobody; the only row of its group
    graph.run_cycle()
    assert passes == []
    source.stage_remove(pa.table({"k": [0, 7]}))
    result = graph.run_cycle()
    assert (keys(first), keys(last)) == ([1, 2, 3, 6, 10], [3, 5, 6, 9, 10])
    assert sorted(passes) == [[0], [1]]
    assert len(result.updates[first].added_keys_post) == 1


def test_what_only_grows_only_grows_by_the_first_rows_of_groups(passes) -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    first, last = derive.head_by(source, 1, "g"), derive.tail_by(source, 1, "g")
    assert first.is_append_only
    assert not last.is_append_only
    for number in range(6):
        source.stage_add(rows((number, "AB"[number % 2])))
        graph.run_cycle()
    assert (keys(first), keys(last), passes) == ([0, 1], [4, 5], [])


def test_groups_that_come_and_go_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrage.engine.aggregation.grouping.FREE_GROUPS_MIN", 4)
    monkeypatch.setattr("barrage.engine.aggregation.row_runs.UNUSED_MIN", 4)
    graph = UpdateGraph()
    source = RingTable(graph, SCHEMA, capacity=3)
    last = derive.tail_by(source, 1, "g")
    for number in range(60):
        source.stage_add(rows((number, str(number)), (number, "A")))
        graph.run_cycle()
        expected = model.end_rows(model.rows_of(source), 1, ["g"], is_from_end=True)
        assert model.rows_of(last) == expected
    assert len(last._shown._count) < 30
    assert last._shown._used < 60


@pytest.mark.parametrize("operator", [derive.head_by, derive.tail_by])
def test_what_cannot_be_is_refused(operator) -> None:
    source = AppendOnlyTable(UpdateGraph(), SCHEMA)
    with pytest.raises(EngineError, match="-1 rows"):
        operator(source, -1, "g")
    with pytest.raises(SchemaError, match="'h' does not exist"):
        operator(source, 1, "h")
    with pytest.raises(SchemaError, match="cannot be a key"):
        operator(source, 1, "l")
    assert operator(source, 1, "g") is operator(source, 1, "g")
    assert operator(source, 1, "g") is not operator(source, 2, "g")

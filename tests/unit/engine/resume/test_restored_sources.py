"""Restored sources: the keys they may have, and the keys they hand out next."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph, restore_source
from barrage.errors import EngineError, SchemaError
from barrage.rowset import RowSet

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def rows(count: int) -> pa.Table:
    return pa.table([list(range(count)), [f"v{i}" for i in range(count)]], schema=SCHEMA)


def restored(kind: str, keys: str, count: int | None = None):
    wanted = RowSet.parse(keys) if keys else RowSet.empty()
    graph = UpdateGraph(first_step=70)
    return restore_source(
        graph,
        kind,
        SCHEMA,
        key=("k",) if kind == "keyed" else (),
        capacity=4 if kind == "ring" else None,
        keys=wanted,
        rows=rows(len(wanted) if count is None else count),
        changed_step=66,
    )


@pytest.mark.parametrize("kind", ["append-only", "append_only", "list", "blink", "static"])
def test_most_tables_number_their_rows_from_0(kind: str) -> None:
    assert restored(kind, "0-3").row_keys == RowSet.parse("0-3")
    assert restored(kind, "").size == 0
    with pytest.raises(EngineError, match="cannot have these 3 row keys"):
        restored(kind, "1-3")
    with pytest.raises(EngineError, match="2 row keys but 3 rows"):
        restored(kind, "0-1", 3)


def test_a_ring_goes_on_behind_its_last_row() -> None:
    table = restored("ring", "1000000000000-1000000000003")
    table.stage_add(rows(1))
    update = table.graph.run_cycle().updates[table]
    assert update.removed_keys_pre == RowSet([10**12])
    assert update.added_keys_post == RowSet([10**12 + 4])
    assert table.to_arrow()["v"].to_pylist() == ["v1", "v2", "v3", "v0"]
    assert table.storage.columns[0].nbytes < 10_000, "slots begin with the restored rows"


@pytest.mark.parametrize("keys", ["1-5", "0,2", "9223372036854775807"])
def test_a_ring_holds_one_run_of_at_most_its_capacity(keys: str) -> None:
    with pytest.raises(EngineError, match="a ring table cannot have"):
        restored("ring", keys)


def test_a_ring_needs_a_capacity() -> None:
    with pytest.raises(EngineError, match="needs a capacity"):
        restore_source(
            UpdateGraph(), "ring", SCHEMA, key=(), capacity=None, keys=RowSet.empty(), rows=rows(0)
        )


def test_a_keyed_table_keeps_its_gaps() -> None:
    table = restored("keyed", "2,5-6,9")
    assert table.changed_step == 66
    assert table.to_arrow()["k"].to_pylist() == [0, 1, 2, 3]
    table.stage_upsert(pa.table({"k": [2, 8], "v": ["new", "newer"]}))
    update = table.graph.run_cycle().updates[table]
    assert update.last_step == 71
    assert update.modified_keys_post[1] == RowSet([6])
    assert update.added_keys_post == RowSet([10])
    assert table.to_arrow()["v"].to_pylist() == ["v0", "v1", "new", "v3", "newer"]


def test_a_keyed_table_never_has_more_gaps_than_packing_leaves() -> None:
    assert restored("keyed", "0,4159").size == 2
    with pytest.raises(EngineError, match="a keyed table cannot have these 1 row keys"):
        restored("keyed", "4128")


def test_rows_must_fit_the_schema() -> None:
    with pytest.raises(SchemaError, match="column 'v' is missing"):
        restore_source(
            UpdateGraph(),
            "list",
            SCHEMA,
            key=(),
            capacity=None,
            keys=RowSet([0]),
            rows=pa.table({"k": [1]}),
        )


def test_there_are_no_other_kinds() -> None:
    with pytest.raises(EngineError, match="no source of kind 'heap'"):
        restored("heap", "0")


def test_columns_of_every_layout_restore_with_gaps() -> None:
    plain = pa.array([["a"], None, []], pa.list_(pa.string()))
    codes = pa.array(["x", None, "x"]).dictionary_encode()
    table = pa.table({"k": [5, 6, 7], "l": plain, "d": codes})
    made = restore_source(
        UpdateGraph(),
        "keyed",
        table.schema,
        key=("k",),
        capacity=None,
        keys=RowSet([1, 3, 8]),
        rows=table,
    )
    assert isinstance(made, KeyedTable)
    assert made.to_arrow().to_pylist() == table.to_pylist()

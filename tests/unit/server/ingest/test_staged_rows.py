"""What a batch does to a table, by mode; change feeds against a naive replay."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import UpdateGraph
from barrage.engine.tables.keyed import KeyedTable
from barrage.errors import RowError, SchemaError, UnsupportedError
from barrage.limits import Limits
from barrage.server.ingest.staged_rows import TargetShape, last_by_key, staged_write

SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])
KEYED = TargetShape(name="t", kind="keyed", schema=SCHEMA, key=("k",))
PLAIN = TargetShape(name="t", kind="append_only", schema=SCHEMA, key=())


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip("kv", value, strict=True)) for value in values], SCHEMA)


def feed(*values: tuple[Any, ...], **columns: Any) -> pa.Table:
    """Rows of (change type, version, key, value)."""
    names = ("_change_type", "_commit_version", "k", "v")
    types = (pa.string(), pa.int64(), pa.string(), pa.int64())
    listed = zip(*values, strict=True) if values else [()] * 4
    table = pa.table(
        [pa.array(list(c), t) for c, t in zip(listed, types, strict=True)], names=names
    )
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def steps(parts: list[pa.Table], target: TargetShape, mode: str, **options: Any) -> Any:
    options.setdefault("merge_schema", False)
    write = staged_write(parts, target, mode, **options)
    return [(name, table.to_pylist()) for name, table in write.steps]


def row(k: str, v: int | None) -> dict[str, Any]:
    return {"k": k, "v": v}


def test_appended_rows_go_to_the_end_of_a_table_without_key():
    parts = [rows(("a", 1)), rows(("a", 1), ("b", 2))]
    assert steps(parts, PLAIN, "append") == [("stage_add", [row("a", 1), row("a", 1), row("b", 2)])]


def test_the_last_row_of_a_key_counts():
    parts = [rows(("a", 1), ("b", 2)), rows(("a", 3))]
    for mode in ("append", "upsert"):
        assert steps(parts, KEYED, mode) == [("stage_upsert", [row("b", 2), row("a", 3)])]


def test_a_batch_without_rows_still_has_a_step():
    assert steps([], PLAIN, "append") == [("stage_add", [])]
    assert steps([], KEYED, "upsert") == [("stage_upsert", [])]
    assert steps([], KEYED, "changes") == [("stage_remove", []), ("stage_upsert", [])]
    assert steps([], KEYED, "replace") == [("stage_replace", [])]


def test_an_upsert_needs_a_key():
    with pytest.raises(SchemaError, match="has no key"):
        steps([rows(("a", 1))], PLAIN, "upsert")


def test_columns_are_matched_by_name_and_cast():
    part = pa.table({"v": pa.array([1], pa.int32()), "k": pa.array(["a"], pa.large_string())})
    assert steps([part], KEYED, "upsert") == [("stage_upsert", [row("a", 1)])]


def test_missing_and_unknown_columns_are_refused_unless_the_table_can_do_without():
    with pytest.raises(SchemaError, match="'v' is missing"):
        steps([rows(("a", 1)).select(["k"])], KEYED, "upsert")
    more = rows(("a", 1)).append_column("w", pa.array([1]))
    with pytest.raises(SchemaError, match="unknown column 'w'"):
        steps([more], KEYED, "upsert")
    merged = steps([rows(("a", 1)).select(["k"])], KEYED, "upsert", merge_schema=True)
    assert merged == [("stage_upsert", [row("a", None)])]
    with pytest.raises(UnsupportedError, match="'w' is not in table 't'"):
        steps([more], KEYED, "upsert", merge_schema=True)


def test_a_null_key_is_refused_with_its_row():
    with pytest.raises(RowError, match="a key must not be null") as raised:
        steps([rows(("a", 1), (None, 2))], KEYED, "upsert")
    assert (raised.value.column, raised.value.row) == ("k", 1)


def test_keys_of_several_columns_and_encodings_are_told_apart():
    table = pa.table(
        {
            "a": pa.chunked_array(
                [pa.array(["x", "y"]).dictionary_encode(), pa.array(["y", "x"]).dictionary_encode()]
            ),
            "b": [1, 1, 1, 2],
        }
    )
    assert last_by_key(table, ["a", "b"]).column("a").to_pylist() == ["x", "y", "x"]
    assert last_by_key(table, ["a"]).column("b").to_pylist() == [1, 2]


# --- change feeds ---


def test_changes_become_removals_and_upserts():
    part = feed(
        ("insert", 1, "a", 1),
        ("insert", 1, "b", 1),
        ("update_preimage", 2, "a", 1),
        ("update_postimage", 2, "a", 2),
        ("delete", 3, "b", 1),
        ("delete", 3, "z", 9),
    )
    assert steps([part], KEYED, "changes") == [
        ("stage_remove", [{"k": "b"}, {"k": "z"}]),
        ("stage_upsert", [row("a", 2)]),
    ]


def test_versions_order_changes_whatever_part_they_come_in():
    late, early = feed(("update_postimage", 7, "a", 7)), feed(("insert", 2, "a", 2))
    assert steps([late, early], KEYED, "changes")[1] == ("stage_upsert", [row("a", 7)])


def test_a_row_that_changes_its_key_leaves_the_old_one():
    part = feed(
        ("update_preimage", 2, "a", 1),
        ("update_postimage", 2, "b", 1),
        ("update_preimage", 2, "b", 5),
        ("update_postimage", 2, "c", 5),
    )
    assert steps([part], KEYED, "changes") == [
        ("stage_remove", [{"k": "a"}]),
        ("stage_upsert", [row("b", 1), row("c", 5)]),
    ]


def test_truncate_replaces_everything_with_what_comes_after_it():
    parts = [
        feed(("truncate", 5, None, None)),
        feed(("insert", 4, "old", 1), ("insert", 5, "new", 2), ("delete", 6, "gone", 3)),
    ]
    assert steps(parts, KEYED, "changes") == [("stage_replace", [row("new", 2)])]


def test_truncate_needs_versions():
    part = feed(("truncate", 5, None, None)).drop_columns("_commit_version")
    with pytest.raises(SchemaError, match="_commit_version"):
        steps([part], KEYED, "changes")


def test_a_table_without_key_takes_inserts_alone():
    assert steps([feed(("insert", 2, "b", 2), ("insert", 1, "a", 1))], PLAIN, "changes") == [
        ("stage_add", [row("a", 1), row("b", 2)])
    ]
    with pytest.raises(SchemaError, match="need one"):
        steps([feed(("delete", 1, "a", 1))], PLAIN, "changes")


def test_columns_of_the_feed_are_not_stored_unless_the_table_has_them():
    part = feed(("insert", 1, "a", 1), _row_id=pa.array([7]), _row_key=pa.array([0]))
    assert steps([part], KEYED, "changes")[1] == ("stage_upsert", [row("a", 1)])
    schema = pa.schema([pa.field("_row_id", pa.int64()), *SCHEMA])
    by_id = TargetShape(name="t", kind="keyed", schema=schema, key=("_row_id",))
    assert steps([part], by_id, "changes")[1] == ("stage_upsert", [{"_row_id": 7, **row("a", 1)}])


@pytest.mark.parametrize("words", [["insert", "upsert"], ["insert", None], ["INSERT", "insert"]])
def test_unknown_changes_are_refused(words):
    part = feed(("insert", 1, "a", 1), ("insert", 1, "b", 1))
    part = part.set_column(0, "_change_type", pa.array(words))
    with pytest.raises(RowError, match="_change_type"):
        steps([part], KEYED, "changes")


def test_a_feed_has_a_change_type_that_is_text():
    with pytest.raises(SchemaError, match="'_change_type' is missing"):
        steps([rows(("a", 1))], KEYED, "changes")
    listed = feed(("insert", 1, "a", 1)).set_column(0, "_change_type", pa.array([[1]]))
    with pytest.raises(SchemaError, match="must be text"):
        steps([listed], KEYED, "changes")


def test_encoded_change_types_are_read():
    part = feed(("insert", 1, "a", 1), ("delete", 2, "a", 1))
    part = part.set_column(0, "_change_type", part.column(0).dictionary_encode())
    assert steps([part], KEYED, "changes")[0] == ("stage_remove", [{"k": "a"}])


change = st.tuples(
    st.sampled_from(["insert", "update_postimage", "update_preimage", "delete", "truncate"]),
    st.integers(0, 5),
    st.sampled_from("abcd"),
    st.integers(0, 3),
)


def replayed(content: dict[str, int], changes: list[tuple[str, int, str, int]]) -> dict[str, int]:
    """The feed applied one change after the other: by version, a truncation first in its version,
    then what goes, then what comes."""
    ranks = {"truncate": 0, "delete": 1, "update_preimage": 1, "insert": 2, "update_postimage": 2}
    content = dict(content)
    for kind, _, key, value in sorted(changes, key=lambda c: (c[1], ranks[c[0]])):
        if kind == "truncate":
            content.clear()
        elif ranks[kind] == 1:
            content.pop(key, None)
        else:
            content[key] = value
    return content


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)),
    st.lists(change, max_size=12),
    st.lists(st.integers(0, 12), max_size=2),
)
def test_a_feed_applied_at_once_equals_its_replay(content, changes, cuts):
    graph = UpdateGraph(Limits())
    table = KeyedTable(graph, SCHEMA, key="k")
    table.stage_upsert(rows(*content.items()))
    graph.run_cycle()
    values = [(t, n, None, None) if t == "truncate" else (t, n, k, v) for t, n, k, v in changes]
    ends = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [feed(*values[i:j]) for i, j in pairwise(ends)]
    # A part's own order stands for nothing but ties, which come in the order of the parts.
    for name, staged in staged_write(parts, KEYED, "changes", merge_schema=False).steps:
        getattr(table, name)(staged)
    graph.run_cycle()
    found = {r["k"]: r["v"] for r in table.to_arrow().to_pylist()}
    assert found == replayed(content, changes)

"""Dictionary columns of sources: what they are made of when they come, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, StaticTable, UpdateGraph
from barrage.engine.tables.coercion import coerce_rows, normalised_schema
from barrage.engine.tables.keyed import check_keys_of
from barrage.engine.tables.source import StoredRows
from barrage.errors import RowError, SchemaError
from barrage.limits import DEFAULT_LIMITS
from barrage.model.storage import encoded

TEXT = pa.dictionary(pa.int32(), pa.string())


def test_a_null_of_a_dictionary_is_a_null_cell() -> None:
    schema = pa.schema([pa.field("d", TEXT)])
    words = pa.array(["a", None, "b", None, "c"])
    cells = pa.DictionaryArray.from_arrays(pa.array([4, 1, 0, None, 2, 3], pa.int32()), words)
    fitting = coerce_rows(schema, pa.table({"d": cells})).column("d")
    assert fitting.to_pylist() == ["c", None, "a", None, "b", None]
    assert fitting.chunk(0).dictionary.to_pylist() == ["a", "b", "c"]
    assert fitting.null_count == 3


def test_a_null_of_a_dictionary_is_found_where_none_may_be() -> None:
    schema = pa.schema([pa.field("d", TEXT, nullable=False)])
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", None]))
    with pytest.raises(RowError, match="null is not allowed"):
        coerce_rows(schema, pa.table({"d": cells}, schema=schema))


def test_dictionaries_of_views_are_kept_plain() -> None:
    given = pa.schema([("d", pa.dictionary(pa.int8(), pa.string_view()))])
    assert normalised_schema(given, DEFAULT_LIMITS).field("d").type == TEXT


WORDS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
LISTS = pa.ListArray.from_arrays(pa.array([0, 2, 3]), WORDS)
NESTED = {
    "list": LISTS,
    "large list": pa.LargeListArray.from_arrays(pa.array([0, 2, 3], pa.int64()), WORDS),
    "fixed size list": pa.FixedSizeListArray.from_arrays(WORDS, 3),
    "struct": pa.StructArray.from_arrays([WORDS], ["s"]),
    "map": pa.MapArray.from_arrays(pa.array([0, 1]), pa.array(["k"]), WORDS.slice(0, 1)),
    "list of structs": pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.StructArray.from_arrays([WORDS], ["s"])
    ),
    "struct of lists": pa.StructArray.from_arrays([LISTS], ["l"]),
}


@pytest.mark.parametrize("cells", NESTED.values(), ids=NESTED)
def test_dictionaries_inside_of_others_are_kept_plain(cells: pa.Array) -> None:
    given = pa.table({"d": cells})
    schema = normalised_schema(given.schema, DEFAULT_LIMITS)
    assert "dictionary" not in str(schema.field("d").type)
    assert coerce_rows(schema, given).to_pylist() == given.to_pylist()
    table = AppendOnlyTable(graph := UpdateGraph(), schema)
    for _ in range(5):
        table.stage_add(given)
        table.stage_add(given)
        assert not graph.run_cycle().failed
    assert table.to_arrow().to_pylist() == given.to_pylist() * 10


def test_types_without_dictionaries_are_what_they_were() -> None:
    given = pa.schema(
        [
            pa.field("l", pa.list_(pa.field("member", pa.int8(), nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.int8()), keys_sorted=True)),
            pa.field("s", pa.struct([pa.field("x", pa.int8(), metadata={"a": "b"})])),
        ]
    )
    assert normalised_schema(given, DEFAULT_LIMITS).equals(given, check_metadata=True)


def test_dictionaries_of_lists_are_refused_by_name() -> None:
    given = pa.schema([("d", pa.dictionary(pa.int8(), pa.list_(pa.int8())))])
    with pytest.raises(SchemaError, match=r"column 'd' is a dictionary of list"):
        normalised_schema(given, DEFAULT_LIMITS)


@pytest.mark.parametrize("is_each_once", [True, False])
def test_keys_are_checked_as_the_table_will(is_each_once: bool) -> None:
    rows = pa.table({"k": pa.chunked_array([[1, 2], [1, None]])})
    with pytest.raises(RowError, match="must not be null"):
        check_keys_of(rows, ["k"], is_each_once=is_each_once)
    twice = rows.slice(0, 3)
    if is_each_once:
        with pytest.raises(RowError, match="key 1 occurs twice"):
            check_keys_of(twice, ["k"], is_each_once=True)
    else:
        check_keys_of(twice, ["k"], is_each_once=False)


def test_a_static_table_looks_at_no_value_that_is_stored_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = pa.table({"d": pa.array([str(number) for number in range(9000)]).dictionary_encode()})
    stored = StoredRows(rows, DEFAULT_LIMITS)
    for name in ("append", "_codes_of"):
        monkeypatch.setattr(encoded.DictionaryColumn, name, None)
    monkeypatch.setattr(encoded.DistinctRows, "cells", None)
    table = StaticTable(UpdateGraph(), stored)
    (cells,) = table.read(table.row_keys)
    assert cells.to_pylist() == rows["d"].to_pylist()

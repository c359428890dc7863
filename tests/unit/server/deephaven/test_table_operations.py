"""Every operation of TableService, one call each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import (
    RowError,
)
from barrage.server.tables.table_service import Change
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench, run
from tests.unit.server.deephaven.table_requests import (
    RIGHT,
    ROWS,
    TWICE,
    Client,
    columns,
    combo,
    count,
    join,
    kind,
    reference,
    schema_of,
    sorts,
)

Row = tuple[Any, ...]


@pytest.fixture
def client(bench: Bench) -> Client:
    return Client(bench)


@pytest.fixture
def source(bench: Bench) -> bytes:
    return bench.static(1, ROWS)


@pytest.fixture
def right(bench: Bench) -> bytes:
    return bench.static(2, RIGHT)


ONE_SOURCE: list[tuple[str, str, dict[str, Any], list[Row]]] = [
    (
        "FetchTable",
        "FetchTableRequest",
        {},
        [("a", 1, 0.5), ("b", 2, -2.0), ("a", None, 1.5), (None, 4, None)],
    ),
    (
        "View",
        "SelectOrUpdateRequest",
        {"column_specs": ["m = n + 1", "k"]},
        [(2, "a"), (3, "b"), (None, "a"), (5, None)],
    ),
    ("Select", "SelectOrUpdateRequest", {"column_specs": ["n"]}, [(1,), (2,), (None,), (4,)]),
    (
        "Update",
        "SelectOrUpdateRequest",
        {"column_specs": ["x = n", "y = x * 2"]},
        [("a", 1, 1, 2), ("b", 2, 2, 4), ("a", None, None, None), (None, 4, 4, 8)],
    ),
    (
        "LazyUpdate",
        "SelectOrUpdateRequest",
        {"column_specs": ["n = x", "x = 1"]},
        [("a", 0.5, 1), ("b", -2.0, 1), ("a", 1.5, 1), (None, None, 1)],
    ),
    (
        "UpdateView",
        "SelectOrUpdateRequest",
        {"column_specs": ["n = ii"]},
        [("a", 0, 0.5), ("b", 1, -2.0), ("a", 2, 1.5), (None, 3, None)],
    ),
    (
        "DropColumns",
        "DropColumnsRequest",
        {"column_names": ["k", "x"]},
        [(1,), (2,), (None,), (4,)],
    ),
    ("SelectDistinct", "SelectDistinctRequest", {"column_names": ["k"]}, [("a",), ("b",), (None,)]),
    (
        "UnstructuredFilter",
        "UnstructuredFilterTableRequest",
        {"filters": ["n > 1", "i > 0"]},
        [("b", 2, -2.0), (None, 4, None)],
    ),
    (
        "Sort",
        "SortTableRequest",
        sorts(("x", 1, False)),
        [(None, 4, None), ("b", 2, -2.0), ("a", 1, 0.5), ("a", None, 1.5)],
    ),
    (
        "Sort",
        "SortTableRequest",
        sorts(("k", -1, False), ("n", 1, False)),
        [("b", 2, -2.0), ("a", None, 1.5), ("a", 1, 0.5), (None, 4, None)],
    ),
    (
        "Sort",
        "SortTableRequest",
        sorts(("x", -1, True)),
        [("b", 2, -2.0), ("a", None, 1.5), ("a", 1, 0.5), (None, 4, None)],
    ),
    (
        "Sort",
        "SortTableRequest",
        sorts(("x", 2, False)),
        [(None, 4, None), ("a", None, 1.5), ("b", 2, -2.0), ("a", 1, 0.5)],
    ),
    ("Head", "HeadOrTailRequest", {"num_rows": 1}, [("a", 1, 0.5)]),
    ("Tail", "HeadOrTailRequest", {"num_rows": 1}, [(None, 4, None)]),
    (
        "Slice",
        "SliceRequest",
        {"first_position_inclusive": 1, "last_position_exclusive": -2},
        [("b", 2, -2.0)],
    ),
    ("Slice", "SliceRequest", {"first_position_inclusive": -1}, [(None, 4, None)]),
    (
        "HeadBy",
        "HeadOrTailByRequest",
        {"num_rows": 1, "group_by_column_specs": ["k"]},
        [("a", 1, 0.5), ("b", 2, -2.0), (None, 4, None)],
    ),
    (
        "TailBy",
        "HeadOrTailByRequest",
        {"num_rows": 1, "group_by_column_specs": ["k", "k"]},
        [("b", 2, -2.0), ("a", None, 1.5), (None, 4, None)],
    ),
    ("TailBy", "HeadOrTailByRequest", {"num_rows": 1}, [(None, 4, None)]),
    ("Flatten", "FlattenRequest", {}, [tuple(row.values()) for row in ROWS.to_pylist()]),
    ("Snapshot", "SnapshotTableRequest", {}, [tuple(row.values()) for row in ROWS.to_pylist()]),
    (
        "MetaTable",
        "MetaTableRequest",
        {},
        [
            ("k", "java.lang.String", "Normal", False),
            ("n", "int", "Normal", False),
            ("x", "double", "Normal", False),
        ],
    ),
]


@pytest.mark.parametrize(("method", "request_name", "fields", "expected"), ONE_SOURCE)
def test_operation_on_one_table(
    client: Client,
    source: bytes,
    method: str,
    request_name: str,
    fields: dict[str, Any],
    expected: list[Row],
) -> None:
    assert client.of(source, method, request_name, **fields) == expected


@pytest.mark.parametrize(
    ("method", "request_name"),
    [
        ("View", "SelectOrUpdateRequest"),
        ("Update", "SelectOrUpdateRequest"),
        ("UnstructuredFilter", "UnstructuredFilterTableRequest"),
        ("Filter", "FilterTableRequest"),
        ("Sort", "SortTableRequest"),
        ("ApplyPreviewColumns", "ApplyPreviewColumnsRequest"),
    ],
)
def test_asking_for_nothing_gives_the_table(
    client: Client, source: bytes, method: str, request_name: str
) -> None:
    assert client.make(method, request_name, source_id=reference(source)) is (
        client.lease(source).table
    )


def test_structured_filter(client: Client, source: bytes) -> None:
    column = MESSAGES.new("Value", reference=MESSAGES.new("Reference", column_name="n"))
    one = MESSAGES.new("Value", literal=MESSAGES.new("Literal", long_value=1))
    compare = MESSAGES.new("CompareCondition", operation=2, lhs=column, rhs=one)
    conditions = [MESSAGES.new("Condition", compare=compare)]
    assert client.of(source, "Filter", "FilterTableRequest", filters=conditions) == [
        ("b", 2, -2.0),
        (None, 4, None),
    ]


def test_merge_puts_columns_in_order(client: Client, bench: Bench, right: bytes) -> None:
    turned = bench.static(3, pa.table({"w": [7], "k": ["z"]}))
    table = client.make(
        "MergeTables", "MergeTablesRequest", source_ids=[reference(right), reference(turned)]
    )
    assert client.rows(table) == [("a", 10), ("b", 20), ("z", 7)]


def test_natural_join(client: Client, source: bytes, right: bytes) -> None:
    def joined(*match: str, **fields: Any) -> Any:
        return client.make(
            "NaturalJoinTables",
            "NaturalJoinTablesRequest",
            **join(source, right, *match, **fields),
        )

    everything = joined("k")
    assert everything.schema.names == ["k", "n", "x", "w"]
    assert [row[-1] for row in client.rows(everything)] == [10, 20, 10, None]
    renamed = joined("k == k", columns_to_add=["v = w", "q=k"])
    assert [row[-2:] for row in client.rows(renamed)] == [
        (10, "a"),
        (20, "b"),
        (10, "a"),
        (None, None),
    ]


def test_natural_join_keeps_the_key_of_another_name(client: Client, bench: Bench) -> None:
    left = bench.static(5, pa.table({"z": ["a", "c"]}))
    other = bench.static(6, RIGHT)
    table = client.make(
        "NaturalJoinTables", "NaturalJoinTablesRequest", **join(left, other, "z = k")
    )
    assert table.schema.names == ["z", "k", "w"]
    assert client.rows(table) == [("a", "a", 10), ("c", None, None)]


@pytest.mark.parametrize(("join_type", "expected"), [(2, 10), (3, 11)])
def test_natural_join_with_one_of_several(
    client: Client, bench: Bench, source: bytes, join_type: int, expected: int
) -> None:
    twice = bench.static(3, TWICE)
    table = client.make(
        "NaturalJoinTables",
        "NaturalJoinTablesRequest",
        **join(source, twice, "k", join_type=join_type),
    )
    assert [row[-1] for row in client.rows(table)] == [expected, 20, expected, None]


@pytest.mark.parametrize("join_type", [0, 1])
def test_natural_join_with_several_is_refused(
    client: Client, bench: Bench, source: bytes, join_type: int
) -> None:
    twice = bench.static(3, TWICE)
    with pytest.raises(RowError, match="a"):
        client.make(
            "NaturalJoinTables",
            "NaturalJoinTablesRequest",
            **join(source, twice, "k", join_type=join_type),
        )


@pytest.mark.parametrize(("inverted", "expected"), [(False, [1, 2, None]), (True, [4])])
def test_where_in(
    client: Client, source: bytes, right: bytes, inverted: bool, expected: list[int | None]
) -> None:
    table = client.make("WhereIn", "WhereInRequest", **join(source, right, "k", inverted=inverted))
    assert table.schema.names == ["k", "n", "x"]
    assert [row[1] for row in client.rows(table)] == expected


def test_null_is_a_value_of_where_in(client: Client, source: bytes) -> None:
    table = client.make("WhereIn", "WhereInRequest", **join(source, source, "k", "n"))
    assert len(client.rows(table)) == 4


def test_where_in_of_tables_with_a_column_called_like_its_mark(
    client: Client, bench: Bench
) -> None:
    left = bench.static(5, pa.table({"found": [1, 2], "found_": [3, 4]}))
    other = bench.static(6, pa.table({"found": [2, 2, 3]}))
    table = client.make("WhereIn", "WhereInRequest", **join(left, other, "found"))
    assert client.rows(table) == [(2, 4)]


def test_aggregate(client: Client, source: bytes) -> None:
    table = client.make(
        "Aggregate",
        "AggregateRequest",
        source_id=reference(source),
        group_by_columns=["k"],
        aggregations=[
            count("rows"),
            columns("sum", "s = n"),
            columns("avg", "m=x"),
            columns("first", "f=n"),
            columns("last", "l=n"),
            columns("min", "lo=x"),
            columns("max", "hi=x"),
            columns("abs_sum", "ab=x"),
            columns("weighted_avg", "wa=x", weight_column="n"),
            columns("weighted_sum", "ws=x", weight_column="n"),
        ],
    )
    assert table.schema.names == ["k", "rows", "s", "m", "f", "l", "lo", "hi", "ab", "wa", "ws"]
    assert client.rows(table) == [
        ("a", 2, 1, 1.0, 1, None, 0.5, 1.5, 2.0, 0.5, 0.5),
        ("b", 1, 2, -2.0, 2, 2, -2.0, -2.0, 2.0, -2.0, -4.0),
        (None, 1, 4, None, 4, 4, None, None, None, None, None),
    ]


def test_aggregate_all(client: Client, source: bytes) -> None:
    spec = columns("sum").columns.spec
    rows = client.of(
        source, "AggregateAll", "AggregateAllRequest", spec=spec, group_by_columns=["k"]
    )
    assert rows == [("a", 1, 2.0), ("b", 2, -2.0), (None, 4, None)]
    spec = columns("weighted_avg", weight_column="n").columns.spec
    rows = client.of(
        source, "AggregateAll", "AggregateAllRequest", spec=spec, group_by_columns=["k"]
    )
    assert rows == [("a", 0.5), ("b", -2.0), (None, None)]


def test_combo_aggregate(client: Client, source: bytes) -> None:
    aggregates = [
        combo(0, "s=n"),
        combo(4, column_name="rows"),
        combo(7),
        combo(13, "wa=x", column_name="n"),
    ]
    table = client.make(
        "ComboAggregate",
        "ComboAggregateRequest",
        source_id=reference(source),
        aggregates=aggregates,
        group_by_columns=["k"],
    )
    assert table.schema.names == ["k", "s", "rows", "n", "x", "wa"]
    assert client.rows(table)[0] == ("a", 1, 2, 1, 0.5, 0.5)


def test_empty_table(client: Client) -> None:
    result = client.new_ticket()
    blank = client.made(result, "EmptyTable", "EmptyTableRequest", size=3)
    assert (blank.size, blank.schema.names) == (3, [])
    made = client.of(result, "Update", "SelectOrUpdateRequest", column_specs=["a = 1", "b = i"])
    assert made == [(1, 0), (1, 1), (1, 2)]


def test_input_table_from_a_schema(client: Client) -> None:
    table = client.make(
        "CreateInputTable",
        "CreateInputTableRequest",
        schema=ROWS.schema.serialize().to_pybytes(),
        kind=kind("in_memory_key_backed", key_columns=["n"]),
    )
    assert (table.kind, table.key_columns) == ("keyed", ("n",))
    assert table.schema.names == ["k", "n", "x"]
    lease = run(
        client.bench.resolver.resolve(
            b"e" + client.next_id.to_bytes(4, "little"), client.bench.session
        )
    )
    assert lease.input_target is table


@pytest.mark.parametrize(
    ("name", "expected"), [("in_memory_append_only", "append-only"), ("blink", "blink")]
)
def test_input_table_like_another(client: Client, source: bytes, name: str, expected: str) -> None:
    table = client.make(
        "CreateInputTable",
        "CreateInputTableRequest",
        source_table_id=reference(source),
        kind=kind(name),
    )
    assert (table.kind, table.size) == (expected, 0)
    assert table.schema.equals(ROWS.schema)


def test_fetched_input_table_can_be_written(client: Client, bench: Bench) -> None:
    target = bench.tables.create_input("append_only", ROWS.schema).result()
    held = bench.export(7, target, is_input=True)
    result = client.new_ticket()
    client.made(result, "FetchTable", "FetchTableRequest", source_id=reference(held))
    assert client.lease(result).input_target is target
    head = client.new_ticket()
    client.made(head, "Head", "HeadOrTailRequest", source_id=reference(held), num_rows=1)
    assert client.lease(head).input_target is None


def test_arrays_become_rows(client: Client, bench: Bench) -> None:
    rows = pa.table({"k": ["a", "b", "c"], "l": [[1, None], None, [3]]})
    source = bench.static(1, rows)
    expected = [("a", 1), ("a", None), ("c", 3)]
    assert client.of(source, "Ungroup", "UngroupRequest", columns_to_ungroup=["l"]) == expected
    assert client.of(source, "Ungroup", "UngroupRequest", null_fill=True) == expected


def test_preview_turns_other_types_to_text(client: Client, bench: Bench) -> None:
    rows = pa.table(
        {
            "n": pa.array([1, None], pa.int32()),
            "b": [b"\x01", None],
            "l": pa.array([[1, 2], None], pa.list_(pa.int32())),
        }
    )
    source = bench.static(9, rows)

    def preview(*types: str, convert_arrays: bool = False) -> list[Row]:
        return client.of(
            source,
            "ApplyPreviewColumns",
            "ApplyPreviewColumnsRequest",
            unpreviewed_types=types,
            convert_arrays=convert_arrays,
        )

    assert preview("int") == [(1, "01", [1, 2]), (None, None, None)]
    assert preview("byte[]", convert_arrays=True) == [("1", b"\x01", "[1, 2]"), (None, None, None)]
    assert preview("int", "byte[]", "int[]", convert_arrays=True) == [
        (1, b"\x01", [1, 2]),
        (None, None, None),
    ]


def test_results_follow_their_sources(client: Client, bench: Bench) -> None:
    table = bench.create("quotes", ROWS.slice(0, 2), key="n")
    head = client.make(
        "Sort", "SortTableRequest", source_id=reference(b"s/quotes"), **sorts(("n", -1, False))
    )
    assert head.is_static is False
    more = pa.table({"k": ["z"], "n": pa.array([9], pa.int32()), "x": [1.0]})
    bench.tables.change([Change(table, "stage_upsert", (more,))]).result()
    assert client.rows(head)[0] == ("z", 9, 1.0)


def test_snapshot_does_not_follow(client: Client, bench: Bench) -> None:
    table = bench.create("quotes", ROWS.slice(0, 2), key="n")
    copy = client.make("Snapshot", "SnapshotTableRequest", source_id=reference(b"s/quotes"))
    bench.tables.change([Change(table, "stage_replace", (ROWS.slice(0, 0),))]).result()
    assert (copy.is_static, copy.size) == (True, 2)


def test_creation_response_keeps_the_ticket(client: Client, bench: Bench, source: bytes) -> None:
    bench.create("quotes", ROWS)
    for asked in (source, b"s/quotes"):
        answer = MESSAGES.decode(
            "ExportedTableCreationResponse",
            client.ask("GetExportedTableCreationResponse", MESSAGES.encode("Ticket", ticket=asked)),
        )
        assert answer.result_id.ticket.ticket == asked
        assert (answer.success, answer.size) == (True, 4)
        types = {field.name: field.metadata[b"deephaven:type"] for field in schema_of(answer)}
        assert types == {"k": b"java.lang.String", "n": b"int", "x": b"double"}

"""What TableService refuses, and what becomes of the results of calls that fail or wait."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from barrage.engine.operators.derive import BUILDERS
from barrage.errors import (
    BarrageError,
    ExpressionError,
    LimitExceededError,
    RemoteProtocolError,
    SchemaError,
    StatusCode,
    TableFailedError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.server.access.exports import ExportState
from barrage.server.deephaven.operations.operation_table import OPERATIONS, REFUSED
from barrage.server.deephaven.operations.operations import OperationError
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench, WrittenContext, run
from tests.unit.server.deephaven.table_requests import (
    RIGHT,
    ROWS,
    Client,
    columns,
    combo,
    count,
    join,
    kind,
    reference,
    sorts,
    ticket,
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


Refusal = tuple[str, str, dict[str, Any], type[BarrageError], str]

REFUSALS: list[Refusal] = [
    ("View", "SelectOrUpdateRequest", {"column_specs": ["nope"]}, ExpressionError, "nope"),
    ("Update", "SelectOrUpdateRequest", {"column_specs": ["a = ("]}, ExpressionError, "position"),
    ("DropColumns", "DropColumnsRequest", {"column_names": ["nope"]}, SchemaError, "nope"),
    ("SelectDistinct", "SelectDistinctRequest", {"column_names": ["nope"]}, SchemaError, "nope"),
    (
        "UnstructuredFilter",
        "UnstructuredFilterTableRequest",
        {"filters": ["n >"]},
        ExpressionError,
        "n >",
    ),
    ("Sort", "SortTableRequest", sorts(("nope", 1, False)), ExpressionError, "nope"),
    ("Sort", "SortTableRequest", sorts(("nope", 1, True)), ExpressionError, "nope"),
    ("Sort", "SortTableRequest", sorts(("k", 1, True)), ExpressionError, "abs"),
    ("Sort", "SortTableRequest", sorts(("n", 0, False)), RemoteProtocolError, "direction 0"),
    (
        "Sort",
        "SortTableRequest",
        sorts(("n", 1, False), ("n", 2, False)),
        UnsupportedError,
        "REVERSE",
    ),
    ("Head", "HeadOrTailRequest", {"num_rows": -1}, RemoteProtocolError, "not -1"),
    ("Tail", "HeadOrTailRequest", {"num_rows": -1}, RemoteProtocolError, "not -1"),
    (
        "Slice",
        "SliceRequest",
        {"first_position_inclusive": 2, "last_position_exclusive": 1},
        OperationError,
        "slice",
    ),
    (
        "Slice",
        "SliceRequest",
        {"first_position_inclusive": -1, "last_position_exclusive": -2},
        OperationError,
        "slice",
    ),
    (
        "Slice",
        "SliceRequest",
        {"first_position_inclusive": -1, "last_position_exclusive": 2},
        UnsupportedError,
        "slice",
    ),
    ("Aggregate", "AggregateRequest", {}, OperationError, "at least one"),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [count("n")], "preserve_empty": True},
        UnsupportedError,
        "preserve_empty",
    ),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [columns("count_distinct", "n")]},
        UnsupportedError,
        "count_distinct",
    ),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [columns("weighted_sum", "n", weight_column="n")]},
        UnsupportedError,
        "weighted_sum",
    ),
    ("Aggregate", "AggregateRequest", {"aggregations": [columns("sum", "k")]}, SchemaError, "sum"),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [columns("sum", "nope")]},
        SchemaError,
        "nope",
    ),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [columns("sum", "n"), columns("avg", "n")]},
        SchemaError,
        "two columns",
    ),
    (
        "Aggregate",
        "AggregateRequest",
        {"aggregations": [MESSAGES.new("Aggregation", formula=b"")]},
        UnsupportedError,
        "formula",
    ),
    ("AggregateAll", "AggregateAllRequest", {}, OperationError, "function"),
    (
        "AggregateAll",
        "AggregateAllRequest",
        {"spec": columns("sum").columns.spec, "group_by_columns": ["k", "n", "x"]},
        OperationError,
        "no column",
    ),
    ("ComboAggregate", "ComboAggregateRequest", {}, OperationError, "at least one"),
    (
        "ComboAggregate",
        "ComboAggregateRequest",
        {"aggregates": [combo(10, "n")]},
        UnsupportedError,
        "PERCENTILE",
    ),
    (
        "ComboAggregate",
        "ComboAggregateRequest",
        {"aggregates": [combo(99, "n")]},
        UnsupportedError,
        "99",
    ),
    (
        "ApplyPreviewColumns",
        "ApplyPreviewColumnsRequest",
        {"convert_arrays": True},
        OperationError,
        "types",
    ),
    (
        "ComputeColumnStatistics",
        "ColumnStatisticsRequest",
        {"column_name": "nope"},
        SchemaError,
        "nope",
    ),
    (
        "ComputeColumnStatistics",
        "ColumnStatisticsRequest",
        {"column_name": "k", "unique_value_limit": -1},
        OperationError,
        "-1",
    ),
]


@pytest.mark.parametrize(("method", "request_name", "fields", "error", "text"), REFUSALS)
def test_refused_request(
    client: Client,
    bench: Bench,
    source: bytes,
    method: str,
    request_name: str,
    fields: dict[str, Any],
    error: type[BarrageError],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        client.make(method, request_name, source_id=reference(source), **fields)
    export = bench.session.exports.find(client.next_id)
    assert export.state is ExportState.FAILED
    with pytest.raises(error):
        run(export.table_lease())


NO_SOURCE: list[Refusal] = [
    ("EmptyTable", "EmptyTableRequest", {"size": -1}, RemoteProtocolError, "-1"),
    ("EmptyTable", "EmptyTableRequest", {"size": 2**40}, LimitExceededError, "empty_table"),
    ("MergeTables", "MergeTablesRequest", {}, OperationError, "zero tables"),
    ("CreateInputTable", "CreateInputTableRequest", {"schema": b"x"}, OperationError, "kind"),
    (
        "CreateInputTable",
        "CreateInputTableRequest",
        {"kind": kind("blink")},
        OperationError,
        "schema or",
    ),
    (
        "CreateInputTable",
        "CreateInputTableRequest",
        {"kind": kind("blink"), "schema": b"x"},
        RemoteProtocolError,
        "schema",
    ),
    (
        "CreateInputTable",
        "CreateInputTableRequest",
        {"kind": kind("in_memory_key_backed"), "schema": ROWS.schema.serialize().to_pybytes()},
        OperationError,
        "key columns",
    ),
    (
        "CreateInputTable",
        "CreateInputTableRequest",
        {
            "kind": kind("in_memory_key_backed", key_columns=["q"]),
            "schema": ROWS.schema.serialize().to_pybytes(),
        },
        SchemaError,
        "'q'",
    ),
    ("TimeTable", "TimeTableRequest", {"period_string": "often"}, RemoteProtocolError, "often"),
    (
        "TimeTable",
        "TimeTableRequest",
        {"period_nanos": 10**9, "start_time_string": "noon"},
        RemoteProtocolError,
        "noon",
    ),
    (
        "TimeTable",
        "TimeTableRequest",
        {"period_nanos": 10**6, "start_time_nanos": 1},
        LimitExceededError,
        "time table",
    ),
    ("Head", "HeadOrTailRequest", {}, TicketError, "ticket references"),
]


@pytest.mark.parametrize(("method", "request_name", "fields", "error", "text"), NO_SOURCE)
def test_refused_request_without_source(
    client: Client,
    method: str,
    request_name: str,
    fields: dict[str, Any],
    error: type[BarrageError],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        client.make(method, request_name, **fields)


@pytest.mark.parametrize("join_type", [4, 77])
def test_join_types_that_are_not_supported(
    client: Client, source: bytes, right: bytes, join_type: int
) -> None:
    with pytest.raises(UnsupportedError, match="natural_join"):
        client.make(
            "NaturalJoinTables",
            "NaturalJoinTablesRequest",
            **join(source, right, "k", join_type=join_type),
        )


@pytest.mark.parametrize(
    ("match", "error"), [((), OperationError), (("nope",), SchemaError), (("n = k",), SchemaError)]
)
def test_where_in_of_what_does_not_match(
    client: Client, source: bytes, right: bytes, match: tuple[str, ...], error: type[BarrageError]
) -> None:
    with pytest.raises(error):
        client.make("WhereIn", "WhereInRequest", **join(source, right, *match))


def test_merge_by_key_is_refused(client: Client, right: bytes) -> None:
    with pytest.raises(UnsupportedError, match="merge"):
        client.make(
            "MergeTables", "MergeTablesRequest", source_ids=[reference(right)], key_column="k"
        )


@pytest.mark.parametrize(("name", "method"), REFUSED.items())
def test_operation_this_engine_does_not_have(client: Client, name: str, method: str) -> None:
    with pytest.raises(UnsupportedError, match=name) as caught:
        client.ask(method, b"")
    assert caught.value.status_code is StatusCode.UNIMPLEMENTED


def test_every_member_of_a_batch_is_known() -> None:
    members = {
        field.name for field in MESSAGES.new("BatchTableRequest.Operation").DESCRIPTOR.fields
    }
    assert members == {*OPERATIONS, *REFUSED}


def test_a_result_needs_a_ticket(client: Client, source: bytes) -> None:
    request = MESSAGES.encode("HeadOrTailRequest", source_id=reference(source))
    with pytest.raises(TicketError, match="no result ticket"):
        client.ask("Head", request)


def test_a_result_cannot_be_its_own_source(client: Client) -> None:
    result = client.new_ticket()
    with pytest.raises(OperationError, match="own source"):
        client.made(result, "Head", "HeadOrTailRequest", source_id=reference(result))


def test_a_result_id_in_use_is_refused(client: Client, source: bytes, right: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="in use"):
        client.made(source, "Head", "HeadOrTailRequest", source_id=reference(right))
    assert client.lease(source).table.size == 4


def test_an_unknown_source_fails_the_result(client: Client, bench: Bench) -> None:
    with pytest.raises(TableNotFoundError):
        client.make("Head", "HeadOrTailRequest", source_id=reference(b"s/nope"))
    assert bench.session.exports.find(client.next_id).state is ExportState.FAILED


def test_a_failed_source_is_refused(client: Client, bench: Bench) -> None:
    table = bench.create("quotes", ROWS)
    held = bench.export(7, table)
    bench.tables.run(lambda: table.fail(TableFailedError("it broke"))).result()
    for method, request in (("Head", "HeadOrTailRequest"), ("FetchTable", "FetchTableRequest")):
        with pytest.raises(TableFailedError):
            client.make(method, request, source_id=reference(held))


def test_a_source_that_is_still_to_come(client: Client, bench: Bench, source: bytes) -> None:
    promised, result = client.new_ticket(), client.new_ticket()

    def call(method: str, to: bytes, of: bytes) -> Any:
        request = MESSAGES.encode(
            "HeadOrTailRequest", result_id=ticket(to), source_id=reference(of), num_rows=2
        )
        behavior = client.methods[method].behavior
        return behavior(request, WrittenContext(), bench.session)

    async def both() -> None:
        early = asyncio.create_task(call("Head", result, promised))
        await asyncio.sleep(0)
        await call("Tail", promised, source)
        await early

    run(both())
    assert client.rows(client.lease(result).table) == [("a", None, 1.5), (None, 4, None)]


def test_a_call_given_up_fails_its_result(client: Client, bench: Bench) -> None:
    result = client.new_ticket()
    request = MESSAGES.encode(
        "HeadOrTailRequest",
        result_id=ticket(result),
        source_id=reference(client.new_ticket()),
        num_rows=1,
    )

    async def give_up() -> None:
        behavior = client.methods["Head"].behavior
        call = asyncio.create_task(behavior(request, WrittenContext(), bench.session))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(give_up())
    with pytest.raises(BarrageError, match="given up"):
        client.lease(result)


def test_too_many_columns_are_refused(bench: Bench, source: bytes) -> None:
    bench.limits = dataclasses.replace(bench.limits, columns_max=3)
    client = Client(bench)
    specs = ["a = n", "b = n"]
    with pytest.raises(LimitExceededError, match="columns"):
        client.of(source, "Update", "SelectOrUpdateRequest", column_specs=specs)
    with pytest.raises(LimitExceededError, match="columns"):
        client.of(source, "DropColumns", "DropColumnsRequest", column_names=["k"] * 4)


def test_unexpected_failures_say_nothing_of_the_inside(
    client: Client, source: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILDERS, "head", lambda table, count: 1 / 0)
    with pytest.raises(BarrageError, match=r"internal error, details are logged with id \w+$"):
        client.of(source, "Head", "HeadOrTailRequest", num_rows=1)

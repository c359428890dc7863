"""Batch: order, references between operations, answers and failures."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LimitExceededError,
    RemoteProtocolError,
    SchemaError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.server.access.exports import ExportState
from barrage.server.deephaven.operations.operations import OperationError
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench, WrittenContext, run
from tests.unit.server.deephaven.table_requests import (
    ROWS,
    Client,
    operation,
    place,
    reference,
    schema_of,
    ticket,
)


@pytest.fixture
def client(bench: Bench) -> Client:
    return Client(bench)


@pytest.fixture
def source(bench: Bench) -> bytes:
    return bench.static(1, ROWS)


def head(of: Any, rows: int, result: bytes | None = None) -> Any:
    return _limited("head", of, rows, result)


def tail(of: Any, rows: int, result: bytes | None = None) -> Any:
    return _limited("tail", of, rows, result)


def _limited(name: str, of: Any, rows: int, result: bytes | None) -> Any:
    fields = {} if result is None else {"result_id": ticket(result)}
    return operation(name, "HeadOrTailRequest", source_id=of, num_rows=rows, **fields)


def drop(of: Any, column: str, result: bytes | None = None) -> Any:
    fields = {} if result is None else {"result_id": ticket(result)}
    return operation(
        "drop_columns", "DropColumnsRequest", source_id=of, column_names=[column], **fields
    )


def told(answer: Any) -> tuple[Any, bool]:
    """Which result an answer is of, and whether there is one."""
    kind = answer.result_id.WhichOneof("ref")
    shown = answer.result_id.batch_offset if kind == "batch_offset" else answer.result_id.ticket
    return (shown if kind == "batch_offset" else bytes(shown.ticket)), answer.success


def test_one_answer_per_operation_in_order(client: Client, source: bytes) -> None:
    result = client.new_ticket()
    answers = client.batch(
        drop(reference(source), "k"), head(place(0), 3), tail(place(1), 1, result)
    )
    assert [told(answer) for answer in answers] == [(0, True), (1, True), (result, True)]
    assert [answer.size for answer in answers] == [4, 3, 1]
    assert schema_of(answers[2]).names == ["n", "x"]
    assert client.rows(client.lease(result).table) == [(None, 1.5)]


def test_one_fetch(client: Client, bench: Bench) -> None:
    """What the Java client opens every table with."""
    bench.create("quotes", ROWS)
    result = client.new_ticket()
    fetch = operation(
        "fetch_table",
        "FetchTableRequest",
        source_id=reference(b"s/quotes"),
        result_id=ticket(result),
    )
    assert [told(answer) for answer in client.batch(fetch)] == [(result, True)]
    assert client.lease(result).table.size == 4


def test_looking_ahead(client: Client, source: bytes) -> None:
    """By place and by ticket; what is used comes first, all else keeps its order."""
    first, third = client.new_ticket(), client.new_ticket()
    answers = client.batch(
        head(place(1), 1, first),
        head(reference(third), 3),
        drop(reference(source), "n", third),
        head(reference(source), 0),
    )
    assert [told(answer) for answer in answers] == [
        (third, True),
        (1, True),
        (first, True),
        (3, True),
    ]
    assert client.rows(client.lease(first).table) == [("a", 0.5)]


def test_a_failure_takes_what_needs_it_and_nothing_else(
    client: Client, bench: Bench, source: bytes
) -> None:
    lost, kept = client.new_ticket(), client.new_ticket()
    with pytest.raises(SchemaError, match="nope"):
        client.batch(
            drop(reference(source), "k"),
            drop(place(0), "nope"),
            head(place(1), 1, lost),
            head(place(0), 1, kept),
        )
    assert [told(answer) for answer in client.answers] == [
        (0, True),
        (1, False),
        (lost, False),
        (kept, True),
    ]
    for answer in client.answers[1:3]:
        assert answer.error_info == "INVALID_ARGUMENT: unknown column 'nope'"
        assert (answer.schema_header, answer.size) == (b"", 0)
    assert client.rows(client.lease(kept).table) == [(1, 0.5)]
    with pytest.raises(SchemaError):
        client.lease(lost)


def test_the_first_failure_ends_the_call(client: Client, source: bytes) -> None:
    with pytest.raises(TableNotFoundError):
        client.batch(head(reference(b"s/nope"), 1), head(reference(source), -1))
    assert [told(answer) for answer in client.answers] == [(0, False), (1, False)]


def test_operations_this_engine_does_not_have(client: Client, bench: Bench, source: bytes) -> None:
    """Those are known by name, and their results by ticket, whatever their requests are like."""
    wanted = client.new_ticket()
    unknown = MESSAGES.encode(
        "NaturalJoinTablesRequest", result_id=ticket(wanted), left_id=reference(source)
    )
    join = MESSAGES.new("BatchTableRequest.Operation", aj=unknown)
    by = MESSAGES.new("BatchTableRequest.Operation", update_by=b"")
    with pytest.raises(UnsupportedError, match="the operation aj"):
        client.batch(join, by, head(place(1), 1))
    assert [told(answer) for answer in client.answers] == [(wanted, False), (1, False), (2, False)]
    assert "update_by" in client.answers[2].error_info
    with pytest.raises(UnsupportedError):
        client.lease(wanted)


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ([], OperationError),
        ([MESSAGES.new("BatchTableRequest.Operation")], RemoteProtocolError),
        ([head(place(1), 1)], RemoteProtocolError),
        ([head(place(-1), 1)], RemoteProtocolError),
        ([head(place(0), 1)], OperationError),
        ([head(place(1), 1), head(place(0), 1)], OperationError),
        ([operation("head", "HeadOrTailRequest", num_rows=1)], RemoteProtocolError),
        (
            [head(reference(b"s/a"), 1, b"e\1\0\0\0"), head(place(0), 1, b"e\1\0\0\0")],
            RemoteProtocolError,
        ),
    ],
)
def test_batches_that_make_no_sense(
    client: Client, operations: list[Any], error: type[BarrageError]
) -> None:
    with pytest.raises(error):
        client.batch(*operations)
    assert client.answers == []


def test_too_many_operations(bench: Bench, source: bytes) -> None:
    bench.limits = dataclasses.replace(bench.limits, operations_max=2)
    client = Client(bench)
    operations = [head(reference(source), 1)] * 3
    assert len(client.batch(*operations[:2])) == 2
    with pytest.raises(LimitExceededError):
        client.batch(*operations)


def test_a_result_id_in_use_fails_all_results(client: Client, bench: Bench, source: bytes) -> None:
    fresh, later = client.new_ticket(), client.new_ticket()
    taken = bench.static(2, ROWS)
    with pytest.raises(RemoteProtocolError, match="in use"):
        client.batch(
            head(reference(source), 1, fresh),
            head(reference(source), 1, taken),
            head(reference(source), 1, later),
        )
    assert client.answers == []
    with pytest.raises(RemoteProtocolError):
        client.lease(fresh)
    assert client.lease(taken).table.size == 4
    # The one behind it was never defined and is free.
    assert len(client.batch(head(reference(source), 1, later))) == 1


def test_intermediate_results_go_with_the_batch(
    client: Client, bench: Bench, source: bytes
) -> None:
    result = client.new_ticket()
    client.batch(drop(reference(source), "k"), head(place(0), 3, result))
    exports = {export.export_id for export in bench.session.exports}
    assert exports == {1, client.next_id}


class _Gone(WrittenContext):
    """A client that goes away after the first answer."""

    async def write(self, message: bytes) -> None:
        if self.messages:
            raise ConnectionLostError("gone")
        await super().write(message)


def test_a_client_that_goes_away(client: Client, bench: Bench, source: bytes) -> None:
    """No result stays a promise."""
    tickets = [client.new_ticket() for _ in range(3)]
    operations = [head(reference(source), 1, each) for each in tickets]
    request = MESSAGES.encode("BatchTableRequest", ops=operations)
    with pytest.raises(ConnectionLostError):
        run(client.methods["Batch"].behavior(request, _Gone(), bench.session))
    states = [bench.session.exports.find(100 + number).state for number in (1, 2, 3)]
    assert states == [ExportState.READY, ExportState.READY, ExportState.FAILED]


def test_a_cancelled_batch(client: Client, bench: Bench) -> None:
    result, never = client.new_ticket(), client.new_ticket()
    request = MESSAGES.encode("BatchTableRequest", ops=[head(reference(never), 1, result)])

    async def cancel() -> None:
        behavior = client.methods["Batch"].behavior
        call = asyncio.create_task(behavior(request, WrittenContext(), bench.session))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(cancel())
    with pytest.raises(ConnectionLostError, match="given up"):
        client.lease(result)

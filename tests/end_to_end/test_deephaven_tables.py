"""Table operations of Deephaven clients over real sockets: answers, statuses, results that tick."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.server.tables.tickets import export_ticket
from barrage.transport.deephaven_messages import MESSAGES, TABLE_SERVICE
from tests.end_to_end.test_deephaven_sessions import Peer, Status, code_of
from tests.helpers.server_process import raw_channel, wait_until
from tests.unit.server.deephaven.table_requests import (
    operation,
    place,
    reference,
    schema_of,
    ticket,
)

ROWS = pa.table({"k": ["a", "b", None], "n": pa.array([3, None, 1], pa.uint32())})


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server() as running:
        running.create_table("quotes", data=ROWS)
        yield running


@pytest.fixture
def peer(server: barrage.Server) -> Iterator[Peer]:
    with raw_channel(server.address) as channel:
        yield Peer(channel).login()


def make(peer: Peer, method: str, request: str, export_id: int, **fields: Any) -> Any:
    message = MESSAGES.encode(request, result_id=ticket(export_ticket(export_id)), **fields)
    answer = peer.ask(f"/{TABLE_SERVICE}/{method}", message)
    return MESSAGES.decode("ExportedTableCreationResponse", answer)


def rows_of(server: barrage.Server, peer: Peer, export_id: int) -> pa.Table:
    options = flight.FlightCallOptions(headers=[(b"authorization", peer.header.encode())])
    with flight.FlightClient(f"grpc://{server.address}") as client:
        return client.do_get(flight.Ticket(export_ticket(export_id)), options).read_all()


def batch(peer: Peer, *operations: Any) -> Any:
    request = MESSAGES.encode("BatchTableRequest", ops=operations)
    return peer.stream(f"/{TABLE_SERVICE}/Batch", request)


def test_the_schema_told_is_the_schema_sent(server: barrage.Server, peer: Peer) -> None:
    source = reference(b"s/quotes")
    made = make(peer, "Update", "SelectOrUpdateRequest", 1, source_id=source, column_specs=["m=ii"])
    assert (made.success, made.size, made.is_static) == (True, 3, False)
    sent = rows_of(server, peer, 1)
    assert sent.schema.equals(schema_of(made), check_metadata=True)
    assert sent.to_pydict() == {"k": ["a", "b", None], "n": [3, None, 1], "m": [0, 1, 2]}


def test_results_tick(server: barrage.Server, peer: Peer) -> None:
    table = server.create_table("trades", data=ROWS)
    request = "UnstructuredFilterTableRequest"
    source = reference(b"s/trades")
    make(peer, "UnstructuredFilter", request, 1, source_id=source, filters=["n > 1"])
    table.add(pa.table({"k": ["z"], "n": pa.array([9], pa.uint32())}))
    wait_until(lambda: len(rows_of(server, peer, 1)) == 2)
    assert rows_of(server, peer, 1)["k"].to_pylist() == ["a", "z"]


def test_a_batch_answers_before_it_fails(server: barrage.Server, peer: Peer) -> None:
    """With a colon in the error, which some clients cannot read behind headers."""
    bad = operation(
        "update",
        "SelectOrUpdateRequest",
        source_id=place(0),
        column_specs=["a = b"],
        result_id=ticket(export_ticket(2)),
    )
    good = operation(
        "head",
        "HeadOrTailRequest",
        source_id=place(0),
        num_rows=2,
        result_id=ticket(export_ticket(3)),
    )
    fetch = operation("fetch_table", "FetchTableRequest", source_id=reference(b"s/quotes"))
    call = batch(peer, fetch, bad, good)
    assert dict(call.initial_metadata())["authorization"].startswith("Bearer ")
    answers = []
    with pytest.raises(grpc.RpcError) as caught:
        answers.extend(MESSAGES.decode("ExportedTableCreationResponse", each) for each in call)
    assert caught.value.code() is Status.INVALID_ARGUMENT
    assert "unknown column 'b'" in caught.value.details()
    assert ":" not in caught.value.details()
    assert len(rows_of(server, peer, 3)) == 2


def test_a_batch_that_is_no_batch_fails_before_headers(peer: Peer) -> None:
    code, details = code_of(lambda: list(batch(peer)))
    assert (code, details) == (Status.INVALID_ARGUMENT, "a batch must have at least one operation")


def test_statuses(peer: Peer) -> None:
    def status(method: str, request: str, **fields: Any) -> grpc.StatusCode:
        return peer.status(f"/{TABLE_SERVICE}/{method}", MESSAGES.encode(request, **fields))

    quotes, result = reference(b"s/quotes"), ticket(export_ticket(7))
    unknown = reference(b"s/nope")
    assert status("UpdateBy", "ReleaseRequest") is Status.UNIMPLEMENTED
    assert status("NoSuchMethod", "ReleaseRequest") is Status.UNIMPLEMENTED
    assert status("Head", "HeadOrTailRequest", source_id=quotes) is Status.FAILED_PRECONDITION
    assert status("Head", "HeadOrTailRequest", result_id=result) is Status.FAILED_PRECONDITION
    assert (
        status("Head", "HeadOrTailRequest", result_id=result, source_id=unknown) is Status.NOT_FOUND
    )
    assert peer.status(f"/{TABLE_SERVICE}/Head", b"\xff") is Status.INVALID_ARGUMENT


def test_a_time_table_grows_and_ends_with_its_server(peer: Peer, server: barrage.Server) -> None:
    made = make(peer, "TimeTable", "TimeTableRequest", 1, period_nanos=2_000_000)
    assert schema_of(made).names == ["Timestamp"]
    wait_until(lambda: len(rows_of(server, peer, 1)) > 5)
    peer.release(export_ticket(1))


def test_rows_without_columns(server: barrage.Server, peer: Peer) -> None:
    assert make(peer, "EmptyTable", "EmptyTableRequest", 1, size=5).size == 5
    assert len(rows_of(server, peer, 1)) == 5

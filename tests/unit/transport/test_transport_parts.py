"""Protobuf, Flight messages and statuses, as a client reads them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import (
    HistoryLostError,
    JournalCorruptError,
    JournalFullError,
    NoJournalError,
    ReaderMemoryError,
    RemoteProtocolError,
    RowError,
    SequenceError,
    SlowConsumerError,
    StatusCode,
)
from barrage.transport import flight_messages as messages
from barrage.transport.status import error_from_status

SCHEMA = pa.schema([("a", pa.int64())])


@given(st.binary(max_size=60))
def test_garbage_never_raises_anything_else(message):
    for decode in (
        messages.Descriptor.decode,
        messages.FlightInfo.decode,
        messages.decode_result,
    ):
        try:
            decode(message)
        except RemoteProtocolError:
            continue


def test_messages_agree_with_arrow():
    ticket = flight.Ticket(b"s/t")
    assert messages.encode_ticket(b"s/t") == ticket.serialize()
    path = flight.FlightDescriptor.for_path("scope", "t")
    assert messages.Descriptor(path=("scope", "t")).encode() == path.serialize()
    command = flight.FlightDescriptor.for_command(b"dphn")
    assert messages.Descriptor(command=b"dphn").encode() == command.serialize()
    assert messages.encode_action("x", b"y") == flight.Action("x", b"y").serialize()
    assert messages.decode_result(flight.Result(b"z").serialize()) == b"z"
    info = flight.FlightInfo(
        SCHEMA, path, [flight.FlightEndpoint(ticket, [])], total_records=7, total_bytes=-1,
        app_metadata=b"{}",
    )  # fmt: skip
    decoded = messages.FlightInfo.decode(info.serialize())
    assert decoded.descriptor.path == ("scope", "t")
    assert decoded.ticket == b"s/t"
    assert (decoded.total_records, decoded.total_bytes) == (7, -1)
    assert decoded.metadata == b"{}"
    assert pa.ipc.read_schema(pa.py_buffer(decoded.schema_message)) == SCHEMA
    schema_result = messages.encode_schema_result(SCHEMA.serialize().to_pybytes())
    assert flight.SchemaResult.deserialize(schema_result).schema == SCHEMA


@pytest.mark.parametrize(
    ("code", "text", "kind", "message"),
    [
        (StatusCode.NOT_FOUND, "table 'x' not found; did you mean 'y'?", "TableNotFoundError",
         "table 'x' not found"),
        (StatusCode.NOT_FOUND, "Could not resolve 'table: variable 'nope' not found",
         "TableNotFoundError", "table 'nope' not found"),
        (StatusCode.NOT_FOUND, "unknown action 'x'; this server has y", "ActionNotFoundError",
         "unknown action 'x'; this server has y"),
        (StatusCode.NOT_FOUND, "", "TableNotFoundError", "table 'mine' not found"),
        (StatusCode.ALREADY_EXISTS, "table 'x' exists already", "TableExistsError",
         "table 'x' exists already"),
        (StatusCode.UNAVAILABLE, "", "ConnectionLostError", "UNAVAILABLE"),
        (StatusCode.CANCELLED, "bye", "ConnectionLostError", "bye"),
        (StatusCode.UNAUTHENTICATED, "", "AuthenticationError",
         "the server accepts no call without valid credentials"),
        (StatusCode.FAILED_PRECONDITION, "Table is already failed", "TableFailedError",
         "Table is already failed"),
        (StatusCode.FAILED_PRECONDITION, "no route", "TicketError", "no route"),
        (StatusCode.UNIMPLEMENTED, "no", "UnsupportedError", "no"),
        (StatusCode.INTERNAL, "oops", "RequestRefusedError", "INTERNAL: oops"),
        (StatusCode.INTERNAL, "Stream removed (frame of size 9 overflows local window of 0)",
         "ConnectionLostError", "Stream removed (frame of size 9 overflows local window of 0)"),
        (StatusCode.INTERNAL, "Internal error from Core",
         "ConnectionLostError", "Internal error from Core"),
        (StatusCode.INTERNAL, "Received RST_STREAM with error code 2", "ConnectionLostError",
         "Received RST_STREAM with error code 2"),
        (StatusCode.INVALID_ARGUMENT, "", "RequestRefusedError", "INVALID_ARGUMENT"),
    ],
)  # fmt: skip
def test_statuses_become_errors(code, text, kind, message):
    error = error_from_status(code, text, table="mine")
    assert type(error).__name__ == kind
    assert str(error) == message


def test_a_name_nobody_knows():
    assert str(error_from_status(StatusCode.NOT_FOUND, "gone")) == "NOT_FOUND: gone"


def test_errors_with_numbers_get_them_back():
    slow = SlowConsumerError(stalled_ns=130 * 10**9, stall_ns_max=120 * 10**9)
    again = error_from_status(StatusCode.RESOURCE_EXHAUSTED, str(slow))
    assert isinstance(again, SlowConsumerError)
    assert (again.stalled_ns, again.stall_ns_max) == (slow.stalled_ns, slow.stall_ns_max)
    behind = ReaderMemoryError(nbytes=12_345_678, nbytes_max=67_108_864)
    again = error_from_status(StatusCode.RESOURCE_EXHAUSTED, str(behind))
    assert isinstance(again, ReaderMemoryError)
    assert (again.nbytes, again.nbytes_max) == (behind.nbytes, behind.nbytes_max)
    assert isinstance(again, SlowConsumerError), "which clients answer by subscribing anew"
    damaged = JournalCorruptError("wal/00000001.arrow", offset=77, reason="its CRC does not fit")
    again = error_from_status(StatusCode.DATA_LOSS, f"'t' is not served: {damaged}")
    assert isinstance(again, JournalCorruptError)
    assert (again.file, again.offset, again.reason) == (damaged.file, 77, damaged.reason)
    full = "the disk has no room for more history; writes are refused until there is"
    again = error_from_status(StatusCode.RESOURCE_EXHAUSTED, full)
    assert isinstance(again, JournalFullError)
    assert str(again) == full
    row = RowError("a key must not be null", column="k", row=3)
    again = error_from_status(StatusCode.INVALID_ARGUMENT, str(row))
    assert isinstance(again, RowError)
    assert (str(again), again.column, again.row) == (str(row), "k", 3)


def test_errors_about_history_and_producers_get_their_fields_back():
    code = StatusCode.FAILED_PRECONDITION
    lost = HistoryLostError("t", asked="0123456789abcdef:7", reason="it begins at step 9")
    for text in (
        str(lost),
        f"history-lost: truncated: {lost}",
        "history-lost: epoch: table 't' at 0123456789abcdef:7 cannot be had; it begins at step 9",
    ):
        again = error_from_status(code, text)
        assert isinstance(again, HistoryLostError)
        assert (again.table, again.asked) == ("t", lost.asked)
        assert again.reason == "it begins at step 9"
    for is_view in (False, True):
        none = NoJournalError("t", is_view=is_view)
        again = error_from_status(code, f"no-journal: {none}")
        assert isinstance(again, NoJournalError)
        assert (again.table, again.is_view) == ("t", is_view)
    refused = "write 5 of producer 'p' was refused: send it again before 6"
    assert isinstance(error_from_status(code, refused), SequenceError)

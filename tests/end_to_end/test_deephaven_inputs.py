"""Raw gRPC against a running server: uploads to exports, input tables, fields, consoles.

Every call goes over a socket and passes the guard; messages are built from the definitions alone.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONFIG_SERVICE,
    CONSOLE_SERVICE,
    INPUT_TABLE_SERVICE,
    MESSAGES,
    OBJECT_SERVICE,
    SESSION_SERVICE,
    STORAGE_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import Descriptor, decode_put_result
from barrage.wire import FlightFrame, encode_flight_data
from tests.helpers.server_process import (
    FLIGHT,
    RawExchange,
    raw_channel,
    subscription_request,
    wait_until,
)

ROWS = pa.table({"k": [1, 2], "s": ["a", "b"]})
TIMEOUT_SECONDS = 180


class DeephavenCaller:
    """A session over one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.bearer = "Anonymous"
        call = self._unary(CONFIG_SERVICE, "GetConfigurationConstants")
        _, answered = call.with_call(b"", metadata=self.headers, timeout=TIMEOUT_SECONDS)
        self.bearer = dict(answered.initial_metadata())["authorization"]

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", self.bearer),)

    def _unary(self, service: str, method: str) -> Any:
        return self.channel.unary_unary(f"/{service}/{method}")

    def ask(self, service: str, method: str, request: bytes = b"") -> bytes:
        """A unary call."""
        call = self._unary(service, method)
        return call(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def stream(self, service: str, method: str, request: bytes = b"") -> Any:
        """A server stream."""
        call = self.channel.unary_stream(f"/{service}/{method}")
        return call(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        request = MESSAGES.encode("HandshakeRequest", payload=self.bearer.encode())
        self.ask(SESSION_SERVICE, "CloseSession", request)

    def get(self, raw: bytes) -> pa.Table:
        """DoGet of a ticket, by another client with the same session."""
        with flight.connect(f"grpc://{self.address}") as client:
            return client.do_get(flight.Ticket(raw), self.options).read_all()

    @property
    def options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(
            headers=[(b"authorization", self.bearer.encode())], timeout=TIMEOUT_SECONDS
        )

    address = ""


class RawUpload:
    """One DoPut call, message by message."""

    def __init__(self, caller: DeephavenCaller, *, headers: Any = None) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method = caller.channel.stream_stream(FLIGHT + "DoPut")
        self.call = method(
            iter(self._outgoing.get, None),
            metadata=caller.headers if headers is None else headers,
            timeout=TIMEOUT_SECONDS,
        )

    def send(self, descriptor: Descriptor | None, message: pa.Message | None) -> None:
        frame = FlightFrame(
            descriptor=None if descriptor is None else descriptor.encode(),
            header=None if message is None else message.metadata.to_pybytes(),
            body=None if message is None or message.body is None else message.body.to_pybytes(),
        )
        self._outgoing.put(encode_flight_data(frame))

    def half_close(self) -> None:
        self._outgoing.put(None)

    def answer(self) -> bytes:
        return decode_put_result(next(self.call))

    def ending(self) -> grpc.StatusCode:
        """How the call ends; nothing more may come."""
        with contextlib.suppress(grpc.RpcError):
            assert list(self.call) == []
        return self.call.code()


def messages(rows: pa.Table, batch_rows: int | None = None) -> list[pa.Message]:
    """The schema and the batches as IPC messages."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return list(reader)


def export(number: int) -> bytes:
    return b"e" + number.to_bytes(4, "little", signed=True)


def ticket(raw: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=raw)


def path(number: int) -> Descriptor:
    return Descriptor(path=("export", str(number)))


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server() as running:
        yield running


@pytest.fixture
def caller(server: barrage.Server) -> Iterator[DeephavenCaller]:
    with raw_channel(server.address) as channel:
        made = DeephavenCaller(channel)
        made.address = server.address
        yield made


def upload(caller: DeephavenCaller, number: int, rows: pa.Table) -> bytes:
    """A whole upload; the export's ticket."""
    put = RawUpload(caller)
    for index, message in enumerate(messages(rows)):
        put.send(path(number) if index == 0 else None, message)
    put.half_close()
    answers = [decode_put_result(answer) for answer in put.call]
    assert answers == [b""] * len(messages(rows))
    assert put.call.code() is grpc.StatusCode.OK
    return export(number)


# --- uploads ---


def test_every_message_of_an_upload_is_answered_before_the_half_close(caller):
    put = RawUpload(caller)
    parts = messages(ROWS, batch_rows=1)
    put.send(path(1), parts[0])
    assert put.answer() == b""
    for part in parts[1:]:
        put.send(None, part)
        assert put.answer() == b""
    put.half_close()
    assert put.ending() is grpc.StatusCode.OK
    assert caller.get(export(1)).to_pylist() == ROWS.to_pylist()


def test_an_upload_without_batches_is_an_empty_table(caller):
    upload(caller, 1, ROWS.schema.empty_table())
    assert caller.get(export(1)).num_rows == 0


@pytest.mark.parametrize(
    "descriptor", [path(3), Descriptor(command=export(3))], ids=["path", "ticket"]
)
def test_both_descriptors_name_an_export(caller, descriptor):
    put = RawUpload(caller)
    put.send(descriptor, None)  # Some clients send the descriptor alone first.
    for part in messages(ROWS):
        put.send(None, part)
    put.half_close()
    assert len(list(put.call)) == 2
    assert caller.get(export(3)).num_rows == 2


def test_the_table_can_be_asked_for_while_the_upload_runs(caller):
    put = RawUpload(caller)
    parts = messages(ROWS)
    put.send(path(1), parts[0])
    put.answer()
    found: queue.SimpleQueue[pa.Table] = queue.SimpleQueue()
    reading = threading.Thread(target=lambda: found.put(caller.get(export(1))))
    reading.start()
    put.send(None, parts[1])
    put.half_close()
    assert found.get(timeout=TIMEOUT_SECONDS).num_rows == 2
    reading.join()


def test_who_waits_for_a_failed_upload_gets_its_error(caller):
    put = RawUpload(caller)
    put.send(path(1), messages(ROWS)[0])
    put.answer()
    put.send(None, messages(ROWS)[0])
    assert put.ending() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(pa.ArrowInvalid, match="one schema"):
        caller.get(export(1))


def test_an_upload_the_client_gives_up_fails_its_export(caller):
    put = RawUpload(caller)
    put.send(path(1), messages(ROWS)[0])
    put.answer()
    put.call.cancel()
    with pytest.raises(flight.FlightUnavailableError, match="cancelled"):
        caller.get(export(1))


@pytest.mark.parametrize(
    ("descriptor", "code"),
    [
        (path(0), grpc.StatusCode.FAILED_PRECONDITION),
        (path(-1), grpc.StatusCode.FAILED_PRECONDITION),
        (Descriptor(path=("export", "one")), grpc.StatusCode.FAILED_PRECONDITION),
        (Descriptor(path=("export", "9" * 30)), grpc.StatusCode.FAILED_PRECONDITION),
        (Descriptor(command=b"e\x01"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_exports_no_client_may_make(caller, descriptor, code):
    put = RawUpload(caller)
    put.send(descriptor, messages(ROWS)[0])
    assert put.ending() is code


def test_an_export_that_is_in_use_is_not_replaced(caller):
    upload(caller, 1, ROWS)
    put = RawUpload(caller)
    put.send(path(1), messages(ROWS)[0])
    assert put.ending() is grpc.StatusCode.INVALID_ARGUMENT
    assert caller.get(export(1)).num_rows == 2


def test_an_upload_to_an_export_needs_a_session(caller):
    put = RawUpload(caller, headers=())
    put.send(path(1), messages(ROWS)[0])
    assert put.ending() is grpc.StatusCode.UNAUTHENTICATED


def test_a_type_no_table_can_have_is_refused_at_the_schema(caller):
    put = RawUpload(caller)
    put.send(path(1), messages(pa.table({"s": pa.array([{"a": 1}])}))[0])
    assert put.ending() is grpc.StatusCode.INVALID_ARGUMENT
    assert "struct" in put.call.details()


def test_our_own_uploads_still_name_a_table_called_export(server, caller):
    server.create_table("export", {"k": "int64", "s": "string"})
    with flight.connect(server.uri) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("export"), ROWS.schema)
        with writer:
            writer.write_table(ROWS)
    assert server.table("export").to_arrow() == ROWS


def test_a_read_only_table_takes_no_upload(server):
    server.create_table("fixed", {"k": "int64", "s": "string"}, is_read_only=True)
    with flight.connect(server.uri) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("fixed"), ROWS.schema)
        with pytest.raises(flight.FlightUnauthorizedError, match="reading only"), writer:
            writer.write_table(ROWS)
    assert len(server.table("fixed")) == 0
    assert server.table("fixed").add(ROWS) > 0


# --- input tables ---


def test_rows_are_added_to_and_deleted_from_a_published_table(server, caller):
    table = server.create_table("t", {"k": "int64", "s": "string"}, key="k")
    upload(caller, 1, ROWS)
    add = MESSAGES.encode(
        "AddTableRequest", input_table=ticket(b"s/t"), table_to_add=ticket(export(1))
    )
    assert caller.ask(INPUT_TABLE_SERVICE, "AddTableToInputTable", add) == b""
    assert table.to_arrow() == ROWS
    upload(caller, 2, pa.table({"k": [1]}))
    delete = MESSAGES.encode(
        "DeleteTableRequest", input_table=ticket(b"s/t"), table_to_remove=ticket(export(2))
    )
    caller.ask(INPUT_TABLE_SERVICE, "DeleteTableFromInputTable", delete)
    assert table.to_arrow() == ROWS.slice(1)


def test_a_table_that_is_no_input_table_is_refused(caller):
    upload(caller, 1, ROWS)
    add = MESSAGES.encode(
        "AddTableRequest", input_table=ticket(export(1)), table_to_add=ticket(export(1))
    )
    with pytest.raises(grpc.RpcError) as raised:
        caller.ask(INPUT_TABLE_SERVICE, "AddTableToInputTable", add)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "the table can't be used as an input table"


# --- names ---


def field_names(message: bytes) -> tuple[list[str], list[str], list[str]]:
    change = MESSAGES.decode("FieldsChangeUpdate", message)
    return tuple(
        [f.field_name for f in g] for g in (change.created, change.updated, change.removed)
    )


def bind(caller: DeephavenCaller, name: str, raw: bytes) -> None:
    request = MESSAGES.encode(
        "BindTableToVariableRequest", variable_name=name, table_id=ticket(raw)
    )
    caller.ask(CONSOLE_SERVICE, "BindTableToVariable", request)


def test_fields_are_live_until_the_session_closes(server, caller):
    server.create_table("a", {"x": "int64"})
    fields = caller.stream(APPLICATION_SERVICE, "ListFields")
    assert "authorization" in dict(fields.initial_metadata())
    assert field_names(next(fields)) == (["a"], [], [])
    upload(caller, 1, ROWS)
    bind(caller, "b", export(1))
    assert field_names(next(fields)) == (["b"], [], [])
    bind(caller, "b", b"s/a")
    assert field_names(next(fields)) == ([], ["b"], [])
    server.drop_table("a")
    assert field_names(next(fields)) == ([], [], ["a"])
    caller.close()
    with pytest.raises(grpc.RpcError):
        next(fields)
    assert fields.code() is grpc.StatusCode.CANCELLED


def test_a_slow_listener_gets_one_message_for_all_it_missed(server, caller):
    fields = caller.stream(APPLICATION_SERVICE, "ListFields")
    next(fields)
    names = {f"t{number:03}" for number in range(300)}
    for name in names:
        server.create_table(name, {"x": "int64"})
    told: set[str] = set()
    count = 0
    while told != names:
        told |= set(field_names(next(fields))[0])
        count += 1
    assert count < 100
    fields.cancel()


def test_a_bound_name_keeps_its_table_and_old_readers_keep_theirs(server, caller):
    upload(caller, 1, ROWS)
    upload(caller, 2, ROWS.slice(1))
    bind(caller, "t", export(1))
    fetch = MESSAGES.encode("ExportRequest", source_id=ticket(b"s/t"), result_id=ticket(export(3)))
    caller.ask(SESSION_SERVICE, "ExportFromTicket", fetch)
    bind(caller, "t", export(2))
    assert caller.get(export(3)).num_rows == 2
    caller.close()
    assert server.table("t").to_arrow().num_rows == 1


def test_another_name_does_not_make_a_read_only_table_writable(server, caller):
    server.create_table("fixed", data=ROWS, is_read_only=True)
    fetch = MESSAGES.encode(
        "ExportRequest", source_id=ticket(b"s/fixed"), result_id=ticket(export(1))
    )
    caller.ask(SESSION_SERVICE, "ExportFromTicket", fetch)
    bind(caller, "mine", export(1))
    for target in (export(1), b"s/mine"):
        add = MESSAGES.encode(
            "AddTableRequest", input_table=ticket(target), table_to_add=ticket(b"s/fixed")
        )
        with pytest.raises(grpc.RpcError, match="can't be used as an input table"):
            caller.ask(INPUT_TABLE_SERVICE, "AddTableToInputTable", add)
    with flight.connect(server.uri) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("mine"), ROWS.schema)
        with pytest.raises(flight.FlightUnauthorizedError), writer:
            writer.write_table(ROWS)


@pytest.mark.parametrize(
    ("name", "raw", "code"),
    [
        ("", b"s/a", grpc.StatusCode.INVALID_ARGUMENT),
        ("a\nb", b"s/a", grpc.StatusCode.INVALID_ARGUMENT),
        ("b", b"s/none", grpc.StatusCode.NOT_FOUND),
        ("b", b"", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_names_and_tables_that_cannot_be_bound(server, caller, name, raw, code):
    server.create_table("a", {"x": "int64"})
    with pytest.raises(grpc.RpcError) as raised:
        bind(caller, name, raw)
    assert raised.value.code() is code
    assert server.table_names() == ["a"]


def test_an_export_keeps_a_table_that_was_dropped(server, caller):
    table = server.create_table("t", {"k": "int64", "s": "string"})
    fetch = MESSAGES.encode("ExportRequest", source_id=ticket(b"s/t"), result_id=ticket(export(1)))
    caller.ask(SESSION_SERVICE, "ExportFromTicket", fetch)
    server.drop_table("t")
    table.add(ROWS)
    del table
    assert caller.get(export(1)).to_pylist() == ROWS.to_pylist()
    add = MESSAGES.encode(
        "AddTableRequest", input_table=ticket(export(1)), table_to_add=ticket(export(1))
    )
    caller.ask(INPUT_TABLE_SERVICE, "AddTableToInputTable", add)
    assert caller.get(export(1)).num_rows == 4


def test_a_name_bound_anew_leaves_subscribers_of_the_old_table_alone(server, caller):
    old = server.create_table("t", {"k": "int64"})
    following = RawExchange(caller.channel)
    following.send(subscription_request("t"))
    assert len(following.read_update().added_keys_post) == 0
    upload(caller, 1, ROWS)
    bind(caller, "t", export(1))
    old.add({"k": [1]})
    assert len(following.read_update().added_keys_post) == 1
    following.half_close()


# --- sizes ---


def test_sizes_of_exports_until_the_session_closes(server, caller):
    table = server.create_table("t", {"k": "int64", "s": "string"})
    updates = caller.stream(TABLE_SERVICE, "ExportedTableUpdates")
    assert "authorization" in dict(updates.initial_metadata())
    fetch = MESSAGES.encode("ExportRequest", source_id=ticket(b"s/t"), result_id=ticket(export(1)))
    caller.ask(SESSION_SERVICE, "ExportFromTicket", fetch)
    message = MESSAGES.decode("ExportedTableUpdateMessage", next(updates))
    assert (bytes(message.export_id.ticket), message.size) == (export(1), 0)
    table.add(ROWS)
    assert MESSAGES.decode("ExportedTableUpdateMessage", next(updates)).size == 2
    caller.close()
    assert list(updates) == []
    assert updates.code() is grpc.StatusCode.OK


# --- console, storage, objects ---


def test_a_console_is_a_ticket_that_is_no_table(caller):
    request = MESSAGES.encode("StartConsoleRequest", result_id=ticket(export(1)))
    answer = caller.ask(CONSOLE_SERVICE, "StartConsole", request)
    assert MESSAGES.decode("StartConsoleResponse", answer).result_id.ticket == export(1)
    with pytest.raises(grpc.RpcError, match="is a console, not a table"):
        bind(caller, "t", export(1))
    release = MESSAGES.encode("ReleaseRequest", id=ticket(export(1)))
    caller.ask(SESSION_SERVICE, "Release", release)


def test_what_a_console_could_do_elsewhere(caller):
    types = caller.ask(CONSOLE_SERVICE, "GetConsoleTypes")
    assert list(MESSAGES.decode("GetConsoleTypesResponse", types).console_types) == []
    heap = MESSAGES.decode("GetHeapInfoResponse", caller.ask(CONSOLE_SERVICE, "GetHeapInfo"))
    assert 0 < heap.free_memory < heap.total_memory <= heap.max_memory
    logs = caller.stream(CONSOLE_SERVICE, "SubscribeToLogs")
    assert "authorization" in dict(logs.initial_metadata())
    caller.close()
    assert list(logs) == []


@pytest.mark.parametrize(
    ("service", "method", "says"),
    [
        (CONSOLE_SERVICE, "ExecuteCommand", "runs no scripts"),
        (OBJECT_SERVICE, "FetchObject", "ObjectService/FetchObject"),
        (STORAGE_SERVICE, "FetchFile", "keeps no files"),
    ],
)
def test_calls_that_are_refused_by_name(caller, service, method, says):
    with pytest.raises(grpc.RpcError) as raised:
        caller.ask(service, method)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert says in raised.value.details()


def test_message_streams_are_refused_by_name(caller):
    method = caller.channel.stream_stream(f"/{OBJECT_SERVICE}/MessageStream")
    call = method(iter([b""]), metadata=caller.headers, timeout=TIMEOUT_SECONDS)
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ObjectService/MessageStream" in call.details()


def test_no_items_are_stored(caller):
    request = MESSAGES.encode("ListItemsRequest", path="/layouts")
    answer = MESSAGES.decode("ListItemsResponse", caller.ask(STORAGE_SERVICE, "ListItems", request))
    assert (list(answer.items), answer.canonical_path) == ([], "/layouts")


@pytest.mark.parametrize(
    ("service", "method"),
    [
        (CONSOLE_SERVICE, "BindTableToVariable"),
        (INPUT_TABLE_SERVICE, "AddTableToInputTable"),
        (STORAGE_SERVICE, "ListItems"),
    ],
)
def test_malformed_requests_are_refused(caller, service, method):
    with pytest.raises(grpc.RpcError) as raised:
        caller.ask(service, method, b"\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- nothing is left ---


def live_sources(server: barrage.Server) -> int:
    graph = server._parts.runtime.graph
    return server._parts.tables.run(lambda: len(graph._live_sources())).result()


def test_released_uploads_and_closed_sessions_leave_no_tables(server, caller):
    upload(caller, 1, ROWS)
    upload(caller, 2, ROWS)
    assert live_sources(server) == 2
    caller.ask(SESSION_SERVICE, "Release", MESSAGES.encode("ReleaseRequest", id=ticket(export(1))))
    wait_until(lambda: live_sources(server) == 1)
    caller.close()
    wait_until(lambda: live_sources(server) == 0)


def test_cancelled_calls_leave_no_listeners(server, caller):
    catalog = server._parts.catalog
    calls = [caller.stream(APPLICATION_SERVICE, "ListFields") for _ in range(5)]
    calls += [caller.stream(TABLE_SERVICE, "ExportedTableUpdates")]
    for call in calls:
        call.initial_metadata()
    wait_until(lambda: len(catalog._listeners) == 1)
    for call in calls:
        call.cancel()
    wait_until(lambda: len(catalog._listeners) == 0)


def test_open_calls_end_with_the_server():
    with barrage.Server() as server, raw_channel(server.address) as channel:
        caller = DeephavenCaller(channel)
        calls = [
            caller.stream(APPLICATION_SERVICE, "ListFields"),
            caller.stream(TABLE_SERVICE, "ExportedTableUpdates"),
            caller.stream(CONSOLE_SERVICE, "SubscribeToLogs"),
        ]
        for call in calls:
            call.initial_metadata()
        server.stop()
        for call in calls:
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in call.details()

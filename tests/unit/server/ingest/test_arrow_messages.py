"""Arrow messages that are well formed and still not to be believed."""

from __future__ import annotations

import base64
import json
import threading

import grpc
import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage import wire
from barrage.errors import LimitExceededError, RemoteProtocolError, SchemaError, TableNotFoundError
from barrage.limits import Limits
from barrage.model.schema_message import read_schema_message
from barrage.server import ServerConfig
from barrage.server.flight.put_calls import PutCalls
from barrage.server.ingest.arrow_messages import check_decompressed_size
from barrage.transport import flight_messages
from barrage.transport.flight_messages import Descriptor
from tests.helpers.server_process import FLIGHT, TIMEOUT_SECONDS, raw_channel, wait_until
from tests.unit.server.test_refusals import put

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PATH = Descriptor(path=("t",)).encode()


def messages(rows: pa.Table, compression: str | None = "zstd") -> list[pa.Message]:
    """Schema, dictionaries and batches of a stream as Arrow writes it."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return list(pa.ipc.MessageReader.open_stream(sink.getvalue()))


def frames(rows: pa.Table, compression: str | None = "zstd") -> list[bytes]:
    """The same as an upload."""
    return [
        wire.encode_flight_data(
            wire.FlightFrame(
                descriptor=None if number else PATH,
                header=message.metadata.to_pybytes(),
                body=None if message.body is None else message.body.to_pybytes(),
            )
        )
        for number, message in enumerate(messages(rows, compression))
    ]


ZEROS = pa.table({"x": np.zeros(4000, np.int64)})
WORDS = pa.table({"w": pa.array(["x" * 30_000] * 2).dictionary_encode()})


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize(("rows", "number", "size"), [(ZEROS, 1, 32_000), (WORDS, 1, 30_008)])
def test_decompressed_size_at_the_limit_and_one_past_it(rows, number, size, compression):
    message = messages(rows, compression)[number]
    header, body = message.metadata.to_pybytes(), message.body.to_pybytes()
    assert len(body) < size / 10
    check_decompressed_size(header, body, Limits(ingest_bytes_pending_max=size))
    with pytest.raises(LimitExceededError):
        check_decompressed_size(header, body, Limits(ingest_bytes_pending_max=size - 1))


def test_what_is_not_compressed_is_not_limited_here():
    message = messages(ZEROS, None)[1]
    limits = Limits(ingest_bytes_pending_max=1)
    check_decompressed_size(message.metadata.to_pybytes(), message.body.to_pybytes(), limits)


def test_a_compressed_buffer_outside_of_its_message():
    message = messages(ZEROS)[1]
    with pytest.raises(RemoteProtocolError):
        check_decompressed_size(message.metadata.to_pybytes(), b"\0" * 9, Limits())


def test_an_upload_that_would_decompress_beyond_the_limit_is_refused():
    limits = Limits(ingest_bytes_pending_max=31_999)
    with (
        barrage.Server(config=ServerConfig(limits=limits)) as server,
        raw_channel(server.address) as channel,
    ):
        assert put(channel, frames(ZEROS))[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert put(channel, frames(ZEROS.slice(1)))[1] is grpc.StatusCode.OK
        assert len(server.table("t")) == 3999


NOT_UTF8 = {
    "column": pa.schema({"QQQQ": pa.int64()}),
    "list": pa.schema({"x": pa.list_(pa.field("QQQQ", pa.int64()))}),
    "struct": pa.schema({"x": pa.struct([pa.field("QQQQ", pa.int64())])}),
    "zone": pa.schema({"x": pa.timestamp("ns", tz="QQQQ")}),
    "dictionary of lists": pa.schema(
        {"x": pa.dictionary(pa.int32(), pa.list_(pa.field("QQQQ", pa.int64())))}
    ),
}


@pytest.mark.parametrize("schema", NOT_UTF8.values(), ids=NOT_UTF8.keys())
def test_names_that_are_not_utf8_are_refused(server, channel, schema, caplog):
    encoded = schema.serialize().to_pybytes()
    assert read_schema_message(encoded) == schema
    bad = encoded.replace(b"QQQQ", b"\xff\xfe\xfd\xfc")
    with pytest.raises(UnicodeDecodeError):
        read_schema_message(bad)
    header = pa.ipc.read_message(pa.py_buffer(bad)).metadata.to_pybytes()
    upload = wire.encode_flight_data(wire.FlightFrame(descriptor=PATH, header=header))
    assert put(channel, [upload])[1] is INVALID
    body = json.dumps({"table": "t", "schema": base64.b64encode(bad).decode()}).encode()
    request = flight_messages.encode_action("barrage.create_table", body)
    call = channel.unary_stream(FLIGHT + "DoAction")(request, timeout=TIMEOUT_SECONDS)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is INVALID
    assert server.table_names() == []
    assert caplog.records == []


def test_rows_that_wait_for_the_engine_count_with_their_size_in_the_table(monkeypatch):
    """A few bytes of nulls stand for many rows; without a limit they would all be unpacked."""
    made: list[PutCalls] = []

    def recorded(*arguments, **named):
        made.append(PutCalls(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("barrage.server.serving.app.PutCalls", recorded)
    limits = Limits(ingest_bytes_pending_max=1_000_000)
    schema, batch = frames(pa.table({"x": pa.nulls(100_000)}))
    is_open, may_go_on = threading.Event(), threading.Event()

    def requests():
        yield schema
        is_open.wait(TIMEOUT_SECONDS)
        yield from [batch] * 10

    with (
        barrage.Server(config=ServerConfig(limits=limits)) as server,
        raw_channel(server.address) as channel,
    ):
        server.create_table("t", {"x": "int64"})
        call = channel.stream_stream(FLIGHT + "DoPut")(requests(), timeout=TIMEOUT_SECONDS)
        next(call)
        server._parts.runtime.submit(may_go_on.wait)
        is_open.set()
        try:
            wait_until(lambda: made[0].bytes_pending >= 800_000)
        finally:
            may_go_on.set()
        assert len(list(call)) == 10
        assert len(server.table("t")) == 1_000_000


@pytest.mark.parametrize("kind", [pa.sparse_union([]), pa.list_(pa.dense_union([]))], ids=str)
def test_a_column_of_a_union_of_nothing_is_refused(kind):
    """Arrow ends the process when it is asked for no rows of it, so no table may have one."""
    schema = pa.schema([("id", pa.int64()), ("u", kind)])
    message = schema.serialize().to_pybytes()
    with pytest.raises(ValueError, match="union without members"):
        read_schema_message(message)
    upload = wire.FlightFrame(descriptor=PATH, header=message[8:], body=None)
    with barrage.Server(port=0) as server:
        with pytest.raises(SchemaError, match="union without members"):
            server.create_table("t", schema)
        with raw_channel(server.address) as channel:
            _, code, details = put(channel, [wire.encode_flight_data(upload)])
        assert (code, "union without members" in details) == (INVALID, True)
        with pytest.raises(TableNotFoundError):
            server.table("t")

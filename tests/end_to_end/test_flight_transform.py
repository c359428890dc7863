"""Plain DoExchange: rows go up, are transformed while they come, and come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.transport.flight_messages import FLIGHT, Descriptor
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from tests.helpers.flight_peer import FlightPeer, status
from tests.helpers.server_process import wait_until

CODE = grpc.StatusCode
BATCH_ROWS = 1000
LIMITS = replace(DEFAULT_LIMITS, transforms_max=2, transform_bytes_max=16 * 5 * BATCH_ROWS)


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=LIMITS)) as running:
        yield running


@pytest.fixture
def peer(server: barrage.Server) -> Iterator[FlightPeer]:
    with FlightPeer(server.address) as connected:
        yield connected
    app = server._app
    assert app is not None
    wait_until(lambda: app.transforms.running_count == 0 and app.stream_count == 0)


def command(*operations: list[object]) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(
        json.dumps({"transform": {"ops": list(operations)}}).encode()
    )


def batch(number: int) -> pa.RecordBatch:
    first = number * BATCH_ROWS
    rows = range(first, first + BATCH_ROWS)
    return pa.record_batch({"x": pa.array(rows, pa.int64()), "y": [each / 2 for each in rows]})


def table(count: int) -> pa.Table:
    return pa.Table.from_batches([batch(number) for number in range(count)])


def exchanged(peer: FlightPeer, rows: pa.Table, *operations: list[object]) -> pa.Table:
    writer, reader = peer.arrow.do_exchange(command(*operations))
    with writer:
        writer.begin(rows.schema)
        for each in rows.to_batches():
            writer.write_batch(each)
        writer.done_writing()
        return reader.read_all()


def test_each_batch_is_answered_before_the_next_one_is_sent(peer: FlightPeer) -> None:
    writer, reader = peer.arrow.do_exchange(
        command(["where", "x > 10"], ["select", ["x"], {"z": "y * 4"}])
    )
    with writer:
        writer.begin(batch(0).schema)
        assert reader.schema == pa.schema({"x": pa.int64(), "z": pa.float64()})
        for number in range(3):
            writer.write_batch(batch(number))
            answer = reader.read_chunk().data
            kept = [each for each in batch(number)["x"].to_pylist() if each > 10]
            assert answer["x"].to_pylist() == kept
            assert answer["z"].to_pylist() == [each * 2.0 for each in kept]
        writer.done_writing()
        with pytest.raises(StopIteration):
            reader.read_chunk()


def test_what_needs_all_rows_is_answered_at_the_end(peer: FlightPeer) -> None:
    rows = table(5)
    got = exchanged(peer, rows, ["where", "x >= 100"], ["sort", ["-x"]], ["head", 3])
    assert got["x"].to_pylist() == [4999, 4998, 4997]
    total = exchanged(peer, rows, ["agg_by", [], {"n": "count()", "most": "max(x)"}])
    assert total.to_pylist() == [{"n": 5000, "most": 4999}]


def test_no_rows_are_a_schema(peer: FlightPeer) -> None:
    for operations in ([["where", "x > 1"]], [["sort", ["x"]]], []):
        got = exchanged(peer, table(1).slice(0, 0), *operations)
        assert got.schema.names == ["x", "y"]
        assert got.num_rows == 0


def test_no_operation_gives_the_rows_back(peer: FlightPeer) -> None:
    assert exchanged(peer, table(3)).equals(table(3))


def test_dictionaries_and_nulls_travel_both_ways(peer: FlightPeer) -> None:
    rows = pa.table(
        {
            "name": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "lists": pa.array([[1], [], None, [2, 3]]),
        }
    )
    got = exchanged(peer, rows, ["where", "name = 'a'"])
    assert got["name"].to_pylist() == ["a", "a"]
    assert got["lists"].to_pylist() == [[1], [2, 3]]


def test_the_servers_tables_are_not_in_reach(server: barrage.Server, peer: FlightPeer) -> None:
    server.create_table("secret", data={"x": [1]})
    with pytest.raises(NotImplementedError, match="not transformed by natural_join"):
        exchanged(peer, table(1), ["natural_join", {"table": "secret"}, ["x"]])
    server.drop_table("secret")


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        (b'{"transform": {"ops": [["where"]]}}', CODE.INVALID_ARGUMENT, "argument 1 is missing"),
        (b'{"transform": {"ops": [["nope"]]}}', CODE.UNIMPLEMENTED, "no operation 'nope'"),
        (b'{"transform": {"ops": {}}}', CODE.INVALID_ARGUMENT, "'ops'"),
        (b'{"transform": {}}', CODE.INVALID_ARGUMENT, "'ops'"),
        (b'{"transform": {"ops": [], "x": 1}}', CODE.INVALID_ARGUMENT, "unknown field 'x'"),
        (b'{"transform": {"ops": []}, "x": 1}', CODE.INVALID_ARGUMENT, "unknown field 'x'"),
        (b'{"transform"', CODE.INVALID_ARGUMENT, "not JSON"),
        (b'{"transform": ' + b"[" * 100_000, CODE.RESOURCE_EXHAUSTED, "limit"),
    ],
)
def test_commands_that_are_refused(
    peer: FlightPeer, text: bytes, code: grpc.StatusCode, told: str
) -> None:
    first = encode_flight_data(FlightFrame(descriptor=Descriptor(command=text).encode()))
    call = peer.channel.stream_stream(FLIGHT + "DoExchange", None, None)
    with status(code, told):
        list(call(iter([first]), timeout=60))


def test_a_formula_that_does_not_fit_is_told_with_the_schema(peer: FlightPeer) -> None:
    with pytest.raises(pa.ArrowInvalid, match="nope"):
        exchanged(peer, table(1), ["where", "nope > 1"])


def test_rows_that_are_gathered_are_bounded_at_the_limit_and_one_past_it(
    peer: FlightPeer,
) -> None:
    assert len(exchanged(peer, table(5), ["sort", ["-x"]])) == 5 * BATCH_ROWS
    with pytest.raises(pa.ArrowInvalid, match="that sort needs all of"):
        exchanged(peer, table(6), ["sort", ["-x"]])
    # Row by row there is no end.
    assert len(exchanged(peer, table(20), ["where", "x >= 0"])) == 20 * BATCH_ROWS


def test_exchanges_are_bounded(peer: FlightPeer) -> None:
    open_ones = [peer.arrow.do_exchange(command()) for _ in range(2)]
    for writer, reader in open_ones:
        writer.begin(batch(0).schema)
        assert reader.schema.names == ["x", "y"]
    with pytest.raises(pa.ArrowInvalid, match="exchanges that transform rows"):
        exchanged(peer, table(1))
    for writer, _ in open_ones:
        writer.done_writing()
        writer.close()


def test_a_client_that_does_not_read_is_not_read_from(
    server: barrage.Server, peer: FlightPeer
) -> None:
    """What it sends waits at its side: only so much is piled up here."""
    app = server._app
    assert app is not None
    rows = pa.record_batch({"x": pa.array(range(100_000), pa.int64()), "y": [0.5] * 100_000})
    writer, reader = peer.arrow.do_exchange(command())
    writer.begin(rows.schema)
    sent: list[int] = []

    def send() -> None:
        for _ in range(60):
            writer.write_batch(rows)
            sent.append(len(rows))
        writer.done_writing()

    sending = threading.Thread(target=send)
    sending.start()
    wait_until(lambda: app.stream_count == 1)
    [stream] = list(app._hub._streams)
    wait_until(lambda: stream._room is not None and not stream._room.done())
    assert stream._bytes_pending <= LIMITS.exchange_outbox_bytes_max + 2 * rows.nbytes
    assert stream._updates_pending <= LIMITS.exchange_outbox_updates_max
    got = reader.read_all()
    sending.join(60)
    writer.close()
    assert len(got) == sum(sent) == 60 * len(rows)

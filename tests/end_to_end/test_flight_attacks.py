"""Polls, cancels, uploads and results at the moments that are hard for them: two things at once,
what nobody comes back for, what fails half way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.server.history.journal_leases import GROUP_LEASE_NS
from barrage.server.serving.app import ServerApp
from barrage.transport.flight_messages import FLIGHT, CancelStatus, Descriptor, encode_ticket
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from tests.helpers.flight_peer import FlightPeer, HeldReads, status
from tests.helpers.server_process import wait_until
from tests.helpers.serving import on_loop
from tests.helpers.virtual_clock import VirtualClock

CODE = grpc.StatusCode
EACH = 1000
LIMITS = replace(
    DEFAULT_LIMITS, endpoint_rows=EACH, result_jobs_per_caller_max=4, poll_wait_ns=100_000_000
)
PATH = Descriptor(path=("wide",))


def wide(count: int = 3500) -> pa.Table:
    return pa.table({"x": pa.array(range(count), pa.int64()), "y": [i / 8 for i in range(count)]})


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    with barrage.Server("127.0.0.1", journal="memory", config=ServerConfig(limits=LIMITS)) as made:
        made.create_table("wide", data=wide())
        yield made


@pytest.fixture
def app(server: barrage.Server) -> ServerApp:
    assert server._app is not None
    return server._app


@pytest.fixture
def peer(server: barrage.Server, app: ServerApp) -> Iterator[FlightPeer]:
    with FlightPeer(server.address) as connected:
        yield connected
    # Whatever was done, nothing is under way, and everything that is kept can be freed.
    wait_until(lambda: app.results.running_count == 0 and app.transforms.running_count == 0)
    on_loop(server, lambda: app.results.results.drop_all(lambda _: True))
    on_loop(server, app.results.sweep)
    wait_until(lambda: app.results.results.byte_count == 0)
    assert app.results.results.count == 0


# --- results --------------------------------------------------------------------------------------


def test_a_cancel_that_meets_the_end_of_its_query(
    app: ServerApp, peer: FlightPeer, server: barrage.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes first, it is cancelled afterwards, and nothing of it is left."""
    held = HeldReads(monkeypatch)
    for number in range(8):
        told = peer.poll(PATH)
        assert told.descriptor is not None
        held.let_through(3)
        while len(told.info.endpoints) < 3:
            assert told.descriptor is not None
            told = peer.poll(told.descriptor)
        answers: list[CancelStatus] = []

        def cancel(info: Any, found: list[CancelStatus]) -> None:
            with FlightPeer(server.address) as other:
                found.append(other.cancel(info))

        threads = [threading.Thread(target=cancel, args=(told.info, answers)) for _ in range(2)]
        if number % 2:
            held.let_through(1)
        for thread in threads:
            thread.start()
        if not number % 2:
            held.let_through(1)
        for thread in threads:
            thread.join(60)
        assert answers == [CancelStatus.CANCELLED] * 2
        assert told.descriptor is not None
        with status(CODE.CANCELLED, "was cancelled"):
            peer.poll(told.descriptor)
        wait_until(lambda: app.results.results.byte_count == 0)
        assert app.results.running_count == 0
        held.hold_again()


def test_polls_nobody_comes_back_for_end(
    app: ServerApp, peer: FlightPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And make room for others."""
    held = HeldReads(monkeypatch)
    clock = VirtualClock(app.results.results._clock.wall_ns())
    monkeypatch.setattr(app.results.results, "_clock", clock)
    told = [peer.poll(PATH) for _ in range(LIMITS.result_jobs_per_caller_max)]
    with status(CODE.RESOURCE_EXHAUSTED, "queries of one caller under way"):
        peer.poll(PATH)
    clock.advance(LIMITS.result_lifetime_ns)
    wait_until(lambda: app.results.running_count == 0)
    for each in told:
        assert each.descriptor is not None
        with status(CODE.NOT_FOUND, "its time was up"):
            peer.poll(each.descriptor)
    held.let_through()
    assert len(peer.finished(PATH).info.endpoints) == 4


def test_a_query_that_fails_at_some_row(app: ServerApp, peer: FlightPeer) -> None:
    """Whoever asks is told, and what there was of it is freed."""
    command = b'q/{"table": "wide", "ops": [["where", "x + 9223372036854772807 > 0"]]}'
    for ask in (peer.finished, peer.info):
        with pytest.raises(grpc.RpcError) as caught:
            ask(command)
        assert caught.value.code() in (CODE.INVALID_ARGUMENT, CODE.FAILED_PRECONDITION)
        assert "overflow" in caught.value.details()
    assert app.results.results.byte_count == 0


# --- rows that come -------------------------------------------------------------------------------


def messages(table: pa.Table) -> list[tuple[bytes, bytes | None]]:
    """The header and body of each message of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return [
        (each.metadata.to_pybytes(), each.body.to_pybytes() if each.body else None)
        for each in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def uploaded(peer: FlightPeer, method: str, frames: list[bytes], release: threading.Event) -> Any:
    def sent() -> Iterator[bytes]:
        yield from frames
        release.wait(60)

    return peer.channel.stream_stream(FLIGHT + method, None, None)(sent(), timeout=60)


DICTIONARY = pa.table({"s": pa.array(["a", "b", "a"]).dictionary_encode()})


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("method", ["DoPut", "DoExchange"])
def test_an_upload_that_is_cut_before_or_behind_a_dictionary(
    server: barrage.Server, app: ServerApp, peer: FlightPeer, method: str, count: int
) -> None:
    command = json.dumps({"transform": {"ops": []}}).encode()
    named = Descriptor(path=("cut",)) if method == "DoPut" else Descriptor(command=command)
    (schema, _), *others = messages(DICTIONARY)
    frames = [encode_flight_data(FlightFrame(descriptor=named.encode(), header=schema))]
    frames += [encode_flight_data(FlightFrame(header=head, body=body)) for head, body in others]
    release = threading.Event()
    call = uploaded(peer, method, frames[:count], release)
    if method == "DoExchange":
        wait_until(lambda: app.transforms.running_count == 1)
    call.cancel()
    release.set()
    wait_until(lambda: app.transforms.running_count == 0 and not app._authenticator.calls)
    if "cut" in server.table_names():
        assert server.table("cut").to_arrow().num_rows == 0
        server.drop_table("cut")


def test_a_transform_that_fails_at_some_row(app: ServerApp, peer: FlightPeer) -> None:
    """The rows before it have been answered; the exchange ends with what is wrong."""
    command = json.dumps(
        {"transform": {"ops": [["where", "x + 9223372036854775804 > 1"]]}}
    ).encode()
    rows = [pa.table({"x": pa.array(each, pa.int64())}) for each in ([2, 3], [1, 4])]
    (schema, _), (head, body) = messages(rows[0])
    _, (last, last_body) = messages(rows[1])
    frames = [
        encode_flight_data(
            FlightFrame(descriptor=Descriptor(command=command).encode(), header=schema)
        ),
        encode_flight_data(FlightFrame(header=head, body=body)),
        encode_flight_data(FlightFrame(header=last, body=last_body)),
    ]
    release = threading.Event()
    call = uploaded(peer, "DoExchange", frames, release)
    assert next(call)
    assert next(call)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    release.set()
    assert caught.value.code() is CODE.INVALID_ARGUMENT
    assert "overflow" in caught.value.details()


# --- read groups ----------------------------------------------------------------------------------


def test_a_read_group_is_given_up(
    app: ServerApp, peer: FlightPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is held no longer, for all who read under its name; a second time is told so."""
    leases = app.journals.leases
    command = b'j/{"mode": "snapshot", "table": "wide", "splits": 2, "read_group": "g"}'
    told = peer.info(command)
    assert set(leases._groups) == {("wide", "g")}
    assert peer.cancel(told) is CancelStatus.CANCELLED
    assert not leases._groups
    for again in (lambda: peer.cancel(told), lambda: peer.renew(told.endpoints[0])):
        with status(CODE.NOT_FOUND, "its time was up"):
            again()
    # The journal still has the version, so its tickets are read, which holds it again.
    assert sum(peer.get(end.ticket).num_rows for end in told.endpoints) == 3500
    assert peer.renew(told.endpoints[0]).ticket == told.endpoints[0].ticket
    clock = VirtualClock(leases._clock.wall_ns())
    monkeypatch.setattr(leases, "_clock", clock)
    clock.advance(2 * GROUP_LEASE_NS)
    with status(CODE.NOT_FOUND, "its time was up"):
        peer.cancel(told)
    plain = peer.info(b'j/{"mode": "snapshot", "table": "wide"}')
    assert peer.cancel(plain) is CancelStatus.NOT_CANCELLABLE


# --- the server stops -----------------------------------------------------------------------------


@pytest.mark.further
def test_the_server_stops_while_rows_that_are_kept_are_read() -> None:
    """Who reads is cut or gets all of it; nothing is kept."""
    config = ServerConfig(drain_grace_ms=100)
    server = barrage.Server("127.0.0.1", journal="memory", config=config)
    server.start()
    rows = pa.table({"x": pa.array(range(3_000_000), pa.int64())})
    server.create_table("long", data=rows)
    app = server._app
    assert app is not None
    with FlightPeer(server.address) as peer:
        told = peer.finished(b"s/long")
        group = peer.info(b'j/{"mode": "snapshot", "table": "long", "read_group": "g"}')
        tickets = [told.info.endpoints[0].ticket, group.endpoints[0].ticket, b"s/long"]
        wholes = [sum(map(len, peer.stream("DoGet", encode_ticket(each)))) for each in tickets]
        reads = [peer.stream("DoGet", encode_ticket(ticket)) for ticket in tickets]
        sizes = [len(next(read)) for read in reads]
        server.stop()
        for read, size, whole in zip(reads, sizes, wholes, strict=True):
            with suppress(grpc.RpcError):
                size += sum(len(message) for message in read)
            # A client may have taken all of it in time, whoever reads it then.
            is_whole = read.code() is CODE.OK and size == whole
            assert is_whole or read.code() in (CODE.UNAVAILABLE, CODE.CANCELLED)
    assert app.results.results.count == 0
    assert app.results.results.byte_count == 0

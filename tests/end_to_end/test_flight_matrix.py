"""Every method of Flight against every way to use it wrongly: the status, and nothing left behind.

Raw gRPC, because pyarrow's client cannot do most of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT, Descriptor, PollInfo
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import SerializationOptions, SubscriptionOptions
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision
from tests.helpers.flight_peer import FlightPeer, HeldReads, status
from tests.helpers.server_process import subscription_request, wait_until
from tests.helpers.serving import on_loop

CODE = grpc.StatusCode
MESSAGE_BYTES_MAX = 1024 * 1024
LIMITS = replace(DEFAULT_LIMITS, message_bytes_max=MESSAGE_BYTES_MAX, endpoint_rows=10_000)
ROWS = 400_000
MALFORMED = b"\xff\xff\xff\xff"

PATH = Descriptor(path=("wide",)).encode()
UNARY = {"GetFlightInfo": PATH, "PollFlightInfo": PATH, "GetSchema": PATH}
STREAMS = {
    "ListFlights": b"",
    "DoGet": flight_messages.encode_ticket(b"s/wide"),
    "DoAction": flight_messages.encode_action("barrage.tables", b""),
    "ListActions": b"",
}
ONE_REQUEST = {**UNARY, **STREAMS}


def data(**fields: Any) -> bytes:
    return encode_flight_data(FlightFrame(**fields))


def upload(descriptor: Descriptor, count: int = 3) -> list[bytes]:
    """The messages of a table that is sent."""
    rows = pa.record_batch({"x": pa.array(range(1000), pa.int64())})
    first, *others = ipc_messages(pa.Table.from_batches([rows] * count))
    header, body = first
    return [
        data(descriptor=descriptor.encode(), header=header, body=body),
        *(data(header=header, body=body) for header, body in others),
    ]


def ipc_messages(table: pa.Table) -> list[tuple[bytes, bytes | None]]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    found = []
    for message in reader:
        body = message.body
        found.append((message.metadata.to_pybytes(), body.to_pybytes() if body else None))
    return found


TRANSFORM = Descriptor(command=json.dumps({"transform": {"ops": []}}).encode())
BIDI: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "Handshake": ("Handshake", lambda: [b""]),
    "DoPut": ("DoPut", lambda: upload(Descriptor(path=("uploaded",)))),
    "subscription": ("DoExchange", lambda: [subscription_request("wide")]),
    "transform": ("DoExchange", lambda: upload(TRANSFORM)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=LIMITS)) as running:
        running.create_table("wide", data=pa.table({"x": pa.array(range(ROWS), pa.int64())}))
        yield running


def is_empty(server: barrage.Server) -> bool:
    app = server._app
    assert app is not None
    counts = (
        len(app._authenticator.calls),
        app.stream_count,
        app.results.running_count,
        app.transforms.running_count,
    )
    return not any(counts)


@contextmanager
def leaving_nothing(server: barrage.Server) -> Iterator[None]:
    """After the block no call, stream or job is there, and results go when they are dropped."""
    yield
    wait_until(lambda: is_empty(server))
    app = server._app
    assert app is not None
    on_loop(server, lambda: app.results.results.drop_all(lambda _: True))
    wait_until(lambda: app.results.results.byte_count == 0)


@pytest.fixture
def peer(server: barrage.Server) -> Iterator[FlightPeer]:
    with leaving_nothing(server), FlightPeer(server.address) as connected:
        yield connected


def called(peer: FlightPeer, method: str, request: bytes) -> Any:
    """The answers to one request. A query that takes a while says what is wrong when it is asked
    for again."""
    if method in UNARY:
        answer = peer.unary(method, request)
        if method == "PollFlightInfo" and (told := PollInfo.decode(answer)).descriptor is not None:
            peer.finished(told.descriptor)
        return [answer]
    return list(peer.stream(method, request))


def bidi(peer: FlightPeer, method: str, messages: Iterator[bytes] | list[bytes]) -> Any:
    call = peer.channel.stream_stream(FLIGHT + method, None, None)
    return call(iter(messages), timeout=60)


def test_every_method_is_in_the_matrix(server: barrage.Server) -> None:
    app = server._app
    assert app is not None
    methods = set(app._services[flight_messages.SERVICE_NAME])
    assert methods == {*ONE_REQUEST, *(method for method, _ in BIDI.values())}


# --- malformed, unknown, oversize -----------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in ONE_REQUEST if name != "ListActions"])
def test_a_request_that_is_no_message(peer: FlightPeer, method: str) -> None:
    with status(CODE.INVALID_ARGUMENT, "malformed"):
        called(peer, method, MALFORMED)


@pytest.mark.parametrize("method", sorted({method for method, _ in BIDI.values()}))
def test_a_first_message_that_is_none(peer: FlightPeer, method: str) -> None:
    with status(CODE.INVALID_ARGUMENT):
        list(bidi(peer, method, [MALFORMED]))


@pytest.mark.parametrize("name", ["DoPut", "subscription", "transform"])
def test_a_later_message_that_is_none(peer: FlightPeer, name: str) -> None:
    method, messages = BIDI[name]
    with status(CODE.INVALID_ARGUMENT):
        list(bidi(peer, method, [*messages()[:1], MALFORMED]))


@pytest.mark.parametrize(
    ("method", "request_bytes", "code", "text"),
    [
        *(
            (method, Descriptor(path=("nope",)).encode(), CODE.NOT_FOUND, "'nope' not found")
            for method in UNARY
        ),
        *(
            (method, Descriptor(command=b"zz").encode(), CODE.FAILED_PRECONDITION, "q/<query>")
            for method in UNARY
        ),
        *(
            (method, Descriptor(command=b'{"x": 1}').encode(), CODE.INVALID_ARGUMENT, "transform")
            for method in UNARY
        ),
        *(
            (method, Descriptor(path=("a", "b", "c")).encode(), CODE.FAILED_PRECONDITION, "3 path")
            for method in UNARY
        ),
        *((method, b"", CODE.INVALID_ARGUMENT, "neither") for method in UNARY),
        ("DoGet", flight_messages.encode_ticket(b"s/nope"), CODE.NOT_FOUND, "not found"),
        ("DoGet", flight_messages.encode_ticket(b"f/aa/0"), CODE.NOT_FOUND, "time was up"),
        ("DoGet", flight_messages.encode_ticket(b"zz"), CODE.FAILED_PRECONDITION, "route"),
        ("DoGet", b"", CODE.INVALID_ARGUMENT, "no bytes"),
        ("DoAction", flight_messages.encode_action("x", b""), CODE.NOT_FOUND, "CancelFlightInfo"),
        ("DoAction", b"", CODE.NOT_FOUND, "unknown action ''"),
    ],
)
def test_what_is_not_known(
    peer: FlightPeer, method: str, request_bytes: bytes, code: grpc.StatusCode, text: str
) -> None:
    with status(code, text):
        called(peer, method, request_bytes)


def test_uploads_and_exchanges_of_what_is_not_known(peer: FlightPeer) -> None:
    with status(CODE.INVALID_ARGUMENT):
        list(bidi(peer, "DoPut", upload(Descriptor(command=b'{"tabel": "x"}'))))
    with status(CODE.NOT_FOUND):
        list(bidi(peer, "DoExchange", [subscription_request("nope")]))
    with status(CODE.UNIMPLEMENTED, "no operation 'nope'"):
        command = Descriptor(command=b'{"transform": {"ops": [["nope"]]}}')
        list(bidi(peer, "DoExchange", upload(command)))
    with status(CODE.INVALID_ARGUMENT, "failed to receive Barrage request metadata"):
        list(bidi(peer, "DoExchange", [data(metadata=b""), data(metadata=b"")]))


def test_a_table_that_is_made_twice(peer: FlightPeer) -> None:
    command = Descriptor(command=b'{"table": "wide", "mode": "create"}')
    with status(CODE.ALREADY_EXISTS, "'wide' exists"):
        list(bidi(peer, "DoPut", upload(command)))


def test_an_upload_with_deephaven_nulls(server: barrage.Server, peer: FlightPeer) -> None:
    """What says so comes before the schema, as Deephaven's own clients have it."""
    said = SerializationOptions(options=SubscriptionOptions(use_deephaven_nulls=True))
    metadata = encode_wrapper(said, WireRevision.R1_0_0)
    least = -(2**63)
    rows = pa.table({"x": pa.array([1, least, 3], pa.int64()), "s": ["a", None, "c"]})
    frames = [data(header=header, body=body) for header, body in ipc_messages(rows)]
    named = data(descriptor=Descriptor(path=("sentinels",)).encode(), metadata=metadata)
    answers = [
        json.loads(flight_messages.decode_put_result(each))
        for each in bidi(peer, "DoPut", [named, *frames])
    ]
    assert answers[0] == {"rows": 0}
    assert answers[1]["rows"] == 3
    assert server.table("sentinels").to_arrow()["x"].to_pylist() == [1, None, 3]
    server.drop_table("sentinels")


@pytest.mark.parametrize("method", [*ONE_REQUEST, "Handshake", "DoPut", "DoExchange"])
def test_a_message_that_is_too_long(peer: FlightPeer, method: str) -> None:
    huge = bytes(MESSAGE_BYTES_MAX + 128 * 1024)
    with status(CODE.RESOURCE_EXHAUSTED):
        if method in ONE_REQUEST:
            called(peer, method, huge)
        else:
            list(bidi(peer, method, [huge]))


# --- who never reads, who never writes ------------------------------------------------------------


@pytest.mark.parametrize("method", list(STREAMS))
def test_a_client_that_never_reads_and_goes(peer: FlightPeer, method: str) -> None:
    call = peer.stream(method, STREAMS[method])
    # Its headers are there when it has begun.
    call.initial_metadata()
    call.cancel()


def test_a_kept_result_nobody_reads_is_bounded_and_its_reader_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = replace(LIMITS, stall_ns_max=200_000_000, result_bytes_max=9 * ROWS)
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=limits)) as server:
        app = server._app
        assert app is not None
        rows = pa.table({"x": pa.array(range(ROWS), pa.int64()), "y": [""] * ROWS})
        server.create_table("wide", data=rows.drop_columns("y"))
        with FlightPeer(server.address, ("x-barrage-endpoints", "one")) as peer:
            told = peer.finished(Descriptor(path=("wide",)))
            calls = [
                peer.stream("DoGet", flight_messages.encode_ticket(endpoint.ticket))
                for endpoint in told.info.endpoints
            ]
            wait_until(lambda: len(app._authenticator.calls) == 0)
            with status(CODE.RESOURCE_EXHAUSTED, "size of"):
                peer.finished(Descriptor(path=("wide",)))
            app.results.cancel(next(iter(app.results._jobs.values())))
            wait_until(lambda: app.results.results.byte_count == 0)
            for call in calls:
                call.cancel()


@pytest.mark.parametrize("name", list(BIDI))
def test_a_client_that_writes_nothing_and_half_closes(peer: FlightPeer, name: str) -> None:
    method, _ = BIDI[name]
    answers = list(bidi(peer, method, []))
    # Who shows nothing in a handshake is anonymous, as it may be here.
    assert len(answers) == (1 if method == "Handshake" else 0)


@pytest.mark.parametrize("name", list(BIDI))
def test_a_client_that_writes_nothing_and_goes(
    server: barrage.Server, peer: FlightPeer, name: str
) -> None:
    app = server._app
    assert app is not None
    method, _ = BIDI[name]
    forever = threading.Event()
    call = bidi(peer, method, (forever.wait(60) and b"" for _ in range(1)))
    if method != "Handshake":
        wait_until(lambda: len(app._authenticator.calls) == 1)
    call.cancel()
    forever.set()


# --- cancelled at each step -----------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("method", list(ONE_REQUEST))
def test_one_request_cancelled_after_so_many_answers(
    peer: FlightPeer, method: str, after: int
) -> None:
    if method in UNARY:
        future = peer.channel.unary_unary(FLIGHT + method, None, None).future(
            UNARY[method], timeout=60
        )
        if after:
            future.result()
        future.cancel()
        return
    call = peer.stream(method, STREAMS[method])
    for _ in range(after):
        next(call, None)
    call.cancel()


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("name", list(BIDI))
def test_many_messages_cancelled_after_so_many(peer: FlightPeer, name: str, after: int) -> None:
    method, messages = BIDI[name]
    release = threading.Event()

    def some() -> Iterator[bytes]:
        yield from messages()[:after]
        release.wait(60)

    call = bidi(peer, method, some())
    if after:
        next(call, None)
    call.cancel()
    release.set()


def test_a_query_under_way_whose_asker_goes(
    server: barrage.Server, peer: FlightPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GetFlightInfo waits for the rows it keeps; nobody else does."""
    held = HeldReads(monkeypatch)
    app = server._app
    assert app is not None
    call = peer.channel.unary_unary(FLIGHT + "GetFlightInfo", None, None).future(PATH, timeout=60)
    wait_until(lambda: app.results.running_count == 1)
    call.cancel()
    wait_until(lambda: app.results.running_count == 0 and app.results.results.count == 0)
    held.let_through()


# --- the server stops -----------------------------------------------------------------------------


def test_the_server_stops_whatever_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that would stay end with UNAVAILABLE, and what has an end may come to it."""
    held = HeldReads(monkeypatch)
    server = barrage.Server("127.0.0.1", config=ServerConfig(limits=LIMITS, drain_grace_ms=200))
    server.start()
    server.create_table("wide", data=pa.table({"x": pa.array(range(ROWS), pa.int64())}))
    app = server._app
    assert app is not None
    release = threading.Event()

    def held_open(messages: list[bytes]) -> Iterator[bytes]:
        yield from messages
        release.wait(60)

    with FlightPeer(server.address) as peer:
        unary = [
            peer.channel.unary_unary(FLIGHT + method, None, None).future(PATH, timeout=60)
            for method in ("GetFlightInfo",)
        ]
        streams = [
            bidi(peer, BIDI[name][0], held_open(BIDI[name][1]()[:1]))
            for name in ("DoPut", "subscription", "transform")
        ]
        for stream in streams:
            next(stream)
        wait_until(lambda: len(app._authenticator.calls) == 4)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        codes = [future.exception(60).code() for future in unary]
        for stream in streams:
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            codes.append(caught.value.code())
        release.set()
        stopping.join(60)
        held.let_through()
    assert set(codes) <= {CODE.UNAVAILABLE, CODE.CANCELLED}
    assert codes[0] is CODE.UNAVAILABLE
    with FlightPeer(server.address) as peer, pytest.raises(grpc.RpcError) as caught:
        peer.unary("GetSchema", PATH, timeout=5)
    assert caught.value.code() in (CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED)

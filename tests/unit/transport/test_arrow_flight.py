"""Arrow's own client as a reader of large snapshots: what it says when something goes wrong."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage.client.tables.bulk_snapshot import fetch_bulk_snapshot
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConnectionLostError,
    CycleTooLongError,
    JournalCorruptError,
    PermissionDeniedError,
    ReaderMemoryError,
    RequestRefusedError,
    StatusCode,
    TableFailedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.arrow_flight import ArrowFlightClient
from barrage.transport.status import error_from_status
from barrage.wire.messages import SnapshotOptions, SnapshotRequest
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision

WAIT = 60


@pytest.fixture
def server():
    with barrage.Server(token="secret") as server:
        data = pa.table({f"c{i}": pa.array(range(500_000)) for i in range(8)})
        server.create_table("big", data=data, kind="static")
        yield server


def request(name):
    return encode_wrapper(SnapshotRequest(ticket=b"s/" + name.encode()), WireRevision.R1_0_0)


def read(client, name, token="secret"):
    headers = {"authorization": f"Bearer {token}"}
    answer = client.exchange(request(name), headers=headers, table=name)
    try:
        answer.schema()
        return sum(batch.num_rows for batch, _ in answer.batches())
    finally:
        answer.close()


def test_rows_and_refusals(server):
    client = ArrowFlightClient(server.uri.replace("grpc:", "grpc+tcp:"), None)
    assert read(client, "big") == 500_000
    with pytest.raises(TableNotFoundError, match="did you mean 'big'"):
        read(client, "bigg")
    with pytest.raises(AuthenticationError):
        read(client, "big", token="wrong")
    client.close()


class Refusing(grpc.GenericRpcHandler):
    """Answers every call with a status."""

    def __init__(self):
        self.code, self.text = grpc.StatusCode.INTERNAL, ""

    def service(self, handler_call_details):
        def answer(_request, context):
            context.abort(self.code, self.text)

        if handler_call_details.method.endswith("DoExchange"):
            return grpc.stream_stream_rpc_method_handler(answer)
        return grpc.unary_stream_rpc_method_handler(answer)


@pytest.fixture(scope="module")
def refusing():
    handler = Refusing()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = ArrowFlightClient(f"grpc+tcp://127.0.0.1:{port}", None)
    yield handler, client
    client.close()
    server.stop(None)


CASES = [
    ("ABORTED", str(CycleTooLongError("1 of: 2")), ConnectionLostError),
    ("UNAVAILABLE", "gone: for good.", ConnectionLostError),
    ("CANCELLED", "as was asked", ConnectionLostError),
    ("RESOURCE_EXHAUSTED", "too much: of all", RequestRefusedError),
    ("RESOURCE_EXHAUSTED", str(ReaderMemoryError(nbytes=2, nbytes_max=1)), ReaderMemoryError),
    ("FAILED_PRECONDITION", "Table is already failed", TableFailedError),
    ("DATA_LOSS", str(JournalCorruptError("f", offset=3, reason="x: y")), JournalCorruptError),
    ("INVALID_ARGUMENT", "gRPC returned aborted error, with message: no", RequestRefusedError),
    ("NOT_FOUND", "table 'other' not found", TableNotFoundError),
    ("UNIMPLEMENTED", "not here", UnsupportedError),
    ("UNAUTHENTICATED", "who: are you", AuthenticationError),
    ("PERMISSION_DENIED", "not you", PermissionDeniedError),
]


@pytest.mark.parametrize("call", ["exchange", "get"])
@pytest.mark.parametrize(("code", "text", "kind"), CASES)
def test_a_status_is_told_as_it_is_through_any_other_client(refusing, code, text, kind, call):
    """Arrow has no error of its own for some, and words before the text of all."""
    handler, client = refusing
    handler.code, handler.text = grpc.StatusCode[code], text

    def ask():
        answer = getattr(client, call)(b"x", headers={}, table="t")
        try:
            answer.schema()
        finally:
            answer.close()

    with pytest.raises(kind) as caught:
        ask()
    assert caught.value.answered == (StatusCode[code], text)
    assert str(caught.value) == str(error_from_status(StatusCode[code], text))


def test_nobody_there():
    client = ArrowFlightClient("grpc+tcp://127.0.0.1:1", None)
    with pytest.raises(ConnectionLostError):
        read(client, "big")


def test_a_cancelled_read_ends(server):
    client = ArrowFlightClient(server.uri.replace("grpc:", "grpc+tcp:"), None)
    answer = client.exchange(
        request("big"), headers={"authorization": "Bearer secret"}, table="big"
    )
    answer.schema()
    answer.cancel()
    with pytest.raises(BarrageError):
        list(answer.batches())
    answer.close()


def test_a_cancelled_snapshot_leaves_no_reader(server):
    client = ArrowFlightClient(server.uri.replace("grpc:", "grpc+tcp:"), None)

    async def test(cancels_late):
        reached, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def on_progress(_):
            loop.call_soon_threadsafe(reached.set)
            go.wait(WAIT)

        fetching = asyncio.ensure_future(
            fetch_bulk_snapshot(
                client,
                table="big",
                ticket=b"s/big",
                viewport=None,
                options=SnapshotOptions(),
                headers={"authorization": "Bearer secret"},
                limits=DEFAULT_LIMITS,
                on_progress=on_progress,
            )
        )
        await (reached.wait() if cancels_late else asyncio.sleep(0))
        fetching.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching

    asyncio.run(test(cancels_late=True))
    asyncio.run(test(cancels_late=False))

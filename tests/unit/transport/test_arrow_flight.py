"""Arrow's own client as a reader of large snapshots: what it says when something goes wrong."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

import barrage
from barrage.client.tables.bulk_snapshot import fetch_bulk_snapshot
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConnectionLostError,
    TableNotFoundError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.arrow_flight import ArrowFlightClient
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

"""What a large upload or a request costs the event loop: it is unpacked beside it, or refused."""

from __future__ import annotations

import asyncio
import threading

import grpc
import numpy as np
import pyarrow as pa
import pytest

from barrage import wire
from barrage.errors import LimitExceededError, RemoteProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.server.ingest.unpacking import Unpacked, unpacked
from barrage.server.ingest.upload import UploadReader
from barrage.server.runtime.aside import ON_LOOP_BYTES_MAX, aside
from barrage.transport.flight_messages import Descriptor
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.metadata import decode_wrapper
from tests.helpers.server_process import raw_channel

PUT = "/arrow.flight.protocol.FlightService/DoPut"


def frames_of(rows: pa.Table, *, compression: str | None = None, name: str = "t") -> list[bytes]:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    frames = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        frame = wire.FlightFrame(
            descriptor=None if frames else Descriptor(path=(name,)).encode(),
            header=message.metadata.to_pybytes(),
            body=None if message.body is None else message.body.to_pybytes(),
        )
        frames.append(wire.encode_flight_data(frame))
    return frames


def numbers(count: int) -> pa.Table:
    return pa.table({"n": np.zeros(count, dtype=np.int64)})


HEADER_ROWS = 512
"""What headers of one column count, in rows of eight bytes, at most."""


@pytest.mark.parametrize(
    ("count", "compression", "is_on_loop"),
    [
        (ON_LOOP_BYTES_MAX // 8 - HEADER_ROWS, None, True),
        (ON_LOOP_BYTES_MAX // 8 + 8, None, False),
        (ON_LOOP_BYTES_MAX // 8 - HEADER_ROWS, "zstd", True),
        (ON_LOOP_BYTES_MAX // 8 + 8, "zstd", False),
    ],
)
def test_a_large_batch_is_read_beside_the_loop(count, compression, is_on_loop, monkeypatch) -> None:
    reading: list[threading.Thread] = []
    read = UploadReader.read

    def noted(self, frame):
        reading.append(threading.current_thread())
        return read(self, frame)

    monkeypatch.setattr(UploadReader, "read", noted)
    schema, batch = (
        decode_flight_data(each, Limits())
        for each in frames_of(numbers(count), compression=compression)
    )

    async def go() -> Unpacked | None:
        batches = UploadReader(Limits())
        assert await unpacked(batches, schema) is None
        return await unpacked(batches, batch)

    found = asyncio.run(go())
    assert found is not None
    assert found.batch.num_rows == count
    loop_thread = threading.main_thread()
    assert reading[0] is loop_thread
    assert (reading[1] is loop_thread) == is_on_loop


def test_messages_of_many_columns_are_read_and_measured_beside_the_loop(monkeypatch) -> None:
    """Few bytes of rows, but a look at every column takes two milliseconds for a thousand."""
    reading: list[threading.Thread] = []
    read = UploadReader.read

    def noted(self, frame):
        reading.append(threading.current_thread())
        return read(self, frame)

    monkeypatch.setattr(UploadReader, "read", noted)
    wide = pa.table({f"c{i}": [1] for i in range(1000)})
    schema, batch = (decode_flight_data(each, Limits()) for each in frames_of(wide))

    async def go() -> Unpacked | None:
        batches = UploadReader(Limits())
        assert await unpacked(batches, schema) is None
        return await unpacked(batches, batch)

    found = asyncio.run(go())
    assert found is not None
    assert found.nbytes == wide.nbytes
    assert found.weight > ON_LOOP_BYTES_MAX  # Who goes through it again does it beside, too.
    assert all(thread is not threading.main_thread() for thread in reading)
    assert len(reading) == 2


@pytest.mark.parametrize("wanted", [pa.string(), None], ids=str)
def test_a_cast_weighs_what_it_makes(wanted) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), pa.array(["x" * 1000]))
    schema, batch = (
        decode_flight_data(each, Limits()) for each in frames_of(pa.table({"s": runs}))
    )
    into = None if wanted is None else pa.schema([("s", wanted)])

    async def go() -> Unpacked | None:
        batches = UploadReader(Limits())
        assert await unpacked(batches, schema, into) is None
        return await unpacked(batches, batch, into)

    found = asyncio.run(go())
    assert found is not None
    assert found.weight < ON_LOOP_BYTES_MAX < found.cast_weight
    assert found.expanded_bytes == found.table_bytes == 1_004_000
    found.check_expanded("batch", 1_004_000)
    with pytest.raises(LimitExceededError, match="batch is 1004000 bytes, the limit is 1003999"):
        found.check_expanded("batch", 1_003_999)


def test_a_body_that_would_become_too_large_is_refused_before_it_is_unpacked(monkeypatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("unpacked")

    schema, batch = (
        decode_flight_data(each, Limits()) for each in frames_of(numbers(1000), compression="zstd")
    )
    limits = Limits(ingest_bytes_pending_max=7_999)
    batches = UploadReader(limits)
    batches.read(schema)
    monkeypatch.setattr(UploadReader, "read", never)
    with pytest.raises(LimitExceededError, match="when decompressed is 8000 bytes"):
        asyncio.run(unpacked(batches, batch))


def test_one_large_body_is_unpacked_at_a_time() -> None:
    at_work: list[int] = []
    most: list[int] = []

    def work() -> None:
        at_work.append(1)
        most.append(len(at_work))
        at_work.pop()

    async def go() -> None:
        await asyncio.gather(*(aside(ON_LOOP_BYTES_MAX + 1, work) for _ in range(20)))

    asyncio.run(go())
    assert most == [1] * 20


def test_other_calls_are_served_while_a_large_upload_is_read(server, channel, monkeypatch) -> None:
    server.create_table("t", pa.schema([("n", pa.int64())]))
    entered, opened = threading.Event(), threading.Event()
    checked = UploadReader._checked

    def held(self, batch):
        entered.set()
        assert opened.wait(60)
        return checked(self, batch)

    monkeypatch.setattr(UploadReader, "_checked", held)
    call = channel.stream_stream(PUT)(iter(frames_of(numbers(100_000))))
    try:
        assert entered.wait(60)
        with raw_channel(server.address) as other:
            listed = other.unary_stream("/arrow.flight.protocol.FlightService/ListFlights")(
                b"", timeout=60
            )
            assert len(list(listed)) == 1
    finally:
        opened.set()
    assert list(call)
    assert server.table("t").to_arrow().num_rows == 100_000


def test_messages_that_grpc_would_unpack_are_refused_unread(server, channel) -> None:
    """It unpacks a message whole before anybody can say what it may cost."""
    server.create_table("t", pa.schema([("n", pa.int64())]))
    call = channel.stream_stream(PUT)(
        iter(frames_of(numbers(1_000_000))), compression=grpc.Compression.Gzip
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "gzip" in caught.value.details()
    assert server.table("t").to_arrow().num_rows == 0


@pytest.mark.parametrize("revision", list(wire.WireRevision))
@pytest.mark.parametrize("kind", [wire.SubscriptionRequest, wire.SnapshotRequest])
def test_a_viewport_has_so_many_ranges(kind, revision) -> None:
    limits = Limits(viewport_ranges_max=1000)

    def decoded(count: int, spread: int) -> RowSet | None:
        firsts = np.arange(count, dtype=np.int64) * spread
        options = (
            wire.SubscriptionOptions()
            if kind is wire.SubscriptionRequest
            else wire.SnapshotOptions()
        )
        request = kind(
            ticket=b"s/t",
            columns=None,
            viewport=RowSet.from_ranges(firsts, firsts),
            options=options,
        )
        return decode_wrapper(wire.encode_wrapper(request, revision), revision, limits).viewport

    assert decoded(1000, 2).range_count == 1000
    with pytest.raises(RemoteProtocolError, match="viewport of 1001 ranges"):
        decoded(1001, 2)
    # Past any length that so few ranges may have, nothing is decoded at all.
    with pytest.raises(RemoteProtocolError, match="ranges or more, the limit is 1000"):
        decoded(100_000, 2)

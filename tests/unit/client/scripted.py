"""A server made of queues: tests read what the client sends and answer frame by frame."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa

from barrage.client.connection.address import parse_address
from barrage.client.session import AsyncSession
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData
from barrage.transport.flight_messages import Descriptor, Endpoint, FlightInfo
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.metadata import decode_wrapper
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.helpers.virtual_clock import VirtualClock

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
EMPTY = RowSet.empty()
NO_SHIFTS = RowSetShiftData.empty()
PATIENCE_SECONDS = 180


def cells(numbers):
    numbers = list(numbers)
    return (pa.array(numbers, pa.int64()), pa.array([f"s{n}" for n in numbers], pa.string()))


class ScriptedStream:
    """The server's end of one stream."""

    def __init__(self):
        self._to_client: asyncio.Queue = asyncio.Queue()
        self._to_server: asyncio.Queue = asyncio.Queue()
        self.is_cancelled = False
        self.is_half_closed = False
        self.frames_read = 0
        self.answer: dict[str, str] = {}
        self.encoder = UpdateEncoder(SCHEMA, EncodeOptions(sends_source_time=True))

    # what the client calls

    async def read(self):
        item = await self._to_client.get()
        self.frames_read += 1
        if isinstance(item, Exception):
            raise item
        return item

    async def headers(self):
        return self.answer

    async def write(self, frame):
        self._to_server.put_nowait(frame)

    async def half_close(self):
        self.is_half_closed = True

    def cancel(self):
        self.is_cancelled = True

    # what the test calls

    async def request(self):
        """The next request of the client."""
        frame = await asyncio.wait_for(self._to_server.get(), PATIENCE_SECONDS)
        return decode_wrapper(decode_flight_data(frame).metadata, WireRevision.R1_0_0)

    def send(self, frames):
        for frame in frames:
            self._to_client.put_nowait(frame)

    def schema(self):
        self.send([self.encoder.schema_frame()])

    def end(self, error=None):
        """Complete the call, or break it."""
        self._to_client.put_nowait(error)

    def snapshot(self, numbers, *, viewport=None, included=None, size=None, **more):
        """The whole table as keys 0.. of a full subscription; ``included`` makes it a part."""
        numbers = list(numbers)
        keys = RowSet.of_span(0, size or len(numbers))
        self.full(keys, numbers, is_snapshot=True, viewport=viewport, included=included, **more)

    def full(
        self, added=EMPTY, numbers=(), *, removed=EMPTY, modified=None, is_snapshot=False,
        viewport=None, included=None, step=1, source_time_ns=None, columns=(0, 1),
        shifts=NO_SHIFTS,
    ):  # fmt: skip
        rows, values = modified or (EMPTY, [])
        self.send(
            self.encoder.encode(
                FullUpdate(
                    first_step=step,
                    last_step=step,
                    is_snapshot=is_snapshot,
                    effective_viewport=viewport,
                    is_effective_reverse=False,
                    effective_columns=columns if is_snapshot else None,
                    table_size=0,
                    added_columns=cells(numbers),
                    modified_columns=(pa.array(values, pa.int64()), pa.array([], pa.string())),
                    source_time_ns=source_time_ns,
                    removed_keys_pre=removed,
                    shifts=shifts,
                    added_keys_post=added,
                    included_keys_post=included,
                    modified_keys_post=(rows, EMPTY),
                )
            )
        )

    def view(self, added="", numbers=(), *, removed="", viewport=None, columns=(0, 1), size=100):
        x, s = cells(numbers)
        nothing = cells([])
        self.send(
            self.encoder.encode(
                ViewUpdate(
                    first_step=1,
                    last_step=1,
                    is_snapshot=viewport is not None,
                    effective_viewport=viewport,
                    is_effective_reverse=False,
                    effective_columns=columns if viewport is not None else None,
                    table_size=size,
                    added_columns=(
                        x if 0 in columns else nothing[0],
                        s if 1 in columns else nothing[1],
                    ),
                    modified_columns=nothing,
                    removed_positions=RowSet.parse(removed),
                    added_positions=RowSet.parse(added),
                    modified_positions=(EMPTY, EMPTY),
                )
            )
        )


class ScriptedConnector:
    """Hands out streams in the order the client opens them."""

    authorization = None

    def __init__(self):
        self._opened: asyncio.Queue = asyncio.Queue()
        self.is_closed = False
        self.failures: list[Exception] = []

    async def accept(self) -> ScriptedStream:
        """The stream of the client's next call."""
        return await asyncio.wait_for(self._opened.get(), PATIENCE_SECONDS)

    def exchange(self, *, headers=None, table=None):
        stream = ScriptedStream()
        stream.request_headers = headers
        if self.failures:
            stream.end(self.failures.pop(0))
        else:
            self._opened.put_nowait(stream)
        return stream

    put = exchange

    async def unary(self, method, request, *, timeout, table=None):
        schema = SCHEMA.serialize().to_pybytes()
        return FlightInfo(
            schema_message=schema,
            descriptor=Descriptor(path=(table or "",)),
            endpoints=(Endpoint(ticket=b""),),
            total_records=-1,
            total_bytes=-1,
            metadata=b"",
        ).encode()

    async def results(self, method, request, *, timeout, table=None):
        for message in ():
            yield message

    async def close(self):
        self.is_closed = True


@contextlib.asynccontextmanager
async def scripted_session(**arguments):
    """A session and its connector."""
    connector = ScriptedConnector()
    session = AsyncSession(
        parse_address("grpc://nowhere:1"), connector=connector, clock=VirtualClock(10**18),
        **arguments,
    )  # fmt: skip
    async with session:
        yield session, connector
    assert connector.is_closed


def run(test):
    """Run one asynchronous test with a limit; a hang is a failure."""

    async def limited():
        async with asyncio.timeout(60):
            await test()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"

    asyncio.run(limited())


async def until(condition):
    """Let the loop run until ``condition`` holds."""
    async with asyncio.timeout(60):
        turns = 0
        while not condition():
            turns += 1
            # What only this loop does is done soon; what other threads do may take its time.
            await asyncio.sleep(0 if turns < 1000 else 0.002)

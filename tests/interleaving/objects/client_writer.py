"""Many tasks on one writer, whose connection breaks and whose callers give up, against a server
that keeps what its real one would: the last number of the producer and the rows under it."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

from barrage.client.connection.reconnect import Backoff
from barrage.client.writing import writer as writer_module
from barrage.client.writing.writer import AsyncWriter, _Batch
from barrage.errors import ConnectionLostError, SubscriptionClosedError
from barrage.transport.flight_messages import Descriptor, encode_put_result
from barrage.wire.flight_data import decode_flight_data
from tests.interleaving.seeded_loop import run_seeded
from tests.unit.client.scripted import SCHEMA, cells, scripted_session

CALLERS = 4
WRITES = 4


def batch_of(numbers):
    return pa.record_batch(list(cells(numbers)), schema=SCHEMA)


def numbers_of(frame):
    """The values in a frame of one record batch."""
    message = pa.ipc.read_message(
        pa.py_buffer(
            b"\xff\xff\xff\xff"
            + (len(frame.header) + -len(frame.header) % 8).to_bytes(4, "little")
            + frame.header
            + bytes(-len(frame.header) % 8)
            + bytes(frame.body or b"")
        )
    )
    return pa.ipc.read_record_batch(message, SCHEMA).column(0).to_pylist()


class Server:
    """Takes numbered batches of one producer, and now and then loses the connection."""

    def __init__(self, connector, random_source):
        self.rows: list[list[int]] = []
        self.position = -1
        self.breaks = random_source.choice((0.0, 0.05, 0.2))
        self.random = random_source
        self.connector = connector

    async def serve(self):
        while True:
            stream = await self.connector._opened.get()
            try:
                await self.serve_one(stream)
            except ConnectionLostError as error:
                stream.end(error)

    async def serve_one(self, stream):
        opening = decode_flight_data(await stream._to_server.get())
        assert json.loads(Descriptor.decode(opening.descriptor).command)["producer"] == "feed"
        self.answer(stream)
        is_told = 0.0
        while True:
            frame = decode_flight_data(await stream._to_server.get())
            if self.random.random() < self.breaks:
                raise ConnectionLostError("before it arrived")
            number = json.loads(bytes(frame.metadata))["sequence"]
            if number > self.position:
                self.position = number
                self.rows.append(numbers_of(frame))
            is_told = self.random.random()
            if is_told < self.breaks:
                raise ConnectionLostError("before it was acknowledged")
            await asyncio.sleep(self.random.random() * 0.01)
            self.answer(stream, step=number)

    def answer(self, stream, **facts):
        told = {"rows": 0, "sequence": None if self.position < 0 else self.position, **facts}
        stream.send([encode_put_result(json.dumps(told).encode())])


def explore(seed: int) -> None:
    run_seeded(lambda: _explore(random.Random(seed)), seed)


async def _explore(source: random.Random) -> None:
    room = mock.patch.object(writer_module, "PENDING_WRITES_MAX", source.choice((1, 2, 5)))
    cut = mock.patch.object(writer_module, "batches_of", _in_threes)
    with room, cut:
        async with scripted_session() as (session, connector):
            server = Server(connector, source)
            serving = asyncio.ensure_future(server.serve())
            try:
                backoff = Backoff(first_seconds=0.01, seconds_max=0.01)
                opening = session.writer("t", producer="feed", reconnect=backoff)
                writer = await _patiently(opening)
                await _use(writer, server, source)
            finally:
                serving.cancel()
                await asyncio.wait([serving])


def _in_threes(table):
    return table.to_batches(max_chunksize=3)


async def _patiently(opening):
    """Opening fails when the first connection breaks; then it is tried again."""
    while True:
        try:
            return await opening
        except ConnectionLostError:
            await asyncio.sleep(0.01)


async def _use(writer: AsyncWriter, server: Server, source: random.Random) -> None:
    values = itertools.count()
    written: list[list[int]] = []
    given_up: list[list[int]] = []
    order: list[int] = []

    async def call(rows, caller):
        last = await writer.write(pa.table(list(cells(rows)), schema=SCHEMA))
        written.append(rows)
        order.append(last)
        return last

    async def write_many(caller):
        for _ in range(WRITES):
            rows = [next(values) for _ in range(source.choice((1, 2, 7)))]
            work = asyncio.ensure_future(call(rows, caller))
            if source.random() < 0.2:
                await asyncio.sleep(source.random() * 0.02)
                work.cancel()
            await asyncio.wait([work])
            if work.cancelled():
                given_up.append(rows)
            if source.random() < 0.3:
                await writer.flush()
                assert all(row in _flat(server.rows) for row in _flat(written) if row in rows)

    async with asyncio.TaskGroup() as group:
        for caller in range(CALLERS):
            group.create_task(write_many(caller))
    if source.random() < 0.5:
        await writer.close()
    else:
        await writer.flush()
        waiting = asyncio.ensure_future(writer.flush())
        await writer.abandon()
        await asyncio.wait([waiting])
        assert waiting.exception() is None or isinstance(
            waiting.exception(), SubscriptionClosedError
        )
    _check(_flat(server.rows), written, given_up)


def _check(there: list[int], written: list[list[int]], given_up: list[list[int]]) -> None:
    assert len(there) == len(set(there)), f"doubled: {there}"
    missing = set(_flat(written)) - set(there)
    assert not missing, f"lost: {sorted(missing)}"
    for rows in [*written, *given_up]:
        places = [there.index(row) for row in rows if row in there]
        # One call's rows are there together and in order, or not at all.
        assert len(places) in (0, len(rows)), f"a part of {rows}"
        assert places == list(range(places[0], places[0] + len(rows))) if places else True


def _flat(lists: list[list[int]]) -> list[int]:
    return [value for values in lists for value in values]


# --- canaries -------------------------------------------------------------------------------------


def draw_numbers_before_there_is_room() -> AbstractContextManager[object]:
    """As it was: two calls that wait get one number, and the server takes one for a resend."""

    async def write(self, rows, *, sequence=None):
        batches = list(writer_module.batches_of(rows))
        first = self._next
        for number, batch in enumerate(batches, first):
            await self._changes.until(self._has_room)
            self._raise_if_closed()
            self._pending.append(_Batch(number, batch))
            self._pending_bytes += batch.nbytes
            self._next = number + 1
            self._changes.tell()
        return self._next - 1

    return mock.patch.object(AsyncWriter, "write", write)


def send_nothing_again() -> AbstractContextManager[object]:
    """What the lost stream was given counts as arrived."""
    honest = AsyncWriter._serve_one_stream

    async def serve(self):
        for _ in range(self._in_flight):
            self._pending.popleft()
        self._in_flight = 0
        await honest(self)

    return mock.patch.object(AsyncWriter, "_serve_one_stream", serve)


CANARIES = (draw_numbers_before_there_is_room, send_nothing_again)

"""Streams over fake connections: a server of tables, a client's ends, and peers that send what they
like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from barrage.clock import Clock, SystemClock
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.transport.ucx.receiver import StreamReceiver
from barrage.transport.ucx.sender import StreamMessage
from barrage.transport.ucx.stream_client import BatchStream
from barrage.transport.ucx.stream_server import StreamServer
from barrage.transport.ucx.table_streams import (
    OfferedTable,
    TableStreams,
    encode_messages,
    table_source,
)
from barrage.wire.dissociated.tags import BodyType, encode_tag
from barrage.wire.dissociated.untagged import encode_end_message, encode_header_message
from tests.helpers.fake_ucx import FakeChannel, FakeListener

SMALL = replace(
    DEFAULT_LIMITS,
    message_bytes_target=16 * 1024,
    body_window_bytes=256 * 1024,
    body_window_count=8,
    body_wait_ns_max=10_000_000,
    body_deadline_ns=10_000_000_000,
    stall_ns_max=10_000_000_000,
)
"""Batches of about 64 KiB, a few of them under way."""

HASTY = replace(SMALL, body_deadline_ns=1_000_000_000, stall_ns_max=1_000_000_000)
"""For what ends by a deadline."""


def sample(rows: int = 1000) -> pa.Table:
    """Types of every kind a body is made of."""
    numbers = list(range(rows))
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "maybe": pa.array([n if n % 3 else None for n in numbers], pa.float64()),
            "text": pa.array([f"row {n}" for n in numbers]),
            "word": pa.array([f"w{n % 5}" for n in numbers]).dictionary_encode(),
            "nothing": pa.nulls(rows, pa.int32()),
            "list": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int64())),
            "flag": pa.array([n % 2 == 0 for n in numbers]),
        }
    )


class Service:
    """A server of tables on a fake listener."""

    def __init__(self, limits: Limits = SMALL, **places: Any) -> None:
        self.limits = limits
        self.clock = SystemClock()
        self.server = StreamServer(None, limits, self.clock, listen=self._listen)
        self.tables = TableStreams(self.server, limits, self.clock, **places)
        self.listener: FakeListener

    def _listen(self, *arguments: Any, **settings: Any) -> FakeListener:
        self.listener = FakeListener(*arguments, **settings)
        return self.listener

    async def __aenter__(self) -> Service:
        await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tables.close()
        await self.server.close()

    def offer(self, table: pa.Table, **settings: Any) -> OfferedTable:
        return self.tables.offer(table_source(table, self.limits), **settings)

    def connect(self) -> FakeChannel:
        return self.listener.connect()


class Taken(NamedTuple):
    """A client's side of a stream."""

    batches: BatchStream
    receiver: StreamReceiver
    metadata: FakeChannel
    bodies: FakeChannel

    async def table(self) -> pa.Table:
        """Everything; the connections are closed."""
        await self.batches.open()
        received = [batch async for batch in self.batches]
        await self.close()
        return pa.Table.from_batches(received, schema=self.batches.schema)

    async def close(self) -> None:
        self.receiver.close()
        for channel in {self.metadata, self.bodies}:
            await channel.close()


def receive_from(
    metadata: FakeChannel,
    bodies: FakeChannel | None = None,
    *,
    limits: Limits = SMALL,
    reader: Any = None,
    first: int = 0,
    clock: Clock | None = None,
) -> Taken:
    """Attach a receiver to these ends."""
    receiver = StreamReceiver(
        limits, clock or SystemClock(), deadline_ns=limits.body_deadline_ns, first=first
    )
    bodies = metadata if bodies is None else bodies
    receiver.attach(metadata, bodies, reader)
    return Taken(BatchStream(receiver, limits), receiver, metadata, bodies)


async def take(
    offered: OfferedTable,
    metadata: FakeChannel,
    bodies: FakeChannel | None = None,
    *,
    limits: Limits = SMALL,
    reader: Any = None,
    first: int = 0,
) -> Taken:
    """Claim what was offered on these ends."""
    taken = receive_from(metadata, bodies, limits=limits, reader=reader, first=first)
    assert offered.metadata is not None
    assert offered.bodies is not None
    await metadata.send_tagged(offered.metadata.want_data, offered.ticket, synchronous=True)
    if offered.bodies is not offered.metadata:
        await taken.bodies.send_tagged(offered.bodies.want_data, offered.ticket, synchronous=True)
    return taken


def messages_of(table: pa.Table, limits: Limits = SMALL) -> list[StreamMessage]:
    """What a stream of ``table`` is made of."""
    return list(encode_messages(table.schema, [(table.columns, table.num_rows)], limits))


class Peer:
    """A server that sends what a test says, when it says it."""

    def __init__(self, channel: FakeChannel, messages: Iterable[StreamMessage] = ()) -> None:
        self.channel = channel
        self.messages = list(messages)

    def header(self, number: int, sequence: int | None = None) -> None:
        sequence = number if sequence is None else sequence
        header = encode_header_message(sequence, self.messages[number].header)
        self.channel.send_untagged(header)

    def body(self, number: int, sequence: int | None = None) -> asyncio.Future[None]:
        parts = self.messages[number].parts
        assert parts is not None
        tag = encode_tag(BodyType.PACKED, number if sequence is None else sequence)
        return self.channel.send_tagged(tag, list(parts))

    def end(self, sequence: int | None = None) -> None:
        sequence = len(self.messages) if sequence is None else sequence
        self.channel.send_untagged(encode_end_message(sequence))

    @property
    def with_bodies(self) -> list[int]:
        return [i for i, message in enumerate(self.messages) if message.parts is not None]


def quiet(future: asyncio.Future[Any]) -> None:
    """Its failure is part of the test."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())


async def settle() -> None:
    """Let the loop do what there is to do at once. No time passes in it, however busy the machine
    is."""
    for _ in range(100):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Let the loop run until ``condition`` holds; AssertionError when it does not come to that."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of tests have no events
            await asyncio.sleep(0.001)

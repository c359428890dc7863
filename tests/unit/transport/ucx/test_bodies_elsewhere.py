"""The receiving end of a stream whose bodies lie elsewhere and are read from there: type 1."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.errors import BodyChannelError, RemoteProtocolError
from barrage.wire.dissociated.ranges import BodyRange, BodyRanges, encode_ranges
from barrage.wire.dissociated.tags import BodyTag, BodyType, encode_tag
from tests.helpers.fake_ucx import FakeChannel
from tests.helpers.ucx_streams import (
    SMALL,
    Peer,
    messages_of,
    quiet,
    receive_from,
    sample,
    settle,
)

TABLE = sample(3000)
PLAIN = sample(500).drop_columns("word")
"""One batch, no dictionary."""


class Elsewhere:
    """Memory with all bodies of a stream, read after a while; and how much is being read."""

    def __init__(self, peer: Peer) -> None:
        self.bodies = [b"".join(map(bytes, message.parts or ())) for message in peer.messages]
        self.now = 0
        self.most = 0

    async def read(self, ranges: BodyRanges, _header: bytes) -> pa.Buffer:
        body = self.bodies[ranges.ranges[0].address]
        self.now += len(body)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= len(body)
        return pa.py_buffer(body)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("headers_first", [True, False])
def test_bodies_elsewhere_are_read_as_far_as_the_window_goes(
    order: int, headers_first: bool
) -> None:
    """The lists are small and could all come at once; what they stand for could not."""
    table = sample(20_000)

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(table))
        reader = Elsewhere(peer)
        limits = replace(SMALL, body_window_count=100)
        taken = receive_from(client, reader=reader, limits=limits)
        largest = max(message.body_bytes for message in peer.messages)

        def send_headers() -> None:
            for i in range(len(peer.messages)):
                peer.header(i)
            peer.end()

        if headers_first:
            send_headers()
        for i in peer.with_bodies[::order]:
            where = encode_ranges([BodyRange(i, 0)])
            quiet(server.send_tagged(encode_tag(BodyType.RANGES, i), where))
        if not headers_first:
            send_headers()
        await asyncio.sleep(0.05)
        assert reader.most <= SMALL.body_window_bytes + largest
        assert (await taken.table()).equals(table)
        assert reader.most <= SMALL.body_window_bytes + largest
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_later_body_that_fills_the_window_does_not_stop_the_next_one() -> None:
    table = TABLE.drop_columns("word")

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(table))
        taken = receive_from(
            client, reader=Elsewhere(peer), limits=replace(SMALL, body_window_bytes=1000)
        )
        for i in range(len(peer.messages)):
            peer.header(i)
        peer.end()
        await taken.batches.open()
        for i in peer.with_bodies[::-1]:
            where = encode_ranges([BodyRange(i, 0)])
            quiet(server.send_tagged(encode_tag(BodyType.RANGES, i), where))
            await asyncio.sleep(0)
        rows = [batch.num_rows async for batch in taken.batches]
        assert sum(rows) == len(table)
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_nothing_is_taken_or_read_after_the_end() -> None:
    """What the reader reads from may be gone then."""
    table = PLAIN

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(table))
        reader = Elsewhere(peer)
        taken = receive_from(client, reader=reader)
        peer.header(0)
        await taken.batches.open()
        where = encode_ranges([BodyRange(1, 0)])
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), where))
        await settle()
        taken.receiver.close()
        peer.header(1)
        await settle()
        assert reader.most == 0
        assert taken.receiver._reassembly.pending_count == 0
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_what_is_ready_is_handed_out_after_a_rule_was_broken_and_nothing_more_is_read() -> None:
    table = TABLE.drop_columns("word")

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(table))
        assert len(peer.messages) > 3
        reader = Elsewhere(peer)
        limits = replace(SMALL, body_window_bytes=1000)
        taken = receive_from(client, reader=reader, limits=limits)
        for i in range(len(peer.messages)):
            peer.header(i)
        await taken.batches.open()
        quiet(peer.body(1))
        await settle()
        where = encode_ranges([BodyRange(2, 0)])
        taken.receiver._take_body(BodyTag(BodyType.RANGES, 2), pa.py_buffer(where))
        peer.end()
        peer.end()
        await settle()
        assert (await anext(taken.batches)).num_rows > 0
        with pytest.raises(RemoteProtocolError, match="ended twice"):
            await anext(taken.batches)
        assert reader.most == 0
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_what_is_being_read_is_called_off_at_the_end() -> None:
    class Endless:
        is_cancelled = False

        async def read(self, _ranges: BodyRanges, _header: bytes) -> pa.Buffer:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.is_cancelled = True
                raise
            raise AssertionError

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer, reader = Peer(server, messages_of(PLAIN)), Endless()
        taken = receive_from(client, reader=reader)
        peer.header(0)
        peer.header(1)
        where = encode_ranges([BodyRange(1, 0)])
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), where))
        await settle()
        taken.receiver.close()
        await settle()
        assert reader.is_cancelled
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_reader_that_fails_ends_the_stream_at_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def read(self, _ranges: BodyRanges, _header: bytes) -> pa.Buffer:
            raise ValueError("a mistake")

    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(PLAIN))
        taken = receive_from(client, reader=Broken())
        peer.header(0)
        peer.header(1)
        where = encode_ranges([BodyRange(1, 0)])
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), where))
        with pytest.raises(BodyChannelError, match="body 1 could not be read: a mistake"):
            await taken.table()
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))
    assert "could not be read" in caplog.text


def test_two_lists_under_one_number_end_the_stream_before_their_header_comes() -> None:
    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(PLAIN))
        taken = receive_from(client, reader=Elsewhere(peer))
        for _ in range(2):
            where = encode_ranges([BodyRange(1, 0)])
            quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), where))
        with pytest.raises(RemoteProtocolError, match="two bodies have the number 1"):
            await taken.table()
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))

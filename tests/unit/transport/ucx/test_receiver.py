"""The receiving end of a stream against servers that send in any order, too much, or wrongly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.errors import BodyChannelError, ConnectionLostError, RemoteProtocolError
from barrage.limits import Limits
from barrage.transport.ucx.body_intake import BodyIntake
from barrage.wire.dissociated.ranges import BodyRange, encode_ranges
from barrage.wire.dissociated.tags import BodyType, encode_tag
from tests.helpers.fake_ucx import FakeChannel
from tests.helpers.ucx_streams import (
    HASTY,
    SMALL,
    Peer,
    Taken,
    messages_of,
    quiet,
    receive_from,
    sample,
    settle,
)
from tests.helpers.virtual_clock import VirtualClock

TABLE = sample(3000)
PLAIN = sample(500).drop_columns("word")
"""One batch, no dictionary."""


def play(
    scene: Callable[[Peer, Taken], Awaitable[None]],
    table: pa.Table = TABLE,
    limits: Limits = SMALL,
) -> None:
    async def act() -> None:
        client, server = FakeChannel.pair()
        peer, taken = Peer(server, messages_of(table)), receive_from(client, limits=limits)
        try:
            await scene(peer, taken)
        finally:
            await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_the_sample_is_worth_its_name() -> None:
    messages = messages_of(TABLE)
    assert len(messages) > 4
    assert messages[0].parts is None


@pytest.mark.parametrize("seed", range(20))
def test_headers_bodies_and_the_end_come_in_any_order(seed: int) -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        steps: list[Callable[[], object]] = [lambda: peer.end()]
        steps += [lambda i=i: peer.header(i) for i in range(len(peer.messages))]
        steps += [lambda i=i: peer.body(i) for i in peer.with_bodies]
        random.Random(seed).shuffle(steps)
        for step in steps:
            step()
            if seed % 2:
                await asyncio.sleep(0)
        assert (await taken.table()).equals(TABLE)

    play(scene)


def test_headers_on_one_connection_and_bodies_on_another() -> None:
    async def act() -> None:
        (client_m, server_m), (client_b, server_b) = FakeChannel.pair(), FakeChannel.pair()
        messages = messages_of(TABLE)
        headers, bodies = Peer(server_m, messages), Peer(server_b, messages)
        taken = receive_from(client_m, client_b)
        for i in range(len(messages)):
            headers.header(i)
        headers.end()
        await settle()
        await server_m.close()  # Safe, once the end is known.
        reading = asyncio.create_task(taken.table())
        await asyncio.sleep(0.05)
        for i in reversed(headers.with_bodies):
            bodies.body(i)
        assert (await reading).equals(TABLE)

    asyncio.run(asyncio.wait_for(act(), 60))


@pytest.mark.parametrize("first", [2**32 - 1, 2**32 - 3, 2**31])
def test_numbers_roll_over(first: int) -> None:
    async def act() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(TABLE))
        taken = receive_from(client, first=first)
        numbers = [(first + i) % 2**32 for i in range(len(peer.messages) + 1)]
        for i in reversed(peer.with_bodies):
            peer.body(i, numbers[i])
        peer.end(numbers[-1])
        for i in range(len(peer.messages)):
            peer.header(i, numbers[i])
        assert (await taken.table()).equals(TABLE)

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_full_window_of_later_bodies_does_not_stand_in_the_way() -> None:
    table = sample(20_000)

    async def scene(peer: Peer, taken: Taken) -> None:
        for i in range(len(peer.messages)):
            peer.header(i)
        peer.end()
        for i in reversed(peer.with_bodies):
            quiet(peer.body(i))
        await settle()
        held = taken.receiver._intake.held_bytes
        largest = max(message.body_bytes for message in peer.messages)
        assert held <= SMALL.body_window_bytes + 2 * largest
        assert len(taken.bodies.waiting_tags) > 4
        assert (await taken.table()).equals(table)

    play(scene, table)


def test_a_slow_consumer_leaves_bodies_with_their_sender() -> None:
    table = sample(20_000)

    async def scene(peer: Peer, taken: Taken) -> None:
        largest = max(message.body_bytes for message in peer.messages)
        for i in range(len(peer.messages)):
            peer.header(i)
        for i in peer.with_bodies:
            quiet(peer.body(i))
        peer.end()
        await taken.batches.open()
        rows = 0
        async for batch in taken.batches:
            rows += batch.num_rows
            await asyncio.sleep(0.001)
            held = taken.receiver._intake.held_bytes
            assert held <= SMALL.body_window_bytes + largest
        assert rows == len(table)

    play(scene, table)


def test_a_missing_body_ends_the_stream_at_its_deadline() -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        for i in range(len(peer.messages)):
            peer.header(i)
        peer.end()
        started = asyncio.get_running_loop().time()
        with pytest.raises(BodyChannelError, match="the body of message 1 is missing"):
            await taken.table()
        assert 0.15 < asyncio.get_running_loop().time() - started < 5

    play(scene, limits=HASTY)


def test_a_missing_header_ends_the_stream_at_its_deadline() -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        peer.header(0)
        peer.end()
        with pytest.raises(BodyChannelError, match="the end of the stream is missing"):
            await taken.table()

    play(scene, limits=HASTY)


def test_a_silent_server_ends_the_stream_at_its_deadline() -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        with pytest.raises(BodyChannelError, match="a header is missing"):
            await taken.table()

    play(scene, limits=HASTY)


def test_a_lost_connection_ends_the_stream_at_once() -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        peer.header(0)
        peer.header(1)
        peer.channel.cut()
        with pytest.raises(ConnectionLostError, match="cut"):
            await taken.table()

    play(scene)


def test_what_came_before_the_connection_was_lost_is_complete() -> None:
    table = sample(20_000)

    async def scene(peer: Peer, taken: Taken) -> None:
        for i in range(len(peer.messages)):
            peer.header(i)
        for i in peer.with_bodies:
            quiet(peer.body(i))
        peer.end()
        await peer.channel.close()
        assert (await taken.table()).equals(table)

    play(scene, table)


def wrong(what: str) -> Callable[[Callable[[Peer], object]], Callable[[], None]]:
    """A test in which a server breaks a rule and the stream ends with an error that says so."""

    def decorate(send: Callable[[Peer], object]) -> Callable[[], None]:
        def test() -> None:
            async def scene(peer: Peer, taken: Taken) -> None:
                peer.header(0)
                done = send(peer)
                if isinstance(done, asyncio.Future):
                    quiet(done)
                with pytest.raises(RemoteProtocolError, match=what):
                    await taken.table()

            play(scene)

        return test

    return decorate


@wrong("reserved bits")
def test_reserved_bits_of_a_tag(peer: Peer) -> object:
    return peer.channel.send_tagged(1 << 32 | 1, b"x" * 64)


@wrong("reserved bits or an unknown type")
def test_a_type_nobody_knows(peer: Peer) -> object:
    return peer.channel.send_tagged(2 << 56 | 1, b"x" * 64)


@wrong("named no memory")
def test_addresses_without_memory(peer: Peer) -> object:
    tag = encode_tag(BodyType.RANGES, 1)
    return peer.channel.send_tagged(tag, encode_ranges([BodyRange(0, 8)]))


@wrong("two bodies have the number 2")
def test_a_body_that_comes_twice(peer: Peer) -> object:
    peer.body(2)
    return peer.body(2)


@wrong("two headers have the number 1")
def test_a_header_that_comes_twice(peer: Peer) -> object:
    peer.header(1)
    return peer.header(1)


@wrong("its header says")
def test_a_body_of_another_length(peer: Peer) -> object:
    peer.header(1)
    return peer.body(2, 1)


@wrong("has no body elsewhere|not one of the")
def test_a_body_for_the_schema(peer: Peer) -> object:
    return peer.body(1, 0)


@wrong("not one of the")
def test_a_number_far_ahead(peer: Peer) -> object:
    return peer.body(1, 1 << 20)


@wrong("ended twice")
def test_two_ends(peer: Peer) -> object:
    peer.end(3)
    return peer.end(3)


@wrong("of a stream that ends before")
def test_a_header_after_the_end(peer: Peer) -> object:
    peer.end(1)
    return peer.header(1)


@wrong("untagged message")
def test_an_untagged_message_that_is_cut_off(peer: Peer) -> object:
    return peer.channel.send_untagged(b"\x01\0\0")


@wrong("flatbuffer|offset|outside|cut|table")
def test_a_header_that_is_no_flatbuffer(peer: Peer) -> object:
    return peer.channel.send_untagged(b"\x01\1\0\0\0" + b"\xff" * 64)


@wrong("second schema")
def test_a_second_schema(peer: Peer) -> object:
    return peer.header(0, 1)


def test_a_body_past_the_limit_is_not_even_fetched() -> None:
    async def act() -> None:
        limits = replace(HASTY, message_bytes_max=1000)
        for extra in (0, 1):
            client, server = FakeChannel.pair()
            taken = receive_from(client, limits=limits)
            quiet(server.send_tagged(1, b"x" * (1000 + extra)))
            await settle()
            assert bool(client.fetched_tags) != bool(extra)
            assert bool(client.discarded_tags) == bool(extra)
            with pytest.raises(RemoteProtocolError if extra else BodyChannelError):
                await taken.table()
            await taken.close()

    asyncio.run(act())


def test_a_list_of_addresses_past_the_limit_is_not_even_fetched() -> None:
    async def act() -> None:
        limits = replace(SMALL, body_ranges_max=4)
        client, server = FakeChannel.pair()
        taken = receive_from(client, limits=limits)
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), b"x" * (16 * 5 + 1)))
        with pytest.raises(RemoteProtocolError, match="limit is 80 bytes"):
            await taken.table()
        assert client.fetched_tags == []
        await taken.close()

    asyncio.run(act())


def test_a_body_among_headers_and_a_header_among_bodies() -> None:
    async def act() -> None:
        for is_body in (True, False):
            (client_m, server_m), (client_b, server_b) = FakeChannel.pair(), FakeChannel.pair()
            taken = receive_from(client_m, client_b)
            messages = messages_of(TABLE)
            if is_body:
                quiet(Peer(server_m, messages).body(1))
            else:
                Peer(server_b, messages).header(0)
            with pytest.raises(RemoteProtocolError, match="on the connection for"):
                await taken.table()
            await taken.close()

    asyncio.run(act())


def test_the_tag_of_the_diagrams_is_read_as_well() -> None:
    async def act() -> None:
        client, server = FakeChannel.pair()
        taken = receive_from(client)
        quiet(server.send_tagged(1 << 55 | 1, encode_ranges([BodyRange(0, 8)])))
        # It is taken for addresses, which this client has no memory for.
        with pytest.raises(RemoteProtocolError, match="named no memory"):
            await taken.table()
        await taken.close()

    asyncio.run(act())


def test_a_flood_of_one_body_is_fetched_one_at_a_time() -> None:
    async def act() -> None:
        client, server = FakeChannel.pair()
        taken = receive_from(client)
        for sequence in range(2, 2 + SMALL.body_window_count):
            server.send_tagged(sequence, b"x" * 8)
        await settle()
        before = len(client.fetched_tags)
        for _ in range(100):
            server.send_tagged(0, b"x" * 8)
        await settle()
        assert before == SMALL.body_window_count
        assert len(client.fetched_tags) <= before + 2
        with pytest.raises(RemoteProtocolError):
            await taken.table()
        await taken.close()

    asyncio.run(act())


def test_the_deadline_runs_while_somebody_waits_and_not_while_nobody_asks() -> None:
    clock = VirtualClock()

    async def act() -> None:
        client, server = FakeChannel.pair()
        limits = replace(SMALL, body_deadline_ns=60_000_000_000)
        peer = Peer(server, messages_of(PLAIN))
        taken = receive_from(client, limits=limits, clock=clock)
        peer.header(0)
        peer.header(1)
        await taken.batches.open()
        clock.advance(100_000_000_000)
        asking = asyncio.create_task(anext(taken.batches))
        await settle()
        quiet(peer.body(1))
        assert (await asking).num_rows > 0
        await taken.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_connection_that_is_closed_under_the_receiver_ends_the_stream() -> None:
    async def scene(peer: Peer, taken: Taken) -> None:
        peer.header(0)
        await taken.batches.open()

        def gone(tag: int = 0, mask: int = 0) -> None:
            raise ConnectionLostError("the UCX connection is closed")

        taken.bodies.probe = gone  # type: ignore[method-assign]
        peer.body(1)
        with pytest.raises(ConnectionLostError, match="is closed"):
            await anext(taken.batches)

    play(scene)


def test_a_body_that_comes_after_the_end_is_forgotten() -> None:
    class Late(FakeChannel):
        def receive(self, probed: object) -> asyncio.Future[pa.Buffer]:
            coming.append(asyncio.get_running_loop().create_future())
            return coming[0]

    async def act() -> None:
        client, server = Late.pair()
        got: list[object] = []
        intake = BodyIntake(
            client,
            SMALL,
            on_body=lambda *body: got.append(body),
            on_failed=got.append,
            window_bytes=100,
        )
        server.send_tagged(1, b"x")
        await settle()
        assert intake.is_busy
        intake.close()
        coming[0].set_result(pa.py_buffer(b"x"))
        await settle()
        assert not got
        assert not intake.is_busy

    coming: list[asyncio.Future[pa.Buffer]] = []
    asyncio.run(act())

"""What every transport keeps to: gRPC over a socket, and calls within one process."""

from __future__ import annotations

import asyncio
import gc

import pytest

from barrage.errors import (
    BarrageError,
    ConfigError,
    ConnectionLostError,
    RequestRefusedError,
    SubscriptionClosedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.transport import registry
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.inproc.inproc_listener import InprocListener
from barrage.transport.status import DeadlineError
from tests.unit.transport.contract import (
    MESSAGE_BYTES_MAX,
    TOLD_SECONDS,
    TRANSPORTS,
    Peer,
    inproc_channel,
    settled,
    until,
)


@pytest.fixture(params=TRANSPORTS)
def run(request):
    """Run ``scene(channel, peer, stop)`` over one transport."""

    def run_scene(scene):
        async def main():
            peer = Peer()
            async with (
                asyncio.timeout(TOLD_SECONDS),
                TRANSPORTS[request.param](peer) as (channel, stop),
            ):
                await scene(channel, peer, stop)

        asyncio.run(main())

    return run_scene


def test_every_transport_of_this_package_keeps_the_contract():
    kept = {id(registry.TRANSPORTS.find(name.partition("-")[0])) for name in TRANSPORTS}
    for scheme in registry.TRANSPORTS.built_in:
        assert id(registry.TRANSPORTS.find(scheme)) in kept, scheme


async def opened(channel, word, **options):
    stream = channel.exchange(**options)
    await stream.write(word)
    return stream


def test_one_request_has_one_answer(run):
    async def scene(channel, peer, stop):
        answers = [
            channel.unary(FLIGHT + "GetSchema", b"%d" % n, timeout=TOLD_SECONDS) for n in range(20)
        ]
        assert await asyncio.gather(*answers) == [(b"%d" % n)[::-1] for n in range(20)]
        assert channel.authorization == "Bearer unary"

    run(scene)


def test_a_refusal_is_an_error_of_ours(run):
    async def scene(channel, peer, stop):
        with pytest.raises(RequestRefusedError, match="INVALID_ARGUMENT: no"):
            await channel.unary(FLIGHT + "GetSchema", b"refuse", timeout=TOLD_SECONDS)
        with pytest.raises(UnsupportedError):
            await channel.unary(FLIGHT + "Nothing", b"", timeout=TOLD_SECONDS)

    run(scene)


def test_a_call_that_takes_too_long_is_a_timeout(run):
    async def scene(channel, peer, stop):
        with pytest.raises(DeadlineError):
            await channel.unary(FLIGHT + "GetSchema", b"wait", timeout=0.01)
        with pytest.raises(DeadlineError):
            async for _ in channel.results(FLIGHT + "DoGet", b"wait", timeout=0.01):
                pass

    run(scene)


def test_answers_come_in_order_and_then_the_end(run):
    async def scene(channel, peer, stop):
        results = channel.results(FLIGHT + "DoGet", b"500", timeout=TOLD_SECONDS)
        assert [int(message) async for message in results] == list(range(500))
        stream = channel.get(b"3")
        assert [await stream.read() for _ in range(5)] == [b"0", b"1", b"2", None, None]

    run(scene)


def test_frames_go_both_ways_in_order_and_whole(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"echo", headers={"x-second": "2"})
        frames = [b"a", b"", bytes(5 * 1024 * 1024), *(b"%d" % n for n in range(300))]

        async def write():
            for frame in frames:
                await stream.write(frame)
            await stream.half_close()

        writing = asyncio.ensure_future(write())
        assert [await stream.read() for _ in frames] == frames
        assert await stream.read() == b"half-closed"
        assert await stream.read() is None
        await writing
        assert peer.received == frames
        assert peer.metadata["x-second"] == "2"
        assert peer.metadata["authorization"] == "Bearer first"

    run(scene)


def test_headers_come_ahead_and_bring_a_token(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"echo")
        await stream.write(b"x")
        assert await stream.read() == b"x"
        assert (await stream.headers())["x-first"] == "1"
        assert channel.authorization == "Bearer fresh"
        stream.cancel()

    run(scene)


def test_a_token_of_an_older_call_does_not_replace_a_newer_one(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"echo")
        channel.authorization = "Bearer newer"
        await stream.write(b"x")
        assert await stream.read() == b"x"
        assert channel.authorization == "Bearer newer"
        stream.cancel()

    run(scene)


def test_what_was_written_before_a_status_is_read_before_it(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"refuse", table="mine")
        assert [await stream.read(), await stream.read()] == [b"one", b"two"]
        for _ in range(2):
            with pytest.raises(TableNotFoundError, match="'x'"):
                await stream.read()
        await until(peer.ended.done)
        assert peer.ended.result() == "aborted"

    run(scene)


def test_an_accident_of_the_server_is_a_status_too(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"fail")
        with pytest.raises(BarrageError, match="an accident"):
            await stream.read()

    run(scene)


def test_a_server_that_leaves_first_is_an_end_and_no_place_to_write(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"leave")
        assert [await stream.read(), await stream.read()] == [b"bye", None]
        with pytest.raises(BarrageError):
            await stream.write(b"anybody?")
        await stream.half_close()

    run(scene)


def test_a_cancelled_call_ends_on_both_sides(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"stay")
        assert await stream.read() == b"here"
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        stream.cancel()
        stream.cancel()
        with pytest.raises(ConnectionLostError, match="cancelled"):
            await reading
        await until(peer.ended.done)
        assert peer.ended.result() == "cancelled"

    run(scene)


def test_writers_at_the_same_time_do_not_mix_their_frames(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"echo")
        writing = [asyncio.ensure_future(stream.write(b"%d" % n)) for n in range(50)]
        assert [await stream.read() for _ in writing] == [b"%d" % n for n in range(50)]
        stream.cancel()

    run(scene)


@pytest.mark.parametrize("run", ["inproc", "inproc-two-loops"], indirect=True)
def test_a_stream_that_nobody_has_any_more_is_cancelled(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"stay")
        assert await stream.read() == b"here"
        del stream
        gc.collect()
        await until(peer.ended.done)
        assert peer.ended.result() == "cancelled"

    run(scene)


def test_closing_the_channel_ends_its_calls(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"stay")
        assert await stream.read() == b"here"
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        await channel.close()
        await channel.close()
        with pytest.raises(SubscriptionClosedError):
            await reading
        with pytest.raises(SubscriptionClosedError):
            channel.exchange()
        await until(peer.ended.done)

    run(scene)


def test_a_server_does_not_write_more_than_a_window_ahead(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"flood")
        ahead = await settled(lambda: peer.written)
        assert 0 < ahead < 1_000
        # One more than there are: gRPC gives no room back while nobody wants to read.
        for _ in range(ahead + 1):
            await stream.read()
        await until(lambda: peer.written > ahead)
        stream.cancel()

    run(scene)


def test_a_client_does_not_write_more_than_a_window_ahead(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"swallow")
        assert await stream.read() == b"here"
        written = 0

        async def write():
            nonlocal written
            for _ in range(2_000):
                await stream.write(bytes(64 * 1024))
                written += 1
            await stream.half_close()

        writing = asyncio.ensure_future(write())
        ahead = await settled(lambda: written)
        assert 0 < ahead < 1_000
        peer.go_on()
        await writing
        assert await stream.read() is None
        assert len(peer.received) == 2_000

    run(scene)


def test_messages_that_are_too_large_are_refused_either_way(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"grow")
        with pytest.raises(RequestRefusedError, match=r"RESOURCE_EXHAUSTED: .*larger than max"):
            await stream.read()
        stream = await opened(channel, b"echo")

        async def send():
            await stream.write(bytes(MESSAGE_BYTES_MAX + 1))
            await stream.read()

        with pytest.raises(RequestRefusedError, match=r"RESOURCE_EXHAUSTED: .*larger than max"):
            await send()
        assert peer.received == []

    run(scene)


def test_a_server_that_stops_cuts_its_calls_and_takes_no_more(run):
    async def scene(channel, peer, stop):
        stream = await opened(channel, b"stay")
        assert await stream.read() == b"here"
        await stop()
        with pytest.raises(ConnectionLostError):
            await stream.read()
        with pytest.raises(ConnectionLostError):
            await channel.unary(FLIGHT + "GetSchema", b"x", timeout=TOLD_SECONDS)

    run(scene)


# --- names ----------------------------------------------------------------------------------------


def test_a_name_is_served_once_at_a_time():
    async def scene():
        first, second = (InprocListener("one", message_bytes_max=9) for _ in range(2))
        await first.start()
        with pytest.raises(ConfigError, match="inproc://one: the name is taken"):
            await second.start()
        await first.stop(0)
        await second.start()
        await first.stop(0)
        with pytest.raises(UnsupportedError):
            await inproc_channel("one").unary("/a/b", b"", timeout=TOLD_SECONDS)
        await second.stop(0)
        with pytest.raises(ConnectionLostError, match="serves inproc://one"):
            await inproc_channel("one").unary("/a/b", b"", timeout=TOLD_SECONDS)

    asyncio.run(scene())

"""The two ends of a Barrage stream's bodies, over connections without a library."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.errors import BodyChannelError, TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx.numbered_bodies import UcxBodyReceiver, UcxBodySender
from barrage.transport.ucx.stream_server import StreamServer
from barrage.wire.dissociated.detached import DetachedFrame
from tests.helpers.fake_ucx import LARGE, FakeChannel, FakeListener
from tests.helpers.ucx_streams import (
    quiet,
    settle,
)


class Scene:
    """A sender and a receiver that are connected."""

    client: FakeChannel
    sender: UcxBodySender
    receiver: UcxBodyReceiver
    server: StreamServer
    lost: list[Exception]


def run(play: Any, limits: Any = DEFAULT_LIMITS) -> None:
    async def act() -> None:
        listeners = []

        def listen(*arguments: Any, **settings: Any) -> FakeListener:
            listeners.append(FakeListener(*arguments, **settings))
            return listeners[0]

        scene = Scene()
        scene.server = StreamServer(None, limits, SystemClock(), listen=listen)
        await scene.server.start("127.0.0.1", 0)
        senders: list[UcxBodySender] = []
        scene.lost = []
        offered = scene.server.offer(
            lambda served, _: senders.append(UcxBodySender(served, on_lost=scene.lost.append))
        )
        scene.client = listeners[0].connect()
        await scene.client.send_tagged(offered.location.want_data, offered.ticket, synchronous=True)
        await asyncio.sleep(0)
        scene.sender, scene.receiver = senders[0], UcxBodyReceiver(scene.client, limits)
        try:
            await play(scene)
        finally:
            await scene.receiver.close()
            await scene.server.close()

    asyncio.run(asyncio.wait_for(act(), 60))


def frame(*parts: bytes) -> DetachedFrame:
    return DetachedFrame(b"", list(parts), sum(map(len, parts)))


def test_bodies_come_under_the_numbers_of_their_messages() -> None:
    async def play(scene: Scene) -> None:
        scene.sender.send(7, frame(b"ab", b"c" * LARGE))
        scene.sender.send(2**32 + 1, frame())
        got = [await scene.receiver.receive() for _ in range(2)]
        assert [(n, body.to_pybytes()) for n, body in got] == [(7, b"ab" + b"c" * LARGE), (1, b"")]
        assert isinstance(got[0][1], pa.Buffer)
        assert (scene.sender.sent_count, scene.sender.sent_bytes) == (2, LARGE + 2)

    run(play)


def test_the_receiver_fetches_no_more_than_the_window() -> None:
    limits = replace(DEFAULT_LIMITS, body_window_bytes=2 * LARGE)

    async def play(scene: Scene) -> None:
        for number in range(6):
            scene.sender.send(number, frame(b"x" * LARGE))
        await settle()
        assert len(scene.client.fetched_tags) == 2
        for number in range(6):
            assert (await scene.receiver.receive())[0] == number

    run(play, limits)


def test_a_lost_connection_is_told_to_both_sides() -> None:
    async def play(scene: Scene) -> None:
        scene.sender.send(1, frame(b"here"))
        await settle()
        scene.client.cut()
        await settle()
        assert (await scene.receiver.receive())[0] == 1
        with pytest.raises(BodyChannelError, match="cut"):
            await scene.receiver.receive()
        assert scene.sender.is_lost
        assert len(scene.lost) == 1
        with pytest.raises(BodyChannelError):
            scene.sender.send(2, frame(b"gone"))

    run(play)


def test_who_waits_is_told_that_the_connection_is_lost() -> None:
    async def play(scene: Scene) -> None:
        waiting = asyncio.create_task(scene.receiver.receive())
        await settle()
        scene.client.cut()
        with pytest.raises(BodyChannelError, match="cut"):
            await waiting

    run(play)


def test_a_body_under_way_when_the_client_goes() -> None:
    limits = replace(DEFAULT_LIMITS, body_window_bytes=1)

    async def play(scene: Scene) -> None:
        for number in range(3):
            scene.sender.send(number, frame(b"x" * LARGE))
        await settle()
        await scene.receiver.close()
        await settle()
        assert scene.sender.is_lost

    run(play, limits)


def test_closing_tells_nobody_of_a_loss() -> None:
    async def play(scene: Scene) -> None:
        scene.sender.close()
        scene.sender.close()
        await settle()
        assert scene.lost == []
        with pytest.raises(BodyChannelError):
            await scene.receiver.receive()
        with pytest.raises(BodyChannelError):
            scene.sender.send(1, frame(b"late"))

    run(play)


@pytest.mark.parametrize("tag", [1 << 32, 1 << 55, 1 << 56, 2 << 56, 1 << 63])
def test_what_is_no_body_of_type_0_ends_the_channel(tag: int) -> None:
    async def play(scene: Scene) -> None:
        quiet(scene.client.peer.send_tagged(tag, b"x" * 32))
        with pytest.raises(BodyChannelError):
            await asyncio.wait_for(scene.receiver.receive(), 60)

    run(play)


def test_an_untagged_message_ends_the_channel() -> None:
    async def play(scene: Scene) -> None:
        scene.client.peer.send_untagged(b"\0\0\0\0\0")
        with pytest.raises(BodyChannelError, match="untagged"):
            await asyncio.wait_for(scene.receiver.receive(), 60)

    run(play)


def test_a_body_past_the_limit_ends_the_channel_unfetched() -> None:
    limits = replace(DEFAULT_LIMITS, message_bytes_max=100)

    async def play(scene: Scene) -> None:
        quiet(scene.client.peer.send_tagged(1, b"x" * 101))
        with pytest.raises(BodyChannelError, match="limit is 100 bytes"):
            await asyncio.wait_for(scene.receiver.receive(), 60)
        assert scene.client.fetched_tags == []

    run(play, limits)


def test_what_a_client_sends_unasked_ends_the_channel() -> None:
    async def play(scene: Scene) -> None:
        quiet(scene.client.send_tagged(1, b"x"))
        await settle()
        assert scene.sender.is_lost

    run(play)


def test_nothing_is_sent_after_a_body_that_could_not_be() -> None:
    async def play(scene: Scene) -> None:
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        broken.set_exception(TransportError("no memory"))
        scene.client.peer.send_tagged = lambda *_, **__: broken  # type: ignore[method-assign]
        scene.sender.send(1, frame(b"x"))
        await settle()
        assert scene.sender.is_lost
        assert "no memory" in str(scene.lost[0])
        with pytest.raises(BodyChannelError, match="is lost"):
            scene.sender.send(2, frame(b"y"))

    run(play)

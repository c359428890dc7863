"""Who gets a stream: tickets, strangers, and limits, over connections without a library."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.errors import LimitExceededError, TransportError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.transport.ucx import stream_server
from barrage.transport.ucx.stream_server import ServedConnection, StreamServer, new_tag
from tests.helpers.fake_ucx import FakeChannel, FakeListener
from tests.helpers.ucx_streams import (
    quiet,
    settle,
    until,
)
from tests.helpers.virtual_clock import VirtualClock

LIMITS = replace(DEFAULT_LIMITS, ucx_unauthenticated_ns=1_000_000_000)


class Scene:
    """A server on a fake listener and the streams it gave away."""

    def __init__(self, limits: Limits = LIMITS, clock: Any = None) -> None:
        self.clock = clock or SystemClock()
        self.server = StreamServer(None, limits, self.clock, listen=self._listen)
        self.given: list[tuple[ServedConnection, bytes]] = []
        self.listener: FakeListener

    def _listen(self, *arguments: Any, **settings: Any) -> FakeListener:
        self.listener = FakeListener(*arguments, **settings)
        return self.listener

    def offer(self, **settings: Any) -> stream_server.OfferedStream:
        return self.server.offer(
            lambda served, ticket: self.given.append((served, ticket)), **settings
        )

    def connect(self) -> FakeChannel:
        return self.listener.connect()


def run(play: Callable[[Scene], Awaitable[None]], scene: Callable[[], Scene] = Scene) -> None:
    async def act() -> None:
        made = scene()
        await made.server.start("127.0.0.1", 0)
        try:
            await play(made)
        finally:
            await made.server.close()

    asyncio.run(asyncio.wait_for(act(), 60))


@pytest.mark.parametrize("drawn", [0, 1, 2**56, 2**55, 2**64 - 1])
def test_drawn_tags_are_never_those_of_a_body(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: drawn)
    assert new_tag() & 0x007F_FFFF_0000_0000, "a body has none of these bits"


def test_the_right_ticket_gets_the_stream_once() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        assert (offered.location.host, offered.location.port) == ("127.0.0.1", 4711)
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket, synchronous=True)
        await settle()
        assert [ticket for _, ticket in scene.given] == [offered.ticket]
        await asyncio.sleep(1.2)  # longer than a stranger may stay
        assert client.lost is None
        assert scene.server.offer_count == 0

    run(play)


def test_a_ticket_is_of_use_once() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        first, second = scene.connect(), scene.connect()
        await first.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        await second.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert len(scene.given) == 1
        assert second.lost is not None
        assert first.lost is None

    run(play)


@pytest.mark.parametrize("wrong", [b"", b"x", b"\0" * 16, b"\0" * 17], ids=len)
def test_a_wrong_ticket_closes_the_connection_and_uses_up_nothing(wrong: bytes) -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        stranger = scene.connect()
        await stranger.send_tagged(offered.location.want_data, wrong)
        await settle()
        assert stranger.lost is not None
        assert not scene.given
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert len(scene.given) == 1

    run(play)


def test_a_ticket_of_another_stream_does_not_open_this_one() -> None:
    async def play(scene: Scene) -> None:
        one, other = scene.offer(), scene.offer()
        client = scene.connect()
        await client.send_tagged(one.location.want_data, other.ticket)
        await settle()
        assert client.lost is not None
        assert not scene.given

    run(play)


def test_a_ticket_expires_by_the_clock() -> None:
    clock = VirtualClock()

    async def play(scene: Scene) -> None:
        offered = scene.offer(lifetime_ns=5_000_000_000)
        clock.advance(4_999_999_999)
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert len(scene.given) == 1
        offered = scene.offer(lifetime_ns=5_000_000_000)
        clock.advance(5_000_000_000)
        late = scene.connect()
        await late.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert late.lost is not None
        assert len(scene.given) == 1
        assert scene.server.offer_count == 0

    run(play, lambda: Scene(clock=clock))


def test_an_expired_offer_keeps_nothing() -> None:
    async def play(scene: Scene) -> None:
        scene.offer(lifetime_ns=1_000_000)
        await until(lambda: scene.server.offer_count == 0)

    run(play)


def test_the_time_of_an_offer_that_was_taken_back_is_not_that_of_the_next_one() -> None:
    async def play(scene: Scene) -> None:
        scene.offer(want_data=1 << 54, lifetime_ns=50_000_000)
        scene.server.withdraw(1 << 54)
        scene.offer(want_data=1 << 54)
        await asyncio.sleep(0.2)
        assert scene.server.offer_count == 1

    run(play)


def test_an_offer_can_be_taken_back() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        scene.server.withdraw(offered.location.want_data)
        scene.server.withdraw(offered.location.want_data)
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert client.lost is not None

    run(play)


def test_a_ticket_that_is_too_long_is_not_even_fetched() -> None:
    async def play(scene: Scene) -> None:
        for extra in (0, 1):
            ticket = b"t" * (LIMITS.ucx_ticket_bytes_max + extra)
            offered = scene.offer(ticket=ticket)
            client = scene.connect()
            await client.send_tagged(offered.location.want_data, ticket)
            await settle()
            assert (client.lost is not None) == bool(extra)
            assert bool(client.peer.discarded_tags) == bool(extra)
        assert len(scene.given) == 1

    run(play)


@pytest.mark.parametrize("tag", [0, 7, 1 << 40, 1 << 55, 2**64 - 1])
def test_a_tag_nobody_asked_for_closes_the_connection(tag: int) -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await client.send_tagged(tag, b"?")
        await settle()
        assert client.lost is not None
        assert client.peer.discarded_tags == [tag]

    run(play)


def test_an_untagged_message_closes_the_connection() -> None:
    async def play(scene: Scene) -> None:
        client = scene.connect()
        await client.send_untagged(b"\x01\0\0\0\0hello")
        await settle()
        assert client.lost is not None

    run(play)


def test_who_shows_no_ticket_does_not_stay() -> None:
    async def play(scene: Scene) -> None:
        client = scene.connect()
        await settle()
        assert client.lost is None
        assert scene.server.connection_count == 1
        await until(lambda: client.lost)
        assert scene.server.connection_count == 0

    run(play)


def test_connections_past_the_limit_are_closed() -> None:
    limits = replace(LIMITS, ucx_connections_max=2)

    async def play(scene: Scene) -> None:
        assert scene.listener.connections_max == 2
        clients = [scene.connect() for _ in range(3)]
        await settle()
        assert [client.lost is not None for client in clients] == [False, False, True]
        await clients[0].close()
        await settle()
        assert scene.server.connection_count == 1
        assert scene.connect().lost is None

    run(play, lambda: Scene(limits))


def test_two_streams_are_not_offered_under_one_tag() -> None:
    async def play(scene: Scene) -> None:
        scene.offer(want_data=1 << 54)
        with pytest.raises(TransportError, match="already"):
            scene.offer(want_data=1 << 54)
        assert scene.server.offer_count == 1

    run(play)


def test_offers_past_the_limit_are_refused() -> None:
    limits = replace(LIMITS, body_channels_max=2)

    async def play(scene: Scene) -> None:
        scene.offer()
        scene.offer()
        with pytest.raises(LimitExceededError):
            scene.offer()

    run(play, lambda: Scene(limits))


def test_messages_under_a_route_go_to_its_owner_up_to_their_limit() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        served, _ = scene.given[0]
        got: list[pa.Buffer] = []
        served.route(1 << 50, got.append, bytes_max=8)
        await client.send_tagged(1 << 50, b"12345678")
        await settle()
        assert [buffer.to_pybytes() for buffer in got] == [b"12345678"]
        await client.send_tagged(1 << 50, b"123456789")
        await settle()
        assert len(got) == 1
        assert client.lost is not None

    run(play)


def test_the_owner_learns_of_the_end_once_also_afterwards() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        served, _ = scene.given[0]
        told: list[TransportError] = []
        served.when_lost(told.append)
        await client.close()
        await settle()
        assert len(told) == 1
        assert served.is_lost
        served.when_lost(told.append)
        assert len(told) == 2
        served.close_soon()

    run(play)


def test_what_was_sent_before_the_end_is_still_taken() -> None:
    async def play(scene: Scene) -> None:
        offered = scene.offer()
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        got: list[pa.Buffer] = []
        scene.given[0][0].route(1 << 50, got.append, bytes_max=8)
        client.peer.is_deaf = True
        await client.send_tagged(1 << 50, b"last")
        await client.close()
        await settle()
        assert [buffer.to_pybytes() for buffer in got] == [b"last"]

    run(play)


def test_a_stopping_server_ends_everything() -> None:
    async def play(scene: Scene) -> None:
        scene.offer()
        client = scene.connect()
        await scene.server.close()
        await settle()
        assert client.lost is not None
        assert scene.listener.is_closed
        assert scene.server.offer_count == 0
        with pytest.raises(TransportError):
            scene.offer()

    run(play)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_an_address_nobody_can_connect_to_is_refused(host: str) -> None:
    server = StreamServer(None, LIMITS, SystemClock(), listen=FakeListener)
    with pytest.raises(TransportError, match="name the address"):
        asyncio.run(server.start(host, 0))


def test_one_connection_may_take_two_streams() -> None:
    async def play(scene: Scene) -> None:
        one, other = scene.offer(), scene.offer()
        client = scene.connect()
        for offered in (one, other):
            await client.send_tagged(offered.location.want_data, offered.ticket, synchronous=True)
        await settle()
        assert scene.given[0][0] is scene.given[1][0]

    run(play)


class Announced(FakeChannel):
    """A server's end to which messages are announced that never come."""

    def receive(self, probed: Any) -> asyncio.Future[pa.Buffer]:
        self.fetched_tags.append(probed.tag)
        return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("size", [0, 8, 100_000])
def test_messages_that_are_announced_and_do_not_come_take_a_bounded_memory(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_server, "RECEIVING_BYTES_MAX", 6_400)
    fits = 6_400 // max(size, 64)

    async def play(scene: Scene) -> None:
        client, server = Announced.pair()
        scene.listener._on_connection(server)
        [served] = scene.server._served
        served.route(1 << 50, lambda _: None, bytes_max=1 << 20)
        for _ in range(fits):
            quiet(client.send_tagged(1 << 50, bytes(size)))
        await settle()
        assert len(server.fetched_tags) == fits
        assert client.lost is None
        quiet(client.send_tagged(1 << 50, bytes(size)))
        await settle()
        assert client.lost is not None
        assert server.discarded_tags == [1 << 50]

    run(play)


def test_what_came_makes_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_server, "RECEIVING_BYTES_MAX", 64)

    async def play(scene: Scene) -> None:
        client = scene.connect()
        [served] = scene.server._served
        got: list[pa.Buffer] = []
        served.route(1 << 50, got.append, bytes_max=8)
        for _ in range(5):
            await client.send_tagged(1 << 50, b"12345678")
            await settle()
        assert len(got) == 5
        assert client.lost is None

    run(play)


@pytest.mark.parametrize("error", [TransportError("full"), ValueError("a mistake")], ids=str)
def test_a_stream_that_cannot_be_given_closes_its_connection(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(served: ServedConnection, ticket: bytes) -> None:
        raise error

    async def play(scene: Scene) -> None:
        offered = scene.server.offer(refuse)
        client = scene.connect()
        await client.send_tagged(offered.location.want_data, offered.ticket)
        await settle()
        assert client.lost is not None
        assert scene.server.connection_count == 0

    run(play)
    assert ("was not taken" in caplog.text) == isinstance(error, ValueError)

"""Which way bodies take: what is asked, what is tried, what is remembered, and what never is."""

from __future__ import annotations

import asyncio
import json

import pytest

import barrage
from barrage.client.bodies.bodies import NO_STREAM, BodyChoice, BodyStats, BodyStatus
from barrage.client.bodies.body_routes import (
    NO_ANSWER,
    NOT_OFFERED,
    REMEMBERED_NS,
    SESSION,
    SWITCHED_OFF,
    BodyRoutes,
)
from barrage.errors import (
    ActionNotFoundError,
    AuthenticationError,
    BodyChannelError,
    ConfigError,
    ConnectionLostError,
    TransportError,
    TransportUnavailableError,
    UnsupportedError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.shared_memory.shared_bodies import LocalSharedMemory
from barrage.transport.status import DeadlineError
from barrage.transport.ucx.dialer import LocalUcx, device_towards
from barrage.wire.dissociated.negotiation import ACTION, HEADER, Answer, ConnectionTerms
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.client.bodies.body_fakes import BodyServer, FakeArena, FakeSharedMemory, FakeUcx
from tests.unit.client.scripted import run

TERMS = ConnectionTerms(release="1.22.0", settings={"CM_USE_ALL_DEVICES": "n"})


class Routes:
    """Routes and what is around them."""

    def __init__(self, choice="auto", **more):
        self.server = BodyServer()
        self.clock = VirtualClock(10**18)
        self.memory = FakeSharedMemory(FakeArena())
        self.ucx = FakeUcx(TERMS)
        self.routes = BodyRoutes(
            BodyChoice.parse(choice), self.act, limits=DEFAULT_LIMITS, clock=self.clock,
            memory=self.memory, dialer=self.ucx, **more,
        )  # fmt: skip

    async def act(self, kind, body, timeout):
        from barrage.transport import flight_messages

        request = flight_messages.encode_action(kind, body)
        results = self.server.results("x/DoAction", request, timeout=timeout)
        return [flight_messages.decode_result(message) async for message in results]

    async def channel(self):
        """The channel and the reason, as a pair."""
        offered = await self.routes.channel()
        return offered.take(), offered.reason

    @property
    def asked(self):
        return len(self.server.offers)


def test_choices():
    assert [BodyChoice.parse(text).way.value for text in ("auto", "inline", "shm", "ucx")] == [
        "shm", "inline", "shm", "ucx",
    ]  # fmt: skip
    assert BodyChoice.parse(BodyChoice.UCX) is BodyChoice.UCX
    with pytest.raises(ConfigError, match="'auto', 'inline', 'shm', 'ucx'"):
        BodyChoice.parse("rdma")
    with pytest.raises(ConfigError, match="bodies is 7"):
        BodyChoice.parse(7)
    with pytest.raises(ConfigError, match="bodies is 'x'"):
        barrage.connect("grpc://localhost:1", bodies="x")


def test_statuses_and_counts_are_for_people_and_programs():
    assert str(NO_STREAM) == "inline (there was no stream yet)"
    assert str(BodyStatus(BodyWay.UCX)) == "ucx"
    assert [name for name, _ in BodyStats().by_way()] == [way.value for way in BodyWay]


def test_what_is_offered():
    async def test():
        shm, ucx = Routes("shm"), Routes("ucx")
        channel, reason = await shm.channel()
        assert (channel.way, reason) == (BodyWay.SHM, "")
        (offer,) = shm.server.offers
        assert (offer.order, offer.shm.boot_id, offer.terms) == ((BodyWay.SHM,), "here", {})
        channel, _ = await ucx.channel()
        assert channel.way is BodyWay.UCX
        (offer,) = ucx.server.offers
        assert (offer.order, offer.terms, offer.shm) == ((BodyWay.UCX,), {BodyWay.UCX: TERMS}, None)
        channel.discard()
        for made in (shm, ucx):
            await made.routes.close()
        assert ucx.ucx.connections[0].is_closed

    run(test)


@pytest.mark.parametrize(
    ("choice", "is_session", "reason"),
    [("inline", False, SWITCHED_OFF), ("auto", True, SESSION), ("ucx", True, SESSION)],
)
def test_where_there_is_no_way_nobody_is_asked(choice, is_session, reason):
    async def test():
        made = Routes(choice, is_session=is_session)
        assert await made.channel() == (None, reason)
        made.routes.note_actions([ACTION])
        assert not made.routes.can_ask
        assert not made.routes.is_ready
        assert made.asked == 0

    run(test)


def test_a_server_without_the_action_is_not_asked():
    async def test():
        made = Routes()
        made.routes.note_actions(["barrage.drop_table"])
        assert await made.channel() == (None, NOT_OFFERED)
        assert made.asked == 0
        made.clock.advance(REMEMBERED_NS)
        assert (await made.channel())[0] is not None
        other = Routes()
        other.routes.note_actions([ACTION, "x"])
        assert other.routes.can_ask

    run(test)


FAILURES = {
    "an older server": (ActionNotFoundError("unknown action"), NOT_OFFERED),
    "one older still": (UnsupportedError("unknown action"), NOT_OFFERED),
    "no result": (None, NO_ANSWER),
    "too slow": (DeadlineError("the call took longer"), NO_ANSWER),
    "no json": (b"\xff", "not JSON"),
    "no object": (b"[]", "JSON object"),
    "another way": (
        Answer(
            way=BodyWay.UCX, channel_id="0" * 32, location="ucx://h:1?want_data=1", ticket=b"t"
        ).to_json(),
        "unasked",
    ),
    "no arena": (
        json.dumps({"way": "shm", "channel_id": "0" * 32}).encode(), "without the memory's name",
    ),
    "refused": (
        Answer(way=BodyWay.INLINE, reason="shm: another host").to_json(), "shm: another host",
    ),
    "credentials": (AuthenticationError("no"), "no"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAILURES)
def test_a_failure_is_remembered_for_five_minutes(fault):
    async def test():
        made = Routes()
        answer, reason = FAILURES[fault]
        made.server.answers = [answer]
        channel, told = await made.channel()
        assert channel is None
        assert reason.lower() in told.lower()
        assert await made.channel() == (None, told)
        assert not made.routes.can_ask
        assert made.asked == 1
        made.clock.advance(REMEMBERED_NS - 1)
        assert (await made.channel())[0] is None
        made.clock.advance(1)
        assert (await made.channel())[0] is not None
        assert made.routes.is_ready

    run(test)


def test_a_server_that_is_gone_is_asked_again():
    async def test():
        made = Routes()
        made.server.answers = [ConnectionLostError("gone")]
        with pytest.raises(ConnectionLostError, match="gone"):
            await made.channel()
        assert (await made.channel())[0] is not None

    run(test)


def test_memory_that_cannot_be_had():
    async def test():
        made = Routes()
        made.memory.failure = TransportUnavailableError("of another user")
        assert await made.channel() == (None, "of another user")
        assert made.asked == 1
        nowhere = Routes()

        def identity():
            raise TransportUnavailableError("no boot id")

        nowhere.memory.identity = identity
        assert await nowhere.channel() == (None, "no boot id")
        assert nowhere.asked == 0

    run(test)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (TransportError("refused \x1b"), "refused ?"),
        (ConnectionLostError("closed port"), "closed port"),
        (BodyChannelError("closed port"), "closed port"),
        (TimeoutError(), "no UCX connection within 1 seconds"),
    ],
)
def test_a_connection_that_cannot_be_had(failure, reason):
    async def test():
        made = Routes("ucx")
        made.ucx.failure = failure
        assert await made.channel() == (None, reason)
        assert not made.routes.can_ask

    run(test)


def test_many_streams_prepare_once():
    async def test():
        made = Routes()
        channels = await asyncio.gather(*(made.channel() for _ in range(20)))
        assert len({id(channel) for channel, _ in channels}) == 1
        assert made.asked == 1
        assert made.memory.opened == ["barrage-x"]
        await made.routes.close()
        assert made.memory.arena.closed == 1
        await made.routes.close()
        assert made.memory.arena.closed == 1
        assert (await made.channel())[0] is None

    run(test)


def test_a_channel_nobody_claimed_in_time_is_prepared_anew():
    async def test():
        made = Routes()
        first, _ = await made.channel()
        made.clock.advance(DEFAULT_LIMITS.body_ticket_ns // 2)
        assert not made.routes.is_ready
        second, _ = await made.channel()
        assert second is not first
        assert second.headers() != first.headers()
        assert made.memory.arena.closed == 1
        # Claimed once it stays.
        second.accepted()
        made.clock.advance(3600 * 10**9)
        assert (await made.channel())[0] is second

    run(test)


def test_memory_is_let_go_when_the_last_stream_has():
    async def test():
        made = Routes()
        channel, _ = await made.channel()

        async def write(frame):
            raise AssertionError

        receivers = [channel.open(write) for _ in range(2)]
        channel.refused("unknown")
        assert not made.routes.is_ready
        channel.refused("unknown")
        for receiver in receivers:
            assert made.memory.arena.closed == 0
            receiver.close()
            receiver.close()
        assert made.memory.arena.closed == 1
        # What is said of a channel of before does not touch the next one.
        second, _ = await made.channel()
        channel.broken()
        assert made.routes.is_ready
        second.failed("a body is missing")
        assert await made.channel() == (None, "a body is missing")
        assert made.memory.arena.closed == 2

    run(test)


def test_the_header_claims_with_the_proof():
    async def test():
        made = Routes()
        channel, _ = await made.channel()
        assert channel.headers() == {HEADER: f"{0:032x} {bytes(range(16)).hex()}"}

    run(test)


def test_the_memory_of_this_host():
    memory = LocalSharedMemory()
    assert memory.identity() == memory.identity()
    with pytest.raises(TransportUnavailableError):
        memory.open("../etc/passwd")
    with pytest.raises(TransportUnavailableError):
        memory.open("barrage-" + "0" * 32)


def test_the_network_device_towards_a_host():
    assert device_towards("127.0.0.1") == "lo"
    with pytest.raises(TransportUnavailableError, match="no way to no-such-host"):
        device_towards("no-such-host.invalid")
    ucx = LocalUcx(DEFAULT_LIMITS)
    ucx.close()
    ucx.close()

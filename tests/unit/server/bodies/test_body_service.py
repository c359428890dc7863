"""The life of the body service: what goes wrong while it starts, runs or stops leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from barrage.limits import DEFAULT_LIMITS
from barrage.proto.outgoing_bodies import OutgoingState
from barrage.server.bodies.body_channels import BodyChannels
from barrage.server.bodies.body_frames import PlacedFrame
from barrage.server.bodies.body_service import BodyService
from barrage.server.identity.caller import ANYBODY
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.transport.shared_memory import host_identity
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import Claim, ConnectionTerms, Offer
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.virtual_clock import VirtualClock

LIMITS = replace(
    DEFAULT_LIMITS,
    body_arena_bytes=1 << 20,
    body_segment_bytes=1 << 18,
    body_ticket_ns=1_000_000,
)
TERMS = ConnectionTerms(release="1.0", settings={})
CONFIG = ServerConfig(bodies="shm", limits=LIMITS)

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def service() -> BodyService:
    return BodyService(CONFIG, VirtualClock())


def arena_names() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("barrage-*")}


@pytest.mark.parametrize("failure", [RuntimeError("no module"), asyncio.CancelledError()])
def test_a_start_that_fails_half_way_leaves_no_memory(monkeypatch, failure):
    made: list[str] = []

    async def fail(self, way: BodyWay) -> None:
        made.append(self.arena.name)
        raise failure

    monkeypatch.setattr(BodyService, "_start_serving", fail)
    both = BodyService(ServerConfig(bodies="shm,ucx", limits=LIMITS), VirtualClock())

    async def work() -> None:
        with pytest.raises(type(failure)):
            await both.start()
        assert both.arena is None

    asyncio.run(work())
    assert len(made) == 1
    assert made[0] not in arena_names()


class FailingUcx:
    """Its connections cannot be closed."""

    tables = None

    def __init__(self) -> None:
        self.asked: asyncio.Queue[object] = asyncio.Queue()
        self.is_closed = False

    def sender(self, connection: object):
        self.asked.put_nowait(connection)
        raise RuntimeError("no way")

    async def close(self) -> None:
        self.is_closed = True


def test_one_connection_that_cannot_be_closed_is_told_of_and_holds_up_nobody(caplog):
    async def work() -> None:
        bodies = service()
        await bodies.start()
        ucx = bodies._servers[BodyWay.UCX] = FailingUcx()
        arena = bodies.arena
        for _ in range(2):
            for connection in ("first", "second"):
                channel = bodies._channels.add(BodyWay.UCX, ANYBODY)
                assert channel is not None
                channel.connection = connection
            bodies._clock.advance(LIMITS.body_ticket_ns)
            assert [await ucx.asked.get() for _ in range(2)] == ["first", "second"]
        channel = bodies._channels.add(BodyWay.UCX, ANYBODY)
        channel.connection = "third"
        await bodies.close()
        assert ucx.is_closed
        assert arena.name not in arena_names()

    asyncio.run(asyncio.wait_for(work(), 60))
    assert caplog.text.count("could not be closed") == 5


class LateUcx:
    """Its clients connect when a test says so."""

    def __init__(self) -> None:
        self.connect = None
        self.closed: list[object] = []

    def refusal(self, terms: ConnectionTerms) -> str:
        return ""

    def offer(self, on_connection, lifetime_ns: int, peer: str) -> tuple[str, bytes]:
        self.connect = on_connection
        return UcxLocation(host="127.0.0.1", port=1, want_data=1, free_data=2).encode(), b"t"

    def sender(self, connection: object):
        self.connection = connection
        return self

    def close(self) -> None:
        self.closed.append(self.connection)


def test_a_connection_whose_channel_is_forgotten_is_closed():
    async def work() -> None:
        bodies = service()
        ucx = bodies._servers[BodyWay.UCX] = LateUcx()
        offer = Offer(order=(BodyWay.UCX,), terms={BodyWay.UCX: TERMS}).to_json()
        await bodies.offer(offer)
        ucx.connect("in time")
        assert ucx.closed == []
        await bodies.offer(offer)
        bodies._clock.advance(LIMITS.body_ticket_ns)
        assert len(bodies._channels.take_expired()) == 2
        ucx.connect("late")
        assert ucx.closed == ["late"]

    asyncio.run(work())


def test_a_sweep_that_has_ended_does_not_keep_the_memory(monkeypatch):
    async def fail(self) -> None:
        raise RuntimeError("swept away")

    monkeypatch.setattr(BodyService, "_sweep", fail)

    async def work() -> str:
        bodies = service()
        await bodies.start()
        assert bodies.arena is not None
        name = bodies.arena.name
        await asyncio.sleep(0)
        await bodies.close()
        await bodies.close()
        return name

    def ignore(loop, context) -> None:
        """The loop tells of the exception nobody asked for."""

    async def watched() -> str:
        asyncio.get_running_loop().set_exception_handler(ignore)
        name = await work()
        gc.collect()
        return name

    assert asyncio.run(watched()) not in arena_names()


def test_who_comes_after_the_end_gets_nothing():
    async def work() -> None:
        bodies = service()
        await bodies.start()
        arena = bodies.arena
        assert arena is not None
        offer = Offer(order=(BodyWay.SHM,), shm=host_identity()).to_json()
        await bodies.offer(offer)
        [channel] = bodies._channels._channels.values()
        claim = f"{channel.channel_id} {arena.proof.hex()}"
        assert Claim.parse(claim) is not None
        writer, _ = bodies.claimed(claim, 1, is_session=False)
        assert writer is not None
        await bodies.close()
        assert writer.state is OutgoingState.CLOSED, "a stream still there lends no more"
        assert bodies.claimed(claim, 1, is_session=False) == (None, None)
        assert b'"inline"' in await bodies.offer(offer)
        assert isinstance(bodies._channels, BodyChannels)
        assert len(bodies._channels) == 0

    asyncio.run(work())


def test_a_placed_frame_keeps_its_memory_and_not_the_columns_it_was_made_of():
    async def work() -> None:
        bodies = service()
        await bodies.start()
        detach = bodies.encoding(BodyWay.SHM).detach
        assert detach is not None
        column = np.arange(50_000, dtype=np.uint8)
        frame = detach(DetachedFrame(b"\x12\x01h", (column,), len(column)))
        assert isinstance(frame, PlacedFrame)
        whole = frame.inline()
        alive = weakref.ref(column)
        del column
        assert alive() is None
        assert frame.inline() == whole
        await bodies.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("proof", "has_ucx", "way"),
    [("00", False, BodyWay.SHM), ("-", False, BodyWay.SHM), ("-", True, BodyWay.UCX)],
)
def test_refused_claims_are_counted_for_the_way_they_were_for(proof, has_ucx, way):
    async def work() -> None:
        bodies = BodyService(
            ServerConfig(bodies="shm,ucx" if has_ucx else "shm", limits=LIMITS), VirtualClock()
        )
        if has_ucx:
            bodies._start_serving = lambda way: asyncio.sleep(0)
        await bodies.start()
        writer, outcome = bodies.claimed(f"{'0' * 32} {proof}", 1, is_session=False)
        assert writer is None
        assert outcome.way is BodyWay.INLINE
        assert {each.way: each.counts.refusals for each in bodies.facts() if each.way is way} == {
            way: 1
        }
        await bodies.close()

    asyncio.run(work())


def test_statistics_that_were_not_taken_are_offered_again():
    """Even when nothing has happened since."""
    taken: list[object] = []

    class Tables:
        is_busy = True

        def change(self, changes):
            future = asyncio.get_running_loop().create_future()
            if self.is_busy:
                future.set_exception(RuntimeError("busy"))
            else:
                future.set_result(taken.extend(changes))
            return future

    rows = pa.table({"way": ["shm"], "streams": [1]})

    async def work() -> None:
        tables = Tables()
        statistics = StatisticsTable(tables, "t", key=("way",))  # type: ignore[arg-type]
        statistics._table = object()  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="busy"):
            await statistics.show(rows)
        tables.is_busy = False
        await statistics.show(rows)
        await statistics.show(rows)

    asyncio.run(work())
    assert len(taken) == 1, "and once only"
    assert taken[0].arguments == (rows,)

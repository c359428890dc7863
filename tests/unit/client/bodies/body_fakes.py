"""A scripted server whose bodies leave their stream: an arena of bytes, connections of queues."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import weakref

import numpy as np
import pyarrow as pa

from barrage.client.bodies.bodies import BodyChoice
from barrage.client.connection.address import parse_address
from barrage.client.connection.reconnect import Backoff
from barrage.client.session import AsyncSession
from barrage.client.subscriptions.state import State
from barrage.errors import BodyChannelError
from barrage.transport import flight_messages
from barrage.wire.dissociated.negotiation import (
    ACTION,
    HEADER,
    Answer,
    ConnectionTerms,
    HostIdentity,
    Offer,
)
from barrage.wire.dissociated.ranges import decode_addresses
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.client.scripted import SCHEMA, ScriptedConnector, until

TERMS = ConnectionTerms(release="1.22.0", settings={})
PROOF = bytes(range(16))
NEVER = Backoff(first_seconds=1000.0, seconds_max=1000.0)
"""A test that reaches a delay runs into its limit."""
CHANNEL_IDS = [f"{number:032x}" for number in range(100)]


class FakeArena:
    """Memory bodies are put in. ``spoil`` overwrites what nobody has borrowed."""

    def __init__(self):
        self.memory = np.zeros(1 << 22, np.uint8)
        self._next = 0
        self.lent: dict[int, int] = {}
        self.copies = 0
        self.closed = 0

    def place(self, frame) -> bytes:
        """The reference to a body that was put here."""
        body = b"".join(frame.parts)
        address = self._next
        self._next += -(-len(body) // 64) * 64
        self.memory[address : address + len(body)] = np.frombuffer(body, np.uint8)
        return BodyReference(address, len(body), 7).encode()

    def spoil(self):
        kept = np.zeros(len(self.memory), bool)
        for address, size in self.lent.items():
            kept[address : address + size] = True
        self.memory[~kept] = 0xEE

    # what the client calls

    def borrow(self, reference, on_release):
        self._check(reference)
        self.lent[reference.address] = reference.length
        owner = self.memory[reference.address : reference.address + reference.length].view()
        weakref.finalize(owner, self._give_back, reference.address, on_release)
        return pa.foreign_buffer(owner.ctypes.data, reference.length, base=owner)

    def _give_back(self, address, on_release):
        del self.lent[address]
        on_release(address)

    def copy(self, reference):
        self._check(reference)
        self.copies += 1
        part = self.memory[reference.address : reference.address + reference.length]
        return pa.py_buffer(part.tobytes())

    @staticmethod
    def _check(reference):
        if reference.generation != 7:
            raise BodyChannelError("the generation is another one")

    def close(self):
        self.closed += 1


class FakeSharedMemory:
    """The way to the arena."""

    def __init__(self, arena):
        self.arena = arena
        self.opened: list[str] = []
        self.failure: Exception | None = None

    def identity(self):
        return HostIdentity(boot_id="here", user_id=1)

    def open(self, name):
        if self.failure is not None:
            raise self.failure
        self.opened.append(name)
        return self.arena, PROOF, self.arena.close


class FakeConnection:
    """Bodies that come by themselves, in the order in which the test sends them."""

    def __init__(self):
        self._bodies: asyncio.Queue = asyncio.Queue()
        self.closings = 0

    @property
    def is_closed(self):
        return self.closings > 0

    def send(self, sequence, body):
        self._bodies.put_nowait((sequence, pa.py_buffer(body)))

    def lose(self, error=None):
        self._bodies.put_nowait(error or BodyChannelError("the UCX connection is lost"))

    async def receive(self):
        item = await self._bodies.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self):
        await asyncio.sleep(0)
        self.closings += 1


class FakeUcx:
    """The way over the network."""

    def __init__(self, terms):
        self._terms = terms
        self.connections: list[FakeConnection] = []
        self.asked: list[tuple[str, bytes]] = []
        self.failure: Exception | None = None
        self.closed = 0

    def terms(self):
        return self._terms

    async def connect(self, location, ticket, timeout):
        self.asked.append((location, ticket))
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.connections.append(FakeConnection())
        return self.connections[-1]

    def close(self):
        assert all(connection.is_closed for connection in self.connections)
        self.closed += 1


class BodyServer(ScriptedConnector):
    """Answers offers; ``answers`` are given in order, then the last one again and again."""

    def __init__(self):
        super().__init__()
        self.offers: list[Offer] = []
        self.answers: list[bytes | Exception | None] = []
        self._ids = iter(CHANNEL_IDS)

    def answer_shm(self, **more):
        """The usual answer, with a new channel each time."""
        values = {"way": BodyWay.SHM, "arena": "barrage-x", "window_bytes": 1 << 20} | more
        return Answer(channel_id=next(self._ids), window_count=256, **values).to_json()

    def answer_ucx(self):
        return Answer(
            way=BodyWay.UCX,
            channel_id=next(self._ids),
            location="ucx://h:1?want_data=1",
            ticket=b"t",
            window_bytes=1 << 20,
            window_count=256,
        ).to_json()

    async def results(self, method, request, *, timeout, table=None):
        assert method.endswith("DoAction")
        kind, body = flight_messages.decode_action(request)
        assert kind == ACTION
        self.offers.append(Offer.from_json(body))
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else self._usual()
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            yield flight_messages.encode_result(answer)

    def _usual(self):
        way = self.offers[-1].order[0]
        return self.answer_shm() if way is BodyWay.SHM else self.answer_ucx()


def detach(stream, deliver, way="shm", batch_rows=1000):
    """From now on bodies of ``stream`` leave it: ``deliver(sequence, frame)`` takes one and returns
    the message without it. The stream accepts its claim."""
    stream.answer = {HEADER: way}
    options = EncodeOptions(sends_source_time=True, batch_rows_max=batch_rows)
    stream.encoder = UpdateEncoder(SCHEMA, options, detach=lambda frame: frame)
    numbers, send = itertools.count(), stream.send

    def send_outside(frames):
        for frame in frames:
            sequence = next(numbers)
            send([frame if isinstance(frame, bytes) else deliver(sequence, frame)])

    stream.send = send_outside


def placing(arena):
    """For :func:`detach`: bodies in shared memory."""
    return lambda _, frame: frame.message(arena.place(frame))


def sending(connection):
    """For :func:`detach`: bodies over UCX."""

    def deliver(sequence, frame):
        connection.send(sequence, b"".join(frame.parts))
        return frame.message(b"")

    return deliver


async def released(stream, count):
    """The next ``count`` numbers a client gives back."""
    numbers: list[int] = []
    messages = 0
    while len(numbers) < count:
        frame = decode_flight_data(await asyncio.wait_for(stream._to_server.get(), 60))
        assert frame.is_release_only
        numbers += decode_addresses(frame.released)
        messages += 1
    return numbers, messages


class Scene:
    """A session, its server, and where bodies come from."""

    def __init__(self, choice, **more):
        self.server = BodyServer()
        self.arena = FakeArena()
        self.memory = FakeSharedMemory(self.arena)
        self.ucx = FakeUcx(TERMS)
        self.clock = VirtualClock(10**18)
        self.session = AsyncSession(
            parse_address("grpc://nowhere:1"), connector=self.server, clock=self.clock,
            bodies=BodyChoice.parse(choice), **more,
        )  # fmt: skip
        routes = self.session._connection.bodies
        routes._memory, routes._dialer = self.memory, self.ucx


@contextlib.asynccontextmanager
async def scene(choice="auto", **more):
    made = Scene(choice, **more)
    async with made.session:
        yield made


def xs(live):
    return live.to_arrow()["x"].to_pylist()


async def ready(live):
    await live.wait_ready(60)
    return xs(live)


def quiet_until_freed(arena):
    gc.collect()
    return not arena.lent


async def lost_channel(s, live, stream, states, errors):
    """The stream has lost a body: the next one comes at once and inline."""
    second = await s.server.accept()
    assert HEADER not in second.request_headers
    assert stream.is_cancelled
    second.schema()
    second.snapshot([5, 6])
    await until(lambda: live.state is State.LIVE)
    assert xs(live) == [5, 6]
    assert states[-4:] == [
        State.RECONNECTING, State.SNAPSHOT, State.RESNAPSHOTTED, State.LIVE,
    ]  # fmt: skip
    assert isinstance(errors[-1], BodyChannelError)
    assert live.bodies.way is BodyWay.INLINE
    assert live.bodies.reason == str(errors[-1])
    assert live.stats.reconnects == 1
    return second

"""Whatever server, streams and clients do, in whatever order: what a client can still read is never
overwritten, what it gets is what was meant, and all memory comes back in the end."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from barrage.errors import BodyChannelError
from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable, Region
from barrage.wire.dissociated.references import BodyReference
from tests.unit.transport.shared_memory.bodies import KIB, content

LIMITS = Limits(
    body_arena_bytes=32 * KIB, body_segment_bytes=16 * KIB, body_inline_bytes_max=1 * KIB
)
"""So small that memory is used again all the time."""


@dataclass(eq=False)
class Stream:
    """One stream with both of its ends."""

    leases: LeaseTable
    mapping: ArenaMapping
    is_open: bool = True
    """As the server sees it; the client may go on for a while."""
    inbox: list[tuple[BodyReference, bytes]] = field(default_factory=list)
    """Sent, not looked at by the client."""
    given_back: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Frame:
    """A message of the server that waits to be sent to somebody. The machine keeps it longer than
    the server does."""

    region: Region | None
    body: bytes


@dataclass(eq=False)
class Held:
    """What a client reads, and what it has to find there."""

    buffer: pa.Buffer | None
    expected: bytes


class Sharing(RuleBasedStateMachine):
    frames = Bundle("frames")
    streams = Bundle("streams")
    held = Bundle("held")

    @initialize()
    def start(self) -> None:
        self.path = tempfile.mkdtemp(dir="/dev/shm")
        self.arena = Arena.create(LIMITS, directory=self.path)
        self.mappings = [ArenaMapping.open(self.arena.name, directory=self.path) for _ in range(2)]
        self.seed = 0
        self.frames_kept: set[Frame] = set()
        self.on_clients: set[Held] = set()
        self.all_streams: list[Stream] = []

    @rule(target=streams, which=st.integers(0, 1))
    def open_stream(self, which: int) -> Stream:
        stream = Stream(LeaseTable(), self.mappings[which])
        self.all_streams.append(stream)
        return stream

    @rule(target=frames, length=st.integers(0, 6 * KIB))
    def place(self, length: int) -> Frame | object:
        self.seed += 1
        body = content(self.seed, length)
        region = self.arena.place([body[:100], body[100:]], length)
        if region is None:
            return multiple()
        frame = Frame(region, body)
        self.frames_kept.add(frame)
        return frame

    @rule(frame=consumes(frames))
    def forget(self, frame: Frame) -> None:
        self.frames_kept.discard(frame)
        frame.region = None

    @rule(frame=frames, stream=streams)
    def send(self, frame: Frame, stream: Stream) -> None:
        if stream.is_open and frame.region is not None:
            stream.leases.grant(frame.region)
            stream.inbox.append((frame.region.reference(), frame.body))

    @rule(target=held, stream=streams, is_copy=st.booleans())
    def receive(self, stream: Stream, is_copy: bool) -> Held | object:
        if not stream.inbox:
            return multiple()
        reference, expected = stream.inbox.pop(0)
        try:
            if is_copy:
                buffer = stream.mapping.copy(reference)
                stream.given_back.append(reference.address)
            else:
                buffer = stream.mapping.borrow(reference, stream.given_back.append)
        except BodyChannelError:
            is_connected = stream.is_open and stream.mapping in self.mappings
            assert not is_connected, "what an open stream was sent can be read"
            return multiple()
        thing = Held(buffer, expected)
        assert buffer.to_pybytes() == expected
        self.on_clients.add(thing)
        return thing

    @rule(thing=consumes(held))
    def drop(self, thing: Held) -> None:
        self.on_clients.discard(thing)
        thing.buffer = None

    @rule(stream=streams)
    def give_back(self, stream: Stream) -> None:
        addresses, stream.given_back[:] = list(stream.given_back), []
        released = stream.leases.release(addresses)
        assert released == (len(addresses) if stream.is_open else 0)

    @rule(stream=streams)
    def server_ends(self, stream: Stream) -> None:
        stream.is_open = False
        stream.leases.close()

    @rule(which=st.integers(0, 1))
    def client_comes_again(self, which: int) -> None:
        """A new connection; what was lent by the old one lives on."""
        self.mappings[which].close()
        self.mappings[which] = ArenaMapping.open(self.arena.name, directory=self.path)

    @rule()
    def look(self) -> None:
        statistics = self.arena.statistics()
        assert statistics.bytes_orphaned <= statistics.bytes_in_use <= LIMITS.body_arena_bytes

    @invariant()
    def nothing_is_overwritten(self) -> None:
        if hasattr(self, "arena"):
            for thing in self.on_clients:
                assert thing.buffer is not None
                assert thing.buffer.to_pybytes() == thing.expected
            for frame in self.frames_kept:
                assert frame.region is not None
                assert frame.region.view == frame.body
            for segment in self.arena._segments:
                segment.space.validate()

    def teardown(self) -> None:
        if not hasattr(self, "arena"):
            return
        for thing in self.on_clients:
            thing.buffer = None
        for frame in self.frames_kept:
            frame.region = None
        for stream in self.all_streams:
            stream.leases.close()
        in_use = self.arena.statistics().bytes_in_use
        self.arena.close()
        shutil.rmtree(self.path)
        assert in_use == 0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
class TestSharing(Sharing.TestCase):
    settings = settings(max_examples=60, stateful_step_count=60, deadline=None)

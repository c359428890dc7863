"""Sources and a worker joined by a network that loses connections and a store that crashes: nothing
is lost, nothing is there twice, and nobody waits for ever."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.limits import Limits
from barrage.proto.connector.session_states import WorkerState
from barrage.proto.connector.source_session import (
    Acknowledged,
    SourceSession,
    StreamOpened,
    StreamRewound,
    Welcomed,
)
from barrage.proto.connector.stream_desk import StreamBatch, StreamDesk
from barrage.proto.connector.worker_session import WorkerSession
from barrage.wire.connector.frame_values import Dialect, SentMessage

STEPS_MAX = 200_000


@dataclass
class Store:
    """What is safe, and what is written in its order and not safe yet."""

    rows: list[tuple[str, int]] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    waiting: deque[StreamBatch] = field(default_factory=deque)

    def sync(self) -> StreamBatch:
        """One batch becomes safe: rows and positions together."""
        batch = self.waiting.popleft()
        messages = batch.messages()
        if messages is not None:
            names, ids = messages.streams.to_pylist(), messages.ids.to_pylist()
            self.rows += zip(names, ids, strict=True)
        for stream, (first, last) in batch.positions.items():
            assert first > self.positions.get(stream, -1), "positions only grow"
            self.positions[stream] = last
        return batch


class Source:
    """Sends numbered messages of its streams, from wherever it is told."""

    def __init__(self, dialect: Dialect, streams: dict[int, int], chance: Random) -> None:
        self.dialect = dialect
        self.wanted = streams
        """Stream to its number of messages."""
        self.chance = chance
        self.safe: dict[int, int] = {}
        self.session: SourceSession | None = None

    def connect(self, limits: Limits) -> None:
        self.session = SourceSession(limits=limits, dialect=self.dialect)
        self.next: dict[int, int] = {}
        self.safe = {}
        self.session.greet("p")

    def take(self, data: bytes) -> None:
        assert self.session is not None
        for event in self.session.receive_data(data):
            if isinstance(event, Welcomed):
                known = dict(event.positions)
                for stream in self.wanted:
                    last = known.get(stream)
                    self._opened(self.session.announce(stream, str(stream).encode(), last=last))
            elif isinstance(event, StreamOpened):
                self._opened([event])
            elif isinstance(event, StreamRewound):
                raise AssertionError("nobody lied about a point")
            elif isinstance(event, Acknowledged):
                for stream, last in event.positions:
                    assert last < self.next[stream], "only what was sent is acknowledged"
                    assert last >= self.safe.get(stream, 0), "never less than before"
                    self.safe[stream] = last

    def _opened(self, events) -> None:
        for event in events:
            last = event.last or 0
            self.next[event.stream] = last + 1
            self.safe[event.stream] = last

    def send(self) -> None:
        """Some of what there is to send, as credits allow."""
        session = self.session
        assert session is not None
        open_now = [n for n, end in self.wanted.items() if self.next.get(n, end + 1) <= end]
        for _ in range(self.chance.randint(1, 6)):
            if not open_now or session.credits < 1 or session.has_ended:
                return
            stream = self.chance.choice(open_now)
            number = self.next[stream]
            key = b"k" if self.dialect is Dialect.PUBLISHED else None
            is_unstable = self.dialect is Dialect.DRAFT and number % 3 and number < 9
            flags = 8 if is_unstable and number < self.wanted[stream] else 0
            session.send(SentMessage(stream, number, None, key, b"x", flags))
            self.next[stream] = number + 1
            if number == self.wanted[stream]:
                open_now.remove(stream)

    @property
    def is_done(self) -> bool:
        return all(self.safe.get(stream) == end for stream, end in self.wanted.items())


class World:
    """One worker, its store, and sources; every choice follows from a seed."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.chance = Random(seed)
        self.limits = limits
        self.store = Store()
        self.desk = StreamDesk("p", {}, limits=limits)
        dialects = list(Dialect)
        self.sources = [
            Source(
                self.chance.choice(dialects),
                {10 * at + n: self.chance.randint(1, 40) for n in range(self.chance.randint(1, 4))},
                self.chance,
            )
            for at in range(self.chance.randint(1, 4))
        ]
        self.links: list[list] = [self._connected(source) for source in self.sources]

    def _connected(self, source: Source) -> list:
        """Session of the worker, and the bytes of each way that are under way."""
        source.connect(self.limits)
        return [WorkerSession(limits=self.limits), bytearray(), bytearray()]

    def step(self, *, faults: bool) -> None:
        at = self.chance.randrange(len(self.sources))
        do = self.chance.choice([self._up, self._down, self._submit, self._sync])
        if do in (self._submit, self._sync):
            do()
        else:
            do(self.sources[at], self.links[at])
        if faults and self.chance.random() < 0.02:
            # The source goes on in a new connection; the worker may hear of it late, or never.
            if self.chance.random() < 0.5:
                self.links[at][0].close()
            self.links[at] = self._connected(self.sources[at])
        if faults and self.chance.random() < 0.01:
            self._crash(keeps_writing=self.chance.random() < 0.5)
        for each, link in zip(self.sources, self.links, strict=True):
            if link[0].state in (WorkerState.CLOSED, WorkerState.FAILING):
                assert link[0].failure is None, link[0].failure
                self.links[self.sources.index(each)] = self._connected(each)

    def _up(self, source: Source, link: list) -> None:
        worker, up, _ = link
        source.send()
        up += source.session.data_to_send()
        size = self.chance.randint(1, 400)
        worker.receive_data(bytes(up[:size]))
        del up[:size]
        if worker.state is WorkerState.GREETED:
            worker.welcome(self.desk)

    def _down(self, source: Source, link: list) -> None:
        worker, _, down = link
        down += worker.data_to_send()
        size = self.chance.randint(1, 200)
        source.take(bytes(down[:size]))
        del down[:size]

    def _submit(self) -> None:
        batch = self.desk.take_batch()
        if batch is not None:
            self.store.waiting.append(batch)

    def _sync(self) -> None:
        if self.store.waiting:
            self.desk.settle(self.store.sync())

    def _crash(self, *, keeps_writing: bool) -> None:
        """The worker is killed; of what it wrote some may be safe without anybody knowing."""
        if keeps_writing:
            for _ in range(self.chance.randint(0, len(self.store.waiting))):
                self.store.sync()
        self.store.waiting.clear()
        self.desk = StreamDesk("p", dict(self.store.positions), limits=self.limits)
        self.links = [self._connected(source) for source in self.sources]

    def check(self) -> None:
        """Every message once, in the order of its stream."""
        found: dict[str, list[int]] = {}
        for name, number in self.store.rows:
            found.setdefault(name, []).append(number)
        wanted = {
            str(stream): list(range(1, end + 1))
            for source in self.sources
            for stream, end in source.wanted.items()
        }
        assert found == wanted


def run(seed: int, limits: Limits) -> None:
    """Faults for a while, then none until all is there; AssertionError when that never comes."""
    world = World(seed, limits)
    for _ in range(600):
        world.step(faults=True)
    for _ in range(STEPS_MAX):
        world.step(faults=False)
        if all(source.is_done for source in world.sources):
            break
    else:
        raise AssertionError("somebody waits for ever")
    world.check()


def run_all(seeds) -> None:
    for seed in seeds:
        run(seed, Limits())


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_and_nothing_is_there_twice(seed) -> None:
    few = Limits(
        connector_credits_max=1 + seed % 7,
        connector_source_credits_max=1 + seed % 11,
        connector_credits_min=1,
        connector_room_bytes=4 + seed % 30,
    )
    run(seed, few if seed % 2 else Limits())


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 5))
def test_any_seed_with_any_credits(seed, most, shared) -> None:
    run(
        seed,
        Limits(
            connector_credits_max=most,
            connector_source_credits_max=shared,
            connector_credits_min=1,
        ),
    )


def test_a_worker_that_forgets_what_it_has_seen_is_found(monkeypatch) -> None:
    """The canary: replays are taken again."""
    take = StreamDesk.take_message

    def forgetful(self, session, stream, message) -> None:
        take(self, session, stream, message)
        stream.last_seen = stream.last_safe

    monkeypatch.setattr(StreamDesk, "take_message", forgetful)
    with pytest.raises(AssertionError):
        run_all(range(20))

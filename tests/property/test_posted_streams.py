"""Streams of one connection, to which updates are posted while its socket and its client's windows
stop and go on: the engine holds those whose outbox is full and no others, and every client gets all
of its messages in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from barrage.limits import DEFAULT_LIMITS
from barrage.server.exchange.exchange_driver import ExchangeHub
from barrage.server.exchange.exchange_messages import EncodedUpdate, EncodedViews, Hold, Release
from barrage.transport.base import ListenOptions
from barrage.transport.call_running import CallRunner
from barrage.transport.over_http2.http2_protocol import Http2Protocol
from barrage.wire.revision import WireRevision
from tests.unit.client.scripted import run
from tests.unit.transport.http2_peer import REQUEST

STREAMS = 3
TURNS = 12
"""Of the loop, in which everything that can happen has happened."""


class Engine:
    """Whom the engine holds: it sends them nothing, but for what it had made before it heard."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def tell(self, notice) -> None:
        if isinstance(notice, Hold):
            self.held |= set(notice.stream_ids)
        elif isinstance(notice, Release):
            self.held -= set(notice.stream_ids)

    def events_taken(self) -> None:
        pass

    def close(self) -> None:
        pass


class Socket:
    """Takes everything; what asyncio would say of it when it is full is said by the test."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, **limits: int) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Owner:
    def connected(self, protocol) -> bool:
        return True

    def disconnected(self, protocol) -> None:
        pass


class Scene:
    """A hub, one connection, and its client."""

    def __init__(self, window: int) -> None:
        """``window``: bytes the client takes on a stream; on all of them twice as many."""
        self.engine = Engine()
        self.hub = ExchangeHub(self.engine, None, limits=DEFAULT_LIMITS)
        self.streams: list = []
        self.socket = Socket()
        runner = CallRunner()
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        runner.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": method}),))
        options = ListenOptions(
            port=0, message_bytes_max=1 << 20, keepalive_ms=0, limits=DEFAULT_LIMITS, tls=None
        )
        self.protocol = Http2Protocol(Owner(), runner, options)
        self.protocol.connection_made(self.socket)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.client.increment_flow_control_window(2 * window)
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.received: dict[int, bytes] = defaultdict(bytes)
        self.uncredited: dict[int, int] = defaultdict(int)
        self.numbers = 0

    async def _serve(self, requests, context):
        stream = self.hub.open(context, None, revision=WireRevision.R1_0_0, sends_source_time=False)
        stream._is_accepted.set()
        self.streams.append(stream)
        await stream.run()

    async def open(self) -> None:
        for number in range(STREAMS):
            self.client.send_headers(1 + 2 * number, REQUEST)
        self.protocol.data_received(self.client.data_to_send())
        await self.turns()
        assert [stream._is_idle for stream in self.streams] == [True] * STREAMS

    async def turns(self, count: int = TURNS) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    def hand_over(self, updates: list[tuple[int, int]], *, as_views: bool) -> None:
        """Updates of so many bytes, each for the stream of that number."""
        made = []
        for place, size in updates:
            self.numbers += 1
            frame = b"%d:" % self.numbers + bytes(size)
            self.sent[1 + 2 * place] += b"\0" + len(frame).to_bytes(4, "big") + frame
            made.append((self.streams[place].stream_id, frame))
        if as_views:
            ids, frames = [each for each, _ in made], [frame for _, frame in made]
            self.hub._take([EncodedViews(stream_ids=ids, frames=frames)])
        else:
            self.hub._take([EncodedUpdate.of((each,), (frame,)) for each, frame in made])

    def carry(self, *, is_credited: bool) -> None:
        """Let the client read what was written, and give new windows for it or not."""
        data = b"".join(self.socket.written)
        self.socket.written.clear()
        for event in self.client.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.received[event.stream_id] += event.data
                self.uncredited[event.stream_id] += event.flow_controlled_length
        if is_credited:
            for stream_id, size in self.uncredited.items():
                if size:
                    self.client.acknowledge_received_data(size, stream_id)
            self.uncredited.clear()
        self.protocol.data_received(self.client.data_to_send())

    def validate(self) -> None:
        for stream in self.streams:
            assert stream._updates_pending >= 0
            assert stream._bytes_pending >= 0
            assert stream.is_held == stream._is_full()
        # Releases of one turn are told at its end.
        held = {stream.stream_id for stream in self.streams if stream.is_held}
        assert self.engine.held - set(self.hub._releases) == held

    async def settle(self) -> None:
        """The socket takes everything, and the client reads it."""
        self.protocol.resume_writing()
        for _ in range(1000):
            await self.turns()
            self.carry(is_credited=True)
            if not any(stream._updates_pending for stream in self.streams):
                break
        await self.turns()
        self.carry(is_credited=True)

    async def close(self) -> None:
        self.protocol.connection_lost(None)
        await self.turns()
        assert self.hub.stream_count == 0


updates = st.lists(
    st.tuples(
        st.integers(0, STREAMS - 1), st.sampled_from([0, 100, 16_000, 50_000, 66_000, 300_000])
    ),
    min_size=1,
    max_size=6,
)
steps = st.one_of(
    st.tuples(st.just("hand over"), updates, st.booleans()),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("read"), st.booleans()),
)


async def scene_of(plan: list[tuple], window: int) -> None:
    scene = Scene(window)
    await scene.open()
    for step in plan:
        match step:
            case ("hand over", found, as_views):
                scene.hand_over(found, as_views=as_views)
            case ("pause",):
                scene.protocol.pause_writing()
            case ("resume",):
                scene.protocol.resume_writing()
            case ("turn", count):
                await scene.turns(count)
            case ("read", is_credited):
                scene.carry(is_credited=is_credited)
        scene.validate()
    await scene.settle()
    scene.validate()
    assert not scene.engine.held
    assert scene.received == scene.sent
    assert all(stream._bytes_pending == 0 and not stream._posted for stream in scene.streams)
    await scene.close()


@given(plan=st.lists(steps, max_size=12), window=st.sampled_from([1_000, 65_535, 1 << 20]))
@settings(deadline=None)
def test_held_are_those_whose_outbox_is_full(plan: list[tuple], window: int) -> None:
    run(lambda: scene_of(plan, window))


def test_what_another_stream_has_written_is_not_held_for_ever() -> None:
    """The socket takes bytes again, and the turn that writes to it has not come."""
    run(
        lambda: scene_of(
            [
                ("pause",),
                ("hand over", [(0, 100)], True),
                ("resume",),
                ("hand over", [(0, 100), (1, 60_000), (2, 60_000), (1, 60_000)], False),
            ],
            1 << 20,
        )
    )

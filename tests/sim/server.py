"""The server of a simulation: exchanges, producers and encoders on one thread, and as little else
as possible. It does what the real driver does at cycle boundaries, without threads or gRPC."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from barrage.engine import UpdateGraph
from barrage.engine.changelog.making import Delivery, Disconnect, Making, MakingRoom, ViewDelivery
from barrage.engine.changelog.snapshot import snapshot_messages
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.held_bytes import HeldBytes
from barrage.engine.propagation.producer import Producer
from barrage.errors import BarrageError, LocalProtocolError, ProtocolError, TableNotFoundError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.proto.events import (
    BodiesReleased,
    HalfClosed,
    ServerEvent,
    SnapshotRequested,
    SubscriptionChanged,
    SubscriptionRequested,
)
from barrage.proto.server_exchange import ServerExchange
from barrage.server.bodies.body_frames import Frame
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from barrage.wire.updates.view_frames import view_frames
from tests.sim.bodies import ServerBodies, StreamBodies
from tests.sim.network import End, Link
from tests.sim.tables import SimTable

Message = FullUpdate | ViewUpdate
Sabotage = Callable[[Message], Message | None]


PROPAGATIONS_MAX = 100
"""Far more than points and readers of one table, one of which is brought to the present by each."""


class ServerStream:
    """One exchange with its outbox: updates as lists of frames."""

    def __init__(
        self,
        number: int,
        link: Link,
        revision: WireRevision,
        limits: Limits,
        bodies: StreamBodies,
    ) -> None:
        self.number = number
        self.link = link
        self.revision = revision
        self.exchange = ServerExchange(number, revision, limits)
        self.bodies = bodies
        if bodies.outgoing is not None:
            self.exchange.claim_body_channel()
        self.table: SimTable | None = None
        self.outbox: deque[deque[Frame]] = deque()
        self.is_held = False
        self.end: End | None = None
        self.is_snapshot = False

    def finish(self, error: BarrageError | None, *, is_flushed: bool = True) -> None:
        """End the stream after the outbox, or at once."""
        if self.end is None:
            self.end = End(error)
        if not is_flushed:
            self.outbox.clear()


class SimServer:
    """All streams and producers. ``sabotage`` may change or drop messages, to prove that the
    checkers see it."""

    def __init__(
        self,
        graph: UpdateGraph,
        tables: dict[str, SimTable],
        limits: Limits,
        bodies: ServerBodies,
        sabotage: Sabotage | None = None,
    ) -> None:
        self.graph = graph
        self.bodies = bodies
        self.tables = tables
        self.limits = limits
        self.streams: dict[int, ServerStream] = {}
        self.producers: dict[str, Producer] = {}
        self._encoders: dict[tuple[str, EncodeOptions, BodyWay], UpdateEncoder[Frame]] = {}
        self.held = HeldBytes(limits)
        self.room = MakingRoom(limits)
        self.makings: dict[Making, Producer] = {}
        """What is being made beside; :meth:`make` ends one."""
        self._sabotage = sabotage
        self._numbers = 0

    def accept(self, link: Link, revision: WireRevision, claim: str | None) -> str | None:
        """A client has connected, perhaps with a claim for its bodies; what is said to that."""
        self._numbers += 1
        bodies, outcome = self.bodies.claim(claim)
        stream = ServerStream(self._numbers, link, revision, self.limits, bodies)
        self.streams[stream.number] = stream
        return outcome

    def stream_of(self, link: Link) -> ServerStream | None:
        """The stream at the other end of a link."""
        return next((each for each in self.streams.values() if each.link is link), None)

    def restart(self) -> None:
        """Memory and channels of bodies are others; links are cut by the network."""
        self.bodies.restart()
        self._encoders.clear()

    # --- what clients send ------------------------------------------------------------------------

    def read(self, now_ns: int) -> None:
        """Take everything that has arrived."""
        for stream in list(self.streams.values()):
            if stream.link.is_cut:
                self._drop(stream)
                continue
            while stream.end is None:
                item = stream.link.up.receive(now_ns)
                if item is None:
                    break
                self._take(stream, item, now_ns)

    def _take(self, stream: ServerStream, item: bytes | End, now_ns: int) -> None:
        try:
            if isinstance(item, End):
                events = stream.exchange.receive_half_close()
            else:
                events = stream.exchange.receive_frame(item)
            for event in events:
                self._handle(stream, event, now_ns)
        except BarrageError as error:
            self._unsubscribe(stream)
            stream.finish(error, is_flushed=isinstance(error, ProtocolError))

    def _handle(self, stream: ServerStream, event: ServerEvent, now_ns: int) -> None:
        if isinstance(event, SubscriptionRequested):
            self._subscribe(stream, event, now_ns)
        elif isinstance(event, SubscriptionChanged):
            assert stream.table is not None
            producer = self.producers[stream.table.name]
            producer.change(stream.number, event.columns, event.viewport, now_ns=now_ns)
        elif isinstance(event, SnapshotRequested):
            self._answer_snapshot(stream, event)
        elif isinstance(event, HalfClosed):
            self._unsubscribe(stream)
            stream.finish(None, is_flushed=stream.is_snapshot)
        else:
            assert isinstance(event, BodiesReleased)
            stream.bodies.released(event.ids, now_ns)

    def _table(self, ticket: bytes) -> SimTable:
        name = ticket.removeprefix(b"s/").decode()
        if name not in self.tables:
            raise TableNotFoundError(name, known=self.tables)
        return self.tables[name]

    def _encoder(
        self, table: SimTable, options: EncodeOptions, way: BodyWay
    ) -> UpdateEncoder[Frame]:
        key = (table.name, options, way)
        if key not in self._encoders:
            detach = self.bodies.detach(way)
            self._encoders[key] = UpdateEncoder(table.table.schema, options, self.limits, detach)
        return self._encoders[key]

    def _subscribe(self, stream: ServerStream, event: SubscriptionRequested, now_ns: int) -> None:
        table = self._table(event.ticket)
        options = EncodeOptions.for_subscription(
            event.options, self.limits, revision=stream.revision
        )
        encoder = self._encoder(table, options, stream.bodies.way)
        if table.name not in self.producers:
            self.producers[table.name] = Producer(
                table.table,
                self.limits,
                step=self.graph.step,
                held=self.held,
                room=self.room,
            )
        spec = SubscriptionSpec(
            columns=event.columns,
            viewport=event.viewport,
            interval_ns=event.options.min_update_interval_ms * NANOS_PER_MS,
            is_key_space=event.viewport is None or not stream.revision.has_view_positions,
            encoding=encoder,
            is_reverse_echo=event.is_reverse,
        )
        self.producers[table.name].add(stream.number, spec, now_ns)
        stream.table = table
        stream.outbox.append(deque([encoder.schema_frame()]))

    def _answer_snapshot(self, stream: ServerStream, event: SnapshotRequested) -> None:
        table = self._table(event.ticket)
        stream.is_snapshot = True
        options = EncodeOptions.for_snapshot(event.options, self.limits, revision=stream.revision)
        encoder = self._encoder(table, options, stream.bodies.way)
        stream.outbox.append(deque([encoder.schema_frame()]))
        messages = snapshot_messages(
            table.table, event.columns, event.viewport, step=self.graph.step
        )
        for message in messages:
            stream.outbox.append(deque(encoder.encode(message)))

    def _unsubscribe(self, stream: ServerStream) -> None:
        if stream.table is None:
            return
        producer = self.producers.get(stream.table.name)
        stream.table = None
        if producer is None:  # it has ended all its subscriptions at once
            return
        producer.remove(stream.number)
        producer.validate()
        if not producer.subscription_count:
            assert producer.next_due_ns() is None
            self.producers = {n: p for n, p in self.producers.items() if p is not producer}

    def _drop(self, stream: ServerStream) -> None:
        self._unsubscribe(stream)
        stream.bodies.close()
        stream.outbox.clear()
        del self.streams[stream.number]

    # --- what the engine does ---------------------------------------------------------------------

    def run_cycle(self, now_ns: int) -> None:
        """One step of the graph, recorded with every producer it concerns."""
        result = self.graph.run_cycle()
        assert not result.failed, result.failed
        for table in self.tables.values():
            update = result.updates.get(table.table)
            table.cycle_done(result.step, has_changed=update is not None)
            if update is not None and table.name in self.producers:
                self.producers[table.name].record(update, now_ns)
                self._check_held_bytes(self.producers[table.name])

    def _check_held_bytes(self, recorded: Producer) -> None:
        """Where more has just been kept: neither its table nor all of them together keep more than
        they may, as long as anything is left to give up."""
        producers = self.producers.values()
        if recorded.held_nbytes > self.limits.held_table_bytes_max:
            assert not recorded.shed(), "a table keeps more for slow readers than it may"
        kept = sum(producer.held_nbytes for producer in producers)
        assert kept == self.held.stats.nbytes, "what is kept is counted"
        if kept > self.limits.held_server_bytes_max:
            is_left = any(each.shed() for each in producers if each.held_nbytes)
            assert not is_left, "the server keeps more for slow readers than it may"

    def propagate(self, now_ns: int) -> None:
        """Everything that is due, encoded once for all who get it, into the outboxes."""
        for producer in list(self.producers.values()):
            for _ in range(PROPAGATIONS_MAX):
                due_ns = producer.next_due_ns()
                if due_ns is None or due_ns > now_ns:
                    break
                self.room.begin_turn()
                for item in producer.propagate(now_ns):
                    if isinstance(item, Disconnect):
                        self._disconnect(item)
                    elif isinstance(item, Making):
                        self.makings[item] = producer
                    elif isinstance(item, ViewDelivery):
                        self._deliver_views(item)
                    else:
                        self._deliver(item)
                self._hold_full_streams(producer, now_ns)
                producer.validate()
            else:
                raise AssertionError("propagation leaves something due for ever")

    def make(self, making: Making) -> None:
        """Make, from what was pinned, what some wait for. Those who have gone get nothing."""
        producer = self.makings.pop(making)
        for delivery in making.deliveries():
            self._deliver(delivery, is_awaited=True)
        assert not producer.made(making)
        producer.validate()

    def _disconnect(self, item: Disconnect) -> None:
        stream = self.streams[item.subscription_id]
        self._unsubscribe(stream)
        stream.finish(item.error, is_flushed=False)

    def _deliver_views(self, item: ViewDelivery) -> None:
        frames = view_frames(item.encoding, item.updates, item.which)
        for each, frame in zip(item.deliveries(), frames, strict=True):
            if frame is None or self._sabotage is not None:
                self._deliver(each)
            else:
                self._send(each.subscription_ids, [frame])

    def _deliver(self, item: Delivery, *, is_awaited: bool = False) -> None:
        message: Message | None = item.message
        if self._sabotage is not None:
            message = self._sabotage(item.message)
        if message is None:
            return
        frames = list(item.encoding.encode(message))
        self._send(item.subscription_ids, frames, is_awaited=is_awaited)

    def _send(
        self, numbers: tuple[int, ...], frames: list[bytes], *, is_awaited: bool = False
    ) -> None:
        assert all(len(frame) <= self.limits.message_bytes_max for frame in frames)
        for number in numbers:
            stream = self.streams.get(number)
            if is_awaited and (stream is None or stream.table is None):
                continue
            assert stream is not None
            is_allowed = is_awaited or not stream.is_held
            assert is_allowed, "a held subscription was sent something it did not wait for"
            stream.outbox.append(deque(frames))

    def _hold_full_streams(self, producer: Producer, now_ns: int) -> None:
        for stream in self.streams.values():
            if (
                stream.table is not None
                and self.producers[stream.table.name] is producer
                and not stream.is_held
                and len(stream.outbox) >= self.limits.exchange_outbox_updates_max
            ):
                stream.is_held = True
                producer.hold(stream.number, now_ns)

    # --- what goes out ----------------------------------------------------------------------------

    def write(self, now_ns: int, order: list[int]) -> None:
        """Give the links what their windows take."""
        for number in order:
            stream = self.streams.get(number)
            if stream is None:
                continue
            self._write_stream(stream, now_ns)
            if stream.end is not None and not stream.outbox and stream.link.down.has_room:
                stream.link.down.send(stream.end, now_ns)
                self._drop(stream)

    def _write_stream(self, stream: ServerStream, now_ns: int) -> None:
        """Schemas, snapshots and what is made beside may exceed the outbox limit by one update
        each, nothing else."""
        assert stream.is_snapshot or (
            len(stream.outbox) <= self.limits.exchange_outbox_updates_max + 4
        )
        while stream.outbox and stream.link.down.has_room:
            update = stream.outbox[0]
            raw = stream.bodies.message(update[0], now_ns)
            if raw is None:  # waits for bodies to be given back
                break
            update.popleft()
            stream.link.down.send(raw, now_ns)
            if not update:
                stream.outbox.popleft()
        is_full = len(stream.outbox) >= self.limits.exchange_outbox_updates_max
        if stream.is_held and not is_full:
            stream.is_held = False
            if stream.table is not None:
                try:
                    self.producers[stream.table.name].release(stream.number)
                except LocalProtocolError:
                    assert stream.end is not None

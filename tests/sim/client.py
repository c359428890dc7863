"""The clients of a simulation: the real client core (exchange, assembler, replica) on virtual
links."""

from __future__ import annotations

from enum import Enum, auto
from random import Random

from barrage.errors import BarrageError, BodyChannelError, SlowConsumerError
from barrage.limits import NANOS_PER_MS
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.model.viewport import Viewport
from barrage.proto.client_events import SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange, ClientState
from barrage.rowset import RowSet
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import SnapshotOptions, SnapshotRequest, SubscriptionOptions
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision
from tests.sim.body_intake import ClientBodies, Intake
from tests.sim.checkers import StepChecker, check_full_update, check_view_update, shown_rows
from tests.sim.network import End, Link
from tests.sim.tables import SCHEMA, SimTable

ALL_COLUMNS = tuple(range(len(SCHEMA)))

IDLE_NS = 300 * NANOS_PER_MS
"""A one-shot stream with bodies outside is half-closed when nothing has come for so long."""


class Family(Enum):
    """The reference's seven subscription shapes."""

    FULL = auto()
    HEADER = auto()
    FLOATING = auto()
    FOOTER = auto()
    REVERSE_FLOATING = auto()
    SWISS = auto()
    REVERSE_SWISS = auto()


REVERSE = {Family.FOOTER, Family.REVERSE_FLOATING, Family.REVERSE_SWISS}


class SimClient:
    """One client: it subscribes, follows, changes its mind, and comes back when it is cut off.

    Every consistent state it reaches is compared with the table's history at the step it claims.
    """

    def __init__(
        self,
        number: int,
        table: SimTable,
        random: Random,
        bodies: ClientBodies,
        *,
        takes_snapshots: bool,
    ):
        self.number = number
        self.bodies = bodies
        self.table = table
        self.takes_snapshots = takes_snapshots
        self._random = random
        families = [family for family in Family if not (table.is_blink and family in REVERSE)]
        self.family = random.choice(families)
        is_draft = self.family not in REVERSE and random.random() < 0.25
        self.revision = WireRevision.DRAFT_2020 if is_draft else WireRevision.R1_0_0
        self.options = SubscriptionOptions(
            use_deephaven_nulls=random.random() < 0.5,
            min_update_interval_ms=random.choice([10, 10, 30, 100, 250]),
            batch_size=random.choice([0, 0, 1, 3, 4096]),
            columns_as_list=not is_draft and random.random() < 0.3,
            max_message_size=0 if is_draft else random.choice([0, 0, 900]),
        )
        self.columns = self._draw_columns()
        self.viewport = self._draw_viewport()
        self.link: Link | None = None
        self.intake: Intake | None = None
        self.exchange: ClientExchange | None = None
        self.replica: FullReplica | ViewReplica | None = None
        self.connect_at_ns = 0
        self.reads_again_ns = 0
        self.frames_per_tick = random.choice([1, 4, 1000])
        self.states_checked = 0
        self.ends: list[BarrageError | None] = []
        self.is_misbehaving = False

    def _draw_columns(self) -> tuple[int, ...] | None:
        if self._random.random() < 0.5:
            return None
        count = self._random.randint(0, len(SCHEMA))
        return tuple(sorted(self._random.sample(range(len(SCHEMA)), count)))

    def _draw_viewport(self) -> Viewport | None:
        draw = self._random
        if self.family is Family.FULL:
            return None
        is_reverse = self.family in REVERSE
        if draw.random() < 0.03:
            return Viewport(positions=RowSet.empty(), is_reverse=is_reverse)
        length = draw.choice([1, 5, 10, 200])
        start = 0 if self.family in (Family.HEADER, Family.FOOTER) else draw.randrange(30)
        positions = range(start, start + length)
        if self.family in (Family.SWISS, Family.REVERSE_SWISS):
            return Viewport(
                positions=RowSet(p for p in positions if p // 3 % 2 == 0), is_reverse=is_reverse
            )
        return Viewport.of(start, start + length, is_reverse=is_reverse)

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    # --- connecting -------------------------------------------------------------------------------

    def connect(self, link: Link, intake: Intake, now_ns: int) -> None:
        """Open a stream and ask. ``intake`` reads it."""
        self.link = link
        self.intake = intake
        self._end: End | None = None
        self._is_half_closed = False
        self._heard_ns = now_ns
        self.exchange = ClientExchange(revision=self.revision, limits=intake.limits)
        self.replica = None
        self._steps = StepChecker(self.table)
        self._keys: set[int] = set()
        self._effective: tuple[set[int] | None, bool, tuple[int, ...]] | None = None
        self.is_misbehaving = False
        ticket = b"s/" + self.table.name.encode()
        if self._random.random() < 0.3:  # as pyarrow-based clients do
            link.up.send(encode_flight_data(FlightFrame(descriptor=b"\x08\x02")), now_ns)
        if self.takes_snapshots:
            options = SnapshotOptions(batch_size=self.options.batch_size)
            frame = self.exchange.take_snapshot(
                ticket, columns=self.columns, viewport=self.viewport, options=options
            )
            link.up.send(frame, now_ns)
            if intake.way is BodyWay.INLINE:
                self._say_no_more(now_ns)
            return
        frame = self.exchange.subscribe(
            ticket, columns=self.columns, viewport=self.viewport, options=self.options
        )
        link.up.send(frame, now_ns)

    def change(self, now_ns: int) -> None:
        """Ask for another viewport or other columns, whatever is under way."""
        if self.link is None or self.exchange is None or self.viewport is None:
            return
        if self.takes_snapshots or not self.link.up.has_room:
            return
        if self._random.random() < 0.7:
            self.viewport = self._draw_viewport()
        if self._random.random() < 0.4:
            self.columns = self._draw_columns()
        frame = self.exchange.change(columns=self.columns, viewport=self.viewport)
        self.link.up.send(frame, now_ns)

    def _say_no_more(self, now_ns: int) -> None:
        """The request side of a one-shot stream is done with."""
        assert self.exchange is not None
        assert self.link is not None
        if not self._is_half_closed:
            self._is_half_closed = True
            self.exchange.half_close()
            self.link.up.send(End(), now_ns)

    def half_close(self, now_ns: int) -> None:
        if self.link is not None and not self.takes_snapshots:
            self.link.up.send(End(), now_ns)
            self.is_misbehaving = True  # nothing may be sent behind it

    def misbehave(self, now_ns: int) -> None:
        """Break the protocol; the server must end this stream and no other."""
        if self.link is None or self.takes_snapshots or self.is_misbehaving:
            return
        self.is_misbehaving = True
        request = encode_wrapper(SnapshotRequest(ticket=b"s/x"), self.revision)
        junk = [
            encode_flight_data(FlightFrame(metadata=request)),
            encode_flight_data(FlightFrame(metadata=b"\x04\x00\x00\x00\xff\xff\xff\xff")),
            b"\xff\xff\xff",
            encode_flight_data(FlightFrame(released=b"\xff\xff\xff")),
        ]
        self.link.up.send(self._random.choice(junk), now_ns)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, now_ns: int) -> list[bytes]:
        """Take what has arrived; returns the frames, for the trace. BodyChannelError ends the
        stream and is raised for the world to judge."""
        frames: list[bytes] = []
        self.bodies.check(now_ns)
        if self.link is None or self.intake is None:
            return frames
        if self.link.is_cut:
            self._lost(now_ns, None)
            return frames
        if now_ns < self.reads_again_ns:
            return frames
        self._take(self.intake.poll(now_ns), now_ns)
        for _ in range(self.frames_per_tick):
            item = None if self.intake.is_crowded else self.link.down.receive(now_ns)
            if item is None:
                break
            self._heard_ns = now_ns
            if isinstance(item, End):
                self._end = item
                break
            frames.append(item)
            self._take(self.intake.take(item, now_ns), now_ns)
        self._answer(self.link, self.intake, now_ns)
        if self._end is not None and (self._end.error is not None or not self.intake.is_waiting):
            self._ended(self._end, now_ns)
        return frames

    def _take(self, whole: list[FlightFrame], now_ns: int) -> None:
        """Messages with their bodies."""
        assert self.exchange is not None
        for frame in whole:
            for event in self.exchange.receive(frame):
                if isinstance(event, SchemaArrived):
                    assert event.schema.equals(SCHEMA), "the schema survives the wire"
                    is_view = self.exchange.has_view_positions
                    self.replica = ViewReplica(SCHEMA) if is_view else FullReplica(SCHEMA)
                elif isinstance(event, UpdateArrived):
                    self._apply(event)
                    assert self.replica is not None
                    self.bodies.show(self.replica.to_arrow(), now_ns)
                    if self.takes_snapshots:
                        self._say_no_more(now_ns)

    def _answer(self, link: Link, intake: Intake, now_ns: int) -> None:
        """Give back bodies; end the request side of a one-shot stream whose answer is one
        schema."""
        if self.is_misbehaving or self._is_half_closed:
            return
        released = intake.releases(now_ns)
        if released is not None:
            link.up.send(released, now_ns)
        if self.takes_snapshots and now_ns - self._heard_ns >= IDLE_NS:
            self._say_no_more(now_ns)

    def _ended(self, item: End, now_ns: int) -> None:
        assert self.exchange is not None
        was_receiving = self.exchange.state is ClientState.RECEIVING
        (event,) = self.exchange.receive_end(item.error)
        if self.takes_snapshots:
            assert was_receiving, "a snapshot ends when it is complete"
            assert event.error is None, event.error
            if self._effective is None:  # a static table with nothing to send
                assert self.table.is_static
        else:
            is_expected = self.is_misbehaving or isinstance(item.error, SlowConsumerError)
            assert is_expected, f"the server ended the stream: {event.error!r}"
        self.ends.append(item.error)
        self._lost(now_ns, item.error)

    def body_lost(self, now_ns: int, error: BodyChannelError) -> None:
        """Hang up, and subscribe anew at once, inline."""
        assert self.link is not None
        self.link.cut()
        self.bodies.distrust(now_ns)
        self._lost(now_ns, error)
        self.connect_at_ns = now_ns

    def _lost(self, now_ns: int, error: BarrageError | None) -> None:
        if self.intake is not None:
            self.intake.close()
        self.link = None
        self.intake = None
        self.exchange = None
        self.connect_at_ns = now_ns + self._random.randint(1, 60) * NANOS_PER_MS

    # --- checking ---------------------------------------------------------------------------------

    def _apply(self, event: UpdateArrived) -> None:
        message = event.message
        assert self.replica is not None
        if isinstance(message, ViewUpdate):
            assert isinstance(self.replica, ViewReplica)
            check_view_update(message, len(self.replica))
            self.replica.apply(message)
        else:
            assert isinstance(self.replica, FullReplica)
            self._keys = check_full_update(message, self._keys)
            self.replica.apply(message)
            assert set(self.replica.row_keys) == self._keys
        self.replica.validate()
        self._note_setting(message)
        if not self.takes_snapshots:
            assert event.is_consistent, "one logical snapshot, never grown"
        self._compare(message)

    def _note_setting(self, message: FullUpdate | ViewUpdate) -> None:
        if not message.is_snapshot:
            return
        viewport = message.effective_viewport
        columns = message.effective_columns
        self._effective = (
            None if viewport is None else set(viewport),
            message.is_effective_reverse,
            ALL_COLUMNS if columns is None else columns,
        )

    def _compare(self, message: FullUpdate | ViewUpdate) -> None:
        """The replica equals the table's rows at the message's step, sliced as the server said."""
        assert self.replica is not None
        assert self._effective is not None
        if self.takes_snapshots:
            rows = self.table.rows_at(message.last_step)
            if self.table.is_blink and message.last_step not in self.table.steps:
                rows = []
        else:
            rows = self._steps.advance(message)
            if self.revision.has_table_size:
                assert (message.table_size or 0) == len(rows), "table_size is right everywhere"
        viewport, is_reverse, columns = self._effective
        expected = shown_rows(rows, viewport, is_reverse=is_reverse, columns=columns)
        found = [tuple(row.values()) for row in self.replica.to_arrow().to_pylist()]
        if not columns:
            assert len(self.replica) == len(expected)
        else:
            assert found == expected, (
                f"client {self.number} of {self.table.kind!r} shows\n{found}\ninstead of\n"
                f"{expected}\nat step {message.last_step}"
            )
        self.states_checked += 1

    def check_converged(self) -> None:
        """When all has been quiet: live, at the request made last, equal to the table now."""
        assert self.exchange is not None, f"client {self.number} is not connected"
        assert self.exchange.state is ClientState.LIVE, (
            f"client {self.number} is {self.exchange.state}"
        )
        assert self.replica is not None
        columns = ALL_COLUMNS if self.columns is None else self.columns
        viewport = None if self.viewport is None else set(self.viewport.positions)
        is_reverse = self.viewport is not None and self.viewport.is_reverse
        now = [] if self.table.is_blink else self.table.rows
        expected = shown_rows(now, viewport, is_reverse=is_reverse, columns=columns)
        found = [tuple(row.values()) for row in self.replica.to_arrow().to_pylist()]
        if columns:
            assert found == expected
        else:
            assert len(self.replica) == len(expected)

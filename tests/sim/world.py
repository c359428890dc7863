"""One simulated world: engine, server, network and clients on one thread and one virtual clock, all
drawn from one seed."""

from __future__ import annotations

import gc
import hashlib
from collections import deque
from contextlib import nullcontext
from random import Random

from barrage.engine import UpdateGraph
from barrage.errors import BodyChannelError
from barrage.limits import NANOS_PER_MS, Limits
from tests.helpers.told import views_together_from
from tests.helpers.virtual_clock import VirtualClock
from tests.sim.bodies import BodyOptions, ServerBodies
from tests.sim.body_intake import ClientBodies
from tests.sim.client import SimClient
from tests.sim.held import HeldOptions
from tests.sim.network import Link
from tests.sim.options import Faults, Options
from tests.sim.server import Sabotage, SimServer
from tests.sim.tables import SimTable

TICK_MS = 5
CALM_TICKS_MAX = 6000
CLOSING_TICKS = 60
"""Longer than the slowest link."""

STORY_LINES_MAX = 60


class SimulationError(AssertionError):
    """A checker failed; carries the seed and the latest events."""

    def __init__(self, seed: int, options: str, story: list[str], cause: BaseException) -> None:
        lines = "\n  ".join(story)
        super().__init__(
            f"seed {seed}: {type(cause).__name__}: {cause}\n  {options}\n  {lines}\n"
            f"repeat with: python -m tests.sim --seed {seed}"
        )


class World:
    """Phase one, safety: changes and faults, every message checked. Phase two, liveness: all faults
    stop, and every client must converge. Then everything is closed and nothing may be left."""

    def __init__(self, seed: int, *, sabotage: Sabotage | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.options = Options.draw(self.random)
        # Of their own, so that what a seed draws besides stays what it was.
        body_random = Random(f"bodies {seed}")
        self.body_options = BodyOptions.draw(body_random)
        self._held_random = Random(f"held {seed}")
        self._making_random = Random(f"makings {seed}")
        drawn = HeldOptions.draw(self._held_random)
        self.held_options = drawn.with_makings(self._making_random)
        self.clock = VirtualClock()
        self.limits = Limits(
            stall_ns_max=self.options.stall_ms_max * NANOS_PER_MS,
            exchange_outbox_updates_max=self.options.outbox_updates_max,
            delta_segments_max=self.options.delta_segments_max,
            **self.held_options.limits(),
            **self.body_options.limits(),
        )
        self.graph = UpdateGraph()
        self.tables = {
            f"t{index}": SimTable(f"t{index}", kind, self.graph, self._child_random())
            for index, kind in enumerate(self.options.table_kinds)
        }
        names = list(self.tables)
        self.extra: SimTable | None = None
        if self.held_options.extra_kind is not None:
            own = Random(self._held_random.getrandbits(64))
            self.extra = SimTable("extra", self.held_options.extra_kind, self.graph, own)
            self.tables["extra"] = self.extra
        self.bodies = ServerBodies(self.body_options, self.limits, self.clock, body_random)
        self.server = SimServer(self.graph, self.tables, self.limits, self.bodies, sabotage)
        self.faults = self.options.faults
        self.clients = [
            SimClient(
                number,
                self._table_for_a_client(self.random.choice(names)),
                self._child_random(),
                ClientBodies(
                    self.bodies, self.body_options, self.limits, body_random.getrandbits(64)
                ),
                takes_snapshots=self.random.random() < self.options.snapshot_client,
            )
            for number in range(self.options.client_count)
        ]
        self._hash = hashlib.sha256()
        self._story: deque[str] = deque(maxlen=STORY_LINES_MAX)
        self._next_cycle_ns = 0
        self.is_calm = False

    def _child_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    def _table_for_a_client(self, name: str) -> SimTable:
        is_extra = self._held_random.random() < self.held_options.extra_share
        return self.extra if is_extra and self.extra is not None else self.tables[name]

    @property
    def trace_hash(self) -> str:
        """Of everything that was received by anybody, and when."""
        return self._hash.hexdigest()

    def run(self) -> None:
        """All phases. Raises SimulationError."""
        was_collecting = gc.isenabled()
        # Bodies are given back when the last reference to them goes: when that is may depend on
        # the seed, and on nothing else.
        gc.disable()
        try:
            # Odd seeds tell every view in the way of many, however few there are.
            with views_together_from(1) if self.seed % 2 else nullcontext():
                self._fill()
                for _ in range(self.options.ticks):
                    self._tick()
                self._calm_down()
                self._close()
        except Exception as error:
            options = f"{self.options}\n  {self.body_options}\n  {self.held_options}"
            raise SimulationError(self.seed, options, list(self._story), error) from error
        finally:
            self.bodies.close()
            if was_collecting:
                gc.enable()

    def _fill(self) -> None:
        for table in self.tables.values():
            if self.options.initial_rows:
                table.change(self.options.initial_rows if table.source_kind != "keyed" else 20)
        self.server.run_cycle(self.clock.wall_ns())

    # --- one tick ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.clock.advance(TICK_MS * NANOS_PER_MS)
        now_ns = self.clock.monotonic_ns()
        if not self.is_calm:
            self._disturb(now_ns)
        self._connect(now_ns)
        self.server.read(now_ns)
        if now_ns >= self._next_cycle_ns:
            self._next_cycle_ns = now_ns + self.options.cycle_ms * NANOS_PER_MS
            if not self.is_calm:
                self._change_tables()
            if self.graph.has_pending:
                self.server.run_cycle(now_ns)
        self.server.propagate(now_ns)
        for making in list(self.server.makings):
            if self.is_calm or self._making_random.random() < self.held_options.making_chance:
                self.server.make(making)
        order = list(self.server.streams)
        self.random.shuffle(order)
        self.server.write(now_ns, order)
        for client in self.random.sample(self.clients, len(self.clients)):
            try:
                for frame in client.read(now_ns):
                    self._trace(f"{now_ns} client {client.number} <- ", frame)
            except BodyChannelError as error:
                self._lose_body(client, error, now_ns)

    def _lose_body(self, client: SimClient, error: BodyChannelError, now_ns: int) -> None:
        """A client hangs up because a body is missing; something must have happened to it."""
        assert client.link is not None
        assert client.intake is not None
        stream = self.server.stream_of(client.link)
        is_excused = (
            client.intake.may_lose_bodies
            or stream is None  # the server has ended the stream and taken its memory back
            or stream.bodies.is_inline
        )
        assert is_excused, f"client {client.number} misses a body for no reason: {error}"
        self._story.append(f"{now_ns} client {client.number} lost a body: {error}")
        client.body_lost(now_ns, error)

    def _trace(self, text: str, frame: bytes) -> None:
        self._hash.update(text.encode())
        self._hash.update(frame)
        self._story.append(f"{text}{len(frame)} bytes")

    def _change_tables(self) -> None:
        for table in self.tables.values():
            random = self._held_random if table is self.extra else self.random
            if random.random() < self.options.change_chance:
                for _ in range(self.options.changes_per_cycle):
                    table.change(3)

    def _connect(self, now_ns: int) -> None:
        for client in self.clients:
            if not client.is_connected and now_ns >= client.connect_at_ns:
                link = Link(self._child_random(), self.faults)
                claim, intake = client.bodies.prepare(now_ns)
                outcome = self.server.accept(link, client.revision, claim)
                client.connect(link, client.bodies.accepted(intake, outcome), now_ns)
                self._story.append(f"{now_ns} client {client.number} connects, bodies {outcome}")

    def _disturb(self, now_ns: int) -> None:
        """Faults and second thoughts."""
        if self.random.random() < self.faults.restart:
            self._story.append(f"{now_ns} every link is cut")
            self.server.restart()
            for client in self.clients:
                if client.link is not None:
                    client.link.cut()
        self.bodies.disturb(now_ns)
        for client in self.clients:
            if client.link is not None:
                self._disturb_link(client, client.link, now_ns)
                self._disturb_client(client, now_ns)

    def _disturb_link(self, client: SimClient, link: Link, now_ns: int) -> None:
        if self.random.random() < self.faults.cut:
            self._story.append(f"{now_ns} the link of client {client.number} is cut")
            link.cut()
        elif self.random.random() < self.faults.clog:
            until_ms = self.random.randint(1, self.faults.clog_ms_max)
            link.clog(now_ns + until_ms * NANOS_PER_MS)

    def _disturb_client(self, client: SimClient, now_ns: int) -> None:
        faults, chance = self.faults, self.random.random
        if chance() < faults.slow_reader:
            client.reads_again_ns = now_ns + self.random.randint(10, 600) * NANOS_PER_MS
        if client.is_misbehaving:
            return
        if chance() < faults.half_close:
            client.half_close(now_ns)
        elif chance() < faults.misbehave:
            client.misbehave(now_ns)
        elif chance() < self.options.viewport_change:
            client.change(now_ns)

    # --- the end ----------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """No more faults and changes: everybody converges within a bounded time."""
        self.is_calm = True
        self.faults = Faults()
        self.bodies.calm_down()
        for client in self.clients:
            client.bodies.is_calm = True
            client.reads_again_ns = 0
            client.frames_per_tick = 1000
            if client.link is not None:
                client.link.clog(0)
                client.link.down.window = 64
        for _ in range(CALM_TICKS_MAX):
            self._tick()
            if self._is_quiet():
                break
        for client in self.clients:
            if not client.takes_snapshots:
                client.check_converged()
                self._check_window(client)
        assert self._is_quiet(), "the world does not come to rest"

    def _check_window(self, client: SimClient) -> None:
        """Both sides agree on what is out."""
        assert client.link is not None
        assert client.intake is not None
        stream = self.server.stream_of(client.link)
        assert stream is not None
        out, held = stream.bodies.pending_count, client.intake.held_count
        assert out == held, f"{out} bodies are out, client {client.number} holds {held}"

    def _is_quiet(self) -> bool:
        """Nothing under way and nothing due; one-shot clients come and go for ever."""
        followers = [client for client in self.clients if not client.takes_snapshots]
        return (
            not self.graph.has_pending
            and all(client.link is not None for client in followers)
            and all(
                client.intake is None or not (client.intake.is_waiting or client.intake.has_untold)
                for client in followers
            )
            and all(
                client.link is None or (client.link.up.is_empty and client.link.down.is_empty)
                for client in followers
            )
            and all(not stream.outbox for stream in self.server.streams.values())
            and all(producer.next_due_ns() is None for producer in self.server.producers.values())
        )

    def _close(self) -> None:
        """Everybody hangs up or half-closes; no stream, producer or subscription may be left."""
        for client in self.clients:
            client.connect_at_ns = 2**62
            if client.link is None:
                continue
            if self.random.random() < 0.5 and not client.takes_snapshots:
                client.half_close(self.clock.monotonic_ns())
            else:
                client.link.cut()
        for _ in range(CLOSING_TICKS):
            self._tick()
            for client in self.clients:
                client.connect_at_ns = 2**62
        assert not self.server.streams, "streams are left after the last close"
        assert not self.server.producers, "producers are left after the last close"
        for client in self.clients:
            client.replica = None
            client.bodies.close()
        gc.collect()
        for client in self.clients:
            assert not client.bodies.loans, "a body is lent and nobody has it"
        self.bodies.check_all_free()

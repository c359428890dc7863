"""The journal as a component of the simulator: tables that change, a store that is pumped on one
thread and one virtual clock, and a disk that crashes, tears writes, loses syncs, fails and gets
full, all drawn from one seed.

The checker beside it knows what was handed over and what was acknowledged, and asks after every
restart for nothing less than the second and nothing but the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from barrage.clock import VirtualClock
from barrage.errors import JournalCorruptError, JournalFailedError, JournalFullError
from barrage.journal import JournalOptions, JournalStore, TableJournal
from barrage.journal.file_history import WITNESS_FILE, read_witness
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import Faults, MemoryStorage

TICK_NS = 2_000_000
NO_LIMIT = 1 << 40


class JournalSimulationError(AssertionError):
    """A checker failed; names the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFaults:
    """Chances per tick. 0 means never."""

    crash: float
    restart: float
    full: float
    drop: float
    lost_sync: float
    failed_sync: float
    failed_write: float

    @classmethod
    def draw(cls, random: Random) -> JournalFaults:
        """Whole classes of trouble are off in many seeds."""

        def sometimes(chance: float, high: float) -> float:
            return random.uniform(0, high) if random.random() < chance else 0.0

        return cls(
            crash=sometimes(0.7, 0.06),
            restart=sometimes(0.3, 0.03),
            full=sometimes(0.4, 0.05),
            drop=sometimes(0.2, 0.01),
            lost_sync=sometimes(0.3, 0.2),
            failed_sync=sometimes(0.2, 0.01),
            failed_write=sometimes(0.2, 0.01),
        )


def draw_options(random: Random) -> JournalOptions:
    """Small files, so that every boundary is crossed often."""
    return JournalOptions(
        group_ns=random.choice([0, 5_000_000, 20_000_000]),
        group_bytes=random.choice([200, 2_000, 1 << 20]),
        segment_bytes=random.choice([3_000, 10_000, 1 << 20]),
        retain_bytes=random.choice([None, 10_000, 30_000]),
        retain_steps=random.choice([None, None, 20]),
        checkpoint_bytes_min=random.choice([2_000, 20_000]),
        checkpoint_state_ratio=random.choice([0.5, 2.0]),
        reserve_bytes=random.choice([60_000, 100_000]),
        memory_bytes=5_000,
        reserved_steps=random.choice([50, 1_000_000]),
    )


@dataclass
class SimJournalTable:
    """One table: what it went through, and how much of that was acknowledged."""

    name: str
    kind: str
    epoch: str
    history: RandomHistory
    tickets: dict[int, int] = field(default_factory=dict)
    """Ticket to version, of what is not acknowledged yet."""
    acknowledged: int = 0
    lost: list[int] = field(default_factory=list)
    """Versions that were handed over and taken away by a crash."""


class JournalWorld:
    """One simulated journal store."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.faults = JournalFaults.draw(self.random)
        self.options = draw_options(self.random)
        self.ticks = self.random.choice([100, 200])
        self.clock = VirtualClock(1)
        self.storage = MemoryStorage(Random(self.random.getrandbits(64)))
        self.tables: dict[str, SimJournalTable] = {}
        self.step = 0
        self.states_checked = 0
        self.restarts = 0
        self.is_over = False
        self.store = self._new_store()
        self.store.open_all()
        self._next_name = 0

    def _new_store(self) -> JournalStore:
        return JournalStore(
            self.storage,
            self.options,
            clock=self.clock,
            new_epoch=lambda: f"{self.random.getrandbits(64):016x}",
        )

    def run(self) -> None:
        """All ticks, then a clean end. Raises JournalSimulationError."""
        try:
            for _ in range(self.ticks):
                if not self.is_over:
                    self._tick()
            if not self.is_over:
                self._finish()
        except Exception as error:
            raise JournalSimulationError(
                f"journal seed {self.seed}: {type(error).__name__}: {error}\n  {self.faults}\n  "
                f"{self.options}\nrepeat with: python -m tests.sim --journal --seed {self.seed}"
            ) from error

    # --- one tick ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.clock.advance(TICK_NS)
        random, faults = self.random, self.faults
        self.storage.faults = Faults(faults.lost_sync, faults.failed_sync, faults.failed_write)
        if random.random() < faults.full:
            used = NO_LIMIT - self.storage_free()
            self.storage.room = used + random.randrange(2 * self.options.reserve_bytes)
        elif random.random() < 0.2:
            self.storage.room = NO_LIMIT
        if not self._is_writable():
            return
        if not self.tables or (len(self.tables) < 3 and random.random() < 0.1):
            self._create()
        if random.random() < 0.8:
            self._cycle()
        self._pump()
        self._read_something()
        if self.tables and random.random() < faults.drop:
            self._drop()
        if random.random() < faults.crash:
            self._crash()
        elif random.random() < faults.restart:
            self._restart()

    def storage_free(self) -> int:
        """Room left if the disk had no limit."""
        room, self.storage.room = self.storage.room, NO_LIMIT
        free = self.storage.free_bytes()
        self.storage.room = room
        return free

    def _is_writable(self) -> bool:
        """Whether writes are taken; a failed store is started again as after a crash."""
        try:
            self.store.check_writable()
        except JournalFullError:
            self._pump()
            self._read_something()
            return False
        except JournalFailedError:
            assert self.faults.failed_sync or self.faults.failed_write, "failed without a fault"
            self._crash()
            return False
        return True

    def _create(self) -> None:
        name = f"t{self._next_name}"
        kind = self.random.choice(["list", "append-only"])
        history = RandomHistory(
            Random(self.random.getrandbits(64)), self.step, is_append_only=kind == "append-only"
        )
        try:
            journal = self.store.create(identity(name, kind), step=self.step)
        except (JournalFullError, JournalFailedError):
            return
        self._next_name += 1
        self.tables[name] = SimJournalTable(
            name, kind, journal.epoch, history, acknowledged=self.step
        )

    def _cycle(self) -> None:
        self.step += 1
        for table in self.tables.values():
            if self.random.random() < 0.6:
                change, positions = table.history.next_change(self.step)
                ticket = self.store.journals[table.name].append(
                    change, step=self.step, wall_ns=self.clock.wall_ns(), positions=positions
                )
                table.tickets[ticket] = self.step
        self.store.step_committed(self.step)

    def _pump(self) -> None:
        self.store.pump(self.clock.monotonic_ns())
        for table in self.tables.values():
            for ticket in [each for each in table.tickets if each <= self.store.synced_ticket]:
                table.acknowledged = max(table.acknowledged, table.tickets.pop(ticket))
            durable = self.store.journals[table.name].durable_version
            assert durable <= self.step
            table.acknowledged = max(table.acknowledged, durable)

    def _drop(self) -> None:
        name = self.random.choice(sorted(self.tables))
        self.store.drop(name)
        del self.tables[name]

    # --- ends and beginnings ----------------------------------------------------------------------

    def _crash(self) -> None:
        self.storage.crash()
        self._open(is_clean=False)

    def _restart(self) -> None:
        self.storage.faults = Faults()
        self.store.close()
        if self.storage.room == NO_LIMIT:
            for table in self.tables.values():
                table.acknowledged = table.history.step
        self._open(is_clean=self.storage.room == NO_LIMIT)

    def _open(self, *, is_clean: bool) -> None:
        self.restarts += 1
        witnesses = {name: self._witness(table) for name, table in self.tables.items()}
        self.storage.room = NO_LIMIT
        self.storage.faults = Faults()
        self.store = self._new_store()
        try:
            self.store.open_all()
        except JournalCorruptError:
            assert self.storage.lost_syncs, "damage on an honest disk"
            self.is_over = True
            return
        assert self.store.first_step >= self.step or self.storage.lost_syncs, "steps used twice"
        assert set(self.store.journals) == set(self.tables) or self.storage.lost_syncs
        for name, table in self.tables.items():
            if name in self.store.journals:
                self._check_recovered(table, self.store.journals[name], witnesses[name])
        # A disk that lies is only simulated once: what it lost is gone from our books, too.
        self.is_over = self.storage.lost_syncs > 0
        self.step = max(self.step, self.store.first_step)
        if is_clean:
            assert all(
                not table.lost or table.lost[-1] < self.step for table in self.tables.values()
            )

    def _witness(self, table: SimJournalTable) -> int:
        directory = f"tables/{table.name}/{WITNESS_FILE}"
        if directory not in self.storage.files:
            return -1
        return read_witness(bytes(self.storage.files[directory].content), table.epoch)

    def _check_recovered(self, table: SimJournalTable, journal: TableJournal, witness: int) -> None:
        version = journal.latest_version
        assert journal.epoch == table.epoch, "another epoch"
        known = [snapshot.version for snapshot in table.history.snapshots]
        assert version in known, f"version {version} was never handed over"
        if self.storage.lost_syncs:
            # What a lying disk lost is only noticed if something of later is left.
            assert version >= witness, "an acknowledged version is gone and nobody said so"
        else:
            assert version >= table.acknowledged, f"{version} < acknowledged {table.acknowledged}"
        lost = [each for each in known if each > version]
        table.lost += lost
        table.tickets.clear()
        table.history.go_back_to(version)
        table.acknowledged = version
        self._check_state(table, journal, version)
        for each in [] if self.storage.lost_syncs else table.lost:
            assert not journal.is_known(each), f"version {each} is gone and said to be known"

    # --- readers ----------------------------------------------------------------------------------

    def _read_something(self) -> None:
        for table in self.tables.values():
            if self.random.random() < 0.1:
                journal = self.store.journals[table.name]
                snapshot = self.random.choice(table.history.snapshots)
                if snapshot.version < journal.earliest_version:
                    assert not journal.is_known(snapshot.version)
                elif snapshot.version <= journal.latest_version:
                    self._check_state(table, journal, snapshot.version)

    def _check_state(self, table: SimJournalTable, journal: TableJournal, version: int) -> None:
        assert journal.is_known(version), f"version {version} is unknown"
        expected = next(
            each for each in reversed(table.history.snapshots) if each.version <= version
        )
        state = journal.state_at(version)
        assert content(state) == expected.rows, f"rows of {table.name} at {version}"
        assert state.next_offset == expected.next_offset
        assert dict(state.positions) == expected.positions
        self.states_checked += 1

    def _finish(self) -> None:
        """The disk behaves: the store must take writes again, and keep all of them."""
        self.storage.faults = Faults()
        self.storage.room = NO_LIMIT
        for _ in range(200):
            self.clock.advance(TICK_NS)
            self._pump()
        if not self._is_writable():
            assert self._is_writable(), "the store did not recover when there was room again"
        if self.is_over:
            return
        for _ in range(3):
            self._cycle()
        self._restart()
        for table in self.tables.values():
            if not self.is_over:
                assert self.store.journals[table.name].latest_version == table.history.step

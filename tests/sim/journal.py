"""The journal as a component of the simulator: tables that change, several in one cycle, a store
that is pumped on one thread and one virtual clock, and a disk that tells its cache from its
platter, loses syncs, fails and gets full. The process is killed, or the power cut, at any call to
the disk, also while it reads back what the last one left; all drawn from one seed.

The checker beside it knows what was handed over and what was acknowledged, and asks after every
restart for nothing less than the second and nothing but the first, and for every cycle in all of
its tables or in none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from barrage.errors import JournalCorruptError, JournalFailedError, JournalFullError
from barrage.journal import JournalOptions, JournalStore, TableJournal
from barrage.journal.files.file_history import WITNESS_FILE, read_witness
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.simulated_disk import NO_LIMIT, Faults, Killed, SimulatedDisk
from tests.helpers.virtual_clock import VirtualClock

TICK_NS = 2_000_000


class JournalSimulationError(AssertionError):
    """A checker failed; names the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFaults:
    """Chances per tick. 0 means never."""

    kill: float
    cut: float
    restart: float
    fault_at_start: float
    """Of the faults of the disk while a process starts."""
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
            kill=sometimes(0.7, 0.08),
            cut=sometimes(0.7, 0.06),
            restart=sometimes(0.3, 0.03),
            fault_at_start=sometimes(0.3, 0.2),
            full=sometimes(0.4, 0.05),
            drop=sometimes(0.3, 0.04),
            lost_sync=sometimes(0.3, 0.05),
            failed_sync=sometimes(0.3, 0.05),
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
    """One simulated disk, and one process after the other that keeps its journals there."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.faults = JournalFaults.draw(self.random)
        self.options = draw_options(self.random)
        self.ticks = self.random.choice([60, 120])
        self.clock = VirtualClock(1)
        self.disk = SimulatedDisk(Random(self.random.getrandbits(64)))
        self.disk.on_call = self._on_call
        self.tables: dict[str, SimJournalTable] = {}
        self.cycles: dict[int, list[SimJournalTable]] = {}
        """The tables that cycles changed, until they are found whole or gone."""
        self.step = 0
        self.states_checked = 0
        self.restarts = self.kills = self.cuts = self.joint_lost = 0
        self.is_over = False
        self._next_name = 0
        self._calls_left = -1
        """Calls until the end of the process; below 0: none is planned."""
        self._ends_at_syncs = False
        """Whether only syncs are counted: what is done and not synced is the usual trouble."""
        self._is_cut = False
        self._is_cheated = False
        """Whether a disk that lies has lost something, by a power cut or a sync that failed."""
        self._creating: SimJournalTable | None = None
        self._dropping = ""
        self.store: JournalStore

    def _on_call(self, name: str, path: str) -> None:
        if self._calls_left < 0 or (self._ends_at_syncs and not name.startswith("sync")):
            return
        self._calls_left -= 1
        if self._calls_left < 0:
            raise Killed

    def _new_store(self) -> JournalStore:
        return JournalStore(
            MemoryStorage(disk=self.disk),
            self.options,
            clock=self.clock,
            new_epoch=lambda: f"{self.random.getrandbits(64):016x}",
        )

    def run(self) -> None:
        """All ticks, then a clean end. Raises JournalSimulationError."""
        try:
            self._start()
            for _ in range(self.ticks):
                if not self.is_over:
                    self._attempt(self._tick)
            if not self.is_over:
                self._calls_left = -1
                self._finish()
        except Exception as error:
            raise JournalSimulationError(
                f"journal seed {self.seed}: {type(error).__name__}: {error}\n  {self.faults}\n  "
                f"{self.options}\nrepeat with: python -m tests.sim --journal --seed {self.seed}"
            ) from error

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do something that may be the end of the process."""
        try:
            work()
        except Killed:
            self._crash()

    # --- one tick ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.clock.advance(TICK_NS)
        random, faults = self.random, self.faults
        self._plan_the_end()
        self.disk.faults = self._disk_faults()
        if random.random() < faults.full:
            used = self.disk.used_bytes()
            self.disk.room = used + random.randrange(2 * self.options.reserve_bytes)
        elif random.random() < 0.2:
            self.disk.room = NO_LIMIT
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
        if random.random() < faults.restart:
            self._restart()

    def _plan_the_end(self) -> None:
        """Perhaps the process is to end after some more calls to the disk."""
        if self._calls_left >= 0:
            return
        fate = self.random.random()
        if fate < self.faults.kill + self.faults.cut:
            self._plan(is_cut=fate >= self.faults.kill)

    def _plan(self, *, is_cut: bool) -> None:
        self._is_cut = is_cut
        self._ends_at_syncs = self.random.random() < 0.5
        most = self.random.choice([0, 3, 8] if self._ends_at_syncs else [0, 5, 15, 40])
        self._calls_left = self.random.randint(0, most)

    def _disk_faults(self) -> Faults:
        return Faults(self.faults.lost_sync, self.faults.failed_sync, self.faults.failed_write)

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
            self._is_cut = self.random.random() < 0.2
            self._crash()
            return False
        return True

    def _create(self) -> None:
        name = f"t{self._next_name}" if self.random.random() < 0.7 else "t"
        if name in self.tables:
            return
        kind = self.random.choice(["list", "append-only"])
        history = RandomHistory(
            Random(self.random.getrandbits(64)), self.step, is_append_only=kind == "append-only"
        )
        table = SimJournalTable(name, kind, "", history, acknowledged=self.step)
        self._creating = table
        if self._calls_left < 0 and self.random.random() < 4 * self.faults.kill:
            self._plan(is_cut=False)
        try:
            table.epoch = self.store.create(identity(name, kind), step=self.step).epoch
        except (JournalFullError, JournalFailedError):
            pass
        else:
            self._next_name += 1
            self.tables[name] = table
        self._creating = None

    def _cycle(self) -> None:
        self.step += 1
        changed = [table for table in self.tables.values() if self.random.random() < 0.6]
        for table in changed:
            change, positions = table.history.next_change(self.step)
            ticket = self.store.journals[table.name].append(
                change, step=self.step, wall_ns=self.clock.wall_ns(), positions=positions
            )
            table.tickets[ticket] = self.step
        if len(changed) > 1:
            self.cycles[self.step] = changed
        self.store.step_committed(self.step)

    def _pump(self) -> None:
        self.store.pump(self.clock.monotonic_ns())
        self._take_what_was_told()

    def _take_what_was_told(self) -> None:
        for table in self.tables.values():
            for ticket in [each for each in table.tickets if each <= self.store.synced_ticket]:
                table.acknowledged = max(table.acknowledged, table.tickets.pop(ticket))
            if table.name in self.store.journals:
                durable = self.store.journals[table.name].durable_version
                assert durable <= self.step
                table.acknowledged = max(table.acknowledged, durable)

    def _drop(self) -> None:
        name = self.random.choice(sorted(self.tables))
        self._dropping = name
        self.store.drop(name)
        del self.tables[name]
        self._dropping = ""

    # --- ends and beginnings ----------------------------------------------------------------------

    def _crash(self) -> None:
        """The process ends, and others begin until one stays."""
        self._take_what_was_told()
        self._end()
        self._start()

    def _end(self) -> None:
        self._calls_left = -1
        if self._is_cut:
            self.cuts += 1
            # A kill does not show that a sync was a lie.
            self._is_cheated |= self.disk.lost_syncs > 0
            self.disk.cut()
        else:
            self.kills += 1
            self._is_cheated |= self.disk.has_shown_lies
            self.disk.kill()

    def _restart(self) -> None:
        self.disk.faults = Faults()
        self.store.close()
        is_written = self.disk.room == NO_LIMIT and not self._has_failed()
        if is_written:
            for table in self.tables.values():
                table.acknowledged = table.history.step
        else:
            self._take_what_was_told()
        self._start()

    def _has_failed(self) -> bool:
        try:
            self.store.check_writable()
        except JournalFullError:
            return False
        except JournalFailedError:
            return True
        return False

    def _start(self) -> None:
        """Start processes until one stays."""
        while not self._open():
            self._end()

    def _open(self) -> bool:
        """Start a process; False when it ended while it started."""
        self.restarts += 1
        self._plan_the_end()
        if self._calls_left < 0 and not self._is_cut and self.random.random() < self.faults.cut * 8:
            # What a kill leaves in the cache is only told from the platter by a cut after it.
            self._plan(is_cut=True)
        self.disk.room = NO_LIMIT
        is_faulty = self.random.random() < self.faults.fault_at_start
        self.disk.faults = self._disk_faults() if is_faulty else Faults()
        witnesses = {name: self._witness(table) for name, table in self.tables.items()}
        self.store = self._new_store()
        try:
            self.store.open_all()
        except JournalCorruptError:
            assert self._is_cheated, "damage on an honest disk"
            self.is_over = True
            return True
        except Killed:
            return False
        except OSError:
            assert is_faulty
            self._is_cut = self.random.random() < 0.5
            return False
        self._check_names()
        self._check_cycles()
        assert self.store.first_step >= self.step or self._is_cheated, "steps used twice"
        for name, table in self.tables.items():
            if name in self.store.journals:
                self._check_recovered(table, self.store.journals[name], witnesses.get(name, -1))
        # A disk that lies is only simulated once: what it lost is gone from our books, too.
        self.is_over = self._is_cheated
        self.step = max(self.step, self.store.first_step)
        return True

    def _check_names(self) -> None:
        """A table whose creating or dropping was cut short is there whole or not at all."""
        table, self._creating = self._creating, None
        if table is not None and table.name in self.store.journals:
            table.epoch = self.store.journals[table.name].epoch
            self.tables[table.name] = table
            self._next_name += 1
        if self._dropping and self._dropping not in self.store.journals:
            del self.tables[self._dropping]
        self._dropping = ""
        if not self._is_cheated:
            assert set(self.store.journals) == set(self.tables), "tables came or went"

    def _check_cycles(self) -> None:
        """A cycle that changed several tables is there in all of them or in none."""
        cycles, self.cycles = self.cycles, {}
        if self._is_cheated:
            return
        for step, changed in cycles.items():
            journals = [
                self.store.journals[table.name]
                for table in changed
                if self.tables.get(table.name) is table
            ]
            is_there = {journal.latest_version >= step for journal in journals}
            assert len(is_there) <= 1, f"half of cycle {step} is there"
            self.joint_lost += is_there == {False}

    def _witness(self, table: SimJournalTable) -> int:
        try:
            content = MemoryStorage(disk=self.disk).read(f"tables/{table.name}/{WITNESS_FILE}")
        except FileNotFoundError:
            return -1
        return read_witness(content.to_pybytes(), table.epoch)

    def _check_recovered(self, table: SimJournalTable, journal: TableJournal, witness: int) -> None:
        version = journal.latest_version
        assert journal.epoch == table.epoch, "another epoch"
        known = [snapshot.version for snapshot in table.history.snapshots]
        assert version in known, f"version {version} was never handed over"
        if self._is_cheated:
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
        for each in [] if self._is_cheated else table.lost:
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
        self.disk.faults = Faults()
        self.disk.room = NO_LIMIT
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

"""A short life over two tables, ended at each call to the disk in turn, and the start after it too:
what was acknowledged is there, and every cycle whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from barrage.errors import JournalCorruptError
from barrage.journal import JournalOptions, JournalStore
from barrage.journal.files.commits import CommitLog
from barrage.journal.files.recovery import RecoveredTable
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.simulated_disk import Killed, SimulatedDisk
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.journal.test_power_cuts import Harsh, Kind

TICK_NS = 20_000_000
OPTIONS = JournalOptions(reserve_bytes=4096, segment_bytes=1500)
ENDS = ("kill", "only what was synced", "everything", "luck")
HOW_TWICE = [("kill", "only what was synced"), ("luck", "luck"), ("kill", "luck")]
NEVER = 1 << 40


class TwoTables:
    """What was handed over to two tables, and what was acknowledged of it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.clock = VirtualClock(TICK_NS)
        self.histories = {name: RandomHistory(Random(3)) for name in "ab"}
        self.acknowledged = dict.fromkeys("ab", -1)
        self.joint: list[int] = []
        self.step = 0
        self.calls = 0

    def run(self, stop: int, *, is_first: bool) -> bool:
        """One process; False when it ended at its ``stop``-th call."""
        left = [stop]

        def on_call(_name: str, _path: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        self.disk.on_call = on_call
        try:
            self._life(is_first=is_first)
        except Killed:
            return False
        finally:
            self.disk.on_call = None
        self.calls = stop - left[0]
        return True

    def _life(self, *, is_first: bool) -> None:
        storage = MemoryStorage(disk=self.disk)
        store = JournalStore(storage, OPTIONS, clock=self.clock, on_synced=lambda _: None)
        store.open_all()
        self.check(store)
        for name in "ab":
            if name not in store.journals:
                store.create(identity(name), step=self.step)
                self.acknowledged[name] = self.step
        for names in ("a", "ab", "b", "ab") if is_first else ("b", "ab"):
            self._cycle(store, names)

    def _cycle(self, store: JournalStore, names: str) -> None:
        self.step += 1
        if len(names) > 1:
            self.joint.append(self.step)
        for name in names:
            change, positions = self.histories[name].next_change(self.step)
            store.journals[name].append(
                change, step=self.step, wall_ns=self.clock.wall_ns(), positions=positions
            )
        store.step_committed(self.step)
        self.clock.advance(TICK_NS)
        store.pump(self.clock.monotonic_ns())
        store.check_writable()
        for name in names:
            self.acknowledged[name] = store.journals[name].durable_version
            assert self.acknowledged[name] == self.step

    def check(self, store: JournalStore) -> None:
        """What a start has read back."""
        versions = {name: journal.latest_version for name, journal in store.journals.items()}
        for name, told in self.acknowledged.items():
            assert told < 0 or name in versions, f"table {name} is gone"
        for step in self.joint:
            there = {version >= step for version in versions.values()}
            assert len(there) == 1, f"half of cycle {step} is there"
        self.joint.clear()
        assert store.first_step >= self.step, "steps used twice"
        for name, journal in store.journals.items():
            history, version = self.histories[name], versions[name]
            assert version >= self.acknowledged[name], "what was acknowledged is gone"
            history.go_back_to(version)
            found = journal.state_at(version)
            assert content(found) == history.snapshots[-1].rows
            assert dict(found.positions) == history.snapshots[-1].positions
            # What a server has told of stays.
            self.acknowledged[name] = version
        self.step = store.first_step

    def end(self, how: str, seed: int) -> None:
        if how == "kill":
            self.disk.kill()
            return
        luck = {"only what was synced": Harsh(), "everything": Kind()}
        self.disk.random = luck.get(how) or Random(seed)
        self.disk.cut()


def ends(first: int, second: int | None, how: tuple[str, ...], *, seed: int = 0) -> None:
    """Lives that end there, and one that is to find everything."""
    tables = TwoTables()
    tables.run(first, is_first=True)
    tables.end(how[0], seed)
    if second is not None:
        tables.run(second, is_first=False)
        tables.end(how[1], seed + 1)
    assert tables.run(NEVER, is_first=False)
    tables.end("only what was synced", seed)
    assert tables.run(NEVER, is_first=False)


def calls_of_a_life() -> int:
    tables = TwoTables()
    assert tables.run(NEVER, is_first=True)
    return tables.calls


def pairs(stride: int) -> Iterator[tuple[int, int]]:
    return ((at // 60, at % 60) for at in range(0, 60 * calls_of_a_life(), stride))


def all_pairs(stride: int, how: tuple[str, str]) -> None:
    for first, second in pairs(stride):
        ends(first, second, how, seed=first)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ENDS)
def test_a_life_may_end_at_any_call(how: str) -> None:
    calls = calls_of_a_life()
    assert calls > 40
    # Each way to end meets other calls; together they meet each at least once.
    for at in range(ENDS.index(how), calls, len(ENDS)):
        ends(at, None, (how,), seed=at)


@pytest.mark.parametrize("how", HOW_TWICE)
def test_the_start_after_it_may_end_at_any_call(how: tuple[str, str]) -> None:
    # A stride without a common factor with the calls of a start meets all of them.
    all_pairs(401, how)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW_TWICE)
def test_more_pairs_of_calls(how: tuple[str, str]) -> None:
    all_pairs(31, how)


def all_kills() -> None:
    for at in range(calls_of_a_life()):
        ends(at, None, ("kill",))


def _nothing(*_: object, **__: object) -> None:
    """In the place of what is left out."""


@pytest.mark.parametrize(("broken", "method"), [(RecoveredTable, "settle"), (CommitLog, "commit")])
def test_what_is_left_out_is_found(
    broken: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken, method, _nothing)
    with pytest.raises((AssertionError, JournalCorruptError)):
        all_kills()

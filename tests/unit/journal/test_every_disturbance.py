"""Two tables that change together while one of them is dropped, made anew, damaged, compacted,
forgotten in part or kept beside one in memory: a life may end at any call to the disk, and any call
may fail. What was acknowledged is there, a cycle is in all of its tables or in none, and what went
wrong is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest

from barrage.errors import BarrageError
from barrage.journal import JournalStore
from barrage.journal.files import recovery, segment
from tests.helpers.every_call import (
    SCRIPTS,
    Case,
    all_kinds,
    ended,
    ended_twice,
    failing,
    failing_and_ended,
    some,
)
from tests.helpers.short_lives import Trouble
from tests.helpers.simulated_disk import Faults
from tests.sim.canaries import RARE_JOURNAL_CANARIES
from tests.unit.journal.stores import Bench
from tests.unit.journal.test_power_cuts import Harsh

FEW, MANY = 2, 100


def hold(cases: Iterable[Case]) -> None:
    for case in cases:
        try:
            lives = case.run()
        except (AssertionError, BarrageError) as error:
            raise AssertionError(f"{case}: {error}") from error
        assert not lives.untold, f"{case}: {lives.failed} was not told"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_life_may_end_at_any_call(script: str) -> None:
    first = list(SCRIPTS).index(script)
    hold(some(ended(script), FEW, first))
    hold(ended_twice(script, 1, seed=first))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("script", SCRIPTS)
def test_any_call_may_fail(script: str) -> None:
    first = list(SCRIPTS).index(script)
    hold(some(failing(script), FEW, first))
    hold(failing_and_ended(script, 1, seed=first))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_more_ends_and_failures(script: str) -> None:
    hold(all_kinds(script, MANY))


# --- the machine sees -----------------------------------------------------------------------------


def test_a_failed_sync_that_is_passed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(file: object) -> None:
        with contextlib.suppress(OSError):
            file.sync()  # type: ignore[attr-defined]

    monkeypatch.setattr(segment, "_sync", sync)
    syncs = [case for case in failing("forgotten") if case.how == ("only what was synced",)]
    with pytest.raises(AssertionError):
        hold(some(syncs, 100))


def test_cycles_that_count_table_by_table_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "read_commit", lambda _: None)
    kills = [case for case in ended("in memory") if case.how == ("kill",)]
    with pytest.raises(AssertionError, match="half of cycle"):
        hold(some(kills, 100))


def test_directories_that_are_believed_to_be_there_are_found() -> None:
    """What a killed process made is not on the disk, and nobody sees to it."""
    first_calls = ended_twice_at_the_beginning()
    hold(first_calls)
    with (
        RARE_JOURNAL_CANARIES["trust_directories_that_are_there"](),
        pytest.raises(AssertionError, match="steps used twice"),
    ):
        hold(first_calls)


def ended_twice_at_the_beginning() -> list[Case]:
    """A process is killed before it has begun, and the power fails after the next one."""
    how = ("kill", "only what was synced")
    return [Case("dropped", (Trouble(0, call),), how, call) for call in range(3)]


def is_noticed_that_a_disk_has_lied() -> bool:
    """A disk says that it has synced a record and has not: the witness, which is not synced, got
    there all the same."""
    bench = Bench()
    bench.write(3)
    bench.storage.faults = Faults(lost_sync=2.0)
    bench.write()
    witness = bench.storage.files["tables/t/synced"]
    witness.platter[:] = witness.content
    bench.storage.disk.sync_names("/data/tables/t")
    bench.storage.disk.random = Harsh()
    bench.storage.crash()
    damaged: list[str] = []
    bench.store = JournalStore(bench.storage, bench.options)
    bench.store.open_all(on_damage=lambda name, _: damaged.append(name))
    return damaged == ["t"]


def test_files_that_are_believed_are_found() -> None:
    assert is_noticed_that_a_disk_has_lied()
    with RARE_JOURNAL_CANARIES["believe_the_files"]():
        assert not is_noticed_that_a_disk_has_lied()

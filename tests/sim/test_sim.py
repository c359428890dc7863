"""A few seeds of the simulator, the seeds that once failed, and proof that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from barrage.engine.changelog.delta_log import DeltaLog
from tests.sim.canaries import CANARIES, READER_CANARIES
from tests.sim.world import SimulationError, World

HERE = Path(__file__).parent
SEEDS = range(1000, 1008)
CANARY_SEEDS = (17, *range(9, 50))
MET_FIRST = {
    "drop_shifts": 36,
    "lose_an_update": 9,
    "forget_modifications": 13,
    "miscount_the_table": 21,
}
"""Where some faults are met soonest; most others are in the first of all."""


def regressions() -> list[int]:
    """Seeds that failed before."""
    lines = (HERE / "regressions.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [*SEEDS, *regressions()])
def test_a_seed_passes(seed: int) -> None:
    world = World(seed)
    world.run()
    assert sum(client.states_checked for client in world.clients) > 5


@pytest.mark.further
def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    world = World(SEEDS[-1])
    world.run()
    again = World(SEEDS[-1])
    again.run()
    assert again.trace_hash == world.trace_hash
    answer = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(SEEDS[-1])],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"trace {world.trace_hash}" in answer.stdout


def is_caught(name: str | None, *, seed_first: int = CANARY_SEEDS[0]) -> bool:
    """Whether any seed notices the breakage."""
    for seed in (MET_FIRST.get(name or "", seed_first), *CANARY_SEEDS):
        sabotage = None if name is None else CANARIES[name]()
        try:
            World(seed, sabotage=sabotage).run()
        except SimulationError:
            return True
    return False


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(CANARIES))
def test_a_broken_build_is_caught(name: str) -> None:
    assert is_caught(name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(READER_CANARIES))
def test_a_build_that_fails_slow_readers_is_caught(name: str) -> None:
    with READER_CANARIES[name]():
        assert is_caught(None)


@pytest.mark.further
def test_slow_readers_lose_their_changes_often_and_are_ended_sometimes() -> None:
    """The bounds that are drawn are small enough to matter."""
    resynchronised = disconnected = 0
    for seed in (9, 11, 24):
        world = World(seed)
        world.run()
        resynchronised += world.server.held.stats.resynchronised
        disconnected += world.server.held.stats.disconnected
    assert resynchronised > 50
    assert disconnected > 0


def test_a_delta_log_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened before the newest segment is lost for those who waited longer."""
    honest = DeltaLog.since

    def forgetful(self: DeltaLog, point: int):
        points = self.points()
        return honest(self, points[-2] if point in points[:-1] else point)

    monkeypatch.setattr(DeltaLog, "since", forgetful)
    assert is_caught(None, seed_first=5)


def test_a_failure_names_its_seed_and_how_to_repeat_it() -> None:
    seed = CANARY_SEEDS[0]
    with pytest.raises(SimulationError, match=rf"python -m tests\.sim --seed {seed}"):
        World(seed, sabotage=CANARIES["lose_an_update"]()).run()

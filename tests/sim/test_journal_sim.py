"""A few seeds of the simulated journals, and proof that the simulator can fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.sim.canaries import JOURNAL_CANARIES
from tests.sim.journal import JournalSimulationError, JournalWorld

SEEDS = range(2000, 2006)
CANARY_SEEDS = (8, 10, 22, *range(20))
"""The first three are met by most of the faults."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_the_journals_passes(seed: int) -> None:
    world = JournalWorld(seed)
    world.run()
    assert world.states_checked > 3


@pytest.mark.further
def test_the_seeds_have_kills_and_cuts_and_cycles_that_got_lost() -> None:
    worlds = [JournalWorld(seed) for seed in SEEDS]
    for world in worlds:
        world.run()
    assert sum(world.kills for world in worlds) > 3
    assert sum(world.cuts for world in worlds) > 3
    assert sum(world.joint_lost for world in worlds) > 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(JOURNAL_CANARIES))
def test_a_broken_journal_is_caught(name: str) -> None:
    with JOURNAL_CANARIES[name]():
        assert any(is_caught(seed) for seed in CANARY_SEEDS)


def is_caught(seed: int) -> bool:
    try:
        JournalWorld(seed).run()
    except JournalSimulationError as failure:
        return f"--journal --seed {seed}" in str(failure)
    return False

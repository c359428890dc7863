"""A handful of seeds of every object; ``INTERLEAVING_SEEDS`` or ``python -m tests.interleaving``
for more. Every canary is found; those that need a whole server by ``make interleavings``."""

from __future__ import annotations

import os

import pytest

from tests.interleaving.explorer import CANARY_SEEDS, explored_objects, first_failure

SEEDS = int(os.environ.get("INTERLEAVING_SEEDS", "15"))
WHOLE_SEEDS = max(SEEDS // 4, 1)

OBJECTS = explored_objects()
CANARIES = [
    pytest.param(name, canary, marks=pytest.mark.slow if each.is_whole else ())
    for name, each in OBJECTS.items()
    for canary in each.canaries
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OBJECTS)
def test_no_order_breaks_it(name):
    explored = OBJECTS[name]
    for seed in range(WHOLE_SEEDS if explored.is_whole else SEEDS):
        try:
            explored.explore(seed)
        except Exception as error:
            error.add_note(f"python -m tests.interleaving --object {name} --seed {seed}")
            raise


@pytest.mark.parametrize("name", OBJECTS)
def test_there_are_canaries(name):
    assert OBJECTS[name].canaries


@pytest.mark.parametrize(("name", "canary"), CANARIES)
def test_canaries_are_found(name, canary):
    with OBJECTS[name].canaries[canary]():
        assert first_failure(OBJECTS[name].explore, range(CANARY_SEEDS)) is not None

"""A handful of seeds of every object; ``INTERLEAVING_SEEDS`` or ``python -m tests.interleaving``
for more. Every canary is found."""

from __future__ import annotations

import os

import pytest

from tests.interleaving.explorer import explored_objects, first_failure

SEEDS = int(os.environ.get("INTERLEAVING_SEEDS", "15"))
CANARY_SEEDS = 300

OBJECTS = explored_objects()
CANARIES = [(name, canary) for name, each in OBJECTS.items() for canary in each.canaries]


@pytest.mark.parametrize("name", OBJECTS)
def test_no_order_breaks_it(name):
    for seed in range(SEEDS):
        try:
            OBJECTS[name].explore(seed)
        except Exception as error:
            error.add_note(f"python -m tests.interleaving --object {name} --seed {seed}")
            raise


@pytest.mark.parametrize(("name", "canary"), CANARIES)
def test_canaries_are_found(name, canary):
    with OBJECTS[name].canaries[canary]():
        assert first_failure(OBJECTS[name].explore, range(CANARY_SEEDS)) is not None

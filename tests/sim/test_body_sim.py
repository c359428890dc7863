"""Bodies outside their streams in the simulator: that they really leave, that everything befalls
them, and that broken builds are caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from barrage.errors import BodyChannelError
from barrage.limits import NANOS_PER_MS
from barrage.wire.dissociated.ways import BodyWay
from tests.sim.bodies import NUMBER_BEFORE_LAST, BodyOptions
from tests.sim.canaries import BODY_CANARIES
from tests.sim.world import SimulationError, World

SEEDS = (3007, 3010, 3022, 3025, 3027, 3030)
"""Short ones that have between them both ways, numbers that roll over and losses."""
CANARY_SEEDS = {
    "count_to_2_31": (3025,),
    "lend_without_a_lease": (3026,),
    "use_memory_that_is_read": (3018,),
    "let_messages_overtake": (3008, 3022, 3030),
    "wait_for_ever": (3008,),
    "take_a_missing_body_for_empty": (3008,),
    "overrun_the_window": (3018,),
}
"""Where some are caught first; the others by what follows."""


def run(seed: int) -> World:
    world = World(seed)
    world.run()
    return world


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [run(seed) for seed in SEEDS]


def outside(world: World) -> int:
    return sum(client.bodies.outside_count for client in world.clients)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", [BodyWay.SHM, BodyWay.UCX])
def test_bodies_leave_their_streams_either_way(worlds: list[World], way: BodyWay) -> None:
    counts = [outside(world) for world in worlds if world.body_options.ways == (way,)]
    assert sum(counts) > 20


def test_numbers_roll_over_and_bodies_are_lost_and_states_are_right(worlds: list[World]) -> None:
    rolled = [w for w in worlds if w.body_options.first_number == NUMBER_BEFORE_LAST]
    assert any(outside(world) > 10 for world in rolled)
    assert sum(client.bodies.losses for world in worlds for client in world.clients) > 0
    assert all(sum(c.states_checked for c in world.clients) > 5 for world in worlds)


def test_some_seeds_have_none() -> None:
    world = next(w for w in map(World, range(3000, 3050)) if not w.body_options.ways)
    world.run()
    assert outside(world) == 0


@pytest.mark.further
def test_the_same_seed_gives_the_same_trace_in_another_process(worlds: list[World]) -> None:
    """Also though memory is given back by finalizers."""
    busiest = max(
        (world for world in worlds if BodyWay.SHM in world.body_options.ways), key=outside
    )
    assert run(busiest.seed).trace_hash == busiest.trace_hash
    answer = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(busiest.seed)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "54321"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"trace {busiest.trace_hash}" in answer.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", list(BODY_CANARIES))
def test_a_broken_build_is_caught(name: str) -> None:
    assert any(is_caught(name, seed) for seed in (*CANARY_SEEDS.get(name, ()), *SEEDS))


def is_caught(name: str, seed: int) -> bool:
    try:
        with BODY_CANARIES[name]():
            World(seed).run()
    except SimulationError:
        return True
    return False


def test_a_body_that_is_missed_for_no_reason_is_a_failure() -> None:
    """Clients may hang up for a missing body only when something has happened to it."""
    world = World(next(seed for seed in SEEDS if World(seed).body_options.ways))
    world._fill()
    for _ in range(40):
        world._tick()
    client = next(
        c for c in world.clients if c.intake is not None and world.server.stream_of(c.link)
    )
    client.intake.pipe = None
    client.intake.is_sabotaged = False
    with pytest.raises(AssertionError, match="misses a body for no reason"):
        world._lose_body(client, BodyChannelError("told to"), 0)
    world.bodies.close()


def test_limits_follow_the_options() -> None:
    options = BodyOptions(wait_ms=7, deadline_ms=9, lease_ms=11, arena_bytes=12288)
    limits = options.limits()
    assert limits["body_wait_ns_max"] == 7 * NANOS_PER_MS
    assert limits["body_deadline_ns"] == 9 * NANOS_PER_MS
    assert limits["body_lease_ns_max"] == 11 * NANOS_PER_MS
    assert limits["body_segment_bytes"] == limits["body_arena_bytes"] == 12288

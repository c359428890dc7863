"""``python -m tests.sim --seed N`` or ``--seeds COUNT [--first N]``: run the simulator; with
``--journal`` only its journals, which otherwise take the same seeds after the network's."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from tests.sim.journal import JournalSimulationError, JournalWorld
from tests.sim.world import SimulationError, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and print its options")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--journal", action="store_true", help="only the journals")
    arguments = parser.parse_args()
    # Faults of the disk are meant, and what the journal says of them is not news.
    logging.disable(logging.ERROR)
    one = arguments.seed is not None
    seeds = [arguments.seed] if one else range(arguments.first, arguments.first + arguments.seeds)
    started = time.monotonic()
    failed = 0
    if not arguments.journal:
        failed += run_network(seeds, is_one=one)
        print(f"{len(seeds)} seeds, {time.monotonic() - started:.1f} s")
    failed += run_journals(seeds, is_one=one)
    print(f"{len(seeds)} seeds, {failed} failures, {time.monotonic() - started:.1f} s in all")
    return 1 if failed else 0


def run_network(seeds: Sequence[int], *, is_one: bool) -> int:
    """Servers, network and clients; answers how many seeds failed."""
    states = failures = outside = lost = 0
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except SimulationError as failure:
            failures += 1
            print(f"FAILED {failure}", file=sys.stderr)
            if is_one:
                raise
        states += sum(client.states_checked for client in world.clients)
        outside += sum(client.bodies.outside_count for client in world.clients)
        lost += sum(client.bodies.losses for client in world.clients)
        if is_one:
            print(world.options)
            print(world.body_options)
            print(f"trace {world.trace_hash}")
    print(
        f"network: {failures} failures, {states} states checked, "
        f"{outside} bodies outside their streams, {lost} lost"
    )
    return failures


def run_journals(seeds: Sequence[int], *, is_one: bool) -> int:
    """Journals on a bad disk; answers how many seeds failed."""
    states = failures = restarts = kills = cuts = lost = 0
    for seed in seeds:
        world = JournalWorld(seed)
        try:
            world.run()
        except JournalSimulationError as failure:
            failures += 1
            print(f"FAILED {failure}", file=sys.stderr)
            if is_one:
                raise
        states += world.states_checked
        restarts += world.restarts
        kills += world.kills
        cuts += world.cuts
        lost += world.joint_lost
    print(
        f"journals: {failures} failures, {restarts} starts after {kills} kills and {cuts} power "
        f"cuts, {lost} unfinished cycles of several tables taken back, {states} states checked"
    )
    return failures


if __name__ == "__main__":
    sys.exit(main())

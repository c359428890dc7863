"""``python -m tests.sim --seed N`` or ``--seeds COUNT [--first N]``: run the simulator."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.world import SimulationError, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and print its options")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    arguments = parser.parse_args()
    one = arguments.seed is not None
    seeds = [arguments.seed] if one else range(arguments.first, arguments.first + arguments.seeds)
    started = time.monotonic()
    states = failures = 0
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except SimulationError as failure:
            failures += 1
            print(f"FAILED {failure}", file=sys.stderr)
            if one:
                raise
        states += sum(client.states_checked for client in world.clients)
        if one:
            print(world.options)
            print(f"trace {world.trace_hash}")
    took = time.monotonic() - started
    print(f"{len(seeds)} seeds, {failures} failures, {states} states checked, {took:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

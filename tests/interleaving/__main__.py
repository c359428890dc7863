"""``python -m tests.interleaving --seeds COUNT [--first N] [--object NAME]`` or ``--seed N``."""

from __future__ import annotations

import argparse
import json
import sys
import time

from tests.interleaving.explorer import explored_objects

PROGRESS_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleaving", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=100, help="how many, of each object")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--object", action="append", help="only this one; may be given again")
    arguments = parser.parse_args()
    known = explored_objects()
    unknown = set(arguments.object or ()) - set(known)
    if unknown:
        parser.error(f"no object {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    result: dict[str, object] = {}
    failures = 0
    started = time.monotonic()
    for name in arguments.object or known:
        failed = []
        told_at = begun_at = time.monotonic()
        for seed in seeds:
            try:
                known[name].explore(seed)
            except Exception as error:
                failed.append(seed)
                print(f"FAILED {name} seed {seed}: {error}", file=sys.stderr, flush=True)
                if arguments.seed is not None:
                    raise
            if time.monotonic() - told_at > PROGRESS_SECONDS:
                told_at = time.monotonic()
                done = seed - seeds.start + 1
                print(f"{name}: {done} of {len(seeds)}, {len(failed)} failed", flush=True)
        failures += len(failed)
        seconds = round(time.monotonic() - begun_at, 1)
        result[name] = {"seeds": len(seeds), "failed": failed, "seconds": seconds}
    told = {"first": seeds.start, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(told | {"failures": failures, "objects": result}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

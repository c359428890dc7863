"""``python -m tests.interleaving --seeds COUNT [--first N] [--object NAME] [--json FILE]`` or
``--seed N``; ``--canaries`` puts each fault back and says at which seed it is found."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.interleaving.counts import COUNTS
from tests.interleaving.explorer import CANARY_SEEDS, Explored, explored_objects, first_failure

PROGRESS_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleaving", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=100, help="how many, of each object")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--object", action="append", help="only this one; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--canaries", action="store_true")
    arguments = parser.parse_args()
    known = explored_objects()
    unknown = set(arguments.object or ()) - set(known)
    if unknown:
        parser.error(f"no object {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in arguments.object or known]
    if arguments.canaries:
        return sum([not _are_found(each) for each in chosen])
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    started = time.monotonic()
    objects = {each.name: _explore(each, seeds, raises=len(seeds) == 1) for each in chosen}
    failures = sum(len(facts["failed"]) for facts in objects.values())
    told = {"first": seeds.start, "seconds": round(time.monotonic() - started, 1)}
    result = json.dumps(told | {"failures": failures, "objects": objects})
    print(result)
    if arguments.json is not None:
        arguments.json.write_text(result)
    return 1 if failures else 0


def _explore(chosen: Explored, seeds: range, *, raises: bool) -> dict[str, Any]:
    failed = []
    COUNTS.take()
    told_at = begun_at = time.monotonic()
    for seed in seeds:
        try:
            chosen.explore(seed)
        except Exception as error:
            failed.append(seed)
            print(f"FAILED {chosen.name} seed {seed}: {error}", file=sys.stderr, flush=True)
            if raises:
                raise
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            done = seed - seeds.start + 1
            print(f"{chosen.name}: {done} of {len(seeds)}, {len(failed)} failed", flush=True)
    seconds = round(time.monotonic() - begun_at, 1)
    return {"seeds": len(seeds), **COUNTS.take(), "failed": failed, "seconds": seconds}


def _are_found(chosen: Explored) -> bool:
    are_found = True
    for name, put_back in chosen.canaries.items():
        with put_back():
            found = first_failure(chosen.explore, range(CANARY_SEEDS))
        are_found &= found is not None
        told = "NOT FOUND" if found is None else f"found at seed {found[0]}"
        print(f"{chosen.name}: {name}: {told}", flush=True)
    return are_found


if __name__ == "__main__":
    sys.exit(main())

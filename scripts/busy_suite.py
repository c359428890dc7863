"""Runs the default suite again and again beside busy loops: ``python -m scripts.busy_suite``.

A test that takes time for granted fails here sooner or later. Rounds end with the first failure,
whose output is printed, or ``--go-on``; the last line is a summary as JSON.

The suite has more processes than loops, so that it gets more than half of the machine and not a
quarter: rounds take half the time, and the machine is the busier for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

LOOP = "while True: pass"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--loops", type=int, default=6)
    options.add_argument("--workers", type=int, default=24)
    options.add_argument("--go-on", action="store_true", help="do the other rounds after a failure")
    chosen = options.parse_args()
    passed = 0
    seconds: list[int] = []
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(chosen.loops)]
    try:
        while len(seconds) < chosen.rounds:
            began = time.monotonic()
            suite = ["make", "test", f"WORKERS={chosen.workers}"]
            round_ = subprocess.run(suite, capture_output=True, text=True, check=False)
            seconds.append(round(time.monotonic() - began))
            if round_.returncode:
                print(round_.stdout[-20_000:], round_.stderr[-200_000:], sep="\n", flush=True)
                if chosen.go_on:
                    continue
                break
            passed += 1
            print(f"round {len(seconds)}: {round_.stdout.strip().splitlines()[-1]}", flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(json.dumps({"passed": passed, "rounds": chosen.rounds, "seconds": seconds}))
    return 0 if passed == chosen.rounds else 1


if __name__ == "__main__":
    sys.exit(main())

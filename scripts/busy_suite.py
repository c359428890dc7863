"""Runs the default suite again and again beside busy loops: ``python -m scripts.busy_suite``.

A test that takes time for granted fails here sooner or later. Rounds end with the first failure, or
``--go-on``; the end of its output is printed, all of it is in ``build/busy``, and a process that
crashed leaves a core there. The last line is a summary as JSON.

The suite has more processes than loops, so that it gets more than half of the machine and not a
quarter: rounds take half the time, and the machine is the busier for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

LOOP = "while True: pass"
KEPT = Path("build/busy")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--loops", type=int, default=6)
    options.add_argument("--workers", type=int, default=24)
    options.add_argument("--go-on", action="store_true", help="do the other rounds after a failure")
    chosen = options.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    _allow_cores()
    passed = 0
    seconds: list[int] = []
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(chosen.loops)]
    try:
        while len(seconds) < chosen.rounds:
            began = time.monotonic()
            suite = ["make", "test", f"WORKERS={chosen.workers}"]
            round_ = subprocess.run(suite, capture_output=True, text=True, check=False)
            seconds.append(round(time.monotonic() - began))
            cores = [each.name for each in Path().glob("core*") if each.is_file()]
            for core in cores:
                Path(core).replace(KEPT / f"round-{len(seconds)}-{core}")
            if round_.returncode:
                output = f"{round_.stdout}\n{round_.stderr}"
                (KEPT / f"round-{len(seconds)}.txt").write_text(output)
                print(output[-20_000:], flush=True)
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


def _allow_cores() -> None:
    import resource  # Not everywhere.

    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


if __name__ == "__main__":
    sys.exit(main())

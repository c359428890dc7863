"""``python -m tests.ucx [pytest's arguments]``: these tests with each UCX library there is.

Two copies of UCX in one process do not get along, so each has a run of its own. Most of these tests
wait for a peer, so two of them run at a time. Without any library everything is skipped, which is
no failure.
"""

from __future__ import annotations

import os
import subprocess
import sys

LIBRARIES = {"wheel": "libucx from PyPI", "system": "the system's libucp.so.0"}


def main() -> int:
    codes = []
    for choice, title in LIBRARIES.items():
        print(f"--- {title} ---", flush=True)
        tests = ["-m", "ucx", "tests/ucx", "-n", "2", "--dist", "loadfile"]
        command = [sys.executable, "-m", "pytest", *tests, *sys.argv[1:]]
        environment = {**os.environ, "BARRAGE_UCX_LIBRARY": choice}
        codes.append(subprocess.run(command, env=environment, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

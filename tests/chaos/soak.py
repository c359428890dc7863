"""Soak: ``python -m tests.chaos.soak --minutes 60 [--out FILE]``.

One server with a journal, and a client process that uses everything a little, at about a third of a
core. Every ten seconds its memory, threads, descriptors and tasks are written down; it fails when
one of them still grows after the first third (:mod:`tests.chaos.soaking.verdict`), and when
anything went wrong. The file has the whole series and is rewritten with every sample.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.held_up_report import HeldUp
from tests.chaos.soaking.verdict import judged

SAMPLE_SECONDS = 10
STARTING = [sys.executable, "-m"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/night/soak.json"))
    parser.add_argument("--only", default="", help="kinds of work, with commas (all)")
    parser.add_argument("--haste", type=float, default=1.0, help="by what the pauses are divided")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        report = Soak(Path(data), only=arguments.only, haste=arguments.haste).run(
            arguments.minutes * 60, arguments.out
        )
    print(json.dumps({name: report[name] for name in report if name != "samples"}, indent=1))
    return 0 if report["is_good"] else 1


class Soak:
    """A server, its clients, and what was seen of the server."""

    def __init__(self, data: Path, *, only: str, haste: float) -> None:
        self.samples: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.done: dict[str, int] = {}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.server = subprocess.Popen(
            [*STARTING, "tests.chaos.soaking.server", str(data / "data")], **pipes
        )
        address = self.server.stdout.readline().strip()
        narrowed = [f"--only={only}", f"--haste={haste}"]
        self.load = subprocess.Popen(
            [*STARTING, "tests.chaos.soaking.load", address, *narrowed], **pipes
        )
        self._data = data / "data"
        self._seen = psutil.Process(self.server.pid)
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def _listen(self) -> None:
        for line in self.load.stdout:
            told = json.loads(line)
            self.done = told.get("done", self.done)
            if "problem" in told:
                self.problems.append(told["problem"])

    def run(self, seconds: float, out: Path) -> dict[str, Any]:
        began = time.monotonic()
        self._listener.start()
        try:
            while time.monotonic() - began < seconds and self.load.poll() is None:
                time.sleep(SAMPLE_SECONDS)
                self.samples.append(self._sample(time.monotonic() - began))
                self._write(out, is_over=False)
            if self.load.poll() is not None:
                self.problems.append(f"the clients ended with {self.load.returncode}")
            self.load.stdin.close()
            self.load.wait(120)
            self._listener.join(10)
            self.server.stdin.close()
            self.server.wait(60)
        finally:
            self.load.kill()
            self.server.kill()
        return self._write(out, is_over=True)

    def _sample(self, seconds: float) -> dict[str, Any]:
        self.server.stdin.write("\n")
        own = json.loads(self.server.stdout.readline())
        memory = self._seen.memory_full_info()
        used = self._seen.cpu_times()
        return {
            "seconds": round(seconds, 1),
            "rss_bytes": memory.rss,
            "pss_bytes": memory.pss,
            "threads": self._seen.num_threads(),
            "descriptors": self._seen.num_fds(),
            "cpu_seconds": round(used.user + used.system, 2),
            **own,
        }

    def _write(self, out: Path, *, is_over: bool) -> dict[str, Any]:
        verdict = judged(self.samples) if len(self.samples) >= 6 else {}
        is_flat = bool(verdict) and all(each["is_flat"] for each in verdict.values())
        held_up = HeldUp.read(self._data)
        report = {
            "seconds": self.samples[-1]["seconds"] if self.samples else 0,
            "is_over": is_over,
            "is_good": is_flat and not self.problems and not held_up.violations,
            "problems": self.problems,
            "held_up": held_up.violations,
            "longest": held_up.longest,
            "done": self.done,
            "verdict": verdict,
            "samples": self.samples,
        }
        out.write_text(json.dumps(report, indent=1))
        return report


if __name__ == "__main__":
    sys.exit(main())

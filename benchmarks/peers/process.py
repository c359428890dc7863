"""The benchmark's side: starts a script, asks it, reads its CPU seconds."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

ANSWER_SECONDS_MAX = 180.0
ROOT = Path(__file__).parent.parent.parent


class Peer:
    """A running script."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.process = psutil.Process(process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def cpu_seconds(self) -> float:
        """User plus system seconds so far."""
        times = self.process.cpu_times()
        return times.user + times.system

    def tell(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self, timeout_seconds: float = ANSWER_SECONDS_MAX) -> dict[str, Any]:
        """The next answer."""
        answer = self._answers.get(timeout=timeout_seconds)
        if answer is None:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"the peer ended with code {self._process.wait()}:\n{said}")
        return answer

    def ask(self, *command: Any) -> dict[str, Any]:
        self.tell(*command)
        return self.hear()

    def _read(self) -> None:
        """Answers are the lines that are JSON objects; a real server prints others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put(None)


@contextmanager
def peer(python: str, module: str, *arguments: str, environment: dict[str, str]) -> Iterator[Peer]:
    """Run ``benchmarks.peers.<module>`` until the block ends; it announces itself first."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env=environment,
            text=True,
        )
        try:
            yield Peer(process, log)
        finally:
            process.kill()
            process.wait()

"""Processes that are steered by lines: commands go to stdin, answers come back as JSON lines."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_TIMEOUT_SECONDS = 180
ANSWER_TIMEOUT_SECONDS = 60


LOGIN = "BARRAGE_LOGIN"
"""Environment variable by which scripts with one server are told how to log in, as JSON."""


def environment_with(login: dict[str, str]) -> dict[str, str]:
    """Of a script that logs in so."""
    return {**os.environ, LOGIN: json.dumps(login)}


def deephaven_python(package: str = "deephaven_server") -> str | None:
    """The interpreter that has ``package``: the one named by BARRAGE_DEEPHAVEN_PYTHON, else this
    one; None when there is none."""
    named = os.environ.get("BARRAGE_DEEPHAVEN_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec(package) else None


def java_home() -> str | None:
    """A Java 17 installation."""
    if "JAVA_HOME" in os.environ:
        return os.environ["JAVA_HOME"]
    found = sorted(glob.glob("/usr/lib/jvm/*17*"))
    return found[0] if found else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SteeredProcess:
    """One process; ``ask`` sends a line and waits for the answer. ``close`` ends it."""

    def __init__(self, name: str, command: list[str], directory: pathlib.Path) -> None:
        self.name = name
        self._stack_signal = signal.SIGQUIT if "java" in name or "deep" in name else signal.SIGUSR1
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.log_path = directory / f"{name}.log"
        self._log = open(self.log_path, "ab")  # noqa: SIM115
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(ROOT)
        home = java_home()
        if home is not None:
            environment["JAVA_HOME"] = home
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=directory,
            env=environment,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str, timeout: float = ANSWER_TIMEOUT_SECONDS) -> dict[str, Any]:
        """Send ``line``; AssertionError when the answer is an error or does not come."""
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            return self.answer(timeout)

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next answer; AssertionError when the process failed or says nothing."""
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            self._process.send_signal(self._stack_signal)
            raise AssertionError(f"{self.name} says nothing; see {self.log_path}") from None
        assert answer["ok"], f"{self.name}: {answer['error']}"
        return answer

    def pause(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        threading.Event().wait(seconds)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            pipe.close()

    def _read(self) -> None:
        """Answers are the lines that are JSON; others may print as well."""
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put({"ok": False, "error": f"the process ended; see {self.log_path}"})

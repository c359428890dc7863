"""Starts and steers a real Deephaven server in a process of its own.

The package ``deephaven-server`` (extra ``interop``) must be installed for the interpreter that runs
the tests, or for the one named by ``BARRAGE_DEEPHAVEN_PYTHON``. It needs Java 17, found through
``JAVA_HOME`` or in the usual places.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import threading

import pyarrow as pa

SCRIPT = pathlib.Path(__file__).with_name("deephaven_script.py")
START_TIMEOUT_SECONDS = 180
ANSWER_TIMEOUT_SECONDS = 60


def deephaven_python() -> str | None:
    """The interpreter that has the server installed; None when there is none."""
    named = os.environ.get("BARRAGE_DEEPHAVEN_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("deephaven_server") else None


def java_home() -> str | None:
    """A Java 17 installation."""
    if "JAVA_HOME" in os.environ:
        return os.environ["JAVA_HOME"]
    found = sorted(glob.glob("/usr/lib/jvm/*17*"))
    return found[0] if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DeephavenProcess:
    """One server. ``close`` ends it."""

    def __init__(self, python: str, directory: pathlib.Path) -> None:
        self._directory = directory
        self._answers: queue.SimpleQueue[dict] = queue.SimpleQueue()
        self.log_path = directory / "deephaven.log"
        self._log = open(self.log_path, "wb")  # noqa: SIM115
        environment = dict(os.environ)
        home = java_home()
        if home is not None:
            environment["JAVA_HOME"] = home
        self._process = subprocess.Popen(
            [python, str(SCRIPT), str(_free_port())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=directory,
            env=environment,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self.port = self._answer(START_TIMEOUT_SECONDS)["port"]

    @property
    def uri(self) -> str:
        return f"dh://127.0.0.1:{self.port}"

    def step(self) -> None:
        """Change every ticking table."""
        self._command("step")

    def truth(self, name: str) -> pa.Table:
        """What the server itself says the table holds now."""
        path = self._directory / f"{name}.arrow"
        self._command(f"truth {name} {path}")
        with pa.OSFile(str(path)) as source:
            return pa.ipc.open_file(source).read_all()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            pipe.close()

    def _command(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._answer(ANSWER_TIMEOUT_SECONDS)
        assert answer["ok"], answer

    def _answer(self, timeout: float) -> dict:
        try:
            return self._answers.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"the server says nothing; see {self.log_path}") from None

    def _read(self) -> None:
        """Answers are the lines that are JSON; the server prints others."""
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))

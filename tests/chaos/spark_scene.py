"""The processes of a Spark chaos test and how to kill them, and the oracle that reads what the
query has written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import barrage
from tests.chaos.spark_server import TABLE
from tests.helpers.server_process import wait_until
from tests.spark.feeds import apply_feed

START_SECONDS = 90.0
SETTLE_SECONDS = 60.0


def free_port() -> int:
    """A port nobody uses, of those the system gives to nobody by itself: while the server is dead,
    a client of another could get it."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


class Scene:
    """A server that may die, a driver that may die, and the directory both work in."""

    def __init__(self, work: Path, *, is_durable: bool, **options: str) -> None:
        self.work = work
        self.port = free_port()
        self.data = str(work / "data") if is_durable else "-"
        self.options = {
            "uri": f"grpc://127.0.0.1:{self.port}",
            "table": TABLE,
            "fetchNumRetries": "60",
            "fetchRetryIntervalMs": "100",
            **options,
        }
        self.server: subprocess.Popen[str] | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.seed = 0
        self.query = 0
        self._error = (work / "driver.log").open("ab")

    # --- processes ---

    def start_server(self) -> None:
        self.seed += 1
        words = [str(self.port), self.data, str(self.seed), str(self.work)]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.spark_server", *words],
            stdout=subprocess.PIPE,
            stderr=self._error,
            text=True,
        )
        assert self.server.stdout is not None
        is_up = bool(self.server.stdout.readline().strip())
        assert is_up, (self.work / "driver.log").read_text()[-2000:]

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.communicate()

    def start_driver(self) -> None:
        """A driver in a process group of its own, which dies with everything in it."""
        (self.out / "started").unlink(missing_ok=True)
        words = [str(self.work), str(self.checkpoint), str(self.out), json.dumps(self.options)]
        self.driver = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.spark_driver", *words],
            stdout=self._error,
            stderr=self._error,
            start_new_session=True,
        )
        wait_until(lambda: (self.out / "started").exists(), timeout=START_SECONDS)

    def kill_driver(self) -> None:
        assert self.driver is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def kill_one(self, word: str, *, is_forked: bool) -> bool:
        """Kill a Python process of the driver's whose command line has ``word``: one forked by
        another of the kind, or one that is not. False when there is none."""
        assert self.driver is not None
        for process in psutil.Process(self.driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found = any(word in part for part in process.cmdline())
                parent = process.parent()
                forked = parent is not None and any(word in part for part in parent.cmdline())
                if found and forked == is_forked:
                    process.kill()
                    return True
        return False

    def new_query(self) -> None:
        """The checkpoint is lost, and with it what the query had made."""
        self.query += 1

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        if self.driver is not None:
            self.kill_driver()
        if self.server is not None and self.server.poll() is None:
            self.kill_server()
        self._error.close()

    # --- what the query has done ---

    @property
    def checkpoint(self) -> Path:
        return self.work / f"checkpoint-{self.query}"

    @property
    def out(self) -> Path:
        path = self.work / f"out-{self.query}"
        path.mkdir(exist_ok=True)
        return path

    def numbers(self, kind: str) -> set[int]:
        """Batches in one of the query's logs (``offsets``, ``commits``), or written (``out``)."""
        folder = self.out if kind == "out" else self.checkpoint / kind
        if not folder.exists():
            return set()
        stems = (path.name.removesuffix(".arrow") for path in folder.iterdir())
        return {int(stem) for stem in stems if stem.isdigit()}

    def failures(self) -> list[str]:
        path = self.out / "failures"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def state(self) -> dict[int, dict[str, Any]]:
        """The table the written batches describe; AssertionError for one that cannot be."""
        rows: dict[int, dict[str, Any]] = {}
        for number in sorted(self.numbers("out")):
            with pa.ipc.open_stream(str(self.out / f"{number}.arrow")) as batches:
                apply_feed(rows, batches.read_all().to_pylist())
        return rows

    def wait_for_batches(self, count: int, timeout: float = START_SECONDS) -> None:
        """Until that many more batches are committed."""
        target = max(self.numbers("commits"), default=-1) + count
        wait_until(
            lambda: max(self.numbers("commits"), default=-1) >= target or self.is_over(),
            timeout=timeout,
        )

    def is_over(self) -> bool:
        return self.driver is None or self.driver.poll() is not None

    def wait_for_window(self, *, is_written: bool, timeout: float = START_SECONDS) -> None:
        """Until a batch is logged but not committed, and written or not yet written."""

        def is_open() -> bool:
            running = self.numbers("offsets") - self.numbers("commits")
            return bool(running) and (running <= self.numbers("out")) == is_written

        wait_until(is_open, timeout=timeout)

    def check_equal(self) -> None:
        """Let the table rest; then the query must come to have exactly its rows."""
        pause = self.work / "pause"
        pause.touch()
        wait_until(lambda: (self.work / "rest").exists(), timeout=SETTLE_SECONDS)
        with barrage.connect(self.options["uri"]) as session:
            expected = sorted(session.table(TABLE).snapshot().to_pylist(), key=repr)
        assert expected, "there was nothing to lose"
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and found != expected:
            time.sleep(0.2)
            found = sorted(self.state().values(), key=repr)
        assert found == expected, self.failures()
        pause.unlink()
        wait_until(lambda: not (self.work / "rest").exists(), timeout=SETTLE_SECONDS)

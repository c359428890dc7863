"""Spark writes numbers through the sink while drivers, workers and servers are killed. In the end
the table has each number once: rows are counted, since a table with a key would hide a double."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import barrage
from tests.helpers.server_process import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs PySpark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROWS = 200
START_SECONDS = 120.0
BATCH_SECONDS = 90.0
SERVER_SCRIPT = """
import sys, threading, barrage
server = barrage.Server(port=int(sys.argv[1]), data=sys.argv[2])
server.start()
print(server.uri, flush=True)
threading.Event().wait()
"""


class Driver:
    """The driver's process group, started and killed."""

    def __init__(self, work: Path, uri: str, *, mirror: Path | None = None) -> None:
        self.work = work
        told = {"uri": uri, "work": str(work), "rows": ROWS, "mirror": str(mirror or "")}
        (work / "settings.json").write_text(json.dumps(told))
        self._log = (work / "driver.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.work / "started").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.chaos.spark_sink_driver",
                str(self.work / "settings.json"),
            ],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        wait_until(lambda: (self.work / "started").exists(), timeout=START_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; their workers end when they notice."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_a_worker(self) -> bool:
        """SIGKILL to one of the processes that run tasks; False when there is none now."""
        assert self._process is not None
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                words = " ".join(process.cmdline() + (parent.cmdline() if parent else []))
                if words.count("pyspark.daemon") > 1:
                    process.kill()
                    return True
        return False

    def numbers(self, kind: str) -> set[int]:
        """Batches in one of the query's logs."""
        folder = self.work / "checkpoint" / kind
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return {int(name) for name in names if name.isdigit()}

    def wait_for_batches(self, count: int) -> None:
        """Until so many more batches are done for Spark."""
        target = max(self.numbers("commits"), default=-1) + count
        wait_until(
            lambda: max(self.numbers("commits"), default=-1) >= target, timeout=BATCH_SECONDS
        )

    def rest(self) -> None:
        """Let the batch under way be the last."""
        (self.work / "rest").touch()
        wait_until(lambda: (self.work / "rested").exists(), timeout=BATCH_SECONDS)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()
        self._log.close()


class Gate:
    """Stands between a commit's call and what it does: holds one back so that the driver can be
    killed while it waits. ``before``: rows are staged, nothing is committed. ``after``: committed,
    and nobody was told."""

    def __init__(self, server: barrage.Server) -> None:
        self.asked = threading.Event()
        self.mode: str | None = None
        self.answers: list = []
        committer = server._app.journals.stages._committer
        self._commit = committer.commit
        committer.commit = self._held

    async def _held(self, request):
        mode = self.mode
        if mode == "before":
            self.asked.set()
            await self._closed()
        done = await self._commit(request)
        self.answers.append(done)
        if mode == "after":
            self.asked.set()
            await self._closed()
        return done

    async def _closed(self) -> None:
        """The killed caller's call is cancelled, and with it this."""
        for _ in range(6000):
            await asyncio.sleep(0.01)
        raise AssertionError("nobody was killed")

    def kill_while(self, mode: str, driver: Driver) -> None:
        self.asked.clear()
        self.mode = mode
        assert self.asked.wait(BATCH_SECONDS)
        driver.kill()
        self.mode = None


def values(uri: str) -> list[int]:
    with barrage.connect(uri) as session:
        return sorted(session.table("out").snapshot()["value"].to_pylist())


def check_each_once(uri: str, driver: Driver) -> None:
    found = values(uri)
    assert len(found) >= ROWS * (max(driver.numbers("commits")) + 1)
    assert found == list(range(len(found))), "a number is missing or twice"
    assert len(found) % ROWS == 0, "half a batch"


def test_the_driver_is_killed_around_the_commit(tmp_path: Path) -> None:
    with barrage.Server(journal="memory") as server, Driver(tmp_path, server.uri) as driver:
        gate = Gate(server)
        staging = server._app.journals.staging
        driver.start()
        driver.wait_for_batches(2)
        before = len(values(server.uri))
        gate.kill_while("before", driver)
        assert staging.byte_count > 0, "rows were staged"
        assert len(values(server.uri)) - before in (0, ROWS, 2 * ROWS)
        driver.start()
        driver.wait_for_batches(1)
        check_each_once(server.uri, driver)
        duplicates = sum(answer.is_duplicate for answer in gate.answers)
        gate.kill_while("after", driver)
        running = driver.numbers("offsets") - driver.numbers("commits")
        assert running, "Spark does not know that the batch is in"
        assert len(values(server.uri)) == ROWS * (max(running) + 1), "but it is"
        driver.start()
        driver.wait_for_batches(2)
        assert sum(answer.is_duplicate for answer in gate.answers) == duplicates + 1
        # What the killed ones staged went with the commits of their writer.
        driver.rest()
        check_each_once(server.uri, driver)
        assert staging.byte_count == 0


class ServerProcess:
    """A durable server of its own, killed and started again on the same port and directory."""

    def __init__(self, work: Path, port: int) -> None:
        self._words = [sys.executable, "-c", SERVER_SCRIPT, str(port), str(work / "data")]
        self._process: subprocess.Popen[str] | None = None
        self.uri = f"grpc://127.0.0.1:{port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def mirrored(folder: Path) -> tuple[int, list[int]]:
    """Version and rows of the mirror, read without Spark by the rule of its format."""
    import pyarrow.parquet as pq

    from spark_sink.manifest import Manifest

    shown = Manifest.from_json((folder / "manifest.json").read_text()).shown
    if shown is None:
        return -1, []
    rows: dict[int, int] = {}
    for path in shown.bases:
        part = pq.read_table(folder / path)
        rows.update(zip(part["_row_id"].to_pylist(), part["value"].to_pylist(), strict=True))
    for path in shown.deltas:
        for change in pq.read_table(folder / path).to_pylist():
            assert change["_change_type"] in ("insert", "truncate")
            if change["_change_type"] == "insert":
                assert change["_row_id"] not in rows, "a change twice"
                rows[change["_row_id"]] = change["value"]
    return shown.version, sorted(rows.values())


def test_servers_workers_and_drivers_are_killed_in_turn(tmp_path: Path) -> None:
    from tests.chaos.spark_scene import free_port

    mirror = tmp_path / "mirror"
    with ServerProcess(tmp_path, free_port()) as server:
        with barrage.connect(server.uri) as session:
            session.create_table("out", pa.schema([("value", pa.int64())]))
        with Driver(tmp_path, server.uri, mirror=mirror) as driver:
            driver.start()
            driver.wait_for_batches(2)
            for pause in (0.05, 0.31):
                time.sleep(pause)
                server.kill()
                server.start()
                driver.wait_for_batches(2)
            killed = 0
            for _ in range(20):
                killed += driver.kill_a_worker()
                time.sleep(0.1)
            assert killed > 0
            driver.wait_for_batches(2)
            driver.kill()
            server.kill()
            server.start()
            driver.start()
            driver.wait_for_batches(2)
            driver.rest()
            check_each_once(server.uri, driver)
            expected = values(server.uri)
            wait_until(lambda: mirrored(mirror)[1] == expected, timeout=BATCH_SECONDS)

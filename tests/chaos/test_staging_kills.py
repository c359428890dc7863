"""A server killed again and again under a sink that stages and commits, and a follower of the feed.

The sink plays a job that is never killed itself: it commits batch after batch and, when it does not
hear an answer, stages the batch anew and commits it again. The follower knows one cursor. In the
end every batch is there once, in the table and in the follower's copy, and the epoch is the first.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chaos.processes import free_port
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import ServerProcess

KILLS = 12
ROWS = 40
PARTS = 2
DEADLINE_SECONDS = 120.0

SCRIPT = """
import threading
from barrage.server import Server, ServerConfig
server = Server(config=ServerConfig(data={data!r}, port={port}, journal_segment_bytes=200_000))
server.start()
print(server.address, flush=True)
threading.Event().wait()
"""

pytestmark = pytest.mark.chaos


class Caller:
    """Calls of one client, through as many connections as it takes."""

    def __init__(self, uri: str, deadline: float) -> None:
        self._uri = uri
        self._deadline = deadline
        self._client: JournalClient | None = None
        self.failures = 0

    def call(self, work: Callable[[JournalClient], Any]) -> Any:
        while True:
            try:
                if self._client is None:
                    self._client = JournalClient(self._uri)
                return work(self._client)
            except (pa.ArrowException, OSError) as error:
                text = str(error)
                # What the server says is meant; what the connection says is not.
                assert "history-lost" not in text, text
                assert "unknown-writer" not in text, text
                assert time.monotonic() < self._deadline, text
                self.failures += 1
                self.close()
                time.sleep(0.02)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                client.client.close()


def batch_rows(batch: int, part: int) -> pa.Table:
    first = (batch * PARTS + part) * ROWS
    ids = range(first, first + ROWS)
    return pa.table({"id": pa.array(ids, pa.int64()), "batch": pa.array([batch] * ROWS)})


def write(caller: Caller, is_over: threading.Event, committed: list[int]) -> None:
    while not is_over.is_set():
        batch = len(committed)

        def attempt(client: JournalClient, batch: int = batch) -> Any:
            parts = [batch_rows(batch, part) for part in range(PARTS)]
            staged = client.stage("t", "job", batch, *parts)
            return client.commit("t", "job", batch, staged, mode="append", create=True)

        caller.call(attempt)
        committed.append(batch)


def follow(caller: Caller, is_over: threading.Event, rows: dict[int, int]) -> str:
    """Apply the feed to ``rows`` until it is over and everything has come; the epoch."""
    epoch, version = "", -1
    while True:
        was_over = is_over.is_set()
        try:
            info = caller.call(lambda client: client.info("t"))
        except KeyError:
            continue  # There is no table yet.
        if not epoch:
            epoch, version = info["epoch"], info["earliest"]
        assert info["epoch"] == epoch
        assert info["version"] >= version
        upto = info["version"]
        at = {"epoch": epoch, "from": version, "to": upto, "splits": 2}
        feed = caller.call(lambda client, at=at: client.fetched(client.plan("t", **at)))
        assert set(feed.column("_change_type").to_pylist()) <= {"insert"}
        for number, batch in zip(
            feed.column("id").to_pylist(), feed.column("batch").to_pylist(), strict=True
        ):
            assert number not in rows
            rows[number] = batch
        version = upto
        if was_over:
            return epoch


def test_no_batch_is_lost_or_doubled_by_a_server_that_is_killed(tmp_path: Path):
    rng = random.Random(20_261_121)
    port = free_port()
    script = SCRIPT.format(data=str(tmp_path), port=port)
    deadline = time.monotonic() + DEADLINE_SECONDS
    is_written, is_read = threading.Event(), threading.Event()
    committed: list[int] = []
    rows: dict[int, int] = {}
    callers = [Caller(f"grpc://127.0.0.1:{port}", deadline) for _ in range(2)]
    failures: list[BaseException] = []

    def guarded(work: Callable[..., Any], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(write, callers[0], is_written, committed)),
        threading.Thread(target=guarded, args=(follow, callers[1], is_read, rows)),
    ]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        with ServerProcess(script) as server:
            time.sleep(rng.uniform(0.05, 0.6))
            server.process.kill()
    with ServerProcess(script) as server:
        is_written.set()
        threads[0].join()
        is_read.set()
        threads[1].join()
        with JournalClient(f"grpc://127.0.0.1:{port}") as client:
            table = client.snapshot("t") if not failures else None
    for caller in callers:
        caller.close()
    assert failures == []
    assert table is not None
    assert len(committed) > KILLS
    assert callers[0].failures > 0
    expected = {
        number: batch
        for batch in committed
        for part in range(PARTS)
        for number in batch_rows(batch, part).column("id").to_pylist()
    }
    found = list(
        zip(table.column("id").to_pylist(), table.column("batch").to_pylist(), strict=True)
    )
    assert len(found) == len(expected)
    assert dict(found) == expected
    assert rows == expected

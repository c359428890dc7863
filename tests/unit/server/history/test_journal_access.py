"""Which versions a peer may name, and what it is told when it may not; readers beside a disk that
is slow, full or broken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import HistoryLostError, JournalFullError, NoJournalError
from barrage.server import Server, ServerConfig
from barrage.server.history import journal_access
from barrage.server.history.journal_access import (
    JournalAccess,
    JournalRefusedError,
    NotDurableError,
    refusals_for_peers,
    wait_durable,
)
from barrage.server.policy.access_gate import AccessGate
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import wait_until

EPOCH = "0123456789abcdef"
X = pa.schema({"x": pa.int64()})


class ScriptedJournal:
    """Versions 10 to 50, durable to 40; a crash has taken 20 to 29 away."""

    epoch = EPOCH
    earliest_version = 10
    durable_version = 40
    latest_version = 50
    identity = SimpleNamespace(name="t")

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def is_known(self, version: int) -> bool:
        return version >= self.earliest_version and not 20 <= version < 30

    def on_durable(self, listener: Any) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def sync(self, version: int) -> None:
        self.durable_version = version
        for listener in list(self.listeners):
            listener(version)


class ScriptedTables:
    """The graph is at step 60."""

    def graph_step(self) -> Future[int]:
        done: Future[int] = Future()
        done.set_result(60)
        return done


def access(journal: Any) -> JournalAccess:
    journals = SimpleNamespace(journal_named=lambda _: journal)
    return JournalAccess(journals, ScriptedTables(), AccessGate())  # type: ignore[arg-type]


def settled(journal: Any, version: int) -> int:
    return asyncio.run(access(journal).settle(journal, version))


@pytest.mark.parametrize(
    ("version", "word"),
    [(-1, "truncated"), (9, "truncated"), (20, "epoch"), (29, "epoch"), (61, "epoch")],
)
def test_versions_that_are_lost_are_told_by_their_reason(version, word):
    with pytest.raises(JournalRefusedError) as raised:
        settled(ScriptedJournal(), version)
    assert str(raised.value) == (
        f"history-lost: {word}: table 't' at version {version} cannot be had; the journal has "
        f"epoch {EPOCH}, versions 10 to 40"
    )


@pytest.mark.parametrize("version", [10, 19, 30, 40])
def test_durable_versions_are_taken_as_they_are(version):
    assert settled(ScriptedJournal(), version) == version


@pytest.mark.parametrize(("version", "state"), [(45, 45), (50, 50), (51, 50), (60, 50)])
def test_committed_versions_are_waited_for(version, state):
    journal = ScriptedJournal()

    async def run() -> int:
        waiting = asyncio.create_task(access(journal).settle(journal, version))
        # To the engine thread and back, which a thread of the loop does here.
        await asyncio.sleep(0.05)
        assert journal.listeners
        journal.sync(41)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        threading.Thread(target=journal.sync, args=(50,)).start()
        return await waiting

    assert asyncio.run(run()) == state
    assert journal.listeners == []


def test_waiting_ends(monkeypatch):
    monkeypatch.setattr(journal_access, "DURABLE_WAIT_S", 0.01)
    journal = ScriptedJournal()
    with pytest.raises(NotDurableError, match="version 41 of table 't' is not durable yet"):
        asyncio.run(wait_durable(journal, 41))  # type: ignore[arg-type]
    assert journal.listeners == []


def test_another_epoch_is_refused_at_once():
    journal = ScriptedJournal()
    assert access(journal).journal("t", EPOCH) is journal
    with pytest.raises(JournalRefusedError, match=r"^history-lost: epoch: table 't' at epoch ff"):
        access(journal).journal("t", "f" * 16)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoJournalError("t"), "no-journal: table 't' has no journal"),
        (HistoryLostError("t", asked="3", reason="r"), "history-lost: truncated: history of"),
    ],
)
def test_refusals_of_the_journal_get_their_words(error, text):
    with pytest.raises(JournalRefusedError) as raised, refusals_for_peers():
        raise error
    assert str(raised.value).startswith(text)


# --- disks ---


@contextlib.contextmanager
def serving(root: Path) -> Iterator[tuple[Server, JournalClient]]:
    config = ServerConfig(data=str(root), journal_reserve_bytes=1 << 16)
    with Server(config=config) as server, JournalClient(server.uri) as client:
        yield server, client


def test_nobody_is_told_of_a_version_before_it_is_on_the_disk(tmp_path, disk):
    with serving(tmp_path) as (server, client), ThreadPoolExecutor(2) as pool:
        table = server.create_table("t", X)
        table.add({"x": [1]})
        before = client.info("t")["version"]
        journal = server._parts.journals.journal_named("t")
        disk.hold()
        written = table.add({"x": [2]}, wait=False)
        assert disk.syncing.wait(60)
        wait_until(lambda: journal.latest_version > before)
        ahead = journal.latest_version
        assert client.info("t")["version"] == before
        assert client.snapshot("t").num_rows == 1
        assert client.changes("t", before).num_rows == 0
        # Who knows of it nevertheless, from a subscription, gets it when it is safe.
        fetched = pool.submit(lambda: client.changes("t", before, ahead))
        assert not fetched.done()
        assert not written.done()
        disk.release()
        assert fetched.result(60).column("x").to_pylist() == [2]
        assert written.result(60) == ahead


def test_a_batch_refused_for_want_of_room_is_committed_when_there_is_some(tmp_path, disk):
    with serving(tmp_path) as (server, client):
        table = server.create_table("t", X)
        staged = client.stage("t", "w", 0, pa.table({"x": [1, 2]}))
        (tmp_path / "reserve").unlink()
        disk.is_full = True
        with pytest.raises(JournalFullError):
            server.create_table("one too many", X)
        before = table.to_arrow().num_rows
        with pytest.raises(pa.ArrowException, match="no room for more history"):
            client.commit("t", "w", 0, staged)
        assert client.snapshot("t").num_rows == before
        disk.is_full = False

        def is_taken() -> bool:
            try:
                return not client.commit("t", "w", 0, staged)["duplicate"]
            except pa.ArrowException:
                return False

        wait_until(is_taken)
        assert table.to_arrow().num_rows == before + 2
        assert client.commit("t", "w", 0, staged)["duplicate"]


def test_readers_go_on_when_the_disk_is_broken(tmp_path, disk):
    with serving(tmp_path) as (server, client):
        table = server.create_table("t", X)
        table.add({"x": [1]})
        before = client.info("t")["version"]
        staged = client.stage("t", "w", 0, pa.table({"x": [2]}))
        disk.breaks = True
        with pytest.raises((pa.ArrowException, OSError), match="restart"):
            client.commit("t", "w", 0, staged)
        assert client.info("t")["version"] == before
        assert client.snapshot("t").column("x").to_pylist() == [1]
        disk.breaks = False

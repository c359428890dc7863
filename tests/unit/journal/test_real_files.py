"""Kills and power cuts upon real files, with nothing but what a journal's callers use: these tests
say of any version of it whether it keeps what it acknowledged."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from barrage.journal import JournalOptions, JournalStore, LocalStorage
from barrage.server import Server, ServerConfig
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.watched_files import WatchedFiles, ending_at

GROUP_NS = 20_000_000


class Process:
    """A process that keeps two tables in a directory."""

    def __init__(self, data: Path) -> None:
        self.clock = VirtualClock(GROUP_NS)
        self.storage = LocalStorage(data)
        options = JournalOptions(reserve_bytes=65536)
        self.store = JournalStore(self.storage, options, clock=self.clock, on_synced=lambda _: None)
        self.store.open_all()

    def create(self, *names: str) -> None:
        for name in names:
            self.store.create(identity(name), step=self.store.first_step)

    def hand_over(self, step: int, *histories: tuple[str, RandomHistory]) -> None:
        for name, history in histories:
            change, positions = history.next_change(step)
            self.store.journals[name].append(change, step=step, wall_ns=1, positions=positions)
        self.store.step_committed(step)

    def pump(self) -> None:
        self.clock.advance(GROUP_NS)
        self.store.pump(self.clock.monotonic_ns())

    def killed(self) -> None:
        """Its lock goes with it."""
        self.storage.unlock()

    @property
    def versions(self) -> dict[str, int]:
        return {name: each.latest_version for name, each in self.store.journals.items()}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WatchedFiles]:
    (tmp_path / "disk").mkdir()
    with WatchedFiles(tmp_path / "disk") as watched:
        yield watched


def rows_of(process: Process, name: str) -> list[tuple[int, int, tuple[int | None, str | None]]]:
    journal = process.store.journals[name]
    return content(journal.state_at(journal.latest_version))


def killed_before_the_sync(files: WatchedFiles, data: Path) -> RandomHistory:
    """The second of two steps of a table is written and not synced."""
    history = RandomHistory(Random(5))
    process = Process(data)
    process.create("t")
    process.hand_over(1, ("t", history))
    process.pump()
    process.hand_over(2, ("t", history))
    with ending_at(files, "fdatasync", "/wal/00000001.arrow"):
        process.pump()
    process.killed()
    return history


def test_what_a_start_tells_of_outlives_a_power_cut(files: WatchedFiles, tmp_path: Path) -> None:
    data = files.root / "data"
    killed_before_the_sync(files, data)
    # The next process reads it back, and tells.
    told = Process(data).versions
    assert told == {"t": 2}
    assert Process(files.after_a_power_cut(tmp_path / "cut") / "data").versions == told


def test_what_is_written_after_a_kill_outlives_a_power_cut(
    files: WatchedFiles, tmp_path: Path
) -> None:
    data = files.root / "data"
    history = killed_before_the_sync(files, data)
    process = Process(data)
    process.hand_over(process.store.first_step + 1, ("t", history))
    process.pump()
    after = Process(files.after_a_power_cut(tmp_path / "cut") / "data")
    assert after.versions == process.versions
    assert rows_of(after, "t") == history.snapshots[-1].rows


def test_a_directory_that_a_killed_process_made_is_sure_before_anything_in_it_is(
    files: WatchedFiles, tmp_path: Path
) -> None:
    data, history = files.root / "data", RandomHistory(Random(5))
    process = Process(data)
    process.create("t")
    process.hand_over(1, ("t", history))
    # The directory is made, the one above it not synced yet.
    with ending_at(files, "fsync", "/tables/t"):
        process.pump()
    assert (data / "tables/t/wal").is_dir()
    process.killed()
    history = RandomHistory(Random(5))
    process = Process(data)
    process.hand_over(process.store.first_step + 1, ("t", history))
    process.pump()
    assert process.store.journals["t"].durable_version == process.store.first_step + 1
    after = Process(files.after_a_power_cut(tmp_path / "cut") / "data")
    assert after.versions == process.versions


def test_a_segment_whose_first_write_failed_is_sure_before_anything_in_it_is(
    files: WatchedFiles, tmp_path: Path
) -> None:
    data, history = files.root / "data", RandomHistory(Random(5))
    process = Process(data)
    process.create("t")
    process.hand_over(1, ("t", history))
    failed: list[str] = []

    def before(name: str, path: str) -> None:
        if name == "writev" and path.endswith("00000001.arrow") and not failed:
            failed.append(path)
            raise OSError(errno.ENOSPC, "no space left on device")

    files.before = before
    process.pump()
    assert failed
    assert process.store.journals["t"].durable_version == 1, "the reserve was there for that"
    assert Process(files.after_a_power_cut(tmp_path / "cut") / "data").versions == {"t": 1}


@pytest.mark.parametrize("number", [1, 2])
def test_a_cycle_is_in_both_of_its_tables_or_in_neither(files: WatchedFiles, number: int) -> None:
    data = files.root / "data"
    histories = ("t", RandomHistory(Random(5))), ("u", RandomHistory(Random(6)))
    process = Process(data)
    process.create("t", "u")
    process.hand_over(1, *histories)
    process.pump()
    process.hand_over(2, *histories)
    with ending_at(files, "writev", "/wal/00000001.arrow", number):
        process.pump()
    process.killed()
    assert Process(data).versions in ({"t": 1, "u": 1}, {"t": 2, "u": 2})


def test_tables_come_and_go_without_a_sync_on_the_engines_thread(files: WatchedFiles) -> None:
    synced: list[tuple[str, str]] = []

    def before(name: str, path: str) -> None:
        if "sync" in name:
            synced.append((threading.current_thread().name, path))

    config = ServerConfig(data=str(files.root / "data"), port=0, journal_reserve_bytes=0)
    with Server(config=config) as server:
        files.before = before
        server.create_table("u", {"n": pa.int64()}).add({"n": [1]})
        server.drop_table("u")
        files.before = lambda *_: None
    assert any("tables/u" in path for _, path in synced)
    assert [each for each in synced if each[0] == "barrage-engine"] == []

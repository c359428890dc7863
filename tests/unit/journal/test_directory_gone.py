"""A data directory that somebody removes, renames or replaces while a store uses it: what is
written to its files then is lost with them, so nothing of it is acknowledged."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from barrage.errors import JournalFailedError
from barrage.journal import JournalStore
from barrage.journal.disk.storage import LOCK_FILE, LocalStorage
from tests.helpers.journal_histories import RandomHistory, identity
from tests.helpers.server_process import wait_until
from tests.unit.journal.stores import SMALL, Bench

HANG_SECONDS = 180

GONE = "removed or replaced|No such file|Not a directory"
"""Upkeep may be in the middle of measuring the files when they go."""


def removed(directory: Path) -> None:
    """Out of the way first: what removes files one by one does not end while others are made."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    shutil.rmtree(aside)


def replaced(directory: Path) -> None:
    removed(directory)
    directory.mkdir()


def replaced_by_one_with_a_lock(directory: Path) -> None:
    """As by a copy that is put back, or by another server that has been stopped since."""
    kept = directory.with_name("copy")
    shutil.copytree(directory, kept)
    removed(directory)
    kept.rename(directory)


def renamed(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def replaced_by_a_file(directory: Path) -> None:
    removed(directory)
    directory.write_text("")


WAYS = [removed, replaced, replaced_by_one_with_a_lock, renamed, replaced_by_a_file]


class Scene:
    """A store in a directory of the system with one table ``t`` that has some history."""

    def __init__(self, directory: Path, *, is_threaded: bool) -> None:
        self.directory = directory
        self.signals: list[int] = []
        self.has_failed = threading.Event()
        self.store = JournalStore(LocalStorage(directory), SMALL, on_synced=self.signals.append)
        self.store.open_all()
        if is_threaded:
            self.store.start()
        self.store.on_failure(lambda _: self.has_failed.set())
        self.history = RandomHistory(Random(5), is_append_only=True)
        self.journal = self.store.create(identity(kind="append-only"), step=0)
        if is_threaded:
            ticket = self.append()
            wait_until(lambda: self.store.synced_ticket >= ticket)

    def append(self) -> int:
        change, positions = self.history.next_change()
        step = self.history.step
        ticket = self.journal.append(change, step=step, wall_ns=step, positions=positions)
        self.store.step_committed(step)
        return ticket

    def pump(self) -> None:
        self.store.pump(2**62)

    def check_nothing_is_written(self) -> None:
        """What is there under the directory's name is nothing of ours."""
        before = sorted(self.directory.rglob("*")) if self.directory.is_dir() else None
        self.store.close()
        after = sorted(self.directory.rglob("*")) if self.directory.is_dir() else None
        assert before == after


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_acknowledged_any_more(way: Callable[[Path], object], tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data", is_threaded=False)
    acknowledged = scene.append()
    scene.pump()
    assert scene.store.synced_ticket == acknowledged
    way(scene.directory)
    scene.append()
    scene.pump()
    assert scene.store.synced_ticket == acknowledged
    assert scene.has_failed.is_set()
    with pytest.raises(JournalFailedError, match="removed or replaced"):
        scene.store.check_writable()
    scene.check_nothing_is_written()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_upkeep_finds_out_while_nothing_is_written(
    way: Callable[[Path], object], tmp_path: Path
) -> None:
    scene = Scene(tmp_path / "data", is_threaded=True)
    way(scene.directory)
    scene.store._upkeep_wake.set()
    assert scene.has_failed.wait(HANG_SECONDS)
    with pytest.raises(JournalFailedError, match=GONE):
        scene.store.check_writable()
    scene.check_nothing_is_written()


def test_a_table_is_not_begun_in_the_directory_that_took_its_place(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data", is_threaded=True)
    replaced(scene.directory)
    with suppress(JournalFailedError):  # The writer may have looked before.
        scene.store.create(identity("other", kind="append-only"), step=scene.history.step)
    assert scene.has_failed.wait(HANG_SECONDS)
    scene.store.close()
    assert os.listdir(scene.directory) == []


def test_a_close_leaves_no_directory_behind_that_was_removed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data", is_threaded=False)
    removed(scene.directory)
    scene.store.close()
    assert not scene.directory.exists()


def test_a_directory_replaced_while_it_is_written_to_is_found_before_anybody_is_told() -> None:
    """Between the look before the round and the sync of its files."""
    bench = Bench()
    bench.pump()
    before = list(bench.synced)
    disk = bench.storage.disk

    def replace(name: str, _path: str) -> None:
        disk.on_call = None
        data = disk.root.names["data"]
        del data.names[LOCK_FILE]

    bench.append()
    disk.on_call = replace
    bench.pump(1000)
    assert bench.store.synced_ticket == (before[-1] if before else 0)
    with pytest.raises(JournalFailedError, match=str(errno.ESTALE)):
        bench.store.check_writable()

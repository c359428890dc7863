"""What becomes of a store one of whose threads meets something nobody expected."""

from __future__ import annotations

import errno
import threading
from random import Random

import pytest

from barrage.errors import JournalFailedError
from barrage.journal import JournalStore
from barrage.journal.stores.upkeep import RETRY_NS_MIN
from tests.helpers.journal_histories import RandomHistory, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.server_process import wait_until
from tests.unit.journal.stores import SMALL, Bench

HANG_SECONDS = 180
STALE = OSError(errno.ESTALE, "stale file handle")


class DeadlyStorage(MemoryStorage):
    """Raises in one of its calls once it is told to, on the journal's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def free_bytes(self) -> int:
        if self.error is not None and threading.current_thread().name == "barrage-journal":
            raise self.error
        return super().free_bytes()


class Threaded:
    """A store with its threads, and what it says."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.has_failed = threading.Event()
        self.signals: list[int] = []
        self.store = JournalStore(storage, SMALL, on_synced=self.signals.append)
        self.store.start()
        self.store.on_failure(lambda _: self.has_failed.set())
        self.history = RandomHistory(Random(5), is_append_only=False)
        self.journal = self.store.create(identity(), step=0)

    def append(self) -> int:
        change, positions = self.history.next_change()
        step = self.history.step
        ticket = self.journal.append(change, step=step, wall_ns=step, positions=positions)
        self.store.step_committed(step)
        return ticket


@pytest.mark.parametrize("error", [STALE, KeyError("x"), MemoryError(), SystemExit()], ids=repr)
def test_a_journal_whose_writer_dies_has_failed(error, caplog):
    storage = DeadlyStorage()
    scene = Threaded(storage)
    created = scene.journal.created_ticket
    wait_until(lambda: scene.store.synced_ticket >= created, HANG_SECONDS)
    storage.error = error
    ticket = scene.append()
    assert scene.has_failed.wait(HANG_SECONDS)
    with pytest.raises(JournalFailedError, match="until a restart"):
        scene.store.check_writable()
    count = len(scene.signals)
    assert count, "the engine is woken to tell who waits"
    later = scene.append()
    assert later > scene.store.synced_ticket
    assert scene.store.waiting_bytes == 0, "nobody would ever write it"
    assert ticket < later
    assert "journal failed" in caplog.text
    late: list[JournalFailedError] = []
    scene.store.on_failure(late.append)
    assert len(late) == 1
    storage.error = None
    scene.store.close()


@pytest.mark.parametrize("error", [MemoryError(), SystemExit()], ids=repr)
def test_a_journal_whose_keeper_dies_has_failed(error, monkeypatch):
    scene = Threaded(MemoryStorage())

    def die() -> None:
        raise error

    monkeypatch.setattr(scene.store, "maintain", die)
    scene.store._upkeep_wake.set()
    assert scene.has_failed.wait(HANG_SECONDS)
    with pytest.raises(JournalFailedError):
        scene.store.check_writable()
    scene.store.close()


@pytest.mark.parametrize("error", [STALE, KeyError("x"), MemoryError()], ids=repr)
def test_upkeep_that_fails_is_counted_and_tried_again(error, monkeypatch, caplog):
    bench = Bench()
    other = bench.store.create(identity("other"), step=0)
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(bench.journal, "maintain", fail)
    maintained: list[int] = []
    monkeypatch.setattr(other, "maintain", lambda: maintained.append(1))
    bench.write()
    assert len(tries) == 1
    count, reason = bench.store.upkeep_trouble(bench.journal)
    assert count == 1
    assert reason.startswith(type(error).__name__)
    bench.write(3)
    assert len(tries) == 1, "not before its pause is over"
    for retry in range(2, 9):
        bench.pump((RETRY_NS_MIN << (retry - 2)) / 1e6)
        assert len(tries) == retry
        assert bench.store.upkeep_trouble(bench.journal)[0] == retry
    assert "trying again in 64 s" in caplog.text
    bench.store.check_writable()
    monkeypatch.undo()
    bench.pump(64_000)
    assert bench.store.upkeep_trouble(bench.journal) == (0, None)


def test_an_append_that_crosses_a_failure_leaves_nothing_to_wait_for(monkeypatch):
    """Else the writer would find work it may not do, again and again."""
    bench = Bench()
    bench.append()
    journal, store = bench.journal, bench.store
    before = journal._has_failed

    def crossing() -> bool:
        is_failed = before()
        store._fail(OSError(errno.EIO, "in this very moment"))
        return is_failed

    journal._has_failed = crossing
    ticket = bench.append()
    assert ticket > store.synced_ticket
    assert not store._waiting
    assert store.waiting_bytes == 0
    assert bench.pump(20) is None

"""When a round of writing is due, what it acknowledges, and the store's own thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from barrage.clock import SystemClock
from barrage.errors import ConfigError, TableExistsError, TableNotFoundError
from barrage.journal import JournalOptions, JournalStore, LocalStorage, TableJournal
from barrage.journal.files.file_history import BEGIN_FILE, WITNESS_FILE
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.unit.journal.stores import MS, SMALL, Bench


def test_an_idle_journal_acknowledges_at_once() -> None:
    bench = Bench()
    ticket = bench.append()
    assert bench.store.synced_ticket == 0
    assert bench.journal.latest_version > bench.journal.durable_version
    assert bench.pump() is None
    assert bench.store.synced_ticket == ticket == bench.store.last_ticket
    assert bench.synced == [ticket]
    assert bench.journal.durable_version == bench.journal.latest_version


def test_changes_wait_for_each_other_while_the_journal_is_busy() -> None:
    bench = Bench()
    bench.write()
    bench.append()
    bench.pump(20)  # The last sync is long enough ago.
    synced_at = bench.clock.monotonic_ns()
    first = bench.append()
    assert bench.pump(1) == synced_at + 10 * MS
    last = bench.append(5)
    syncs = bench.storage.sync_count
    assert bench.pump(2) == synced_at + 10 * MS
    assert bench.store.synced_ticket < first
    assert bench.pump(7) is None
    assert bench.store.synced_ticket == last
    assert bench.storage.sync_count == syncs + 1


def test_many_bytes_are_written_without_waiting() -> None:
    bench = Bench(replace(SMALL, group_bytes=2_000))
    bench.write()
    ticket = bench.append(2)
    assert bench.pump() is not None
    while bench.store.waiting_bytes < 2_000:
        ticket = bench.append()
    assert bench.pump() is None
    assert bench.store.synced_ticket == ticket
    assert bench.store.waiting_bytes == 0


def test_one_sync_for_each_table_touched() -> None:
    bench = Bench()
    bench.write()
    other = bench.store.create(identity("other"), step=bench.history.step)
    history = RandomHistory(Random(1), step=bench.history.step)
    for _ in range(4):
        change, _ = history.next_change(bench.history.step + 1)
        other.append(change, step=history.step, wall_ns=1)
        bench.append()
    bench.pump(20)  # Begins the other's segment.
    syncs = bench.storage.sync_count
    for _ in range(4):
        bench.append()
        change, _ = history.next_change()
        other.append(change, step=history.step, wall_ns=1)
    bench.pump(20)
    assert bench.storage.sync_count == syncs + 2


def test_steps_must_ascend() -> None:
    bench = Bench()
    bench.append()
    change, _ = bench.history.next_change()
    with pytest.raises(ValueError, match="is not after"):
        bench.journal.append(change, step=bench.journal.latest_version, wall_ns=1)


def test_listeners_are_told_until_they_stop() -> None:
    bench = Bench()
    told: list[int] = []
    stop = bench.journal.on_durable(told.append)
    bench.write(2)
    stop()
    stop()
    bench.write()
    assert told == [each.version for each in bench.history.snapshots[1:3]]


def test_what_is_not_written_yet_can_be_read() -> None:
    bench = Bench()
    bench.write(3)
    bench.append(3)
    versions = [each.version for each in bench.history.snapshots]
    assert [entry.step for entry in bench.journal.entries(versions[1], versions[5])] == versions[
        2:6
    ]
    assert bench.journal.index(versions[1], versions[6]).steps.tolist() == versions[2:]
    for snapshot in bench.history.snapshots:
        assert content(bench.journal.state_at(snapshot.version)) == snapshot.rows
    ticket = bench.append()
    bench.pump(20)
    assert bench.store.synced_ticket == ticket
    assert [entry.step for entry in bench.journal.entries(0, bench.history.step)] == [
        each.version for each in bench.history.snapshots[1:]
    ]


def test_names_are_taken_and_given_back() -> None:
    bench = Bench()
    bench.write(3)
    with pytest.raises(TableExistsError):
        bench.store.create(identity())
    epoch = bench.journal.epoch
    bench.append()
    bench.store.drop("t")
    with pytest.raises(TableNotFoundError):
        bench.store.drop("t")
    assert not [path for path in bench.storage.files if path.startswith("tables/")]
    again = bench.store.create(identity(), step=bench.history.step)
    assert again.epoch != epoch
    bench.pump(20)
    assert (again.latest_version, again.earliest_version) == (bench.history.step,) * 2


def test_a_table_dropped_during_a_checkpoint_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(replace(SMALL, checkpoint_bytes_min=1))
    bench.append(3)
    honest = bench.storage.append_to

    def append_to(path: str) -> object:
        if path.endswith(".pending") and "checkpoints" in path and "t" in bench.store.journals:
            bench.store.drop("t")
            bench.store.create(identity())
        return honest(path)

    monkeypatch.setattr(bench.storage, "append_to", append_to)
    bench.pump(20)
    names = bench.storage.list("tables/t/checkpoints")
    assert [name for name in names if not name.endswith(".pending")] == []
    journal = bench.reopen()
    assert (journal.row_count, bench.storage.list("tables/t/checkpoints")) == (0, [])


# --- with threads and files -----------------------------------------------------------------------


def test_the_thread_writes_and_close_drains(tmp_path: Path) -> None:
    history = RandomHistory(Random(2))
    synced = threading.Event()
    store = JournalStore(
        LocalStorage(tmp_path),
        JournalOptions(reserve_bytes=0, group_ns=2 * MS),
        clock=SystemClock(),
        on_synced=lambda ticket: synced.set(),
    )
    store.start()
    journal = store.create(identity(), step=0)
    change, _ = history.next_change()
    ticket = journal.append(change, step=history.step, wall_ns=1)
    store.step_committed(history.step)
    while store.synced_ticket < ticket:
        assert synced.wait(60)
        synced.clear()
    assert store.synced_ticket == ticket
    stop = time.monotonic() + 0.5
    while time.monotonic() < stop:
        change, positions = history.next_change()
        journal.append(change, step=history.step, wall_ns=1, positions=positions)
        store.step_committed(history.step)
        snapshot = history.random.choice(history.snapshots)
        assert content(journal.state_at(snapshot.version)) == snapshot.rows
    store.close()
    store.close()
    assert store.synced_ticket == store.last_ticket
    assert not [each for each in threading.enumerate() if each.name.startswith("barrage-journal")]
    again = JournalStore(LocalStorage(tmp_path), JournalOptions(reserve_bytes=0))
    (journal,) = again.open_all()
    assert again.first_step == history.step
    assert content(journal.state_at(history.step)) == history.snapshots[-1].rows
    with pytest.raises(ConfigError, match="in use"):
        JournalStore(LocalStorage(tmp_path)).open_all()
    again.close()


class AskedMeanwhile(MemoryStorage):
    """Asks for the index and a checkpoint while certain files are written."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def overwrite(self, path, content):
        self.ask(path)
        super().overwrite(path, content)

    def replace(self, path, content):
        self.ask(path)
        super().replace(path, content)

    def ask(self, path: str) -> None:
        name = path.rpartition("/")[2]
        if name not in (WITNESS_FILE, BEGIN_FILE) or self.journal is None:
            return
        answers = []

        def read() -> None:
            journal = self.journal
            answers.append(journal.index(journal.earliest_version, journal.latest_version))
            answers.append(journal.history.base_for(journal.latest_version))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(60)
        assert len(answers) == 2
        self.asked[name] += 1

    journal: TableJournal | None = None


def test_nobody_waits_for_the_disk_by_way_of_a_lock() -> None:
    storage = AskedMeanwhile()
    options = replace(SMALL, segment_bytes=1_000, retain_bytes=1_000)
    bench = Bench(options, storage=storage)
    storage.journal = bench.journal
    for _ in range(30):
        bench.write()
        bench.journal.maintain()
    assert storage.asked[WITNESS_FILE] == 30
    assert storage.asked[BEGIN_FILE] > 1
    assert bench.journal.durable_version == bench.journal.latest_version

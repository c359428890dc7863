"""Disks that are full, that fail, and steps that a crash takes away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from barrage.errors import (
    ConfigError,
    HistoryLostError,
    JournalCorruptError,
    JournalFailedError,
    JournalFullError,
)
from barrage.journal import JournalOptions, JournalStore, LocalStorage
from barrage.journal.files.steps import Steps, next_run
from barrage.journal.stores.store import RECORD_GROWTH
from tests.helpers.journal_histories import content, identity
from tests.helpers.memory_storage import Faults
from tests.unit.journal.stores import SMALL, Bench

RESERVED = JournalOptions(reserve_bytes=100_000)


def used(bench: Bench) -> int:
    return sum(file.size for file in bench.storage.files.values())


def test_a_full_disk_refuses_writes_keeps_what_waits_and_recovers() -> None:
    bench = Bench(RESERVED)
    bench.write(3)
    bench.store.check_writable()
    bench.append(4)
    bench.storage.room = used(bench) + 300
    bench.pump(20)
    assert bench.store.synced_ticket == bench.store.last_ticket
    with pytest.raises(JournalFullError, match="reading goes on"):
        bench.store.check_writable()
    with pytest.raises(JournalFullError):
        bench.store.create(identity("other"))
    assert content(bench.journal.state_at(bench.history.step)) == bench.history.snapshots[-1].rows
    assert bench.pump(1_000) is not None
    bench.storage.room = 1 << 40
    bench.pump(1_000)
    bench.store.check_writable()
    bench.write(2)
    journal = bench.reopen()
    assert content(journal.state_at(bench.history.step)) == bench.history.snapshots[-1].rows


def test_writes_are_refused_before_the_reserve_is_needed() -> None:
    bench = Bench(RESERVED)
    bench.storage.room = used(bench) + 90_000
    bench.write()
    with pytest.raises(JournalFullError):
        bench.store.check_writable()
    assert "reserve" in bench.storage.files
    assert bench.storage.list("tables/t/wal")


def test_a_write_is_refused_that_would_not_fit_beside_what_waits() -> None:
    bench = Bench(RESERVED)
    bench.write()
    room = 200_000
    bench.storage.room = used(bench) + room
    fitting = (room + RESERVED.reserve_bytes // 2) // RECORD_GROWTH
    bench.store.check_writable(fitting)
    with pytest.raises(JournalFullError):
        bench.store.check_writable(fitting + 1)
    bench.append(1)
    assert bench.store.waiting_bytes
    with pytest.raises(JournalFullError):
        bench.store.check_writable(fitting)
    bench.store.check_writable()
    bench.storage.room = 1 << 40
    bench.store.check_writable(fitting + 1)


@pytest.mark.parametrize("fault", ["failed_sync", "failed_write"])
def test_nothing_is_acknowledged_after_a_failure(fault: str) -> None:
    bench = Bench()
    bench.write(3)
    durable, ticket = bench.journal.durable_version, bench.store.synced_ticket
    bench.storage.faults = Faults(**{fault: 1.0})
    bench.append(2)
    bench.pump(20)
    bench.storage.faults = Faults()
    assert (bench.journal.durable_version, bench.store.synced_ticket) == (durable, ticket)
    with pytest.raises(JournalFailedError, match="until a restart"):
        bench.store.check_writable()
    assert bench.append() > bench.store.last_ticket
    bench.pump(20)
    assert bench.store.synced_ticket == ticket
    assert bench.journal.row_ids_at(durable) is not None
    journal = bench.reopen(is_crash=True)
    assert journal.latest_version >= durable
    bench.store.check_writable()


def test_versions_that_a_crash_took_are_unknown_for_ever() -> None:
    bench = Bench(replace(SMALL, reserved_steps=1000))
    bench.write(3)
    kept = bench.journal.durable_version
    bench.append(3)
    lost = [each.version for each in bench.history.snapshots[4:]]
    journal = bench.reopen(is_crash=True)
    assert journal.latest_version == kept
    assert bench.store.first_step > lost[-1]
    assert journal.is_known(kept)
    assert journal.is_known(bench.store.first_step)
    assert not any(journal.is_known(version) for version in lost)
    with pytest.raises(HistoryLostError):
        journal.state_at(lost[0])
    bench.history.go_back_to(kept)
    bench.history.step = bench.store.first_step
    bench.write(2)
    journal = bench.reopen()
    assert not any(journal.is_known(version) for version in lost)
    assert not journal.is_known(bench.history.step + 1)
    assert [entry.step for entry in journal.entries(kept, journal.latest_version)] == [
        each.version for each in bench.history.snapshots[4:]
    ]


def test_a_clean_end_leaves_no_gap() -> None:
    bench = Bench()
    bench.write(2)
    bench.store.step_committed(bench.history.step + 7)
    journal = bench.reopen()
    assert bench.store.first_step == bench.history.step + 7
    assert journal.is_known(bench.history.step + 3)


def test_gaps_of_many_crashes_stay_few_and_only_grow() -> None:
    steps = None
    for _ in range(1500):
        steps = next_run(steps, recovered_step=0, frontier=0, reserved_steps=10)
    assert steps is not None
    assert len(steps.gaps) <= 1000
    assert steps.gaps[0].known_upto == 0
    assert steps.gaps[-1].next_step == steps.first_step


def test_step_numbers_are_set_aside_before_they_are_used() -> None:
    bench = Bench(replace(SMALL, reserved_steps=20))
    for _ in range(40):
        bench.write()
        reserved = Steps.read(bench.storage)
        assert reserved is not None
        assert reserved.reserved > bench.history.step
    bench.reopen(is_crash=True)
    assert bench.store.first_step >= bench.history.step


def test_a_step_is_not_used_twice_that_came_long_after_the_last_one_on_disk() -> None:
    """A busy table in memory counts the steps up while nothing is written."""
    bench = Bench(replace(SMALL, reserved_steps=20))
    bench.write(2)
    for step in range(bench.history.step + 1, bench.history.step + 200):
        bench.store.step_committed(step)
        bench.pump()
    change, positions = bench.history.next_change(step + 1)
    bench.journal.append(change, step=step + 1, wall_ns=1, positions=positions)
    # Subscribers see it now. It is not on the disk yet, and never will be.
    bench.store.step_committed(step + 1)
    journal = bench.reopen(is_crash=True)
    assert bench.store.first_step > step
    assert not journal.is_known(step + 1)


def test_writes_are_refused_while_no_step_is_set_aside_for_them() -> None:
    bench = Bench(replace(SMALL, reserved_steps=20))
    bench.write(2)
    # The writer waits for its disk meanwhile.
    bench.store.step_committed(bench.history.step + 30)
    with pytest.raises(JournalFullError):
        bench.store.check_writable()
    bench.pump()
    bench.store.check_writable()


def test_a_damaged_table_keeps_its_files_and_leaves_the_others_alone() -> None:
    bench = Bench()
    bench.write(3)
    bench.store.create(identity("other"), step=0)
    bench.store.close()
    path = "tables/t/wal/00000001.arrow"
    bench.storage.files[path].content[700] ^= 1
    damaged = bytes(bench.storage.files[path].content)
    store = JournalStore(bench.storage, SMALL)
    with pytest.raises(JournalCorruptError, match=r"00000001\.arrow is damaged at byte"):
        store.open_all()
    told: list[str] = []
    store = JournalStore(bench.storage, SMALL)
    assert [
        each.identity.name
        for each in store.open_all(on_damage=lambda name, error: told.append(name))
    ] == ["other"]
    assert told == ["t"]
    with pytest.raises(JournalCorruptError, match="move them away"):
        store.create(identity("t"))
    store.close()
    assert bytes(bench.storage.files[path].content) == damaged


def test_left_overs_of_a_crash_are_removed() -> None:
    bench = Bench()
    bench.write(2)
    for path in ("tables/half/wal/00000001.arrow", "tables/t/checkpoints/x.pending"):
        bench.storage.append_to(path).write([b"half"])
    bench.reopen()
    assert not [path for path in bench.storage.files if "half" in path or "pending" in path]


# --- the local file system ------------------------------------------------------------------------


def test_local_files_are_written_cut_and_replaced(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "data")
    storage.lock()
    with pytest.raises(ConfigError, match="in use"):
        LocalStorage(tmp_path / "data").lock()
    file = storage.append_to("a/b/file")
    file.write([b"one", memoryview(b"two"), b"", *[b"x"] * 2000])
    file.sync()
    assert file.size == storage.size("a/b/file") == 2006
    file.truncate(6)
    file.write([b"!"])
    file.close()
    file.close()
    assert storage.read("a/b/file").to_pybytes() == b"onetwo!"
    storage.overwrite("a/b/file", b"ON")
    assert storage.read("a/b/file").to_pybytes() == b"ONetwo!"
    storage.replace("a/b/file", b"new")
    assert storage.read("a/b/file").to_pybytes() == b"new"
    assert storage.list("a/b") == ["file"]
    assert storage.list("nowhere") == []
    storage.append_to("a/empty").close()
    assert storage.read("a/empty").size == 0
    storage.remove("a")
    storage.remove("a")
    assert storage.list("a") == []
    assert storage.free_bytes() > 0
    storage.allocate("reserve", 10_000)
    assert storage.size("reserve") == 10_000
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    storage.unlock()
    storage.unlock()
    LocalStorage(tmp_path / "data").lock()


def test_a_map_outlives_its_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("file", b"content")
    data = storage.read("file")
    storage.remove("file")
    assert data.to_pybytes() == b"content"

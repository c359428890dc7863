"""What is there after kill -9, after a power cut, after both, and after a sync that failed. Each
test stops the process at one call to the disk; the simulator does the same at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from barrage.errors import JournalCorruptError, JournalFailedError
from barrage.journal import JournalOptions, JournalStore
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.files.commits import COMMITS_FILE, PLACE_BYTES, CommitLog, read_commit
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.short_lives import Harsh, Kind
from tests.helpers.simulated_disk import Directory, Faults, Killed, SimulatedDisk
from tests.unit.journal.stores import SMALL, Bench

CUTS = 12
"""Power cuts tried, each with other luck."""


def stop_at(disk: SimulatedDisk, name: str, path: str, *, number: int = 1) -> None:
    """The process ends at the ``number``-th call of that name upon such a path."""
    left = [number]

    def on_call(called: str, at: str) -> None:
        if called == name and path in at:
            left[0] -= 1
            if left[0] == 0:
                disk.on_call = None
                raise Killed

    disk.on_call = on_call


def killed(bench: Bench, work: Callable[[], object]) -> None:
    with pytest.raises(Killed):
        work()
    bench.storage.kill()


def killed_before_the_sync(bench: Bench, path: str = "wal/") -> None:
    """What was written last is not synced, and a new process has opened it."""
    bench.append()
    stop_at(bench.storage.disk, "sync", path)
    killed(bench, lambda: bench.pump(20))
    open_again(bench)


def power_cut(bench: Bench) -> None:
    """Only what was synced is left."""
    bench.storage.disk.random = Harsh()
    bench.storage.crash()


def open_again(bench: Bench) -> None:
    bench.store = bench._open()
    bench.journal = bench.store.journals["t"]
    version = bench.journal.latest_version
    bench.history.go_back_to(version)
    bench.history.step = max(version, bench.store.first_step)


def test_what_a_killed_process_had_not_synced_is_on_the_disk_before_it_is_told() -> None:
    bench = Bench()
    bench.write(3)
    killed_before_the_sync(bench)
    told = bench.journal.latest_version, dict(bench.journal.positions)
    assert told[0] == bench.history.snapshots[-1].version
    power_cut(bench)
    open_again(bench)
    assert (bench.journal.latest_version, dict(bench.journal.positions)) == told


def test_rows_written_after_a_kill_are_readable_after_a_power_cut() -> None:
    bench = Bench()
    bench.write(3)
    killed_before_the_sync(bench)
    bench.write(2)
    acknowledged = bench.journal.durable_version
    power_cut(bench)
    open_again(bench)
    assert bench.journal.latest_version == acknowledged
    assert content(bench.journal.state_at(acknowledged)) == bench.history.snapshots[-1].rows


def test_a_segment_whose_header_was_not_synced_is_safe_to_go_on_from() -> None:
    bench = Bench()
    bench.write(2)
    bench.reopen()
    killed_before_the_sync(bench, "wal/00000002")
    bench.write(1)
    acknowledged = bench.journal.durable_version
    power_cut(bench)
    open_again(bench)
    assert bench.journal.latest_version == acknowledged


def test_a_file_whose_sync_failed_is_not_trusted_when_a_later_sync_succeeds() -> None:
    bench = Bench()
    bench.write(3)
    acknowledged = bench.journal.durable_version
    bench.append()
    # Nothing gets to the platter, and the system takes it for written.
    bench.storage.disk.random = Harsh()
    bench.storage.faults = Faults(failed_sync=2.0)
    bench.pump(20)
    with pytest.raises(JournalFailedError):
        bench.store.check_writable()
    bench.storage.faults = Faults()
    # The cache still has it, so the next process reads it.
    bench.storage.disk.random = Kind()
    bench.storage.kill()
    open_again(bench)
    told = bench.journal.latest_version
    assert told == bench.history.snapshots[-1].version > acknowledged
    power_cut(bench)
    open_again(bench)
    assert bench.journal.latest_version == told


def test_a_sync_that_fails_for_want_of_room_is_final_too() -> None:
    bench = Bench()
    bench.write(2)

    class Full(SimulatedDisk):
        def sync(self, file: int) -> None:
            raise OSError(28, "no space left")

    bench.storage.disk.__class__ = Full
    bench.append()
    bench.pump(20)
    with pytest.raises(JournalFailedError, match="could not be synced"):
        bench.store.check_writable()


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["/data", "/data/tables", "/data/tables/t", "/data/tables/t/wal"])
def test_a_directory_that_a_killed_process_made_is_there_after_a_power_cut(made: str) -> None:
    disk = SimulatedDisk()
    parent = made.rpartition("/")[0] or "/"

    def write() -> None:
        storage = MemoryStorage(disk=disk)
        file = storage.append_to("tables/t/wal/1")
        file.write([b"x"])
        file.sync()

    def on_call(called: str, at: str) -> None:
        if called == "sync names" and at == parent and disk.is_directory(made):
            raise Killed

    disk.on_call = on_call
    with pytest.raises(Killed):
        write()
    disk.on_call = None
    disk.kill()
    # It is there for the next process, which did not make it.
    assert disk.is_directory(made)
    write()
    disk.random = Harsh()
    disk.cut()
    assert MemoryStorage(disk=disk).read("tables/t/wal/1").to_pybytes() == b"x"


def test_a_file_that_was_there_before_its_first_sync_is_found_after_a_power_cut() -> None:
    disk = SimulatedDisk()
    storage = MemoryStorage(disk=disk)
    storage.append_to("wal/0").sync()
    # The first write into it failed, for want of room.
    storage.append_to("wal/1").close()
    file = storage.append_to("wal/1")
    file.write([b"x"])
    file.sync()
    disk.random = Harsh()
    disk.cut()
    assert storage.again().read("wal/1").to_pybytes() == b"x"


def test_directories_of_a_root_that_is_a_link_are_not_made_again(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storage = LocalStorage(tmp_path / "link")
    storage.replace("a/b", b"x")
    assert (tmp_path / "real/a/b").read_bytes() == b"x"
    storage.remove("a")
    storage.replace("a/b", b"y")
    assert storage.read("a/b").to_pybytes() == b"y"


def test_settling_cuts_a_file_off_and_writes_the_rest_again(tmp_path) -> None:
    storage = LocalStorage(tmp_path)
    size = 3 << 20
    storage.replace("wal/1", b"y" * size + b"torn")
    storage.settle("wal/1", 10, size)
    assert storage.read("wal/1").to_pybytes() == b"y" * size
    storage.sync_directory("nowhere")


def test_dropping_that_was_cut_short_leaves_the_whole_table_or_nothing() -> None:
    reached = 0
    for call in range(1, 40):
        bench = Bench()
        bench.write(4)
        rows = bench.history.snapshots[-1].rows
        disk = bench.storage.disk
        left = [call]

        def on_call(called: str, at: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        disk.on_call = on_call
        try:
            bench.store.drop("t")
        except Killed:
            reached += 1
        disk.on_call = None
        disk.kill()
        # The next process removes what is left, and the power is cut meanwhile.
        left[0] = call
        disk.on_call = on_call
        try:
            bench._open()
        except Killed:
            reached += 1
        disk.on_call = None
        disk.random = Random(call)
        disk.cut()
        store = bench._open()
        if "t" in store.journals:
            journal = store.journals["t"]
            assert content(journal.state_at(journal.latest_version)) == rows
    assert reached > 10


# --- cycles over several tables -------------------------------------------------------------------


class Joint:
    """A store with three tables that change together."""

    NAMES = ("t", "u", "v")

    def __init__(self) -> None:
        self.bench = Bench()
        self.histories = {"t": self.bench.history}
        for name in self.NAMES[1:]:
            self.bench.store.create(identity(name), step=0)
            self.histories[name] = RandomHistory(Random(7), is_append_only=True)
        self.step = 0

    def cycle(self, *names: str) -> int:
        """One cycle over these tables, handed over."""
        store = self.bench.store
        self.step = max(self.step, store.first_step) + 1
        ticket = 0
        for name in names:
            change, positions = self.histories[name].next_change(self.step)
            ticket = store.journals[name].append(
                change, step=self.step, wall_ns=1, positions={**positions, "p": self.step}
            )
        store.step_committed(self.step)
        return ticket

    def pump(self) -> None:
        self.bench.pump(20)

    def reopen(self) -> dict[str, int]:
        """Another process: the version each table is at."""
        self.bench.store = self.bench._open()
        self.bench.journal = self.bench.store.journals["t"]
        versions = {}
        for name, journal in self.bench.store.journals.items():
            versions[name] = journal.latest_version
            self.histories[name].go_back_to(journal.latest_version)
            rows = self.histories[name].snapshots[-1].rows
            assert content(journal.state_at(journal.latest_version)) == rows
        self.step = max(self.step, self.bench.store.first_step)
        return versions


def syncs_of_a_round(joint: Joint, *names: str) -> int:
    joint.cycle(*names)
    before = joint.bench.storage.sync_count
    joint.pump()
    return joint.bench.storage.sync_count - before


def test_only_a_round_that_changed_several_tables_at_once_pays_for_a_commit() -> None:
    joint = Joint()
    joint.cycle(*Joint.NAMES)
    joint.pump()
    assert syncs_of_a_round(joint, "t") == 1
    assert syncs_of_a_round(joint, "t", "u") == 3
    assert syncs_of_a_round(joint, "u") == 1
    joint.cycle("t")
    assert syncs_of_a_round(joint, "u") == 2


@pytest.mark.sampled(5)
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    ("call", "path", "number"),
    [
        ("write", "tables/u/wal", 1),
        ("write", "tables/v/wal", 1),
        ("sync", "tables/t/wal", 1),
        ("sync", "tables/u/wal", 1),
        ("sync", "tables/v/wal", 1),
        ("write at", COMMITS_FILE, 1),
        ("sync", COMMITS_FILE, 1),
        ("write at", "tables/t/synced", 1),
    ],
)
def test_a_cycle_is_in_all_of_its_tables_or_in_none(
    call: str, path: str, number: int, is_cut: bool
) -> None:
    for luck in range(CUTS if is_cut else 1):
        joint = Joint()
        for _ in range(3):
            joint.cycle(*Joint.NAMES)
            joint.pump()
        before = joint.step
        joint.cycle(*Joint.NAMES)
        # What follows in one of the tables is not acknowledged either, and goes with it.
        joint.cycle("t")
        last = joint.step
        disk = joint.bench.storage.disk
        stop_at(disk, call, path, number=number)
        with pytest.raises(Killed):
            joint.pump()
        disk.random = Random(luck)
        if is_cut:
            joint.bench.storage.crash()
        else:
            joint.bench.storage.kill()
        versions = joint.reopen()
        assert versions in (
            dict.fromkeys(Joint.NAMES, before),
            dict.fromkeys(Joint.NAMES, last - 1),
            {"t": last, "u": last - 1, "v": last - 1},
        )
        # What was taken off does not come back, and the tables go on.
        joint.bench.storage.kill()
        assert joint.reopen() == versions
        joint.cycle(*Joint.NAMES)
        joint.pump()
        acknowledged = joint.step
        power_cut(joint.bench)
        assert joint.reopen() == dict.fromkeys(Joint.NAMES, acknowledged)


def test_a_half_cycle_goes_with_the_segments_that_were_begun_after_it() -> None:
    joint = Joint()
    joint.cycle(*Joint.NAMES)
    joint.pump()
    before = joint.step
    joint.bench.journal.history._options = JournalOptions(reserve_bytes=0, segment_bytes=1)
    joint.cycle(*Joint.NAMES)
    for _ in range(4):
        joint.cycle("t")
    disk = joint.bench.storage.disk
    stop_at(disk, "sync", "tables/v/wal")
    with pytest.raises(Killed):
        joint.pump()
    assert len([path for path in joint.bench.storage.files if "t/wal/" in path]) > 4
    joint.bench.storage.kill()
    assert joint.reopen() == dict.fromkeys(Joint.NAMES, before)
    assert "tables/t/wal/00000003.arrow" not in joint.bench.storage.files


def test_a_half_cycle_does_not_come_back_after_a_start_that_was_cut_short() -> None:
    joint = Joint()
    joint.cycle(*Joint.NAMES)
    joint.pump()
    before = joint.step
    joint.cycle("t", "u")
    disk = joint.bench.storage.disk
    stop_at(disk, "sync", COMMITS_FILE)
    with pytest.raises(Killed):
        joint.pump()
    # The commit is lost, the files are not.
    disk.random = Harsh()
    disk.cut()
    stop_at(disk, "sync", "tables/t/wal")
    killed(joint.bench, joint.bench._open)
    assert joint.reopen() == dict.fromkeys(Joint.NAMES, before)
    power_cut(joint.bench)
    assert joint.reopen() == dict.fromkeys(Joint.NAMES, before)


def test_a_cycle_that_is_handed_over_in_part_is_not_written() -> None:
    joint = Joint()
    change, _ = joint.histories["t"].next_change(1)
    joint.bench.store.journals["t"].append(change, step=1, wall_ns=1)
    joint.pump()
    assert joint.bench.storage.list("tables/t/wal") == []
    change, _ = joint.histories["u"].next_change(1)
    joint.bench.store.journals["u"].append(change, step=1, wall_ns=1)
    joint.bench.store.step_committed(1)
    joint.pump()
    assert joint.bench.store.synced_ticket == joint.bench.store.last_ticket
    assert read_commit(joint.bench.storage) == 1


def test_a_table_that_was_dropped_since_takes_no_cycle_of_the_others_with_it() -> None:
    joint = Joint()
    joint.cycle(*Joint.NAMES)
    joint.pump()
    acknowledged = joint.step
    joint.bench.store.drop("u")
    joint.bench.store.create(identity("u"), step=acknowledged)
    joint.histories["u"] = RandomHistory(Random(3), acknowledged, is_append_only=True)
    power_cut(joint.bench)
    assert joint.reopen() == dict.fromkeys(Joint.NAMES, acknowledged)
    joint.cycle("t", "v")
    acknowledged = joint.step
    joint.bench.store.drop("v")
    joint.pump()
    power_cut(joint.bench)
    assert joint.reopen()["t"] == acknowledged


def test_tables_without_a_commit_count_as_they_are() -> None:
    joint = Joint()
    joint.cycle(*Joint.NAMES)
    joint.pump()
    joint.bench.store.close()
    del joint.bench.storage.files[COMMITS_FILE]
    assert joint.reopen() == dict.fromkeys(Joint.NAMES, joint.histories["t"].step)


def test_a_commit_is_read_back_whatever_happens_to_its_other_place() -> None:
    storage = MemoryStorage()
    assert read_commit(storage) is None
    log = CommitLog(storage, 5)
    assert read_commit(storage) == 5
    for step in (6, 9, 12):
        log.commit(step)
        assert read_commit(storage) == step
    content_of = storage.files[COMMITS_FILE].content
    assert len(content_of) == 2 * PLACE_BYTES
    content_of[3] ^= 1
    assert read_commit(storage) == 9
    content_of[PLACE_BYTES + 3] ^= 1
    with pytest.raises(JournalCorruptError, match="neither of its places"):
        read_commit(storage)
    with pytest.raises(JournalCorruptError, match="commits"):
        JournalStore(storage, SMALL).open_all()


def test_a_disk_tells_its_cache_from_its_platter() -> None:
    """The simulated disk does what it is there for."""
    disk = SimulatedDisk(Harsh())
    disk.make_directory("/d")
    file = disk.open("/d/f", 64)
    disk.append(file, [memoryview(b"one")])
    disk.sync(file)
    disk.cut()
    assert disk.mode("/d") == 0
    disk.make_directory("/d")
    disk.sync_names("")
    file = disk.open("/d/f", 64)
    disk.append(file, [memoryview(b"one")])
    disk.sync(file)
    disk.sync_names("/d")
    disk.append(file, [memoryview(b"two")])
    disk.kill()
    assert bytes(disk.map("/d/f")) == b"onetwo"
    disk.cut()
    assert bytes(disk.map("/d/f")) == b"one"
    assert isinstance(disk.root.names["d"], Directory)

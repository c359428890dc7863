"""Whatever a crash or a disk does to a journal's files, what is read back is what was recorded, or
an error that names file and offset: never something else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrage.clock import VirtualClock
from barrage.errors import HistoryLostError, JournalCorruptError
from barrage.journal import JournalOptions, JournalStore, LocalStorage, TableJournal
from tests.helpers.journal_histories import RandomHistory, content, identity

seeds = st.integers(0, 2**32)
SMALL = JournalOptions(
    reserve_bytes=0, segment_bytes=6_000, checkpoint_bytes_min=8_000, retain_bytes=None
)


def record(
    root: Path, history: RandomHistory, *, cycles: int, options: JournalOptions = SMALL
) -> None:
    """Write a history, some changes per round."""
    store = JournalStore(LocalStorage(root), options, clock=VirtualClock())
    store.open_all()
    journal = store.journals.get("t") or store.create(identity(), step=history.step)
    for number in range(cycles):
        change, positions = history.next_change()
        journal.append(change, step=history.step, wall_ns=number, positions=positions)
        store.step_committed(history.step)
        if history.random.random() < 0.5:
            store.pump(number * 10**9)
    store.close()


def reopened(root: Path, options: JournalOptions = SMALL) -> tuple[JournalStore, TableJournal]:
    store = JournalStore(LocalStorage(root), options, clock=VirtualClock())
    try:
        (journal,) = store.open_all()
    except BaseException:
        store.close()
        raise
    return store, journal


def check_everything(journal: TableJournal, history: RandomHistory, *, last: int) -> None:
    """All states from the earliest to snapshot number ``last``, and the entries between them."""
    known = [
        snapshot
        for snapshot in history.snapshots[: last + 1]
        if snapshot.version >= journal.earliest_version
    ]
    for snapshot in known:
        state = journal.state_at(snapshot.version)
        assert content(state) == snapshot.rows
        assert state.next_offset == snapshot.next_offset
        assert dict(state.positions) == snapshot.positions
        ids = journal.row_ids_at(snapshot.version)
        assert list(zip(ids.keys, ids.ids.tolist(), strict=True)) == [
            row[:2] for row in snapshot.rows
        ]
    entries = list(journal.entries(journal.earliest_version, journal.latest_version))
    assert [entry.step for entry in entries] == [each.version for each in known[1:]]


@given(seeds, st.integers(1, 40))
@settings(max_examples=30)
def test_every_state_is_there_after_a_restart(seed: int, cycles: int) -> None:
    history = RandomHistory(Random(seed))
    with tempfile.TemporaryDirectory() as name:
        record(Path(name), history, cycles=cycles)
        record(Path(name), history, cycles=cycles // 2)
        store, journal = reopened(Path(name))
        assert journal.latest_version == history.step
        assert journal.row_count == len(history.rows)
        assert journal.next_offset == history.next_offset
        assert dict(journal.positions) == history.positions
        check_everything(journal, history, last=len(history.snapshots) - 1)
        store.close()


@given(seeds)
@settings(max_examples=8)
def test_every_prefix_of_the_last_segment_is_a_prefix_of_the_history(seed: int) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed + 1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "whole"
        record(root, history, cycles=random.randint(1, 14))
        segments = sorted((root / "tables/t/wal").glob("*.arrow"))
        last = segments[-1].read_bytes()
        # A crash in the middle of a round: nothing of this segment was acknowledged yet.
        (root / "tables/t/synced").unlink()
        reached = set()
        for size in sorted(random.sample(range(len(last)), min(60, len(last)))):
            copy = Path(name) / "cut"
            shutil.copytree(root, copy)
            (copy / "tables/t/wal" / segments[-1].name).write_bytes(last[:size])
            try:
                store, journal = reopened(copy)
            except JournalCorruptError as error:
                assert "checkpoint" in error.reason
            else:
                versions = [snapshot.version for snapshot in history.snapshots]
                reached.add(versions.index(journal.latest_version))
                check_everything(journal, history, last=max(reached))
                store.close()
            shutil.rmtree(copy)
        assert sorted(reached) == list(range(min(reached), max(reached) + 1)) if reached else True


def read_all(root: Path) -> list[object]:
    """Everything that can be asked of a table."""
    store, journal = reopened(root)
    try:
        first, last = journal.earliest_version, journal.latest_version
        entries = list(journal.entries(first, last))
        states = [content(journal.state_at(entry.step)) for entry in entries]
        return [
            journal.epoch,
            first,
            last,
            [entry.rows.to_pylist() for entry in entries],
            [(entry.update, entry.wall_ns, dict(entry.positions)) for entry in entries],
            states,
            dict(journal.positions),
            str(journal.identity),
        ]
    finally:
        store.close()


FILES = ("table.json", "wal/*.arrow", "checkpoints/*.arrow", "wal/*.index", "synced")


@given(seeds, st.sampled_from(FILES))
@settings(max_examples=40)
def test_a_flipped_byte_is_noticed_or_does_no_harm(seed: int, pattern: str) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed + 1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        record(root, history, cycles=40)
        whole = read_all(root)
        files = sorted((root / "tables/t").glob(pattern))
        noticed = 0
        for _ in range(20):
            if not files:
                return
            path = random.choice(files)
            data = bytearray(path.read_bytes())
            place = random.randrange(len(data))
            data[place] ^= random.randrange(1, 256)
            kept = path.read_bytes()
            backup = {each: each.read_bytes() for each in root.rglob("*") if each.is_file()}
            path.write_bytes(bytes(data))
            try:
                assert read_all(root) == whole, f"{path.name} at {place}"
            except (JournalCorruptError, HistoryLostError) as error:
                noticed += 1
                assert isinstance(error, JournalCorruptError), error
                assert path.name in str(error) or "wal" in str(error)
            for each in [each for each in root.rglob("*") if each.is_file()]:
                if each not in backup:
                    each.unlink()
            for each, before in backup.items():
                each.write_bytes(before)
            assert path.read_bytes() == kept
        if pattern in ("table.json", "wal/*.arrow", "checkpoints/*.arrow"):
            assert noticed == 20


@given(seeds)
@settings(max_examples=15)
def test_a_missing_or_exchanged_segment_is_noticed(seed: int) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        record(root, history, cycles=60)
        segments = sorted((root / "tables/t/wal").glob("*.arrow"))
        assert len(segments) > 2
        one, other = random.sample(segments, 2)
        if random.random() < 0.5:
            one.unlink()
        else:
            content_of_one = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(content_of_one)
        with pytest.raises(JournalCorruptError):
            reopened(root)

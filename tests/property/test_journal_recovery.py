"""Whatever a crash or a disk does to a journal's files, what is read back is what was recorded, or
an error that names file and offset: never something else."""

from __future__ import annotations

import copy
import fnmatch
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import HistoryLostError, JournalCorruptError
from barrage.journal import JournalOptions, JournalStore, TableJournal
from tests.helpers.examples import examples
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.virtual_clock import VirtualClock

seeds = st.integers(0, 2**32)
SMALL = JournalOptions(
    reserve_bytes=0, segment_bytes=6_000, checkpoint_bytes_min=8_000, retain_bytes=None
)


def record(
    storage: MemoryStorage, history: RandomHistory, *, cycles: int, options: JournalOptions = SMALL
) -> None:
    """Write a history, some changes per round."""
    store = JournalStore(storage, options, clock=VirtualClock())
    store.open_all()
    journal = store.journals.get("t") or store.create(identity(), step=history.step)
    for number in range(cycles):
        change, positions = history.next_change()
        journal.append(change, step=history.step, wall_ns=number, positions=positions)
        store.step_committed(history.step)
        if history.random.random() < 0.5:
            store.pump(number * 10**9)
    store.close()


def reopened(
    storage: MemoryStorage, options: JournalOptions = SMALL
) -> tuple[JournalStore, TableJournal]:
    store = JournalStore(storage, options, clock=VirtualClock())
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
    few = history.random.sample(known, min(5, len(known)))
    for snapshot in [known[0], *few, known[-1]]:
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


def segments_of(storage: MemoryStorage) -> list[str]:
    return sorted(
        path
        for path in storage.files
        if path.startswith("tables/t/wal/0") and path.endswith(".arrow")
    )


@given(seeds, st.integers(1, 60))
@examples(12)
def test_every_state_is_there_after_a_restart(seed: int, cycles: int) -> None:
    history = RandomHistory(Random(seed))
    storage = MemoryStorage()
    record(storage, history, cycles=cycles)
    record(storage, history, cycles=cycles // 2)
    store, journal = reopened(storage)
    assert journal.latest_version == history.step
    assert journal.row_count == len(history.rows)
    assert journal.next_offset == history.next_offset
    assert dict(journal.positions) == history.positions
    check_everything(journal, history, last=len(history.snapshots) - 1)
    store.close()


@pytest.mark.further
@given(seeds)
@examples(5)
def test_every_prefix_of_the_last_segment_is_a_prefix_of_the_history(seed: int) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed + 1)
    whole = MemoryStorage()
    # No checkpoints: they are only made of what is synced, which then cannot be cut off.
    options = replace(SMALL, checkpoint_bytes_min=1 << 40)
    record(whole, history, cycles=random.randint(1, 14), options=options)
    # A crash in the middle of a round: nothing of this segment was acknowledged yet.
    del whole.files["tables/t/synced"]
    last = segments_of(whole)[-1]
    size = whole.size(last)
    versions = [snapshot.version for snapshot in history.snapshots]
    reached = []
    sizes = random.sample(range(size), min(80, size))
    for cut in [*sorted(sizes), size]:
        storage = copy.deepcopy(whole)
        del storage.files[last].content[cut:]
        store, journal = reopened(storage, options)
        reached.append(versions.index(journal.latest_version))
        if len(reached) < 2 or reached[-1] != reached[-2]:
            check_everything(journal, history, last=reached[-1])
        # The table goes on from there.
        assert journal.next_offset == history.snapshots[reached[-1]].next_offset
        store.close()
    assert reached == sorted(reached)
    assert reached[-1] == len(versions) - 1


def read_all(storage: MemoryStorage) -> list[object]:
    """Everything that can be asked of a table."""
    store, journal = reopened(storage)
    try:
        first, last = journal.earliest_version, journal.latest_version
        entries = list(journal.entries(first, last))
        states = [content(journal.state_at(entry.step)) for entry in entries[::9]]
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


FILES = ("table.json", "wal/*.arrow", "checkpoints/*.arrow", "wal/*.index", "synced", "begin.json")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pattern", FILES)
@given(seeds)
@examples(2)
def test_a_flipped_byte_is_noticed_or_does_no_harm(pattern: str, seed: int) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed + 1)
    whole = MemoryStorage()
    record(whole, history, cycles=60, options=replace(SMALL, retain_bytes=20_000))
    expected = read_all(copy.deepcopy(whole))
    paths = [path for path in whole.files if fnmatch.fnmatch(path, f"tables/t/{pattern}")]
    assert paths
    for _ in range(6):
        storage = copy.deepcopy(whole)
        path = random.choice(paths)
        data = storage.files[path].content
        place = random.randrange(len(data))
        data[place] ^= random.randrange(1, 256)
        try:
            assert read_all(storage) == expected, f"{path} at {place}"
        except JournalCorruptError as error:
            assert error.file.startswith("tables/t"), error  # noqa: PT017
        else:
            # These only help: without them more is read, or less is known.
            assert pattern in ("wal/*.index", "synced"), f"{path} at {place}"


@given(seeds)
@examples(5)
def test_a_missing_or_exchanged_segment_is_noticed(seed: int) -> None:
    history = RandomHistory(Random(seed))
    random = Random(seed)
    storage = MemoryStorage()
    record(storage, history, cycles=60)
    segments = segments_of(storage)
    assert len(segments) > 2
    one, other = random.sample(segments, 2)
    if random.random() < 0.5:
        storage.remove(one)
    else:
        files = storage.files
        files[one], files[other] = files[other], files[one]
    with pytest.raises(JournalCorruptError, match="tables/t"):
        reopened(storage)


@pytest.mark.further
@given(seeds)
@examples(5)
def test_retention_forgets_the_oldest_and_nothing_else(seed: int) -> None:
    history = RandomHistory(Random(seed))
    storage = MemoryStorage()
    options = replace(SMALL, retain_bytes=12_000)
    record(storage, history, cycles=80, options=options)
    record(storage, history, cycles=20, options=options)
    store, journal = reopened(storage, options)
    assert journal.earliest_version > 0
    assert journal.byte_count < 12_000 + 2 * options.segment_bytes + 20_000
    check_everything(journal, history, last=len(history.snapshots) - 1)
    with pytest.raises(HistoryLostError):
        journal.state_at(journal.earliest_version - 1)
    store.close()

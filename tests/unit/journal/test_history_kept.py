"""What is kept: retention, holds, checkpoints, the class ``memory``, times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import HistoryLostError, LimitExceededError
from barrage.journal import JournalOptions
from barrage.journal.records.retention import forgettable_upto
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.journal_histories import SCHEMA, content
from tests.unit.journal.stores import MS, SMALL, Bench

FORGETFUL = replace(SMALL, segment_bytes=3_000, retain_bytes=6_000, checkpoint_bytes_min=1 << 30)
NO_LIMIT = 2**63 - 1


def rows_of(sizes: list[int], wall_ns: list[int] | None = None) -> np.ndarray:
    """Rows of an index with steps 1, 2, 3, ..."""
    rows = np.zeros((len(sizes), 7), dtype=np.int64)
    rows[:, 0] = np.arange(1, len(sizes) + 1)
    rows[:, 1] = wall_ns or 0
    rows[:, 4] = sizes
    return rows


@pytest.mark.parametrize(
    ("retain", "keep_from", "hold_bytes_max", "expected"),
    [
        ({"retain_bytes": 35}, NO_LIMIT, 1000, 2),
        ({"retain_bytes": 30}, NO_LIMIT, 1000, 2),
        ({"retain_bytes": 29}, NO_LIMIT, 1000, 3),
        ({"retain_bytes": 50}, NO_LIMIT, 1000, None),
        ({"retain_bytes": 35}, 1, 1000, 1),
        ({"retain_bytes": 35}, 0, 1000, None),
        ({"retain_bytes": 35}, 0, 40, 1),
        ({"retain_bytes": None, "retain_steps": 2}, NO_LIMIT, 1000, 3),
        ({"retain_bytes": None, "retain_age_ns": 25}, NO_LIMIT, 1000, 2),
        ({"retain_bytes": 35, "retain_steps": 1}, NO_LIMIT, 1000, 4),
        ({"retain_bytes": None}, NO_LIMIT, 1000, None),
    ],
)
def test_what_is_past_any_limit_may_go_unless_it_is_held(
    retain: dict[str, int | None], keep_from: int, hold_bytes_max: int, expected: int | None
) -> None:
    options = JournalOptions(hold_bytes_max=hold_bytes_max, **retain)
    rows = rows_of([10] * 5, [0, 10, 30, 20, 50])
    upto = forgettable_upto(
        rows,
        options,
        retain_bytes=options.retain_bytes,
        keep_from=keep_from,
        now_wall_ns=50,
    )
    assert upto == expected
    assert forgettable_upto(rows[:0], options, retain_bytes=1, keep_from=0, now_wall_ns=0) is None


def test_a_hold_keeps_history_until_it_is_released() -> None:
    bench = Bench(FORGETFUL)
    bench.write(3)
    held = bench.journal.latest_version
    bench.journal.hold("spark", held, bench.clock.wall_ns() + 10**15)
    bench.write(60)
    assert bench.journal.earliest_version <= held
    assert bench.journal.byte_count > 4 * 6_000
    bench.journal.release("spark")
    bench.journal.release("spark")
    bench.write(3)
    assert bench.journal.earliest_version > held
    assert bench.journal.byte_count < 6_000 + 2 * 3_000


def test_a_hold_ends_with_its_lease_and_at_the_cap() -> None:
    bench = Bench(replace(FORGETFUL, hold_bytes_max=15_000))
    bench.write(2)
    held = bench.journal.latest_version
    bench.journal.hold("a", held, bench.clock.wall_ns() + 100 * MS)
    bench.write(30)
    assert bench.journal.earliest_version > held
    version = bench.journal.latest_version
    bench.journal.hold("b", version, bench.clock.wall_ns() + 10**15)
    bench.write(100)
    assert bench.journal.earliest_version > version
    assert bench.journal.byte_count > 10_000


def test_holds_are_bounded() -> None:
    bench = Bench(replace(SMALL, holds_max=2))
    lease = bench.clock.wall_ns() + 1000
    for name in ("a", "b", "a"):
        bench.journal.hold(name, 0, lease)
    with pytest.raises(LimitExceededError):
        bench.journal.hold("c", 0, lease)
    bench.clock.advance(2000)
    bench.journal.hold("c", 0, lease + 5000)


@pytest.mark.parametrize("retain", [{"retain_steps": 40}, {"retain_age_ns": 40 * 20 * MS}])
def test_small_tables_forget_by_steps_and_age(retain: dict[str, int]) -> None:
    bench = Bench(replace(SMALL, **retain))
    bench.write(200)
    assert 40 <= len(bench.journal.index(bench.journal.earliest_version, bench.history.step)) < 80
    journal = bench.reopen()
    assert content(journal.state_at(bench.history.step)) == bench.history.snapshots[-1].rows


def test_forgotten_versions_are_lost_and_said_to_be() -> None:
    bench = Bench(FORGETFUL)
    bench.write(60)
    journal = bench.journal
    earliest = journal.earliest_version
    assert earliest > 0
    assert journal.is_known(earliest)
    assert not journal.is_known(earliest - 1)
    for ask in (
        lambda: journal.entries(earliest - 1, journal.latest_version),
        lambda: journal.state_at(earliest - 1),
        lambda: journal.row_ids_at(0),
        lambda: journal.index(0, earliest),
        lambda: journal.entries(earliest, journal.latest_version + 1),
        lambda: journal.base_state(0),
    ):
        with pytest.raises(HistoryLostError, match="history of table 't'"):
            ask()
    state = journal.base_state(journal.latest_version)
    assert earliest <= state.version <= journal.latest_version


def test_checkpoints_are_made_of_the_journal_and_their_cost_is_bounded() -> None:
    bench = Bench(replace(SMALL, checkpoint_bytes_min=3_000, retain_bytes=None))
    made = set()
    for _ in range(150):
        bench.write()
        made |= {name for name in bench.storage.list("tables/t/checkpoints")}
    assert 2 <= len(made) <= 30
    assert len(bench.storage.list("tables/t/checkpoints")) == 1
    assert bench.journal.earliest_version == 0
    for snapshot in bench.history.snapshots[::17]:
        assert content(bench.journal.state_at(snapshot.version)) == snapshot.rows
    journal = bench.reopen(is_crash=True)
    assert content(journal.state_at(bench.history.step)) == bench.history.snapshots[-1].rows


def test_a_table_that_only_grows_needs_no_checkpoint() -> None:
    bench = Bench(replace(SMALL, checkpoint_bytes_min=1_000), kind="append-only")
    bench.write(50)
    assert bench.storage.list("tables/t/checkpoints") == []
    state = bench.journal.state_at(bench.history.step)
    assert state.row_ids.tolist() == list(range(len(state.keys))) == list(state.keys)


def test_memory_is_bounded_and_acknowledges_at_once() -> None:
    bench = Bench(replace(SMALL, memory_bytes=3_000), journal_class="memory")
    assert bench.append() == 0
    assert bench.journal.durable_version == bench.journal.latest_version == bench.history.step
    bench.write(80)
    assert bench.journal.earliest_version > 0
    assert bench.journal.byte_count < 6_000
    for snapshot in bench.history.snapshots:
        if snapshot.version >= bench.journal.earliest_version:
            assert content(bench.journal.state_at(snapshot.version)) == snapshot.rows
    assert not [path for path in bench.storage.files if path.startswith("tables/")]
    bench.store.close()


def test_versions_by_time_when_the_clock_steps_back() -> None:
    bench = Bench()
    versions = []
    for wall_ns in (100, 300, 200, 400):
        change, _ = bench.history.next_change()
        bench.journal.append(change, step=bench.history.step, wall_ns=2_000 * MS + wall_ns)
        versions.append(bench.history.step)
    at = bench.journal.version_at_time
    assert [at(2_000 * MS + wall) for wall in (100, 250, 300, 399, 400, 10**9)] == [
        versions[0],
        versions[0],
        versions[2],
        versions[2],
        versions[3],
        versions[3],
    ]
    assert at(1_500 * MS) == 0
    with pytest.raises(HistoryLostError, match="oldest version kept"):
        at(5)


def test_producers_that_moved_longest_ago_are_forgotten_first() -> None:
    bench = Bench(replace(SMALL, producers_max=2))
    for number, name in enumerate(["a", "b", "a", "c"]):
        change, _ = bench.history.next_change()
        bench.journal.append(change, step=bench.history.step, wall_ns=1, positions={name: number})
    bench.store.step_committed(bench.history.step)
    assert dict(bench.journal.positions) == {"a": 2, "c": 3}
    assert dict(bench.reopen().positions) == {"a": 2, "c": 3}


def test_rows_of_a_blink_table_leave_no_removals() -> None:
    bench = Bench(kind="blink")
    empty, nothing = RowSet.empty(), (pa.array([], pa.int64()), pa.array([], pa.string()))
    for step, (removed, added) in enumerate(
        [(empty, RowSet([0, 1])), (RowSet([0, 1]), RowSet([2]))], 1
    ):
        count = len(added)
        update = TableUpdate(
            first_step=step,
            last_step=step,
            removed_keys_pre=removed,
            shifts=RowSetShiftData.empty(),
            added_keys_post=added,
            modified_keys_post=(empty,) * 2,
        )
        cells = (pa.array([step] * count, pa.int64()), pa.array(["x"] * count))
        bench.journal.append(
            TableChange(
                update=update,
                removed=nothing,
                modified_keys_post=empty,
                before=nothing,
                after=nothing,
                added=cells,
            ),
            step=step,
            wall_ns=step,
        )
        bench.store.step_committed(step)
        bench.pump(20)
    journal = bench.reopen()
    assert [entry.ops.tolist() for entry in journal.entries(0, 2)] == [[0, 0], [0]]
    assert (journal.row_count, journal.next_offset) == (1, 3)
    assert content(journal.state_at(2)) == [(2, 2, (2, "x"))]
    assert journal.identity.schema == SCHEMA


def read_nothing(rows: np.ndarray) -> Any:
    raise AssertionError("a file was read")


@pytest.mark.parametrize("journal_class", ["durable", "memory"])
def test_a_tail_has_what_comes_after_it_however_soon_it_is_written(journal_class: str) -> None:
    bench = Bench(journal_class=journal_class)
    journal = bench.journal
    bench.write(2)
    bench.append()  # before the tail, and numbered after it was begun
    after = journal.latest_version
    tail = journal.tail(bytes_max=1 << 20)
    other = journal.tail(bytes_max=1 << 20)
    journal.drop_tail(other)
    assert journal.tail_entries(tail) == []
    bench.write(3)
    bench.append(2)
    kept = list(journal.entries(after, journal.latest_version))
    assert len(kept) == 5
    journal.history.read = read_nothing  # type: ignore[method-assign]
    found = journal.tail_entries(tail)
    assert [each.step for each in found] == [each.step for each in kept]
    assert [each.rows for each in found] == [each.rows for each in kept]
    assert not other.entries
    journal.drop_tail(tail)
    journal.drop_tail(tail)
    bench.write(1)
    assert len(tail.entries) == 5


@pytest.mark.parametrize("is_one_too_many", [False, True])
def test_a_tail_has_a_limit(is_one_too_many: bool) -> None:
    bench = Bench()
    whole = bench.journal.tail(bytes_max=1 << 20)
    bench.write(4)
    size = sum(entry.rows.nbytes for entry in bench.journal.tail_entries(whole))
    bench = Bench()  # with the same history
    journal = bench.journal
    tail = journal.tail(bytes_max=size - is_one_too_many)
    bench.write(4)
    if is_one_too_many:
        assert not tail.entries
        bench.write(1)
        with pytest.raises(HistoryLostError, match=f"more than {size - 1} bytes changed"):
            journal.tail_entries(tail)
        assert not tail.entries
    else:
        assert len(journal.tail_entries(tail)) == 4

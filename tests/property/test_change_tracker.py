"""Changes told of a remote table, through cuts and restarts, against the table itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.journal.records.row_matching import matching_rows
from barrage.journal.records.tracker import ChangeTracker
from barrage.model.update import FullUpdate, TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.strategies_rows import Rows, histories

if TYPE_CHECKING:
    from barrage.model.table_change import TableChange

EMPTY = RowSet.empty()
SCHEMA = pa.schema(
    [("k", pa.dictionary(pa.int32(), pa.string())), ("a", pa.float64()), ("b", pa.list_(pa.int8()))]
)
Cells = tuple[str, float | None, tuple[int, ...] | None]


@dataclass
class Remote:
    """The states of a table as rows of cells; ``groups``: rows of the same key come again."""

    states: list[Rows]
    updates: list[TableUpdate]
    groups: int

    def cells(self, at: int, key: int) -> Cells:
        identity, (a, b) = self.states[at].cells[key]
        first = None if a == -1 else float(a)
        return (f"k{identity % self.groups}", first, None if b == -1 else (b % 100, 1))

    def columns(self, at: int, keys: RowSet) -> list[pa.Array]:
        return columns_of([self.cells(at, key) for key in keys])

    def content(self, at: int) -> Counter[Cells]:
        return Counter(self.cells(at, key) for key in self.states[at].cells)

    def snapshots(self, at: int, parts: int) -> list[FullUpdate]:
        """The state, all at once or handed out bit by bit."""
        keys = self.states[at].keys
        updates = []
        for part in range(parts):
            start, stop = part * len(keys) // parts, (part + 1) * len(keys) // parts
            included = keys.slice(start, stop)
            is_last = part == parts - 1
            updates.append(
                message(
                    is_snapshot=True,
                    added=keys if part == 0 else EMPTY,
                    included=included,
                    window=None if is_last else RowSet.of_span(0, stop),
                    added_columns=self.columns(at, included),
                    table_size=len(keys),
                )
            )
        return updates

    def delta(self, at: int) -> FullUpdate:
        """The update that leads to state ``at``."""
        update = self.updates[at - 1]
        keys, values = update.modified_keys_post
        modified = (EMPTY, keys, values)
        return message(
            is_snapshot=False,
            removed=update.removed_keys_pre,
            shifts=update.shifts,
            added=update.added_keys_post,
            added_columns=self.columns(at, update.added_keys_post),
            modified=modified,
            modified_columns=[self.columns(at, k)[c] for c, k in enumerate(modified)],
            table_size=len(self.states[at].cells),
        )


def columns_of(cells: list[Cells]) -> list[pa.Array]:
    return [
        pa.array([row[index] for row in cells], field.type) for index, field in enumerate(SCHEMA)
    ]


def message(
    *,
    is_snapshot: bool,
    added: RowSet,
    added_columns: list[pa.Array],
    table_size: int,
    removed: RowSet = EMPTY,
    shifts: RowSetShiftData | None = None,
    included: RowSet | None = None,
    window: RowSet | None = None,
    modified: tuple[RowSet, ...] = (EMPTY,) * 3,
    modified_columns: list[pa.Array] | None = None,
) -> FullUpdate:
    return FullUpdate(
        first_step=0,
        last_step=0,
        is_snapshot=is_snapshot,
        effective_viewport=window,
        is_effective_reverse=False,
        effective_columns=None,
        table_size=table_size,
        added_columns=tuple(added_columns),
        modified_columns=tuple(modified_columns or columns_of([])),
        removed_keys_pre=removed,
        shifts=shifts or RowSetShiftData.empty(),
        added_keys_post=added,
        included_keys_post=included,
        modified_keys_post=modified,
    )


@st.composite
def remotes(draw: st.DrawFn) -> Remote:
    states, updates = draw(histories(steps_max=7))
    return Remote(states, updates, draw(st.sampled_from((1, 3, 10**9))))


@dataclass
class Consumer:
    """Applies changes to plain rows and believes nothing."""

    rows: dict[int, Cells] = field(default_factory=dict)

    def apply(self, change: TableChange, step: int) -> None:
        update = change.update
        assert (update.first_step, update.last_step) == (step, step)
        assert update.shifts.is_empty
        assert not update.is_empty
        for number, cells in zip(update.removed_keys_pre, self.listed(change.removed), strict=True):
            assert self.rows.pop(number) == cells
        for number, cells in zip(update.added_keys_post, self.listed(change.added), strict=True):
            assert number not in self.rows
            self.rows[number] = cells
        union = RowSet({number for keys in update.modified_keys_post for number in keys})
        assert change.modified_keys_post == union
        before, after = self.listed(change.before), self.listed(change.after)
        for number, old, new in zip(union, before, after, strict=True):
            assert self.rows[number] == old
            self.rows[number] = new
            for column, keys in enumerate(update.modified_keys_post):
                assert number in keys or old[column] == new[column]

    @staticmethod
    def listed(columns: tuple[Any, ...]) -> list[Cells]:
        assert [column.type for column in columns] == [pa.string(), pa.float64(), SCHEMA.types[2]]
        k, a, b = (column.to_pylist() for column in columns)
        return [(x, y, None if z is None else tuple(z)) for x, y, z in zip(k, a, b, strict=True)]


def check_state(tracker: ChangeTracker, consumer: Consumer) -> None:
    keys, rows = tracker.state()
    cells = Consumer.listed(tuple(rows.columns))
    assert dict(zip(keys, cells, strict=True)) == consumer.rows


@given(
    remote=remotes(),
    data=st.data(),
    key=st.sampled_from(((), ("k",), ("k", "a"))),
    parts=st.integers(1, 3),
)
def test_changes_lead_to_the_remote_state_through_cuts_and_restarts(
    remote: Remote, data: st.DataObject, key: tuple[str, ...], parts: int
) -> None:
    tracker, consumer = ChangeTracker(SCHEMA, key=key), Consumer()
    at, step = 0, 0
    while at < len(remote.states):
        old = dict(consumer.rows)
        for snapshot in remote.snapshots(at, parts):
            assert not tracker.is_following
            check_state(tracker, consumer)
            step += 1
            change = tracker.apply(snapshot, step=step)
            assert change is None or tracker.is_following
            if change is not None:
                consumer.apply(change, step)
        check_difference(old, change, consumer.rows, key)
        while True:
            assert Counter(consumer.rows.values()) == remote.content(at)
            check_state(tracker, consumer)
            at += 1
            if at == len(remote.states) or data.draw(st.booleans()):
                break
            check_followed(tracker, consumer, remote, at, step := step + 1)
        at += data.draw(st.integers(0, 2))
        if data.draw(st.booleans()):
            keys, rows = tracker.state()
            tracker = ChangeTracker(SCHEMA, key=key, keys=keys, rows=rows)
        else:
            tracker.restart()


def check_followed(
    tracker: ChangeTracker, consumer: Consumer, remote: Remote, at: int, step: int
) -> None:
    """One update while connected: exactly the rows it names change."""
    update = remote.updates[at - 1]
    change = tracker.apply(remote.delta(at), step=step)
    named = (update.removed_keys_pre, update.added_keys_post, *update.modified_keys_post)
    assert (change is None) == all(keys.is_empty for keys in named)
    if change is not None:
        assert len(change.update.removed_keys_pre) == len(update.removed_keys_pre)
        assert len(change.update.added_keys_post) == len(update.added_keys_post)
        told = change.update.modified_keys_post
        assert [len(keys) for keys in told] == [0, *map(len, update.modified_keys_post)]
        consumer.apply(change, step)


def check_difference(
    old: dict[int, Cells],
    change: TableChange | None,
    new: dict[int, Cells],
    key: tuple[str, ...],
) -> None:
    """As many rows as possible keep their number, and none that did not change is named."""
    if change is None:
        assert old == new
        return
    width = len(key) or 3
    old_groups = Counter(cells[:width] for cells in old.values())
    new_groups = Counter(cells[:width] for cells in new.values())
    assert len(change.update.removed_keys_pre) == (old_groups - new_groups).total()
    assert len(change.update.added_keys_post) == (new_groups - old_groups).total()
    changed = {number for number in old.keys() & new.keys() if old[number] != new[number]}
    assert change.modified_keys_post == RowSet(changed)


# -- cases with an answer one can write down -------------------------------------------------------

Row = tuple[str, float | None, tuple[int, ...] | None]


def snapshot(keys: list[int], *cells: Row) -> FullUpdate:
    return message(
        is_snapshot=True,
        added=RowSet(keys),
        added_columns=columns_of(list(cells)),
        table_size=len(keys),
    )


def told(change: TableChange | None) -> tuple[list[int], list[int], list[list[int]]]:
    assert change is not None
    update = change.update
    modified = [list(keys) for keys in update.modified_keys_post]
    return list(update.removed_keys_pre), list(update.added_keys_post), modified


def test_rows_keep_their_numbers_when_a_snapshot_brings_them_in_another_order() -> None:
    tracker = ChangeTracker(SCHEMA, key=("k",))
    tracker.apply(snapshot([0, 1, 2], ("x", 1, None), ("y", 2, None), ("z", 3, None)), step=1)
    tracker.restart()
    change = tracker.apply(
        snapshot([5, 6, 7], ("z", 3, None), ("new", 0, None), ("x", 9, None)), step=2
    )
    assert told(change) == ([1], [3], [[], [0], []])


def test_nothing_is_told_when_nothing_changed_meanwhile() -> None:
    rows: tuple[Row, ...] = (("x", float("nan"), (1,)), ("x", None, None), ("x", 0.0, None))
    for key in ((), ("k",), ("b",)):
        tracker = ChangeTracker(SCHEMA, key=key)
        assert tracker.apply(snapshot([0, 1, 2], *rows), step=1) is not None
        tracker.restart()
        assert tracker.apply(snapshot([9, 10, 11], *rows), step=2) is None
        assert tracker.is_following


def test_minus_zero_is_another_cell_than_zero() -> None:
    tracker = ChangeTracker(SCHEMA, key=("k",))
    tracker.apply(snapshot([0], ("x", 0.0, None)), step=1)
    tracker.restart()
    change = tracker.apply(snapshot([0], ("x", -0.0, None)), step=2)
    assert told(change) == ([], [], [[], [0], []])


def test_a_row_sent_again_is_modified_in_every_column() -> None:
    tracker = ChangeTracker(SCHEMA)
    tracker.apply(snapshot([0, 1], ("x", 1, None), ("y", 2, None)), step=1)
    again = message(
        is_snapshot=False,
        added=RowSet([1, 2]),
        added_columns=columns_of([("y", 7, None), ("z", 3, None)]),
        table_size=3,
    )
    assert told(tracker.apply(again, step=2)) == ([], [2], [[1], [1], [1]])


def test_a_key_used_again_is_another_row() -> None:
    tracker = ChangeTracker(SCHEMA)
    tracker.apply(snapshot([4], ("x", 1, None)), step=1)
    update = message(
        is_snapshot=False,
        removed=RowSet([4]),
        added=RowSet([4]),
        added_columns=columns_of([("x", 1, None)]),
        table_size=1,
    )
    assert told(tracker.apply(update, step=2)) == ([0], [1], [[], [], []])


def test_a_new_snapshot_within_a_subscription_is_compared() -> None:
    tracker = ChangeTracker(SCHEMA, key=("k",))
    tracker.apply(snapshot([0, 1], ("x", 1, None), ("y", 2, None)), step=1)
    change = tracker.apply(snapshot([0, 1], ("x", 1, None), ("y", 5, None)), step=2)
    assert told(change) == ([], [], [[], [1], []])


@pytest.mark.parametrize(
    ("removed", "modified", "message_part"),
    [(RowSet([3]), EMPTY, "does not fit"), (EMPTY, RowSet([3]), "never sent")],
)
def test_updates_of_rows_nobody_knows_are_refused(
    removed: RowSet, modified: RowSet, message_part: str
) -> None:
    tracker = ChangeTracker(SCHEMA)
    tracker.apply(snapshot([0], ("x", 1, None)), step=1)
    update = message(
        is_snapshot=False,
        added=EMPTY,
        added_columns=columns_of([]),
        removed=removed,
        modified=(EMPTY, modified, EMPTY),
        modified_columns=columns_of([("x", 1, None)] * len(modified)),
        table_size=1,
    )
    with pytest.raises(RemoteProtocolError, match=message_part):
        tracker.apply(update, step=2)


def test_a_state_of_another_table_is_refused() -> None:
    with pytest.raises(SchemaError, match="columns"):
        ChangeTracker(SCHEMA, keys=RowSet([0]), rows=pa.table({"k": ["x"]}))
    wrong = pa.table({"k": ["x"], "a": ["x"], "b": [None]})
    with pytest.raises(SchemaError, match="type"):
        ChangeTracker(SCHEMA, keys=RowSet([0]), rows=wrong)
    with pytest.raises(ValueError, match="2 keys for 0 rows"):
        ChangeTracker(SCHEMA, keys=RowSet([0, 1]))


def test_matching_without_columns_pairs_rows_in_order() -> None:
    old, new = matching_rows([], [], old_count=3, new_count=2)
    assert (old.tolist(), new.tolist()) == ([0, 1], [0, 1])


TYPED = [
    pa.array([True, None, False]),
    pa.array([1.5, float("nan"), None], pa.float32()),
    pa.array([b"x", b"", None], pa.large_binary()),
    pa.array([1, None, 3], pa.decimal128(20, 2)),
    pa.array([{"x": 1.0}, {"x": None}, None], pa.struct([("x", pa.float64())])),
    pa.array([[float("nan")], [], None], pa.list_(pa.float64())),
    pa.array(["a", "b", None]).dictionary_encode(),
    pa.array([1, 2, 3], pa.timestamp("ns", tz="UTC")),
    pa.array([7, 7, None], pa.int8()),
    pa.nulls(3),
]


@pytest.mark.parametrize("column", TYPED, ids=lambda column: str(column.type))
def test_cells_of_every_type_match_themselves_only(column: pa.Array) -> None:
    order = np.array([2, 0, 1])
    old, new = matching_rows(
        [column, pa.array([0, 1, 2])],
        [pa.chunked_array([column.take(pa.array(order))]), pa.array(order)],
        old_count=3,
        new_count=3,
    )
    assert (old.tolist(), new.tolist()) == ([2, 0, 1], [0, 1, 2])
    alone, _ = matching_rows([column], [column.slice(1, 1)], old_count=3, new_count=1)
    values = column.to_pylist()
    assert alone.tolist() == [next(i for i in range(3) if repr(values[i]) == repr(values[1]))]

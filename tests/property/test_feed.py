"""The change feed against naive replay: what a consumer that applies it must arrive at."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from barrage.journal.change_feed import feed_parts, feed_rows, snapshot_rows
from barrage.journal.change_feed.feed import (
    FeedOptions,
    change_batches,
    id_bounds,
    snapshot_batches,
)
from barrage.rowset import RowSet
from tests.helpers.feed_model import (
    FeedModel,
    State,
    applied,
    by_version,
    change,
    feed_models,
    model_of,
    wall_ns_of,
)
from tests.helpers.feed_model import feed_rows as rows_of
from tests.helpers.strategies_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.journal.records.record import Entry
    from barrage.journal.records.table_state import TableState
    from barrage.model.row_ids import RowIdMap

Predicate = "Callable[[pa.RecordBatch], Any] | None"

PREDICATES: dict[str, tuple[Any, Callable[[tuple[Any, str]], bool]]] = {
    "none": (None, lambda cells: True),
    "a": (
        lambda batch: pc.greater(batch.column("a"), 150),
        lambda cells: cells[0] is not None and cells[0] > 150,
    ),
    "b": (
        lambda batch: np.array([text == "b0" for text in batch.column("b").to_pylist()], bool),
        lambda cells: cells[1] == "b0",
    ),
}
predicates = st.sampled_from(sorted(PREDICATES))
batch_sizes = st.sampled_from((1, 2, 3, 5, 1 << 16))


def with_batches_of(rows: int) -> Any:
    """Small batches, so that entries are cut and joined."""
    return patch.multiple(feed_parts, BATCH_ROWS=rows), patch.multiple(feed_rows, BATCH_ROWS=rows)


def changes(
    entries: list[Entry], *, rows_per_batch: int = 1 << 16, **options: Any
) -> list[dict[str, Any]]:
    parts, rows = with_batches_of(rows_per_batch)
    with parts, rows:
        return rows_of(change_batches(iter(entries), FeedOptions(**options)))


def chosen(state: State, matches: Callable[[tuple[Any, str]], bool]) -> State:
    return {row: cells for row, cells in state.items() if matches(cells)}


@given(model=feed_models(), which=predicates, size=batch_sizes, preimage=st.booleans())
def test_replay_gives_the_table_at_every_version(
    model: FeedModel, which: str, size: int, preimage: bool
) -> None:
    predicate, matches = PREDICATES[which]
    rows = changes(model.entries, rows_per_batch=size, predicate=predicate, preimage=preimage)
    told = dict(by_version(rows))
    state: State = {}
    for version, truth in zip(model.versions, model.states, strict=True):
        state = applied(state, told.pop(version, ()))
        assert state == chosen(truth, matches)
    assert not told
    names = [(row["_row_id"], row["_commit_version"], row["_change_type"]) for row in rows]
    assert len(set(names)) == len(names)


@given(model=feed_models(), size=batch_sizes)
def test_batches_have_about_the_size_asked_for(model: FeedModel, size: int) -> None:
    parts, rows = with_batches_of(size)
    with parts, rows:
        batches = list(change_batches(iter(model.entries), FeedOptions(preimage=True)))
    # A cut waits for the second row of a pair.
    assert all(len(batch) <= max(size, 2) + 1 for batch in batches)
    for earlier, later in itertools.pairwise(batches):
        assert size < 8 or len(earlier) + len(later) > size // 2


@given(model=feed_models(), which=predicates, size=batch_sizes)
def test_a_preimage_is_directly_before_its_update(model: FeedModel, which: str, size: int) -> None:
    rows = changes(
        model.entries, rows_per_batch=size, preimage=True, predicate=PREDICATES[which][0]
    )
    for place, row in enumerate(rows):
        if row["_change_type"] == "update_preimage":
            after = rows[place + 1]
            assert after["_change_type"] == "update_postimage"
            assert after["_row_id"] == row["_row_id"]
            assert after["_commit_version"] == row["_commit_version"]
        if row["_change_type"] == "update_postimage":
            assert rows[place - 1]["_change_type"] == "update_preimage"
    without = changes(model.entries, predicate=PREDICATES[which][0])
    assert without == [row for row in rows if row["_change_type"] != "update_preimage"]


@given(
    model=feed_models(),
    count=st.integers(1, 5),
    which=predicates,
    net=st.booleans(),
    preimage=st.booleans(),
)
def test_stripes_are_a_partition_by_row(
    model: FeedModel, count: int, which: str, net: bool, preimage: bool
) -> None:
    options = {"predicate": PREDICATES[which][0], "net": net, "preimage": preimage}
    whole = changes(model.entries, **options)
    stripes = [changes(model.entries, stripe=(part, count), **options) for part in range(count)]
    for part, rows in enumerate(stripes):
        assert all(row["_row_id"] // 64 % count == part for row in rows)
        assert rows == [row for row in whole if row["_row_id"] // 64 % count == part]


@given(model=feed_models(), size=batch_sizes)
def test_system_columns_say_where_and_when(model: FeedModel, size: int) -> None:
    rows = changes(model.entries, rows_per_batch=size, row_key=True, preimage=True)
    for row in rows:
        index = model.versions.index(row["_commit_version"])
        place = index - 1 if row["_change_type"] == "delete" else index
        assert row["_row_key"] == model.keys[place][row["_row_id"]]
        micros = row["_commit_timestamp"].timestamp() * 1e6
        assert round(micros) == wall_ns_of(row["_commit_version"]) // 1000


@given(model=feed_models(), size=batch_sizes, which=predicates)
def test_modified_columns_are_those_of_the_update(model: FeedModel, size: int, which: str) -> None:
    rows = changes(
        model.entries,
        rows_per_batch=size,
        modified_columns=True,
        preimage=True,
        predicate=PREDICATES[which][0],
    )
    for row in rows:
        index = model.versions.index(row["_commit_version"])
        key = model.keys[index].get(row["_row_id"])
        modified = model.entries[index - 1].update.modified_keys_post
        names = [name for name, keys in zip("ab", modified, strict=True) if key in keys]
        is_update = row["_change_type"].startswith("update")
        assert row["_modified_columns"] == (names if is_update else None)


@given(model=feed_models(), data=st.data(), which=predicates, size=batch_sizes)
def test_net_changes_are_the_difference_of_two_states(
    model: FeedModel, data: st.DataObject, which: str, size: int
) -> None:
    start = data.draw(st.integers(0, len(model.entries) - 1))
    stop = data.draw(st.integers(start + 1, len(model.entries)))
    predicate, matches = PREDICATES[which]
    rows = changes(
        model.between(start, stop),
        rows_per_batch=size,
        net=True,
        predicate=predicate,
        row_key=True,
        modified_columns=True,
    )
    old, new = chosen(model.states[start], matches), chosen(model.states[stop], matches)
    assert applied(old, rows) == new
    assert len({row["_row_id"] for row in rows}) == len(rows), "each row once"
    for row in rows:
        identity = row["_row_id"]
        last = max(
            index
            for index in range(start, stop)
            if identity in model.entries[index].row_ids.tolist()
        )
        assert row["_commit_version"] == model.versions[last + 1]
        here = model.keys[last + 1].get(identity, model.keys[last].get(identity))
        assert row["_row_key"] == here
        is_update = row["_change_type"] == "update_postimage"
        assert is_update == (identity in old and identity in new)
        names = {
            name
            for index in range(start, stop)
            for name, keys in zip("ab", model.entries[index].update.modified_keys_post, strict=True)
            if model.keys[index + 1].get(identity) in keys
        }
        assert row["_modified_columns"] == (sorted(names) if is_update else None)


@given(model=feed_models(), data=st.data())
def test_net_preimages_are_the_rows_as_they_were(model: FeedModel, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(model.entries) - 1))
    rows = changes(model.between(start, len(model.entries)), net=True, preimage=True)
    updated = {row["_row_id"] for row in rows if row["_change_type"] == "update_postimage"}
    before = [row for row in rows if row["_change_type"] == "update_preimage"]
    assert {row["_row_id"] for row in before} == updated
    assert len(before) == len(updated)
    for row in before:
        assert model.states[start][row["_row_id"]] == (row["a"], row["b"])


@given(model=feed_models(steps_max=3), data=st.data(), net=st.booleans())
def test_columns_are_those_asked_for_in_that_order(
    model: FeedModel, data: st.DataObject, net: bool
) -> None:
    names = data.draw(st.lists(st.sampled_from("ab"), unique=True).map(tuple))
    whole = changes(model.entries, net=net)
    some = changes(model.entries, net=net, columns=names)
    dropped = {"a", "b"} - set(names)
    assert some == [{k: v for k, v in row.items() if k not in dropped} for row in whole]
    assert all(tuple(row)[4:] == names for row in some)


# -- snapshots ------------------------------------------------------------------------------------


class KeptJournal:
    """As much of a journal as snapshots ask for: a kept state and what happened since."""

    def __init__(self, model: FeedModel, base: int) -> None:
        self.model, self.base = model, base
        self.latest_version = model.versions[-1]
        self.identity = type("Identity", (), {"is_blink": False})

    def base_state(self, version: int) -> TableState:
        index = self.index_of(version)
        return self.model.table_state(min(self.base, index))

    def index_of(self, version: int) -> int:
        return max(i for i, each in enumerate(self.model.versions) if each <= version)

    def entries(self, after: int, upto: int) -> Iterator[Entry]:
        return (entry for entry in self.model.entries if after < entry.step <= upto)

    def row_ids_at(self, version: int) -> RowIdMap:
        return self.model.table_state(self.index_of(version)).ids


@given(model=feed_models(), data=st.data(), which=predicates, size=batch_sizes)
def test_snapshot_then_changes_give_the_table_at_every_version(
    model: FeedModel, data: st.DataObject, which: str, size: int
) -> None:
    predicate, matches = PREDICATES[which]
    at = data.draw(st.integers(0, len(model.entries)))
    journal: Any = KeptJournal(model, data.draw(st.integers(0, len(model.entries))))
    options = FeedOptions(predicate=predicate, row_key=True)
    with patch.object(snapshot_rows, "BATCH_ROWS", size):
        parts, rows = with_batches_of(size)
        with parts, rows:
            snapshot = rows_of(snapshot_batches(journal, model.versions[at], options))
    assert {row["_change_type"] for row in snapshot} <= {"insert"}
    assert {row["_commit_version"] for row in snapshot} <= {model.versions[at]}
    assert all(row["_row_key"] == model.keys[at][row["_row_id"]] for row in snapshot)
    state = applied({}, snapshot)
    assert state == chosen(model.states[at], matches)
    for index in range(at, len(model.entries)):
        state = applied(state, changes(model.between(index, index + 1), predicate=predicate))
        assert state == chosen(model.states[index + 1], matches)


def test_a_table_whose_rows_are_all_gone_has_no_keys_to_tell() -> None:
    full, gone = Rows({7: (0, (0, 0))}), change(removed=RowSet.of_span(7, 8))
    model = model_of([full, Rows({})], [gone], [1, 1], [0, 0])
    journal: Any = KeptJournal(model, 1)
    options = FeedOptions(row_key=True)
    [row] = rows_of(snapshot_batches(journal, model.versions[1], options))
    assert row["_row_key"] == 7
    assert rows_of(snapshot_batches(journal, model.versions[2], options)) == []


@given(model=feed_models(), data=st.data(), parts=st.integers(1, 4))
def test_ranges_of_ids_are_a_partition_of_a_snapshot(
    model: FeedModel, data: st.DataObject, parts: int
) -> None:
    at = data.draw(st.integers(0, len(model.entries)))
    journal: Any = KeptJournal(model, data.draw(st.integers(0, len(model.entries))))
    version = model.versions[at]
    bounds = id_bounds(journal.row_ids_at(version), parts)
    assert all(low[1] == high[0] for low, high in itertools.pairwise(bounds))
    pieces = [rows_of(snapshot_batches(journal, version, FeedOptions(), ids=ids)) for ids in bounds]
    assert applied({}, [row for piece in pieces for row in piece]) == model.states[at]
    sizes = Counter(map(len, pieces))
    assert max(sizes) - min(sizes) <= 1
    assert len(bounds) == max(1, min(parts, len(model.states[at])))

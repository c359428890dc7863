"""The feed: sizes of batches, what is copied, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import LimitExceededError
from barrage.journal.change_feed import net_changes
from barrage.journal.change_feed.feed import (
    FeedOptions,
    change_batches,
    feed_schema,
    options_schema,
)
from barrage.journal.change_feed.feed_schema import CHANGE_TYPE_TYPE
from barrage.journal.records.record import Entry, entry_schema
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
EMPTY = RowSet.empty()


def update(*, added: RowSet = EMPTY, modified: RowSet = EMPTY) -> TableUpdate:
    return TableUpdate(
        first_step=1,
        last_step=1,
        removed_keys_pre=EMPTY,
        shifts=RowSetShiftData.empty(),
        added_keys_post=added,
        modified_keys_post=(modified, EMPTY),
    )


def entry(step: int, change: TableUpdate, ops: list[int], ids: np.ndarray, text: str) -> Entry:
    columns = [
        pa.array(np.array(ops, dtype=np.int8)),
        pa.array(ids),
        pa.array(np.arange(len(ids))),
        pa.array([text] * len(ids), pa.string()),
    ]
    return Entry(
        step=step,
        wall_ns=step * 10**9 + 999,
        update=change,
        rows=pa.RecordBatch.from_arrays(columns, schema=entry_schema(SCHEMA)),
        first_offset=int(ids[0]) if len(ids) else 0,
        positions={},
    )


def added(step: int, first: int, count: int, text: str = "x") -> Entry:
    rows = RowSet.of_span(first, first + count)
    return entry(step, update(added=rows), [0] * count, np.arange(first, first + count), text)


def test_a_large_entry_is_cut_without_a_copy() -> None:
    recorded = added(1, 0, 150_000)
    batches = list(change_batches([recorded], FeedOptions()))
    assert [len(batch) for batch in batches] == [65_536, 65_536, 150_000 - 2 * 65_536]
    place = recorded.rows.column("n").buffers()[1].address
    for batch in batches:
        assert batch.column("n").buffers()[1].address == place
        assert batch.column("_row_id").buffers()[1].address == (
            recorded.rows.column("row_id").buffers()[1].address
        )


def test_small_entries_are_joined() -> None:
    batches = list(change_batches((added(i + 1, i, 1) for i in range(300)), FeedOptions()))
    assert [len(batch) for batch in batches] == [300]
    assert batches[0].column("_commit_version").to_pylist() == list(range(1, 301))


def test_wide_rows_make_short_batches() -> None:
    wide = added(1, 0, 64, text="x" * (1 << 17))
    # Sixteen texts would be 2 MiB, without anything beside them.
    assert [len(batch) for batch in change_batches([wide], FeedOptions())] == [15, 15, 15, 15, 4]
    one_each = list(change_batches([added(1, 0, 3, text="x" * (3 << 20))], FeedOptions()))
    assert sum(map(len, one_each)) == 3
    assert max(map(len, one_each)) == 2


def test_what_stripes_and_filters_leave_is_joined_again() -> None:
    entries = [added(i + 1, i * 20_000, 20_000) for i in range(10)]
    for options in (
        FeedOptions(stripe=(1, 50)),
        FeedOptions(predicate=lambda rows: rows.column("n").to_numpy() < 400),
    ):
        batches = list(change_batches(entries, options))
        assert sum(map(len, batches)) == 4_000 if options.predicate else 3_968
        assert len(batches) == 1


def test_long_stripes_of_rows_that_follow_on_are_not_copied() -> None:
    recorded = added(1, 0, 1 << 17)
    options = FeedOptions(stripe=(1, 2), stripe_ids=1 << 16)
    (batch,) = change_batches([recorded], options)
    assert batch.column("_row_id").to_pylist() == list(range(1 << 16, 1 << 17))
    buffers = [rows.column("n").buffers()[1].address for rows in (batch, recorded.rows)]
    assert buffers[0] == buffers[1]


def test_entries_without_rows_say_nothing() -> None:
    silent = entry(1, update(), [], np.arange(0), "x")
    assert list(change_batches([silent], FeedOptions())) == []
    assert list(change_batches([], FeedOptions(net=True))) == []


def test_updates_that_go_out_whole_are_not_copied() -> None:
    keys = RowSet.of_span(0, 1000)
    recorded = entry(2, update(modified=keys), [2, 3] * 1000, np.repeat(np.arange(1000), 2), "x")
    (batch,) = change_batches([recorded], FeedOptions(preimage=True))
    assert batch.column("n").equals(recorded.rows.column("n"))
    assert batch.column("n").buffers()[1].address == recorded.rows.column("n").buffers()[1].address


def test_schema_of_the_feed() -> None:
    schema = feed_schema(
        pa.schema([pa.field("d", pa.dictionary(pa.int32(), pa.string()), nullable=False)]),
        row_key=True,
        modified_columns=True,
    )
    assert schema.names == [
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_row_id",
        "_row_key",
        "_modified_columns",
        "d",
    ]
    assert schema.field("d").type == pa.string()
    assert all(field.nullable for field in schema)
    assert schema.field("_change_type").type == CHANGE_TYPE_TYPE
    options = FeedOptions(columns=("text",), preimage=True)
    (batch,) = change_batches([added(1, 0, 2)], options)
    assert batch.schema == options_schema(SCHEMA, options)
    assert batch.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1_000_000] * 2


def test_a_net_range_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_changes, "NET_ROWS_MAX", 10)
    assert len(list(change_batches([added(1, 0, 10)], FeedOptions(net=True)))) == 1
    with pytest.raises(LimitExceededError, match="11 history rows, the limit is 10"):
        list(change_batches([added(1, 0, 10), added(2, 10, 1)], FeedOptions(net=True)))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="part 2 of 2"):
        FeedOptions(stripe=(2, 2))
    for ids in (0, 32, 96, 1 << 17):
        with pytest.raises(ValueError, match=f"no {ids} row ids"):
            FeedOptions(stripe_ids=ids)
    with pytest.raises(KeyError, match="nothing"):
        options_schema(SCHEMA, FeedOptions(columns=("nothing",)))
    wrong = FeedOptions(predicate=lambda rows: np.ones(1, bool))
    with pytest.raises(ValueError, match="a filter answered"):
        list(change_batches([added(1, 0, 2)], wrong))


def test_masks_may_be_chunked_and_have_nulls() -> None:
    mask = pa.chunked_array([[True, None], [False]])
    (batch,) = change_batches([added(1, 0, 3)], FeedOptions(predicate=lambda rows: mask))
    assert batch.column("_row_id").to_pylist() == [0]

"""The replica: updates in row keys and in view positions become columns."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.snapshot_parts import SnapshotParts
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData, Shift

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
EMPTY = RowSet.empty()


def rows(numbers):
    numbers = list(numbers)
    return (pa.array(numbers, pa.int64()), pa.array([f"s{n}" for n in numbers], pa.string()))


def full(
    added="",
    values=(),
    *,
    removed="",
    shifts=(),
    modified=None,
    modified_values=None,
    included=None,
    is_snapshot=False,
    viewport=None,
    is_reverse=False,
    columns=(0, 1),
):
    return FullUpdate(
        first_step=1,
        last_step=1,
        is_snapshot=is_snapshot,
        effective_viewport=None if viewport is None else RowSet.parse(viewport),
        is_effective_reverse=is_reverse,
        effective_columns=columns if is_snapshot else None,
        table_size=0,
        added_columns=rows(values) if not isinstance(values, tuple) or not values else values,
        modified_columns=modified_values or (rows([])),
        removed_keys_pre=RowSet.parse(removed),
        shifts=RowSetShiftData.from_shifts(shifts),
        added_keys_post=RowSet.parse(added),
        included_keys_post=None if included is None else RowSet.parse(included),
        modified_keys_post=modified or (EMPTY, EMPTY),
    )


def view(
    added="",
    values=(),
    *,
    removed="",
    modified=None,
    modified_values=None,
    is_snapshot=False,
    columns=(0, 1),
    table_size=100,
):
    return ViewUpdate(
        first_step=1,
        last_step=1,
        is_snapshot=is_snapshot,
        effective_viewport=RowSet.of_span(0, 10) if is_snapshot else None,
        is_effective_reverse=False,
        effective_columns=columns if is_snapshot else None,
        table_size=table_size,
        added_columns=values if isinstance(values, tuple) and values else rows(values),
        modified_columns=modified_values or rows([]),
        removed_positions=RowSet.parse(removed),
        added_positions=RowSet.parse(added),
        modified_positions=modified or (EMPTY, EMPTY),
    )


def xs(replica):
    return replica.to_arrow()["x"].to_pylist()


def filled(keys, values):
    replica = FullReplica(SCHEMA)
    replica.apply(full(keys, list(values), is_snapshot=True))
    return replica


def test_appends_stay_slices_of_what_arrived():
    replica = filled("0-2", [0, 1, 2])
    before = replica.to_arrow()
    replica.apply(full("3-4", [3, 4]))
    assert xs(replica) == [0, 1, 2, 3, 4]
    assert before["x"].to_pylist() == [0, 1, 2]
    replica.validate()


def test_remove_shift_add_modify_in_that_order():
    replica = filled("0-9", range(10))
    replica.apply(
        full(
            "3,20",
            [103, 120],
            removed="3-4",
            shifts=[Shift(5, 9, 2)],
            modified=(RowSet.parse("7,11"), RowSet.parse("0")),
            modified_values=(pa.array([55, 99], pa.int64()), pa.array(["zero"])),
        )
    )
    assert replica.row_keys == RowSet.parse("0-3,7-11,20")
    assert xs(replica) == [0, 1, 2, 103, 55, 6, 7, 8, 99, 120]
    assert replica.to_arrow()["s"].to_pylist()[0] == "zero"
    replica.validate()


def test_a_key_may_be_removed_and_added_in_one_update():
    replica = filled("0-3", range(4))
    replica.apply(full("2", [22], removed="2"))
    assert xs(replica) == [0, 1, 22, 3]


def test_rows_leave_at_the_front_without_a_slot_array():
    replica = filled("0-99", range(100))
    for start in range(100, 200, 10):
        replica.apply(
            full(
                f"{start}-{start + 9}",
                range(start, start + 10),
                removed=f"{start - 100}-{start - 91}",
            )
        )
    assert xs(replica) == list(range(100, 200))
    assert replica._rows._slots.nbytes == 0


def test_removed_rows_are_compacted_away():
    count = 20_000
    replica = filled(f"0-{count - 1}", range(count))
    for last in range(count - 1, count - 18_000, -2_000):
        replica.apply(full(removed=f"{last - 1_998}-{last}"))
    assert xs(replica) == [x for x in range(count) if x < 2_000 or x % 2_000 == 0]
    assert replica._rows._slots.stop < 8_000
    replica.validate()


def test_cells_can_be_overwritten_after_rows_left_at_the_front():
    replica = filled("0-19999", range(20_000))
    replica.apply(full("20000", [20_000], removed="0-19989"))
    replica.apply(
        full(
            modified=(RowSet.parse("19990"), EMPTY),
            modified_values=(pa.array([-1], pa.int64()), pa.array([], pa.string())),
        )
    )
    assert xs(replica) == [-1, *range(19_991, 20_001)]
    replica.validate()


def test_growing_keeps_only_the_part_handed_out():
    replica = FullReplica(SCHEMA)
    replica.apply(full("0-9", [0, 1, 2], included="0-2", is_snapshot=True, viewport="0-2"))
    assert len(replica) == 3
    assert replica.table_size == 10
    # A row enters in front: the last row of the part slides out of it.
    replica.apply(full("0", [100], shifts=[Shift(0, 9, 1)]))
    assert xs(replica) == [100, 0, 1]
    # A row leaves: one that was outside slides in, and comes as an included row that was not added.
    replica.apply(full("", [2], removed="0", included="3"))
    assert xs(replica) == [0, 1, 2]
    replica.apply(full("1-10", range(3, 10), included="4-10", is_snapshot=True))
    assert xs(replica) == list(range(10))
    assert replica.present_keys == replica.row_keys
    replica.validate()


def test_removed_keys_may_name_rows_never_received():
    replica = FullReplica(SCHEMA)
    replica.apply(full("0-9", [0, 1], included="0-1", is_snapshot=True, viewport="0-1"))
    replica.apply(full(removed="5-7"))
    assert replica.row_keys == RowSet.parse("0-4,8-9")
    assert xs(replica) == [0, 1]


def test_columns_that_are_not_subscribed_are_not_held():
    replica = FullReplica(SCHEMA)
    values = (pa.array([], pa.int64()), pa.array(["a", "b"]))
    replica.apply(full("0-1", values, is_snapshot=True, columns=(1,)))
    assert replica.to_arrow().column_names == ["s"]
    assert replica.to_arrow()["s"].to_pylist() == ["a", "b"]


def test_rows_by_key():
    replica = filled("10-19", range(10))
    assert replica.rows(RowSet.parse("5,12,15-16,99"))["x"].to_pylist() == [2, 5, 6]


def test_a_blink_table_replaces_its_rows():
    replica = FullReplica(SCHEMA)
    replica.apply(full(is_snapshot=True))
    replica.apply(full("0-2", [1, 2, 3]))
    replica.apply(full("0-1", [4, 5], removed="0-2"))
    assert xs(replica) == [4, 5]
    replica.apply(full(removed="0-1"))
    assert xs(replica) == []
    replica.validate()


@pytest.mark.parametrize(
    "update",
    [
        full("0-2", [1, 2]),
        full(
            modified=(RowSet.parse("77"), EMPTY),
            modified_values=(pa.array([1], pa.int64()), pa.array([], pa.string())),
        ),
        full(modified=(RowSet.parse("1"), EMPTY)),
        full(shifts=[Shift(0, 1, 2)]),
    ],
    ids=[
        "too few added values",
        "row never sent",
        "too few modified values",
        "shift onto kept rows",
    ],
)
def test_updates_that_do_not_fit_are_refused(update):
    replica = filled("0-3", range(4))
    with pytest.raises(RemoteProtocolError):
        replica.apply(update)


@pytest.mark.parametrize(("replica", "update"), [(FullReplica, full), (ViewReplica, view)])
def test_a_delta_before_the_first_snapshot_is_refused(replica, update):
    with pytest.raises(RemoteProtocolError, match="begin with a snapshot"):
        replica(SCHEMA).apply(update("0", [1]))


def viewed(values):
    replica = ViewReplica(SCHEMA)
    replica.apply(view(f"0-{len(values) - 1}", values, is_snapshot=True))
    return replica


def test_view_rows_fill_the_places_between_added_ones():
    replica = viewed([0, 1, 2, 3, 4, 5])
    replica.apply(view("5", [6], removed="0", table_size=99))
    assert xs(replica) == [1, 2, 3, 4, 5, 6]
    replica.apply(
        view(
            "0,3",
            [10, 13],
            removed="1,2,5",
            modified=(RowSet.parse("1"), EMPTY),
            modified_values=(pa.array([-1], pa.int64()), pa.array([], pa.string())),
        )
    )
    assert xs(replica) == [10, -1, 4, 13, 5]
    assert replica.table_size == 100
    assert replica.rows(RowSet.parse("1-2,9"))["x"].to_pylist() == [-1, 4]
    replica.validate()


def test_dropped_columns_disappear_and_rows_stay():
    replica = viewed([1, 2])
    replica.apply(view(is_snapshot=True, columns=(1,)))
    assert replica.to_arrow().column_names == ["s"]
    assert replica.to_arrow()["s"].to_pylist() == ["s1", "s2"]


def test_a_new_column_needs_all_rows():
    replica = ViewReplica(SCHEMA)
    values = (pa.array([1, 2], pa.int64()), pa.array([], pa.string()))
    replica.apply(view("0-1", values, is_snapshot=True, columns=(0,)))
    with pytest.raises(RemoteProtocolError, match="column 1 enters"):
        replica.apply(view(is_snapshot=True))
    replica.apply(view("0-1", [3, 4], removed="0-1", is_snapshot=True))
    assert replica.to_arrow()["s"].to_pylist() == ["s3", "s4"]


def test_a_new_column_in_row_keys_comes_with_the_rows_of_the_new_view():
    """A draft viewport: the snapshot removes nothing, its rows replace those held."""
    replica = FullReplica(SCHEMA)
    numbers = (pa.array([0, 1, 2], pa.int64()), pa.array([], pa.string()))
    first = full("0-9", numbers, included="0-2", is_snapshot=True, viewport="0-2", columns=(0,))
    replica.apply(first)
    replica.apply(full("0-9", [2, 3], included="2-3", is_snapshot=True, viewport="2-3"))
    assert replica.to_arrow()["s"].to_pylist() == ["s2", "s3"]
    replica.validate()
    replica = FullReplica(SCHEMA)
    replica.apply(first)
    with pytest.raises(RemoteProtocolError, match="column 1 enters"):
        replica.apply(full("0-9", [3], included="3", is_snapshot=True, viewport="2-3"))


@pytest.mark.parametrize(
    "update",
    [
        view(removed="6"),
        view("7", [1]),
        view("0", [1, 2]),
        view(
            modified=(RowSet.parse("6"), EMPTY),
            modified_values=(pa.array([1], pa.int64()), pa.array([], pa.string())),
        ),
        view(modified=(RowSet.parse("0"), EMPTY)),
    ],
)
def test_view_updates_that_do_not_fit_are_refused(update):
    replica = viewed([0, 1, 2, 3, 4, 5])
    with pytest.raises(RemoteProtocolError):
        replica.apply(update)
    assert xs(replica) == [0, 1, 2, 3, 4, 5]


def test_a_subscription_to_no_columns_has_no_cells():
    replica = ViewReplica(SCHEMA)
    nothing = (pa.array([], pa.int64()), pa.array([], pa.string()))
    replica.apply(view("0-1", nothing, is_snapshot=True, columns=()))
    assert replica.to_arrow().num_columns == 0
    assert len(replica) == 2


def test_many_scattered_rows_go_through_a_mask():
    count = 4_000
    replica = filled(f"0-{count - 1}", range(count))
    odd = RowSet.from_keys([k for k in range(count) if k % 2])
    replica.apply(full(removed=odd.to_text()))
    assert xs(replica) == list(range(0, count, 2))
    replica.apply(full(odd.to_text(), [-k for k in odd]))
    assert xs(replica) == [-k if k % 2 else k for k in range(count)]
    assert replica.rows(RowSet.parse("3-5"))["x"].to_pylist() == [-3, 4, -5]
    assert replica.rows(EMPTY).num_rows == 0
    assert replica.nbytes > 0
    replica.validate()


def test_rows_enter_in_the_middle_and_the_front():
    replica = filled("10-12", [10, 11, 12])
    replica.apply(full("0,5,20", [0, 5, 20]))
    assert xs(replica) == [0, 5, 10, 11, 12, 20]
    replica.apply(full(removed="5,10-11"))
    assert xs(replica) == [0, 12, 20]
    assert replica.schema == SCHEMA


def test_rows_sent_again_replace_the_old_ones():
    replica = filled("0-3", range(4))
    replica.apply(full("0-3", [11, 12], included="1-2", is_snapshot=True))
    assert xs(replica) == [0, 11, 12, 3]
    assert replica.present_keys == replica.row_keys


def test_answers_without_row_sets_of_a_subscription_apply():
    """Answers to snapshot requests name neither removed nor modified rows."""
    replica = FullReplica(SCHEMA)
    update = dataclasses.replace(
        full("0-1", [1, 2], is_snapshot=True), removed_keys_pre=None, modified_keys_post=None
    )
    replica.apply(update)
    assert xs(replica) == [1, 2]


def test_a_table_is_built_once_while_somebody_holds_it():
    for replica in (filled("0-3", range(4)), viewed([1, 2])):
        table = replica.to_arrow()
        assert replica.to_arrow() is table


def test_a_view_has_no_keys():
    replica = viewed([1])
    assert replica.row_keys is None
    assert replica.nbytes > 0
    replica.apply(view(removed="0"))
    assert replica.rows(RowSet.parse("0-5")).num_rows == 0


def test_modifications_of_columns_not_held_are_ignored():
    replica = FullReplica(SCHEMA)
    values = (pa.array([], pa.int64()), pa.array(["a"]))
    replica.apply(full("0", values, is_snapshot=True, columns=(1,)))
    replica.apply(
        full(
            modified=(RowSet.parse("0"), EMPTY),
            modified_values=(pa.array([5], pa.int64()), pa.array([], pa.string())),
        )
    )
    assert replica.to_arrow().to_pylist() == [{"s": "a"}]
    view_replica = ViewReplica(SCHEMA)
    view_replica.apply(view("0", values, is_snapshot=True, columns=(1,)))
    view_replica.apply(
        view(
            modified=(RowSet.parse("0"), EMPTY),
            modified_values=(pa.array([5], pa.int64()), pa.array([], pa.string())),
        )
    )
    assert view_replica.to_arrow().to_pylist() == [{"s": "a"}]


def test_parts_of_a_snapshot_must_have_whole_columns():
    parts = SnapshotParts(SCHEMA, (0,))
    with pytest.raises(RemoteProtocolError, match="1 values for 2 rows"):
        parts.add(full("0-1", [1], is_snapshot=True))
    parts.add(full("", [], is_snapshot=True))
    assert parts.to_arrow().num_rows == 0


def test_a_large_snapshot_is_kept_as_it_arrived():
    """Merging its pieces would hold it in memory twice."""
    pieces = [rows(range(start, start + 10_000)) for start in range(0, 100_000, 10_000)]
    columns = tuple(pa.chunked_array([piece[i] for piece in pieces]) for i in (0, 1))
    replica = FullReplica(SCHEMA)
    replica.apply(full("0-99999", columns, is_snapshot=True))
    shown = replica.to_arrow()["x"]
    assert shown.num_chunks == 10
    addresses = [piece[0].buffers()[1].address for piece in pieces]
    assert [chunk.buffers()[1].address for chunk in shown.chunks] == addresses
    for number in range(100_000, 100_020):
        replica.apply(full(f"{number}", [number], removed=f"{number - 100_000}"))
    assert xs(replica) == list(range(20, 100_020))
    replica.validate()

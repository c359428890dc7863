"""Coalescing: one example per rule of barrage-wire.md section 11.1."""

from __future__ import annotations

import pytest

from barrage.model.coalesce import UpdateCoalescer, coalesce
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData


def update(
    step: int,
    *,
    removed: str = "",
    shifts: tuple[tuple[int, int, int], ...] = (),
    added: str = "",
    modified: tuple[str, ...] = ("", ""),
) -> TableUpdate:
    return TableUpdate(
        first_step=step,
        last_step=step,
        removed_keys_pre=RowSet.parse(removed),
        shifts=RowSetShiftData.from_shifts(shifts),
        added_keys_post=RowSet.parse(added),
        modified_keys_post=tuple(RowSet.parse(keys) for keys in modified),
    )


def merged(*updates: TableUpdate) -> TableUpdate:
    coalescer = UpdateCoalescer()
    for each in updates:
        coalescer.add(each)
    return coalescer.result()


def test_a_row_added_and_removed_vanishes() -> None:
    assert merged(update(1, added="5"), update(2, removed="5")).is_empty


def test_a_row_removed_and_another_added_under_its_key_is_in_both_sets() -> None:
    both = merged(update(1, removed="5"), update(2, added="5"))
    assert (both.removed_keys_pre.to_text(), both.added_keys_post.to_text()) == ("5", "5")


def test_a_replaced_row_that_is_removed_again_is_only_removed() -> None:
    gone = merged(update(1, removed="5", added="5"), update(2, removed="5"))
    assert (gone.removed_keys_pre.to_text(), gone.added_keys_post.to_text()) == ("5", "")


def test_modifications_of_added_rows_are_part_of_the_add() -> None:
    both = merged(update(1, added="5"), update(2, modified=("4-6", "5")))
    assert both.added_keys_post.to_text() == "5"
    assert [keys.to_text() for keys in both.modified_keys_post] == ["4,6", ""]


def test_modifications_are_kept_per_column_and_dropped_with_their_row() -> None:
    both = merged(update(1, modified=("1-3", "3")), update(2, removed="2", modified=("", "9")))
    assert [keys.to_text() for keys in both.modified_keys_post] == ["1,3", "3,9"]


def test_modification_of_a_row_whose_key_is_reused_is_dropped() -> None:
    both = merged(update(1, modified=("5", "")), update(2, removed="5", added="5"))
    assert both.removed_keys_pre.to_text() == both.added_keys_post.to_text() == "5"
    assert both.modified_keys_post[0].is_empty


def test_removed_is_in_keys_before_the_first_and_the_rest_in_keys_after_the_last() -> None:
    both = merged(
        update(1, shifts=((10, 20, 100),), added="5", modified=("115", "")),
        update(2, removed="110", shifts=((0, 9, 50), (115, 120, 5)), modified=("", "121")),
    )
    assert both.removed_keys_pre.to_text() == "10"
    assert both.added_keys_post.to_text() == "55"
    assert [keys.to_text() for keys in both.modified_keys_post] == ["120", "121"]
    assert both.shifts.apply_keys([15, 16, 20]).tolist() == [120, 121, 125]


def test_steps_span_all_updates() -> None:
    both = merged(update(3), update(4), update(9))
    assert (both.first_step, both.last_step) == (3, 9)
    assert both.is_empty


def test_different_numbers_of_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        coalesce(update(1, modified=("", "", "")), update(2))


def test_a_coalescer_without_updates_has_no_result() -> None:
    coalescer = UpdateCoalescer()
    assert coalescer.is_empty
    with pytest.raises(ValueError, match="no update"):
        coalescer.result()
    only = update(1, added="3")
    coalescer.add(only)
    assert coalescer.result() is only
    assert (coalescer.count, coalescer.is_empty) == (1, False)

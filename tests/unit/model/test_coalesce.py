"""Coalescing: one example per rule of barrage-wire.md section 11.1."""

from __future__ import annotations

from functools import reduce

import pytest

from barrage.model.coalesce import coalesce
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
    return reduce(coalesce, updates)


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


def wide(step: int, sets: list[RowSet]) -> TableUpdate:
    """An update of as many columns as there are sets."""
    return TableUpdate(
        first_step=step,
        last_step=step,
        removed_keys_pre=RowSet.parse("3,9"),
        shifts=RowSetShiftData.from_shifts(((1000, 2000, 5),)),
        added_keys_post=RowSet.parse("4,8"),
        modified_keys_post=tuple(sets),
    )


class Operations:
    """Counts set operations of two sets that both have members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("__or__", "__sub__", "__and__"):
            monkeypatch.setattr(RowSet, name, self._counted(getattr(RowSet, name)))

    def _counted(self, honest):
        def counted(left: RowSet, right: RowSet) -> RowSet:
            self.count += 1
            return honest(left, right)

        return counted


@pytest.mark.parametrize("is_one_object", [True, False])
def test_columns_that_share_a_set_are_merged_once(monkeypatch, is_one_object: bool) -> None:
    """A hundred columns cost the operations and leave the sets of one."""

    def sets(text: str, count: int) -> list[RowSet]:
        one = RowSet.parse(text)
        return [one if is_one_object else RowSet.parse(text) for _ in range(count)]

    operations = Operations(monkeypatch)
    counts, results = [], []
    for columns in (1, 100):
        early = wide(1, sets("1-2,50,1500", columns))
        late = wide(2, sets("60,1700", columns))
        operations.count = 0
        results.append(merged(early, late))
        counts.append(operations.count)
    assert counts[0] == counts[1]
    assert {keys.to_text() for keys in results[1].modified_keys_post} == {
        keys.to_text() for keys in results[0].modified_keys_post
    }
    assert len({id(keys) for keys in results[1].modified_keys_post}) == 1


def test_columns_that_become_equal_share_a_set_from_then_on() -> None:
    """One cycle wrote half the columns, the next the other half: afterwards all were written."""
    a, b, none = RowSet.parse("1,5"), RowSet.parse("7"), RowSet.empty()
    both = merged(wide(1, [a, b, none]), wide(2, [b, a, a | b]))
    assert len({id(keys) for keys in both.modified_keys_post}) == 1
    assert both.modified_keys_post[0].to_text() == "1,5,7"


def test_columns_that_differ_stay_apart() -> None:
    a, b = RowSet.parse("1,5"), RowSet.parse("7")
    both = merged(wide(1, [a, b, a, b]), wide(2, [b, b, a, b]))
    assert [keys.to_text() for keys in both.modified_keys_post] == ["1,5,7", "7", "1,5", "7"]

"""Coalescing against a naive table: a merged update has the effect of its parts."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from barrage.model.coalesce import coalesce
from barrage.model.update import TableUpdate
from tests.helpers.strategies_rows import COLUMNS, Rows, histories

History = tuple[list[Rows], list[TableUpdate]]


@given(history=histories(steps_max=1))
def test_the_histories_themselves_are_consistent(history: History) -> None:
    states, updates = history
    assert states[0].applied(updates[0], states[1]) == states[1]


@given(history=histories())
def test_merged_update_has_the_effect_of_all_in_turn(history: History) -> None:
    states, updates = history
    merged = reduce(coalesce, updates)
    assert states[0].applied(merged, states[-1]) == states[-1]
    assert (merged.first_step, merged.last_step) == (0, len(updates) - 1)


@given(history=histories(), data=st.data())
def test_coalescing_is_associative(history: History, data: st.DataObject) -> None:
    states, updates = history
    left = reduce(coalesce, updates)
    rest = list(updates)
    while len(rest) > 1:
        at = data.draw(st.integers(0, len(rest) - 2))
        rest[at : at + 2] = [coalesce(rest[at], rest[at + 1])]
    other = rest[0]
    assert other.removed_keys_pre == left.removed_keys_pre
    assert other.added_keys_post == left.added_keys_post
    assert other.modified_keys_post == left.modified_keys_post
    survivors = states[0].keys - left.removed_keys_pre
    assert other.shifts.apply(survivors) == left.shifts.apply(survivors)
    assert other.shifts.restrict(survivors).apply(survivors) == left.shifts.apply(survivors)


@given(history=histories())
def test_doing_nothing_before_or_after_changes_nothing(history: History) -> None:
    _, updates = history
    merged = reduce(coalesce, updates)
    idle = TableUpdate.nothing(step=0, column_count=COLUMNS)
    for same in (coalesce(merged, idle), coalesce(idle, merged)):
        assert same.removed_keys_pre == merged.removed_keys_pre
        assert same.added_keys_post == merged.added_keys_post
        assert same.modified_keys_post == merged.modified_keys_post
        assert same.shifts == merged.shifts


@given(history=histories())
def test_an_update_leads_from_its_keys_to_its_keys_and_back(history: History) -> None:
    states, updates = history
    for update, before, after in [
        *zip(updates, states[:-1], states[1:], strict=True),
        (reduce(coalesce, updates), states[0], states[-1]),
    ]:
        assert update.keys_after(before.keys) == after.keys
        assert update.keys_before(after.keys) == before.keys

"""Shifts against row-by-row moves, in the order in which in-place appliers must take them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire import decode_shifts, encode_shifts
from tests.helpers.strategies_rows import KEY_STOP, any_keys, shifted_keys


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int], RowSetShiftData]:
    """Old keys, new keys, and the shifts between them."""
    key_stop = draw(st.sampled_from((40, KEY_STOP)))
    keys = st.integers(0, key_stop - 1) if key_stop < KEY_STOP else any_keys
    kept = sorted(draw(st.sets(keys, max_size=15)))
    new, shifts = draw(shifted_keys(kept, key_stop=key_stop))
    return kept, new, shifts


def applied_in_place(keys: list[int], shifts: RowSetShiftData) -> list[int]:
    """All negative deltas from low to high, then all positive ones from high to low (section 5)."""
    rows = {key: number for number, key in enumerate(keys)}
    falling = [shift for shift in shifts if shift.delta < 0]
    rising = [shift for shift in shifts if shift.delta > 0]
    for first, last, delta in [*falling, *reversed(rising)]:
        moving = {key: rows.pop(key) for key in list(rows) if first <= key <= last}
        for key, number in moving.items():
            assert key + delta not in rows, "a row would be lost"
            rows[key + delta] = number
    return [key for key, _ in sorted(rows.items(), key=lambda item: item[1])]


@given(move=moves())
def test_apply_moves_every_row_as_in_place_application_does(move) -> None:
    old, new, shifts = move
    assert applied_in_place(old, shifts) == new
    assert list(shifts.apply(RowSet(old))) == new
    assert shifts.apply_keys(old).tolist() == new


@given(move=moves())
def test_unapply_undoes_apply(move) -> None:
    old, new, shifts = move
    assert list(shifts.unapply(RowSet(new))) == old
    assert shifts.unapply_keys(new).tolist() == old
    assert shifts.inverse().inverse() == shifts


@given(move=moves(), data=st.data())
def test_restricting_to_rows_moves_these_rows_alike(move, data: st.DataObject) -> None:
    old, new, shifts = move
    chosen = data.draw(st.sets(st.sampled_from(old))) if old else set()
    few = shifts.restrict(RowSet(chosen))
    expected = [n for o, n in zip(old, new, strict=True) if o in chosen]
    assert few.apply_keys(sorted(chosen)).tolist() == expected
    assert len(few) <= len(shifts)
    for shift in few:
        assert shift.first in chosen
        assert shift.last in chosen


@given(move=moves())
def test_shift_data_round_trips(move) -> None:
    _, _, shifts = move
    assert decode_shifts(encode_shifts(shifts)) == shifts


@given(move=moves())
def test_no_prefix_is_shift_data(move) -> None:
    encoded = encode_shifts(move[2])
    for length in range(len(encoded)):
        with pytest.raises(RemoteProtocolError):
            decode_shifts(encoded[:length])


@given(move=moves(), data=st.data())
def test_composition_moves_rows_as_one_after_the_other(move, data: st.DataObject) -> None:
    _, middle, earlier = move
    new, later = data.draw(shifted_keys(middle, key_stop=KEY_STOP))
    both = earlier.then(later)
    assert both.apply_keys(move[0]).tolist() == new
    # What composition builds without checks satisfies them.
    assert RowSetShiftData.from_arrays(both.firsts, both.lasts, both.deltas) == both

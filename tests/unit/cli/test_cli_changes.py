"""Which cells flash, how, and for how long."""

from __future__ import annotations

import pyarrow as pa

from barrage.cli.watch.changes import Flash, FlashTracker, ScreenRow, screen_rows


def rows_of(pids: list[int], cpu: list[float | None], *, key: bool = True) -> list[ScreenRow]:
    table = pa.table({"pid": pids, "cpu": pa.array(cpu, pa.float64())})
    return screen_rows(table, first_row=0, key_columns=("pid",) if key else ())


def test_only_changed_cells_flash_and_say_the_direction() -> None:
    tracker = FlashTracker(flash_ns=100)
    tracker.show(rows_of([1, 2, 3], [1.0, 2.0, 3.0]), 0)
    after = rows_of([1, 2, 3], [1.5, 2.0, 2.5])
    tracker.show(after, 10)
    seen = [[tracker.flash(row, column, 20) for column in (0, 1)] for row in after]
    assert seen == [[None, Flash.UP], [None, None], [None, Flash.DOWN]]


def test_a_row_that_moves_is_the_same_row_when_it_has_a_key() -> None:
    tracker = FlashTracker()
    tracker.show(rows_of([1, 2], [1.0, 2.0]), 0)
    after = rows_of([2, 1], [2.0, 1.0])
    tracker.show(after, 1)
    assert [tracker.flash(row, 1, 2) for row in after] == [None, None]


def test_without_a_key_the_position_is_compared() -> None:
    tracker = FlashTracker()
    tracker.show(rows_of([1, 2], [1.0, 2.0], key=False), 0)
    after = rows_of([2, 1], [2.0, 1.0], key=False)
    tracker.show(after, 1)
    assert [tracker.flash(row, 1, 2) for row in after] == [Flash.UP, Flash.DOWN]


def test_new_rows_do_not_flash() -> None:
    tracker = FlashTracker()
    tracker.show(rows_of([1], [1.0]), 0)
    after = rows_of([1, 9], [1.0, 9.0])
    tracker.show(after, 1)
    assert [tracker.flash(row, 1, 2) for row in after] == [None, None]


def test_a_value_that_becomes_null_flashes_without_direction() -> None:
    tracker = FlashTracker()
    tracker.show(rows_of([1], [1.0]), 0)
    after = rows_of([1], [None])
    tracker.show(after, 1)
    assert tracker.flash(after[0], 1, 2) is Flash.CHANGED


def test_flashes_end() -> None:
    tracker = FlashTracker(flash_ns=100)
    tracker.show(rows_of([1], [1.0]), 0)
    after = rows_of([1], [2.0])
    tracker.show(after, 0)
    assert tracker.flash(after[0], 1, 99) is Flash.UP
    assert tracker.flash(after[0], 1, 100) is None
    assert tracker.expire(100)
    assert not tracker.expire(101)


def test_key_columns_that_are_not_shown_fall_back_to_positions() -> None:
    table = pa.table({"cpu": [1.0]})
    assert screen_rows(table, first_row=7, key_columns=("pid",))[0].identity == 7

"""What must be true of every message a client receives. Written without engine code: row sets are
Python sets, tables are lists, viewports are sets of positions."""

from __future__ import annotations

from itertools import pairwise

from barrage.model.update import FullUpdate, ViewUpdate
from tests.sim.tables import STATIC_STEP, Row, SimTable


def check_full_update(message: FullUpdate, keys_before: set[int]) -> set[int]:
    """The rules of an update in row keys; returns the keys after it."""
    removed = set(message.removed_keys_pre or ())
    assert removed <= keys_before, "a removed row existed"
    shifts = list(message.shifts)
    for earlier, later in pairwise(shifts):
        assert earlier.last < later.first, "shifts ascend"
        assert earlier.last + earlier.delta < later.first + later.delta, "shifts keep the order"
    kept = sorted(keys_before - removed)
    moved = [key + next((s.delta for s in shifts if s.first <= key <= s.last), 0) for key in kept]
    assert all(low < high for low, high in pairwise(moved)), "shifted rows keep their order"
    added = set(message.added_keys_post)
    assert message.is_snapshot or not added & set(moved), "an added row is new"
    after = added | set(moved)
    included = added
    if message.included_keys_post is not None:
        included = set(message.included_keys_post)
    assert included <= after, "an included row exists"
    for modified in message.modified_keys_post or ():
        rows = set(modified)
        assert rows <= after, "a modified row exists"
        assert not rows & included, "a modified row is not sent whole as well"
    if message.is_snapshot:
        assert not removed, "a snapshot removes nothing"
        assert not shifts, "a snapshot shifts nothing"
        assert added == after, "a snapshot names the whole table"
    return after


def check_view_update(message: ViewUpdate, rows_before: int) -> None:
    """The rules of an update in view positions."""
    removed = set(message.removed_positions)
    assert all(0 <= index < rows_before for index in removed), "a removed row was in the view"
    added = set(message.added_positions)
    rows_after = rows_before - len(removed) + len(added)
    assert all(0 <= index < rows_after for index in added), "an added row is in the view"
    for positions in message.modified_positions:
        rows = set(positions)
        assert all(0 <= index < rows_after for index in rows), "a modified row is in the view"
        assert not rows & added, "a modified row is not sent whole as well"
    if message.is_snapshot:
        assert not any(set(rows) for rows in message.modified_positions)


def shown_rows(
    rows: list[Row], viewport: set[int] | None, *, is_reverse: bool, columns: tuple[int, ...]
) -> list[Row]:
    """The rows a subscriber with that viewport shows, cut to its columns."""
    if viewport is not None:
        size = len(rows)
        rows = [
            row
            for position, row in enumerate(rows)
            if (size - 1 - position if is_reverse else position) in viewport
        ]
    return [tuple(row[column] for column in columns) for row in rows]


def keeps_nothing(message: FullUpdate | ViewUpdate) -> bool:
    """Whether a snapshot brings every row of its view: then what happened before does not
    matter."""
    if not isinstance(message, ViewUpdate) or message.effective_viewport is None:
        return False
    assert message.table_size is not None
    shown = message.effective_viewport.clip(0, message.table_size - 1) if message.table_size else ()
    return len(message.added_positions) == len(shown)


class StepChecker:
    """After its snapshot a subscriber gets every change of its table exactly once, in order."""

    def __init__(self, table: SimTable) -> None:
        self._table = table
        self._last: int | None = None

    def advance(self, message: FullUpdate | ViewUpdate) -> list[Row]:
        """The rows the table shows after ``message``, according to its steps."""
        first, last = message.first_step, message.last_step
        assert first <= last
        if self._table.is_static:
            assert (first, last) == (STATIC_STEP, STATIC_STEP)
            return self._table.first_rows
        if message.is_snapshot:
            assert first == last
            assert self._last is None or first >= self._last, "a snapshot goes back in time"
            assert (
                self._last is None
                or keeps_nothing(message)
                or not self._table.has_changed_between(self._last, first + 1)
            ), "a snapshot came before the changes that lead to it"
            self._last = last
            return [] if self._table.is_blink else self._table.rows_at(last)
        assert self._last is not None, "a delta before any snapshot"
        if (first, last) == (STATIC_STEP, STATIC_STEP):
            assert self._table.is_blink, "only blink tables have synthetic messages"
            return []
        assert first > self._last, "a change was sent twice"
        assert not self._table.has_changed_between(self._last, first), "a change was lost"
        rows = self._table.rows_at(last)
        if self._table.is_blink:
            rows = self._table.rows_between(self._last, last)
        self._last = last
        return rows

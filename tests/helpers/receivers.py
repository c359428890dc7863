"""Naive subscribers: they apply messages with Python lists and dictionaries, straight from the
rules of barrage-wire.md sections 9 and 10, and share no code with what they check."""

from __future__ import annotations

from barrage.model.update import FullUpdate, ViewUpdate


def positions_shown(positions, is_reverse: bool, size: int) -> list[int]:
    """Forward positions a viewport shows in a table of ``size`` rows."""
    existing = [position for position in positions if position < size]
    return sorted(size - 1 - position for position in existing) if is_reverse else existing


class ViewReceiver:
    """Holds a list of rows, each a dictionary from column index to value."""

    def __init__(self, column_count: int) -> None:
        self.column_count = column_count
        self.rows: list[dict[int, object]] = []
        self.table_size = None
        self.viewport: set[int] | None = None
        self.is_reverse = False
        self.columns: tuple[int, ...] = ()
        self.last_step = None
        self.messages = 0

    def receive(self, message: ViewUpdate) -> None:
        assert isinstance(message, ViewUpdate)
        check_steps(self, message)
        if message.is_snapshot:
            self.viewport = set(message.effective_viewport)
            self.is_reverse = message.is_effective_reverse
            self.columns = message.effective_columns
            assert all(rows.is_empty for rows in message.modified_positions)
        assert message.is_effective_reverse == self.is_reverse
        subscribed = [c for c in self.columns if c < self.column_count]
        removed = set(message.removed_positions)
        assert all(0 <= index < len(self.rows) for index in removed)
        kept = [row for index, row in enumerate(self.rows) if index not in removed]
        added = list(message.added_positions)
        size = len(kept) + len(added)
        assert all(0 <= index < size for index in added)
        values = added_values(message, len(added), subscribed, self.column_count)
        rows: list[dict[int, object] | None] = [None] * size
        for index, row in zip(added, values, strict=True):
            rows[index] = row
        survivors = iter(kept)
        rows = [next(survivors) if row is None else row for row in rows]
        apply_modified(message.modified_positions, message, rows, set(added), subscribed)
        self.rows = [{c: v for c, v in row.items() if c in subscribed} for row in rows]
        self.table_size = message.table_size
        self.messages += 1

    def check(self, table_rows: list[tuple]) -> None:
        """The view equals the rows of the table that its viewport shows."""
        assert self.table_size == len(table_rows)
        shown = positions_shown(sorted(self.viewport), self.is_reverse, len(table_rows))
        subscribed = [c for c in self.columns if c < self.column_count]
        assert self.rows == [{c: table_rows[p][c] for c in subscribed} for p in shown]


class KeyReceiver:
    """Holds all row keys and the cells it was given, for full subscriptions and the draft's
    viewports."""

    def __init__(self, column_count: int) -> None:
        self.column_count = column_count
        self.keys: set[int] = set()
        self.cells: dict[int, dict[int, object]] = {}
        self.viewport: set[int] | None = None
        self.is_reverse = False
        self.columns: tuple[int, ...] = ()
        self.table_size = None
        self.last_step = None
        self.messages = 0

    def receive(self, message: FullUpdate) -> None:
        assert isinstance(message, FullUpdate)
        check_steps(self, message)
        if message.is_snapshot:
            viewport = message.effective_viewport
            self.viewport = None if viewport is None else set(viewport)
            self.is_reverse = message.is_effective_reverse
            self.columns = message.effective_columns
            assert message.removed_keys_pre.is_empty
            assert message.shifts.is_empty
            assert all(rows.is_empty for rows in message.modified_keys_post)
        subscribed = [c for c in self.columns if c < self.column_count]
        removed = set(message.removed_keys_pre)
        assert removed <= self.keys
        self.keys -= removed
        for key in removed:
            self.cells.pop(key, None)
        shifts = list(message.shifts)

        def moved(key: int) -> int:
            return key + next((d for first, last, d in shifts if first <= key <= last), 0)

        before = len(self.keys)
        self.keys = {moved(key) for key in self.keys}
        assert len(self.keys) == before
        self.cells = {moved(key): row for key, row in self.cells.items()}
        added = set(message.added_keys_post)
        assert message.is_snapshot or not added & self.keys
        self.keys |= added
        included = list(message.data_keys_post)
        values = added_values(message, len(included), subscribed, self.column_count)
        self.cells.update(zip(included, values, strict=True))
        apply_modified(message.modified_keys_post, message, self.cells, set(included), subscribed)
        if self.viewport is not None:
            ordered = sorted(self.keys)
            shown = positions_shown(sorted(self.viewport), self.is_reverse, len(ordered))
            visible = {ordered[position] for position in shown}
            self.cells = {key: row for key, row in self.cells.items() if key in visible}
        self.cells = {
            key: {c: v for c, v in row.items() if c in subscribed}
            for key, row in self.cells.items()
        }
        self.table_size = message.table_size
        self.messages += 1

    def check(self, table: dict[int, tuple]) -> None:
        """Keys and visible cells equal the table's."""
        assert self.keys == set(table)
        assert self.table_size == len(table)
        subscribed = [c for c in self.columns if c < self.column_count]
        ordered = sorted(table)
        shown = ordered
        if self.viewport is not None:
            places = positions_shown(sorted(self.viewport), self.is_reverse, len(ordered))
            shown = [ordered[place] for place in places]
        assert self.cells == {key: {c: table[key][c] for c in subscribed} for key in shown}


def check_steps(receiver, message) -> None:
    """Ranges of steps increase and never overlap; -1 is static or synthetic."""
    assert message.first_step <= message.last_step
    if message.last_step == -1:
        return
    if receiver.last_step is not None:
        if message.is_snapshot:
            assert message.first_step == message.last_step >= receiver.last_step
        else:
            assert message.first_step > receiver.last_step
    receiver.last_step = message.last_step


def added_values(message, row_count: int, subscribed, column_count: int) -> list[dict]:
    """One dictionary per added row; columns that are not subscribed carry nothing."""
    assert len(message.added_columns) == column_count
    rows: list[dict[int, object]] = [{} for _ in range(row_count)]
    for column, values in enumerate(message.added_columns):
        assert len(values) == (row_count if column in subscribed else 0)
        for row, value in zip(rows, values.to_pylist(), strict=False):
            row[column] = value
    return rows


def apply_modified(places_by_column, message, rows, added: set[int], subscribed) -> None:
    """Overwrite modified cells; they never overlap rows whose values came as added."""
    assert len(places_by_column) == len(message.modified_columns)
    for column, places in enumerate(places_by_column):
        values = message.modified_columns[column].to_pylist()
        assert len(values) == len(places)
        assert column in subscribed or not values
        assert not set(places) & added
        for place, value in zip(places, values, strict=True):
            rows[place][column] = value

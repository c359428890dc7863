"""Deliberately broken builds. Each must make the simulator fail, or the simulator is no use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.sim.server import Message, Sabotage


def drop_shifts() -> Sabotage:
    """Rows that move in key space stay where they were."""

    def sabotage(message: Message) -> Message:
        if isinstance(message, FullUpdate) and not message.shifts.is_empty:
            return replace(message, shifts=RowSetShiftData.empty())
        return message

    return sabotage


def lose_an_update() -> Sabotage:
    """One delta in forty never arrives."""
    numbers = count(1)

    def sabotage(message: Message) -> Message | None:
        if not message.is_snapshot and next(numbers) % 40 == 0:
            return None
        return message

    return sabotage


def forget_modifications() -> Sabotage:
    """Modified cells of the first column with any keep their old values."""

    def sabotage(message: Message) -> Message:
        name = "modified_keys_post" if isinstance(message, FullUpdate) else "modified_positions"
        sets = list(getattr(message, name) or ())
        columns = list(message.modified_columns)
        for column, rows in enumerate(sets):
            if not rows.is_empty:
                sets[column], columns[column] = RowSet.empty(), columns[column].slice(0, 0)
                return replace(message, modified_columns=tuple(columns), **{name: tuple(sets)})
        return message

    return sabotage


def miscount_the_table() -> Sabotage:
    """table_size is that of the update before."""
    sizes = [0]

    def sabotage(message: Message) -> Message:
        stale, sizes[0] = sizes[0], message.table_size or 0
        return replace(message, table_size=stale) if isinstance(message, ViewUpdate) else message

    return sabotage


def misplace_added_rows() -> Sabotage:
    """A row that enters a view in the middle is told to be one place further up."""

    def sabotage(message: Message) -> Message:
        if isinstance(message, ViewUpdate) and not message.is_snapshot:
            rows = message.added_positions
            if not rows.is_empty and rows.first > 0:
                return replace(message, added_positions=rows.offset(-1))
        return message

    return sabotage


def repeat_a_step() -> Sabotage:
    """A delta claims to begin one step early."""

    def sabotage(message: Message) -> Message:
        if message.is_snapshot or message.first_step < 2:
            return message
        return replace(message, first_step=message.first_step - 1)

    return sabotage


CANARIES: dict[str, Callable[[], Sabotage]] = {
    each.__name__: each
    for each in (
        drop_shifts,
        lose_an_update,
        forget_modifications,
        miscount_the_table,
        misplace_added_rows,
        repeat_a_step,
    )
}

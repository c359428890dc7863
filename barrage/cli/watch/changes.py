"""Which cells on screen changed, and for how long they flash.

A row is recognised by its key columns where the table has them, so that a row that moves in a
sorted table does not light up as a whole; else by its position. A row seen for the first time does
not flash.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.cli.cells import column_texts

if TYPE_CHECKING:
    from collections.abc import Hashable


FLASH_NS = 600_000_000


class Flash(Enum):
    """How a cell changed."""

    UP = "up"
    DOWN = "down"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRow:
    """One row as displayed. ``numbers`` holds the value of numeric cells, None elsewhere."""

    position: int
    identity: Hashable
    texts: tuple[str | None, ...]
    numbers: tuple[float | None, ...]


def screen_rows(rows: pa.Table, *, first_row: int, key_columns: tuple[str, ...]) -> list[ScreenRow]:
    """The rows of a (small) table with their texts and identities."""
    text_columns = [column_texts(column) for column in rows.columns]
    number_columns = [_numbers(column) for column in rows.columns]
    key_indices = [
        rows.column_names.index(name) for name in key_columns if name in rows.column_names
    ]
    has_key = bool(key_indices) and len(key_indices) == len(key_columns)
    made = []
    for index in range(rows.num_rows):
        texts = tuple(column[index] for column in text_columns)
        position = first_row + index
        identity: Hashable = tuple(texts[i] for i in key_indices) if has_key else position
        numbers = tuple(column[index] if column else None for column in number_columns)
        made.append(ScreenRow(position=position, identity=identity, texts=texts, numbers=numbers))
    return made


def _numbers(column: pa.ChunkedArray) -> list[float | None] | None:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values: list[float | None] = column.to_pylist()
        return values
    return None


class FlashTracker:
    """Remembers the rows last shown and the flashes that still burn."""

    def __init__(self, flash_ns: int = FLASH_NS) -> None:
        self._flash_ns = flash_ns
        self._rows: dict[Hashable, ScreenRow] = {}
        self._flashes: dict[tuple[Hashable, int], tuple[int, Flash]] = {}

    def show(self, rows: list[ScreenRow], now_ns: int) -> None:
        """These rows are on screen now; cells that differ from the last time start to flash."""
        until_ns = now_ns + self._flash_ns
        for row in rows:
            before = self._rows.get(row.identity)
            if before is None or before.texts == row.texts:
                continue
            for index, text in enumerate(row.texts):
                if text != before.texts[index]:
                    kind = _direction(before.numbers[index], row.numbers[index])
                    self._flashes[row.identity, index] = (until_ns, kind)
        self._rows = {row.identity: row for row in rows}

    def flash(self, row: ScreenRow, column: int, now_ns: int) -> Flash | None:
        """How the cell flashes now, if it does."""
        found = self._flashes.get((row.identity, column))
        return found[1] if found is not None and found[0] > now_ns else None

    def expire(self, now_ns: int) -> bool:
        """Forget flashes that are over; whether there were any (the screen must be drawn again)."""
        over = [cell for cell, (until_ns, _) in self._flashes.items() if until_ns <= now_ns]
        for cell in over:
            del self._flashes[cell]
        return bool(over)


def _direction(before: float | None, after: float | None) -> Flash:
    if before is None or after is None or before == after:
        return Flash.CHANGED
    return Flash.UP if after > before else Flash.DOWN

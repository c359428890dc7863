"""Viewports: sets of row positions a subscriber wants, counted from the top or from the end.

Positions, never keys. What a position means is re-evaluated after every update (barrage-wire.md
section 7.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from barrage.rowset import RowSet

ColumnSet = tuple[int, ...]
"""Ascending column indices. ``None`` in its place always means all columns. Indices past the
schema are legal on the wire and are echoed, never an error (barrage-wire.md section 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewport:
    """Positions subscribed to. With ``is_reverse`` position p means row ``table_size - 1 - p``."""

    positions: RowSet
    is_reverse: bool = False

    def resolve(self, table_size: int) -> RowSet:
        """Forward positions of a table of ``table_size`` rows that this viewport shows now; the
        rest is cut off."""
        if self.positions.is_empty or table_size == 0:
            return RowSet.empty()
        existing = self.positions.clip(0, table_size - 1)
        return existing.mirror(table_size) if self.is_reverse else existing

    @classmethod
    def of(cls, start: int, stop: int, *, is_reverse: bool = False) -> Viewport:
        """Half-open span of positions."""
        return cls(positions=RowSet.of_span(start, stop), is_reverse=is_reverse)


def effective_columns(columns: ColumnSet | None, column_count: int) -> ColumnSet:
    """The columns of a ``column_count`` wide table that ``columns`` selects."""
    if columns is None:
        return tuple(range(column_count))
    return tuple(index for index in columns if 0 <= index < column_count)

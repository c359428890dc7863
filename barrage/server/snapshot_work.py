"""Snapshots of large tables are read beside the engine thread, from a pinned state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.engine.derivation import check_copies
from barrage.engine.snapshot import snapshot_messages
from barrage.engine.work import check_work

if TYPE_CHECKING:
    from barrage.engine.table import Table
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport

READING = 40
"""Row operations of reading a row of a table that looks its rows up in another one."""


@dataclass(slots=True)
class SnapshotWork:
    """One answer in the making."""

    columns: ColumnSet | None = None
    viewport: Viewport | None = None
    is_reverse: bool = False
    pinned: list[Table] = field(default_factory=list)
    """Emptied on the engine thread."""
    step: int = 0
    messages: list[FullUpdate] | None = None

    def begin(self, table: Table, step: int, limits: Limits) -> None:
        """Engine thread: read what is little, pin the rest. LimitExceededError."""
        self.step = step
        work = reading_work(table, self.viewport)
        check_work(work, limits)
        if work <= limits.turn_work_max:
            self.messages = self._read(table)
            return
        check_copies([table], limits)
        self.pinned.append(table.pinned())

    def read(self) -> list[FullUpdate]:
        """Any thread: the messages."""
        if self.messages is None:
            self.messages = self._read(self.pinned[0])
        return self.messages

    def _read(self, table: Table) -> list[FullUpdate]:
        return snapshot_messages(
            table, self.columns, self.viewport, step=self.step, is_reverse_echo=self.is_reverse
        )


def reading_work(table: Table, viewport: Viewport | None = None) -> int:
    """Row operations of reading a table, or what a viewport shows of it. A source's cells are
    mostly handed out as they are."""
    rows = table.size if viewport is None else min(table.size, len(viewport.positions))
    return rows * (table.reading - 1) * READING

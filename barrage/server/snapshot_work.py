"""Large tables are read beside the engine thread, from a pinned state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.engine.derivation import check_copies, copied_nbytes
from barrage.engine.snapshot import snapshot_messages
from barrage.engine.work import check_work, of_reading

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.table import Table
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport


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
        work = reading_work(table, self.columns, self.viewport)
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


@dataclass(slots=True)
class ReadingWork:
    """All rows of one table, as Arrow."""

    pinned: list[Table] = field(default_factory=list)
    """Emptied on the engine thread."""
    rows: pa.Table | None = None

    def begin(self, table: Table, limits: Limits) -> None:
        """Engine thread: read what is little, and what is copied by pinning as well; pin the
        rest."""
        table.check_alive()
        is_little = reading_work(table) <= limits.turn_work_max
        if is_little or copied_nbytes([table]) > limits.query_copied_bytes_max:
            self.rows = table.to_arrow()
        else:
            self.pinned.append(table.pinned())

    def read(self) -> pa.Table:
        """Any thread."""
        return self.pinned[0].to_arrow() if self.rows is None else self.rows


def reading_work(
    table: Table, columns: ColumnSet | None = None, viewport: Viewport | None = None
) -> int:
    """Row operations of reading a table, or what a viewport shows of it, and telling it."""
    keys = table.row_keys
    return of_reading(
        table,
        rows=table.size if viewport is None else min(table.size, len(viewport.positions)),
        columns=len(table.schema) if columns is None else len(columns),
        ranges=keys.range_count,
    )

"""Large tables are read beside the engine thread, from a pinned state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from barrage.engine.changelog.snapshot import rows_messages, snapshot_messages
from barrage.engine.planning.derivation import check_copies
from barrage.engine.tables.source import copied_nbytes
from barrage.engine.tables.work import check_work, of_reading

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWork:
    """One answer, and what is left to do for it."""

    columns: ColumnSet | None
    viewport: Viewport | None
    is_reverse: bool
    step: int
    messages: tuple[FullUpdate, ...] | None = None
    """The answer, where it was little to read."""
    pinned: list[Table] = field(default_factory=list)
    """The table otherwise, until :meth:`end`."""
    is_parted: bool = False
    """The rows are read part by part, with :meth:`read_rows`."""
    row_count: int = 0

    def begun(self, table: Table, limits: Limits) -> SnapshotWork:
        """Engine thread: this work with what is little done and the rest pinned.
        LimitExceededError."""
        work = reading_work(table, self.columns, self.viewport)
        check_work(work, limits)
        if work <= limits.turn_work_max and not self.is_parted:
            return replace(self, messages=self._read(table))
        check_copies([table], limits)
        return replace(self, pinned=[table.pinned()], row_count=table.size)

    def end(self) -> None:
        """Engine thread: let go of the table here, and so free it here."""
        self.pinned.clear()

    def read(self) -> tuple[FullUpdate, ...]:
        """Any thread: the messages."""
        return self._read(self.pinned[0]) if self.messages is None else self.messages

    def read_rows(self, start: int, stop: int) -> tuple[FullUpdate, ...]:
        """Any thread: the rows at these positions; see :func:`rows_messages`."""
        return tuple(rows_messages(self.pinned[0], start, stop, step=self.step))

    def _read(self, table: Table) -> tuple[FullUpdate, ...]:
        return tuple(
            snapshot_messages(
                table, self.columns, self.viewport, step=self.step, is_reverse_echo=self.is_reverse
            )
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

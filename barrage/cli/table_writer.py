"""Sends rows to a table of a server: all at once from a file, or each when it falls due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.cli.data_file import BATCH_ROWS
from barrage.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.cli.progress import RowProgress
    from barrage.cli.replay.replay_clock import ReplaySchedule
    from barrage.client import PutProgress, Session
    from barrage.clock import Clock

TICK_NS = 50_000_000
"""Rows that fall due this close together travel in one batch."""


class TableWriter:
    """Sends batches to one table.

    The first creates it, or with ``is_append`` finds it; the others add to it. A table that was
    created and then refused its first rows is dropped again.
    """

    def __init__(
        self, session: Session, name: str, *, key_columns: list[str] | None, is_append: bool
    ) -> None:
        self._session = session
        self._name = name
        self._key_columns = key_columns
        self._is_append = is_append
        self._is_found = False
        self.row_count = 0
        """Rows the server has committed."""

    def write(self, data: pa.Table, *, on_progress: Callable[[int], None] | None = None) -> None:
        """Send some rows and wait until they are committed.

        ``on_progress`` gets all rows committed so far.
        """
        before = self.row_count

        def acknowledge(progress: PutProgress) -> None:
            self.row_count = before + progress.rows
            if on_progress is not None:
                on_progress(self.row_count)

        is_new = not self._is_found and not self._is_append
        if not self._is_found and self._is_append:
            # Rows for a table that does not exist would create it.
            self._session.table(self._name).info()
        self._is_found = True
        add = "upsert" if self._key_columns else "append"
        try:
            self._session.put(
                self._name,
                data,
                key=self._key_columns,
                mode="create" if is_new else add,
                on_progress=acknowledge,
            )
        except RowError:
            if is_new and not self.row_count:
                self._session.drop_table(self._name)
            raise
        self.row_count = before + data.num_rows


def play(
    schedule: ReplaySchedule,
    writer: TableWriter,
    progress: RowProgress,
    *,
    clock: Clock,
    wait: Callable[[float], None],
) -> None:
    """Send rows as they fall due; the table exists from the start. ``wait`` takes seconds."""
    writer.write(schedule.rows.slice(0, 0))
    start_ns = clock.monotonic_ns()
    sent = 0
    while sent < schedule.row_count:
        elapsed_ns = clock.monotonic_ns() - start_ns
        due = min(schedule.due_count(elapsed_ns), sent + BATCH_ROWS)
        if due > sent:
            writer.write(schedule.between(sent, due))
            progress.advance_to(due, note=schedule.time_text(due - 1))
            sent = due
        else:
            wait(max(TICK_NS, schedule.due_ns(sent) - elapsed_ns) / 1e9)

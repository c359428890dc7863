"""Progress on stderr: shown to a person, silent in pipes, with ``--quiet`` and honouring NO_COLOR
(rich does).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID


class RowProgress:
    """A bar that counts rows."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance_to(self, row_count: int, *, note: str = "") -> None:
        """So many rows are done; ``note`` stands beside the bar."""
        self._progress.update(self._task, completed=row_count, note=note)


@contextmanager
def row_progress(what: str, *, total: int | None, is_quiet: bool) -> Iterator[RowProgress]:
    """A bar of ``total`` rows while the block runs; without a total, a counter."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows {task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    is_shown = console.is_terminal and not is_quiet
    with Progress(*columns, console=console, disable=not is_shown, transient=True) as progress:
        yield RowProgress(progress, progress.add_task(what, total=total, note=""))

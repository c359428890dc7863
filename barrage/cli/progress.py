"""Progress on stderr: shown to a person, silent in pipes, with ``--quiet`` and honouring NO_COLOR
(rich does).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.progress import ProgressColumn, TaskID


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
    rows = (BarColumn(), MofNCompleteColumn(), TextColumn("rows {task.fields[note]}", markup=False))
    with _progress(rows, is_quiet=is_quiet) as progress:
        yield RowProgress(progress, progress.add_task(what, total=total, note=""))


@contextmanager
def table_progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar of tables, called with those that are done, those there are, and the name of the one
    that is being worked on."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[table]}", markup=False))
    with _progress(columns, is_quiet=False) as progress:
        task = progress.add_task(what, total=None, table="")
        yield lambda done, total, table: progress.update(
            task, completed=done, total=total, table=table
        )


@contextmanager
def byte_progress(what: str, *, is_quiet: bool) -> Iterator[Callable[[int], None]]:
    """A counter of bytes received, called with all so far."""
    with _progress((DownloadColumn(), TransferSpeedColumn()), is_quiet=is_quiet) as progress:
        task = progress.add_task(what, total=None)
        yield lambda size: progress.update(task, completed=size)


@contextmanager
def result_progress(
    what: str, *, is_quiet: bool
) -> Iterator[tuple[Callable[[float], None], Callable[[int], None]]]:
    """A bar of a server's query and a counter of bytes received: what is called with the part of
    the query that is done, and what with all bytes so far."""
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with _progress(columns, is_quiet=is_quiet) as progress:
        query = progress.add_task(f"{what}: query", total=1.0)
        reading = progress.add_task(what, total=None)
        yield (
            lambda done: progress.update(query, completed=done),
            lambda size: progress.update(reading, completed=size),
        )


def _progress(columns: Iterable[ProgressColumn], *, is_quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *columns,
        TimeElapsedColumn(),
        console=console,
        disable=is_quiet or not console.is_terminal,
        transient=True,
    )

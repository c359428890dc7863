"""Plays a table's past: waits until each commit is due, applies it, and is the grid's feed."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from barrage.cli.cells import json_line, json_rows
from barrage.cli.replay.replay_past import Commit, PastTable, commits, table_columns
from barrage.cli.watch.scroller import RowWindow
from barrage.cli.watch.window_source import Frame, SourceStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pyarrow as pa

    from barrage.client.tables.history import JournalFacts
    from barrage.clock import Clock

RATE_COMMITS = 16
"""Rates are shown over this many commits."""

YIELD_EVERY = 64
"""Commits applied in a row before others on the loop may run."""

PAUSE_SECONDS_MAX = 0.25
"""Longest wait at a time, so that an end is noticed."""


class Player:
    """One replay. ``start_us`` is the recorded time the play begins at; the first commit's when it
    is None."""

    def __init__(
        self,
        past: PastTable,
        batches: AsyncIterator[pa.RecordBatch],
        *,
        facts: JournalFacts,
        version: int,
        start_us: int | None,
        speed: float,
        clock: Clock,
        wait: Callable[[float], Awaitable[None]],
    ) -> None:
        self.past = past
        self.version = version
        self.commit_count = 0
        self.is_over = False
        self.failure: Exception | None = None
        self._facts = facts
        self._commits = commits(batches)
        self._origin_us = start_us
        self._time_us = start_us
        self._speed = speed
        self._clock = clock
        self._wait = wait
        self._began_ns: int | None = None
        self._recent: list[int] = []
        self._window = RowWindow(start=0, stop=0)

    # --- playing ---

    async def play(self, on_commit: Callable[[Commit], None] | None = None) -> None:
        """Until the last commit. What the server says against it is kept in ``failure`` as well."""
        try:
            async for commit in self._commits:
                await self._until_due(commit)
                self.past.apply(commit)
                self.version, self._time_us = commit.version, commit.time_us
                self.commit_count += 1
                self._recent = [*self._recent[1 - RATE_COMMITS :], self._clock.monotonic_ns()]
                if on_commit is not None:
                    on_commit(commit)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.is_over = True

    async def _until_due(self, commit: Commit) -> None:
        if self._origin_us is None:
            self._origin_us = commit.time_us
        if self._began_ns is None:
            self._began_ns = self._clock.monotonic_ns()
        if math.isinf(self._speed):
            if self.commit_count % YIELD_EVERY == 0:
                await self._wait(0)
            return
        due_ns = self._began_ns + int((commit.time_us - self._origin_us) * 1000 / self._speed)
        while (left_ns := due_ns - self._clock.monotonic_ns()) > 0:
            await self._wait(min(left_ns / 1e9, PAUSE_SECONDS_MAX))

    # --- the grid's feed ---

    @property
    def schema(self) -> pa.Schema:
        return self.past.schema

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._facts.key

    def request(self, window: RowWindow) -> None:
        self._window = window

    def frame(self) -> Frame | None:
        size, window = len(self.past), self._window
        first = window.first_row(size)
        return Frame(
            # The same commit looks different through another window.
            version=hash((self.commit_count, window)),
            rows=self.past.rows(first, first + window.size),
            first_row=first,
            table_size=size,
        )

    def status(self) -> SourceStatus:
        at = "" if self._time_us is None else f" {self.moment():%Y-%m-%d %H:%M:%S}"
        speed = "max" if math.isinf(self._speed) else f"{self._speed:g}x"
        state = f"step {self.version}{at}, {'end' if self.is_over else speed}"
        return SourceStatus(
            state=state,
            is_live=not self.is_over,
            updates_per_second=self._rate(),
            lag_ms=None,
            failure=self.failure,
        )

    def _rate(self) -> float:
        if self.is_over or len(self._recent) < 2:
            return 0.0
        took_ns = self._clock.monotonic_ns() - self._recent[0]
        return len(self._recent) / max(took_ns / 1e9, 1e-3)

    def moment(self) -> datetime:
        """When the rows shown were committed."""
        return datetime.fromtimestamp((self._time_us or 0) / 1e6, tz=UTC)


class JsonPlay:
    """Prints every change as one line: first the rows there were, as inserts."""

    def __init__(self, write: Callable[[str], None] = typer.echo) -> None:
        self._write = write
        self.row_count = 0

    def start(self, version: int, rows: pa.Table) -> None:
        for row in json_rows(rows):
            self._line("snapshot", version, None, row=row)

    def commit(self, commit: Commit) -> None:
        kinds = commit.rows.column("_change_type").to_pylist()
        time = datetime.fromtimestamp(commit.time_us / 1e6, tz=UTC).isoformat()
        for kind, row in zip(kinds, json_rows(table_columns(commit.rows)), strict=True):
            self._line(kind, commit.version, time, row=row)

    def _line(self, kind: str, version: int, time: str | None, *, row: dict[str, object]) -> None:
        self.row_count += 1
        line: dict[str, object] = {"change": kind, "step": version}
        if time is not None:
            line["time"] = time
        self._write(json_line({**line, "row": row}))

"""Watching without a terminal: the first rows printed again at a steady pace, as text or JSON
lines.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from barrage.cli.cells import json_line, json_rows
from barrage.cli.text_table import format_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.cli.watch.window_source import Frame, SourceStatus, WindowSource
    from barrage.clock import Clock


class PlainWatch:
    """Prints a picture of the source each time it is asked to."""

    def __init__(
        self,
        source: WindowSource,
        *,
        title: str,
        clock: Clock,
        is_json: bool = False,
        write: Callable[[str], None] = typer.echo,
    ) -> None:
        self.source = source
        self._title = title
        self._clock = clock
        self._is_json = is_json
        self._write = write

    def print_frame(self) -> bool:
        """Print what is there now; False when there is nothing yet."""
        frame, status = self.source.frame(), self.source.status()
        if frame is None:
            return False
        for line in self._json(frame, status) if self._is_json else self._text(frame, status):
            self._write(line)
        return True

    def _text(self, frame: Frame, status: SourceStatus) -> list[str]:
        lag = "-" if status.lag_ms is None else f"{status.lag_ms:.0f} ms"
        head = (
            f"{self._now():%H:%M:%S}  {self._title}  {status.label}  {frame.table_size:,} rows  "
            f"{status.updates_per_second:.1f} updates/s  lag {lag}"
        )
        head = "  ".join([head, *status.ways])
        return [head, *format_table(frame.rows, width=None), ""]

    def _json(self, frame: Frame, status: SourceStatus) -> list[str]:
        line = {
            "time": self._now().isoformat(timespec="milliseconds"),
            "state": status.state,
            "resumption": status.resumption,
            "table_size": frame.table_size,
            "first_row": frame.first_row,
            "lag_ms": status.lag_ms,
            "bodies": _bodies(status),
            "rows": json_rows(frame.rows),
        }
        return [json_line(line)]

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ns() / 1e9, tz=UTC)


def _bodies(status: SourceStatus) -> dict[str, object] | None:
    """The way of the bodies, why it is inline, and what came by each way."""
    if status.bodies is None or status.body_stats is None:
        return None
    counts = {
        way: {"count": count.count, "bytes": count.bytes}
        for way, count in status.body_stats.by_way()
    }
    return {"way": status.bodies.way.value, "reason": status.bodies.reason, **counts}

"""The stages of updates, as lines of text and as a Chrome trace file.

Times come from the server in nanoseconds of its monotonic clock, with one pair of both clocks to
place them. When this client had applied an update is known by its own wall clock.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from barrage.cli.text_table import format_rows
from barrage.cli.top.picture_text import duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STAGES = ("cycle", "propagate", "encode", "write")
"""What the server times, each as a pair: its beginning and its end."""

_THREADS = {"cycle": 1, "propagate": 1, "encode": 1, "write": 2, "apply": 3}
_THREAD_NAMES = {1: "engine thread", 2: "event loop", 3: "this client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStages:
    """One update on its way."""

    step: int
    committed_ns: int | None
    """Wall clock; None for what was not committed since tracing began."""
    spans: dict[str, tuple[int, int]]
    """Beginning and end by stage, wall clock, in the order of the stages. ``apply`` ends when this
    client had applied it."""
    streams: int
    written: int
    is_snapshot: bool

    @property
    def total_s(self) -> float | None:
        """From the commit to the last stage that is known."""
        if self.committed_ns is None or not self.spans:
            return None
        return (max(end for _, end in self.spans.values()) - self.committed_ns) / 1e9


def stages_of(told: Mapping[str, Any], applied: Mapping[int, int]) -> list[UpdateStages]:
    """What the server told; ``applied``: when updates were here, by the time of their commit."""
    shift_ns = int(told["wall_ns"]) - int(told["now_ns"])
    return [_stages(each, shift_ns, applied) for each in told["updates"]]


def _stages(update: Mapping[str, Any], shift_ns: int, applied: Mapping[int, int]) -> UpdateStages:
    spans = {}
    for stage in STAGES:
        pair = update[stage]
        if pair is not None and None not in pair:
            begin, end = pair
            spans[stage] = (begin + shift_ns, end + shift_ns)
    wall_ns = update["wall_ns"]
    here_ns = applied.get(wall_ns)
    if here_ns is not None and not update["is_snapshot"]:
        begin = spans["write"][1] if "write" in spans else here_ns
        spans["apply"] = (min(begin, here_ns), here_ns)
    return UpdateStages(
        step=update["step"],
        committed_ns=wall_ns,
        spans=spans,
        streams=update["streams"],
        written=update["written"],
        is_snapshot=update["is_snapshot"],
    )


def stage_lines(updates: Sequence[UpdateStages], *, rows_max: int) -> list[str]:
    """The newest updates, a line each, and beneath them how long each stage took."""
    if not updates:
        return ["no updates were sent in that time"]
    shown = updates[-rows_max:]
    stages = [*STAGES, "apply"]
    names = ["step", "committed", *stages, "total", "streams"]
    rows = [
        [
            str(each.step),
            _clock(each.committed_ns),
            *(duration(_seconds(each.spans.get(stage))) for stage in stages),
            duration(each.total_s),
            f"{each.written}/{each.streams}" + (" snapshot" if each.is_snapshot else ""),
        ]
        for each in shown
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    lines = format_rows(names, columns, right=[True, False, *[True] * 6, False], width=None)
    return [*lines, "", *_summary(updates, stages)]


def _summary(updates: Sequence[UpdateStages], stages: Sequence[str]) -> list[str]:
    columns: list[list[str]] = [[], [], [], []]
    for stage in (*stages, "total"):
        took = [
            seconds
            for each in updates
            if (seconds := each.total_s if stage == "total" else _seconds(each.spans.get(stage)))
            is not None
        ]
        if took:
            row = (stage, *map(duration, (statistics.median(took), max(took))), str(len(took)))
            for column, text in zip(columns, row, strict=True):
                column.append(text)
    return format_rows(
        ["", "median", "longest", "updates"], columns, right=[False, True, True, True], width=None
    )


def _seconds(span: tuple[int, int] | None) -> float | None:
    return None if span is None else (span[1] - span[0]) / 1e9


def _clock(wall_ns: int | None) -> str:
    if wall_ns is None:
        return "-"
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]


def chrome_trace(updates: Sequence[UpdateStages], table: str) -> dict[str, Any]:
    """For ``chrome://tracing`` and Perfetto: a row for each thread, times in microseconds."""
    names = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
        for thread, name in _THREAD_NAMES.items()
    ]
    seen = set()
    events = []
    for update in updates:
        for stage, (begin, end) in update.spans.items():
            if stage == "cycle" and (begin, end) in seen:
                continue  # One cycle has led to several updates.
            seen.add((begin, end))
            events.append(
                {
                    "name": stage,
                    "cat": "update",
                    "ph": "X",
                    "pid": 1,
                    "tid": _THREADS[stage],
                    "ts": begin / 1000,
                    "dur": (end - begin) / 1000,
                    "args": {"step": update.step, "streams": update.streams, "table": table},
                }
            )
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}

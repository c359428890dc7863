"""A picture of a server as lines of text: what the engine does, what is slow, who is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.cli.cells import printable
from barrage.cli.text_table import format_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.cli.top.picture import ServerPicture

ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lag": lambda row: (row["held_ms"] or 0.0, row["lag_ms"] or 0.0),
    "bytes": lambda row: row["bytes_per_second"] or 0.0,
    "outbox": lambda row: row["outbox_bytes"] or 0,
    "updates": lambda row: row["updates"] or 0,
}
"""What subscriptions are sorted by, the largest first."""

_DURATIONS = {
    "cycle_seconds": "cycle",
    "propagation_seconds": "propagation",
    "encoding_seconds": "encoding",
    "commit_seconds": "commit",
    "journal_write_seconds": "journal",
    "lag_seconds": "lag",
}
_NAMES = (
    *("stream", "user", "peer", "table", "way", "updates", "bytes/s", "outbox"),
    *("lag", "held"),
)
_SOURCE_NAMES = (
    *("source", "program", "state", "streams", "credits", "waiting"),
    *("msgs/s", "last error"),
)
_STREAM_NAMES = ("stream", "table", "position", "lag", "msgs/s", "last error")
_ALERT_NAMES = (
    *("alert", "table", "state", "firing", "pending", "waiting"),
    *("sent", "retries", "dropped", "last error"),
)
_UNITS = ("", "K", "M", "G", "T")


def amount(value: float) -> str:
    """A number in at most five characters: ``12.3M``."""
    unit = 0
    while abs(value) >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f}" if not unit and value == int(value) else f"{value:.1f}{_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """A time in the unit that fits it."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} us"


def picture_lines(
    picture: ServerPicture, *, order: str, rows_max: int, width: int | None
) -> list[str]:
    """The whole picture."""
    return [
        *summary_lines(picture),
        "",
        *duration_lines(picture),
        "",
        *subscription_lines(picture, order=order, rows_max=rows_max, width=width),
        *connector_lines(picture, rows_max=rows_max, width=width),
        *alert_lines(picture, rows_max=rows_max, width=width),
    ]


def summary_lines(picture: ServerPicture) -> list[str]:
    """What is there and how much goes through."""
    if not picture.values:
        return ["(the rules of the server do not show _server to you)"]
    value, rate = picture.value, picture.rates.get
    lines = [
        f"{value('connections'):.0f} connections  {value('calls_open'):.0f} calls  "
        f"{value('subscriptions'):.0f} subscriptions  {value('subscriptions_held'):.0f} held  "
        f"{value('sessions'):.0f} sessions  "
        f"{'ready' if value('ready') else 'NOT READY'}",
        f"{amount(rate('rows_changed', 0))} rows/s  {amount(rate('cycle_seconds', 0))} cycles/s  "
        f"{amount(rate('updates_sent', 0))} updates/s  {amount(rate('sent_bytes', 0))}B/s out  "
        f"{amount(rate('received_bytes', 0))}B/s in  "
        f"outbox {amount(value('outbox_bytes'))}B  held {amount(value('held_bytes'))}B  "
        f"{value('commands_waiting'):.0f} commands wait",
    ]
    if "journals" in picture.values:
        is_failed, is_full = value("journal_failed"), value("disk_full")
        state = "FAILED" if is_failed else "DISK FULL" if is_full else "ok"
        lines.append(
            f"{value('journals'):.0f} journals  {amount(value('journal_bytes'))}B  "
            f"{amount(value('disk_free_bytes'))}B free  {state}"
        )
    if "relayed_tables" in picture.values:
        states = picture.values["relayed_tables"]
        told = "  ".join(f"{count:.0f} {state}" for state, count in states.items())
        lag = duration(value("relay_lag_seconds_max"))
        lines.append(f"relayed tables: {told}  lag {lag}")
    refused = picture.values.get("refusals", {})
    if refused:
        most = sorted(refused.items(), key=lambda each: -each[1])[:4]
        lines.append("refused: " + "  ".join(f"{why} {amount(count)}" for why, count in most))
    return lines


def duration_lines(picture: ServerPicture) -> list[str]:
    """How long things take, since the start of the server."""
    found = [
        (text, picture.durations[name])
        for name, text in _DURATIONS.items()
        if (picture.durations.get(name) or {}).get("count")
    ]
    if not found:
        return ["nothing has taken any time yet"]
    columns = [[text for text, _ in found], [amount(told["count"] or 0) for _, told in found]]
    names = ["", "count"]
    for quantile in ("p50", "p90", "p99", "longest"):
        names.append(quantile)
        columns.append([duration(told[quantile]) for _, told in found])
    return format_rows(names, columns, right=[False, *[True] * 5], width=None)


def subscription_lines(
    picture: ServerPicture, *, order: str, rows_max: int, width: int | None
) -> list[str]:
    """Who is subscribed; those that cost most, or are slowest, first."""
    rows = sorted(picture.subscriptions, key=ORDERS[order], reverse=True)
    if not rows:
        return ["no subscriptions"]
    shown = [_cells(row) for row in rows[:rows_max]]
    columns = [list(column) for column in zip(*shown, strict=True)]
    right = [name in ("stream", *_NAMES[5:]) for name in _NAMES]
    lines = format_rows(list(_NAMES), columns, right=right, width=width)
    left = len(rows) - len(shown)
    return [*lines, f"… and {left} more"] if left else lines


def connector_lines(picture: ServerPicture, *, rows_max: int, width: int | None) -> list[str]:
    """Which external sources push, and how far their streams are; nothing where there are none.
    Streams that are furthest behind come first."""
    sources = [
        [
            str(row["connection"]),
            printable(f"{row['program']} {row['instance']}".strip()),
            row["state"],
            str(row["streams"]),
            amount(row["credits"]),
            amount(row["waiting"]),
            amount(row["rate"] or 0),
            printable(row["last_error"] or ""),
        ]
        for row in picture.connectors
    ]
    streams = [
        [
            printable(row["name"] or str(row["stream"])),
            printable(row["table"]),
            "" if row["last_safe"] is None else str(row["last_safe"]),
            amount(row["lag"] or 0),
            amount(row["rate"] or 0),
            printable(row["last_error"] or ""),
        ]
        for row in sorted(picture.streams, key=lambda row: -(row["lag"] or 0))
    ]
    words = {"program", "state", "stream", "table", "last error"}
    return [
        *_table_lines(_SOURCE_NAMES, sources, words - {"stream"}, rows_max=rows_max, width=width),
        *_table_lines(_STREAM_NAMES, streams, words, rows_max=rows_max, width=width),
    ]


def alert_lines(picture: ServerPicture, *, rows_max: int, width: int | None) -> list[str]:
    """How alerts are, and what has become of what they had to tell; nothing where there are none.
    Those come first of which events were dropped, or wait."""
    rows = [
        [
            printable(row["alert"]),
            printable(row["table"]),
            row["state"],
            *(amount(row[name]) for name in _ALERT_NAMES[3:-1]),
            printable(row["last_error"] or row["detail"] or ""),
        ]
        for row in sorted(picture.alerts, key=lambda row: (-row["dropped"], -row["waiting"]))
    ]
    words = {"alert", "table", "state", "last error"}
    return _table_lines(_ALERT_NAMES, rows, words, rows_max=rows_max, width=width)


def _table_lines(
    names: tuple[str, ...],
    rows: list[list[str]],
    words: set[str],
    *,
    rows_max: int,
    width: int | None,
) -> list[str]:
    """Some rows below their names, behind an empty line; ``words`` stand on the left."""
    if not rows:
        return []
    columns = [list(column) for column in zip(*rows[:rows_max], strict=True)]
    right = [name not in words for name in names]
    lines = ["", *format_rows(list(names), columns, right=right, width=width)]
    return [*lines, f"… and {len(rows) - rows_max} more"] if len(rows) > rows_max else lines


def _cells(row: dict[str, Any]) -> list[str]:
    held = row["held_ms"]
    lag = row["lag_ms"]
    return [
        str(row["stream"]),
        printable(row["user"] or ""),
        printable(row["peer"] or ""),
        printable(row["table"] or ""),
        row["way"] or "",
        amount(row["updates"] or 0),
        amount(row["bytes_per_second"] or 0),
        amount(row["outbox_bytes"] or 0),
        duration(None if lag is None else lag / 1000),
        duration(None if held is None else held / 1000),
    ]

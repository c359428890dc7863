"""What is measured of a server: names, kinds and meanings, and a value of each at one moment.

The table ``_server`` and Prometheus are told the same. A measure has at most one label, whose
values are names of this program (statuses, errors, threads) or bounded in number (tables).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barrage.histogram import HistogramReading


class MeasureKind(Enum):
    """How values of a measure follow each other."""

    COUNTER = "counter"
    """It only grows, until the server starts anew."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Durations since the start, by bounds."""


@dataclass(frozen=True, slots=True)
class MeasureInfo:
    """What is declared of a measure."""

    kind: MeasureKind
    text: str
    label: str = ""
    """What its label is called; empty where it has none."""


_C, _G, _H = MeasureKind.COUNTER, MeasureKind.GAUGE, MeasureKind.HISTOGRAM

MEASURES: dict[str, MeasureInfo] = {
    "ready": MeasureInfo(_G, "1 while the server takes new clients and writes, as /readyz says."),
    "connections": MeasureInfo(_G, "Connections that are open."),
    "sessions": MeasureInfo(_G, "Sessions of Deephaven clients."),
    "calls_open": MeasureInfo(_G, "Calls under way, subscriptions among them."),
    "calls": MeasureInfo(_C, "Calls that have ended.", "status"),
    "refusals": MeasureInfo(_C, "Calls that ended with an error.", "reason"),
    "streams": MeasureInfo(_G, "DoExchange streams that are open."),
    "subscriptions": MeasureInfo(_G, "Subscriptions.", "table"),
    "subscriptions_held": MeasureInfo(
        _G, "Subscriptions whose readers are slow: their changes are merged."
    ),
    "subscription_lag_seconds_max": MeasureInfo(
        _G, "How far behind the subscription is that is furthest behind."
    ),
    "outbox_bytes": MeasureInfo(_G, "Encoded bytes that wait for their readers."),
    "updates_sent": MeasureInfo(_C, "Updates and first states sent on streams."),
    "sent_bytes": MeasureInfo(_C, "Bytes of messages that data calls of Flight sent.", "method"),
    "received_bytes": MeasureInfo(_C, "Bytes of messages that they received.", "method"),
    "rows_changed": MeasureInfo(
        _C, "Rows that cycles added, changed or removed in all tables and views."
    ),
    "cycle_seconds": MeasureInfo(_H, "A cycle of the engine."),
    "propagation_seconds": MeasureInfo(
        _H, "Working out what the subscribers of one table are told."
    ),
    "encoding_seconds": MeasureInfo(_H, "Encoding a message, or those of many views together."),
    "commit_seconds": MeasureInfo(_H, "From the cycle of a durable write until it is on disk."),
    "journal_write_seconds": MeasureInfo(_H, "Writing and syncing what waits for the journal."),
    "lag_seconds": MeasureInfo(
        _H, "From the commit of a change until its update was taken, for each stream."
    ),
    "commands_waiting": MeasureInfo(_G, "Commands that wait for the engine thread."),
    "held_bytes": MeasureInfo(_G, "Bytes kept for readers that lag behind."),
    "resynchronised": MeasureInfo(_C, "Slow readers that were told a whole table anew."),
    "slow_disconnects": MeasureInfo(_C, "Slow readers that were ended to save memory."),
    "journals": MeasureInfo(_G, "Tables with a journal."),
    "journal_bytes": MeasureInfo(_G, "Bytes of all journals."),
    "journal_waiting_bytes": MeasureInfo(_G, "Bytes that wait to be written to the journal."),
    "journal_upkeep_failures": MeasureInfo(
        _G, "How often in a row checkpoints and retention have failed, for all tables."
    ),
    "journal_failed": MeasureInfo(_G, "1 when the journal has failed: only a restart helps."),
    "disk_full": MeasureInfo(_G, "1 while the disk has no room and durable writes are refused."),
    "disk_free_bytes": MeasureInfo(_G, "Room for the journal, to two digits."),
    "tables_damaged": MeasureInfo(_G, "Tables that are not served because of their journals."),
    "stretches_above_bound": MeasureInfo(
        _C, "How often one thing held up a thread for longer than it is meant to.", "thread"
    ),
    "longest_stretch_seconds": MeasureInfo(_G, "The longest of these since the start.", "thread"),
    "bodies_outside": MeasureInfo(_C, "Bodies that went another way than their stream.", "way"),
    "bodies_outside_bytes": MeasureInfo(_C, "Bytes of these.", "way"),
    "body_fallbacks": MeasureInfo(_C, "Streams that went back to bodies inline for good.", "way"),
    "bodies_pending_bytes": MeasureInfo(
        _G, "Bytes of bodies that clients have not given back.", "way"
    ),
    "alert_keys_firing": MeasureInfo(
        _G, "Keys for which the condition of an alert holds.", "alert"
    ),
    "alert_events_sent": MeasureInfo(_C, "Events that receivers of alerts have taken.", "alert"),
    "alert_retries": MeasureInfo(_C, "Messages of alerts that failed and were put off.", "alert"),
    "alert_events_dropped": MeasureInfo(
        _C, "Events of alerts that no receiver was told of.", "alert"
    ),
    "audit_dropped": MeasureInfo(_C, "Records of the audit log that could not be written."),
    "relayed_tables": MeasureInfo(_G, "Tables of other servers, by how they are.", "state"),
    "relay_lag_seconds_max": MeasureInfo(
        _G, "Of the relayed table furthest behind, the lag of its newest update."
    ),
    "upstreams_followed": MeasureInfo(_G, "Upstream servers that a relay follows now."),
    "metrics_refused": MeasureInfo(_C, "Requests of metrics that were not answered with them."),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A value of one measure."""

    name: str
    value: float = 0.0
    """Of a histogram, how many were observed."""
    label: str = ""
    reading: HistogramReading | None = None

    @classmethod
    def of_histogram(cls, name: str, reading: HistogramReading) -> Measure:
        return cls(name, float(reading.count), reading=reading)

    @property
    def info(self) -> MeasureInfo:
        return MEASURES[self.name]


def two_digits(value: int) -> float:
    """``value`` to two digits, down: what changes all the time would tick all the time."""
    if value < 100:
        return float(value)
    power: int = 10 ** (len(str(value)) - 2)
    return float(value // power * power)

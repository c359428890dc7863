"""Who is subscribed, to what, and how far behind: all streams counted, some of them as rows.

The rows are those of readers that are held, then of those who were sent most; their number is
bounded. The loop is let go after every few hundred streams.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.limits import NANOS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.limits import Limits
    from barrage.server.exchange.exchange_stream import ExchangeStream

SUBSCRIPTIONS_SCHEMA = pa.schema(
    {
        "stream": pa.int64(),
        "user": pa.string(),
        "proof": pa.string(),
        "peer": pa.string(),
        "table": pa.string(),
        "since": pa.timestamp("us", tz="UTC"),
        "interval_ms": pa.int64(),
        "way": pa.string(),
        "updates": pa.int64(),
        "bytes": pa.int64(),
        "bytes_per_second": pa.float64(),
        "outbox_bytes": pa.int64(),
        "lag_ms": pa.float64(),
        "held_ms": pa.float64(),
    }
)
"""``table`` names all tables a query is made of; it is empty for what has no name. ``way`` is how
bodies travel. ``lag_ms`` is from the commit of a change to when the transport had taken its update,
for the last one; of a reader that is held, for how long it has been, which is also ``held_ms``."""

STREAMS_AT_ONCE = 500
OTHER_TABLES = "(other)"
NO_TABLE = "(unnamed)"
LABEL_LENGTH_MAX = 200
"""Longer names of tables are cut where subscriptions are counted by them."""


@dataclass(slots=True)
class SubscriptionTally:
    """What was counted in one look."""

    streams: int = 0
    held: int = 0
    pending_bytes: int = 0
    lag_ns_max: int = 0
    by_table: Counter[str] = field(default_factory=Counter)
    bytes_now: dict[int, int] = field(default_factory=dict)
    told: list[_Told] = field(default_factory=list)

    def rows(self) -> pa.Table:
        """The rows, by stream."""
        columns = {
            name: [each.row[place] for each in self.told]
            for place, name in enumerate(SUBSCRIPTIONS_SCHEMA.names)
        }
        return pa.table(columns, schema=SUBSCRIPTIONS_SCHEMA)


@dataclass(slots=True, frozen=True)
class _Told:
    stream_id: int
    weight: tuple[bool, int, int]
    row: tuple[object, ...]


async def tallied(
    streams: Iterable[ExchangeStream],
    *,
    limits: Limits,
    now_ns: int,
    bytes_before: dict[int, int],
    seconds: float,
) -> SubscriptionTally:
    """Look at all streams. ``bytes_before``: what each had been sent so many seconds ago."""
    tally = SubscriptionTally()
    for number, stream in enumerate(streams, start=1):
        _count(tally, stream, limits, now_ns=now_ns, before=bytes_before, seconds=seconds)
        if number % STREAMS_AT_ONCE == 0:
            await asyncio.sleep(0)
    rows_max = limits.statistics_subscriptions_max
    if len(tally.told) > rows_max:
        tally.told = heapq.nlargest(rows_max, tally.told, key=lambda each: each.weight)
        tally.told.sort(key=lambda each: each.stream_id)
    return tally


def _count(
    tally: SubscriptionTally,
    stream: ExchangeStream,
    limits: Limits,
    *,
    now_ns: int,
    before: dict[int, int],
    seconds: float,
) -> None:
    sending = stream.sending
    tally.streams += 1
    tally.pending_bytes += stream.pending_bytes
    tally.bytes_now[stream.stream_id] = sending.bytes_sent
    call = sending.call
    table = ", ".join(call.tables) if call is not None else ""
    held_ns = None if sending.held_since_ns is None else max(0, now_ns - sending.held_since_ns)
    tally.held += held_ns is not None
    lag_ns = max(sending.lag_ns or 0, held_ns or 0)
    tally.lag_ns_max = max(tally.lag_ns_max, lag_ns)
    if not sending.is_subscription:
        return
    label = table[:LABEL_LENGTH_MAX] or NO_TABLE
    is_known = label in tally.by_table or len(tally.by_table) < limits.statistics_tables_max
    tally.by_table[label if is_known else OTHER_TABLES] += 1
    grown = sending.bytes_sent - before.get(stream.stream_id, 0)
    row = (
        stream.stream_id,
        None if call is None else call.caller.name,
        None if call is None else call.caller.proof.value,
        sending.peer,
        table,
        sending.begun_ns // 1000,
        sending.interval_ms,
        stream.way.value,
        sending.updates_sent,
        sending.bytes_sent,
        round(grown / seconds, 1) if seconds > 0 else 0.0,
        stream.pending_bytes,
        None if sending.lag_ns is None and held_ns is None else round(lag_ns / NANOS_PER_MS, 3),
        None if held_ns is None else round(held_ns / NANOS_PER_MS, 3),
    )
    weight = (held_ns is not None, grown, sending.bytes_sent)
    tally.told.append(_Told(stream.stream_id, weight, row))

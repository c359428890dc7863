"""What a server counts as it works: the engine thread's counters, and those of what it sends.

Counting is a few additions for each cycle, propagation and message. Each counter is written by one
thread, named below, and read by any.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakSet

from barrage.engine.propagation.held_bytes import HeldStats
from barrage.errors import CallCancelledError
from barrage.histogram import Histogram

if TYPE_CHECKING:
    from barrage.engine import CycleResult, Table
    from barrage.errors import BarrageError
    from barrage.model.update import TableUpdate

CYCLES_REMEMBERED = 1024

ABOUT_SERVERS: WeakSet[Table] = WeakSet()
"""Tables in which servers tell about themselves. What they cost is not counted: what is told of an
idle server would never come to rest."""


@dataclass(slots=True)
class RuntimeStats:
    """Counters of the engine thread; written by it alone, read from anywhere."""

    cycles: int = 0
    commands: int = 0
    propagations: int = 0
    handovers: int = 0
    propagate_ns_total: int = 0
    cycle_ns_total: int = 0
    cycle_ns_recent: deque[int] = field(default_factory=lambda: deque(maxlen=CYCLES_REMEMBERED))
    held: HeldStats = field(default_factory=HeldStats)
    """What readers that lag behind cost."""

    def cycle_ended(self, took_ns: int) -> None:
        """A cycle has run."""
        self.cycles += 1
        self.cycle_ns_total += took_ns
        self.cycle_ns_recent.append(took_ns)

    def cycle_ns_percentile(self, percent: float) -> int:
        """A percentile of the last cycles' durations; 0 before the first."""
        ordered = sorted(self.cycle_ns_recent)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0


class EngineMeasures:
    """Cycles, propagations and commits; the engine thread writes them.

    Cycles that changed nothing but tables about the server itself are not counted: what is told of
    an idle server would never come to rest.
    """

    def __init__(self) -> None:
        self.cycles = Histogram()
        self.propagations = Histogram()
        self.commits = Histogram()
        """From the cycle that made a change to when its journals had it on disk."""
        self.rows_changed = 0
        """Rows that cycles added, changed or removed in all tables, views among them."""

    def propagated(self, table: Table, took_ns: int) -> None:
        """What the subscribers of a table are told was worked out."""
        if table not in ABOUT_SERVERS:
            self.propagations.observe(took_ns)

    def cycle_ended(self, result: CycleResult, took_ns: int) -> None:
        """A cycle has changed these tables."""
        updates = [update for table, update in result.updates.items() if table not in ABOUT_SERVERS]
        if result.updates and not updates:
            return
        self.cycles.observe(took_ns)
        for update in updates:
            self.rows_changed += _row_count(update)


def _row_count(update: TableUpdate) -> int:
    """Rows it adds, removes, or changes in the column that it changes most."""
    modified = {id(rows): rows for rows in update.modified_keys_post}
    return (
        update.added_keys_post.size
        + update.removed_keys_pre.size
        + max((rows.size for rows in modified.values()), default=0)
    )


class SendingMeasures:
    """What goes out on streams, and the bytes that come in. The event loop writes all but
    ``encodings``, which the threads that encode write under a lock."""

    __slots__ = (
        "_encoding",
        "bytes_received",
        "bytes_sent",
        "encodings",
        "lag",
        "posted",
        "updates_sent",
    )

    def __init__(self) -> None:
        self.updates_sent = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.posted = 0
        """Updates that their transport took at once."""
        self.lag = Histogram()
        """From the commit of a change to when the transport had taken it, for each stream."""
        self.encodings = Histogram()
        self._encoding = threading.Lock()

    def encoded(self, took_ns: int) -> None:
        """A message, or the messages of many views together, were encoded. Any thread."""
        with self._encoding:
            self.encodings.observe(took_ns)


class TransferMeasures:
    """Bytes of messages of Flight's data calls, by method, but for what :class:`SendingMeasures`
    has. The event loop writes them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()


class CallMeasures:
    """Calls that have ended, by status; and those that were refused, by the name of the error. The
    event loop writes them. Both are names of this program: no client makes up new ones."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def note(self, error: BarrageError | None) -> None:
        """A call has ended, by an error or well."""
        if error is None:
            self.ended["OK"] += 1
            return
        self.ended[error.status_code.name] += 1
        if not isinstance(error, CallCancelledError):
            self.refused[type(error).__name__] += 1


class Measures:
    """All of one server."""

    def __init__(self) -> None:
        self.engine = EngineMeasures()
        self.sending = SendingMeasures()
        self.transfers = TransferMeasures()
        self.calls = CallMeasures()

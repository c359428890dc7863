"""What a subscription was opened with, and what it says about itself: its state, and what it has
received so far."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from barrage.client.bodies.bodies import BodyCounter, BodyStats
from barrage.client.connection.reconnect import Backoff
from barrage.proto.resumption import ResumeMode

if TYPE_CHECKING:
    from barrage.client.connection.table_sources import TableSource
    from barrage.client.subscriptions.resume import KeptState
    from barrage.clock import Clock
    from barrage.model.viewport import Viewport
    from barrage.wire.messages import SubscriptionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """What was asked for when the subscription was opened."""

    source: TableSource
    columns: tuple[str, ...] | None
    viewport: Viewport | None
    options: SubscriptionOptions
    reconnects: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    resume: ResumeMode = ResumeMode.COALESCED
    kept: KeptState | None = None
    """Rows to go on from instead of a first snapshot."""


RATE_WINDOW_NS = 5_000_000_000
"""Rates are means over this long."""

_SAMPLES_MAX = 512


class State(Enum):
    """States of a ticking table. RESUMED and RESNAPSHOTTED are passed through, never stayed in."""

    CONNECTING = "connecting"
    SNAPSHOT = "snapshot"
    """Connected; the first state is being received."""
    LIVE = "live"
    RECONNECTING = "reconnecting"
    """The connection is lost; the last consistent rows stay readable."""
    RESUMED = "resumed"
    """Reconnected: what happened in between has come as ordinary updates, and nothing is missing.
    """
    RESNAPSHOTTED = "resnapshotted"
    """Reconnected: the rows were replaced by a new snapshot, what happened in between is not known
    in steps."""
    CLOSED = "closed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (State.CLOSED, State.FAILED)


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CONNECTING: frozenset({
        State.SNAPSHOT, State.RECONNECTING, State.CLOSED, State.FAILED,
    }),
    State.SNAPSHOT: frozenset({
        State.LIVE, State.RESUMED, State.RESNAPSHOTTED, State.RECONNECTING, State.CLOSED,
        State.FAILED,
    }),
    State.RESUMED: frozenset({State.LIVE}),
    State.RESNAPSHOTTED: frozenset({State.LIVE}),
    State.LIVE: frozenset({State.RECONNECTING, State.CLOSED, State.FAILED}),
    State.RECONNECTING: frozenset({
        State.SNAPSHOT, State.RECONNECTING, State.CLOSED, State.FAILED,
    }),
    State.CLOSED: frozenset(),
    State.FAILED: frozenset(),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What was received since the subscription began. Rates are per second over the last five
    seconds."""

    updates: int = 0
    rows: int = 0
    """Rows with values: added, or modified in at least one column."""
    bytes: int = 0
    """Whatever way they came."""
    frames: int = 0
    reconnects: int = 0
    callback_errors: int = 0
    updates_per_second: float = 0.0
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0
    bodies: BodyStats = field(default_factory=BodyStats)
    """Bodies of record batches, by the way they came."""


class StatsRecorder:
    """Counts; all numbers O(1) per update, rates from at most 512 samples."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[int, int, int, int]] = deque(maxlen=_SAMPLES_MAX)
        self.updates = 0
        self.rows = 0
        self.bytes = 0
        self.frames = 0
        self.reconnects = 0
        self.callback_errors = 0
        self.bodies = BodyCounter()

    def count_frame(self, size: int) -> None:
        self.frames += 1
        self.bytes += size

    def count_update(self, rows: int) -> None:
        self.updates += 1
        self.rows += rows
        now_ns = self._clock.monotonic_ns()
        # One sample per tenth of a second is enough and bounds the memory.
        if not self._samples or now_ns - self._samples[-1][0] > RATE_WINDOW_NS // 50:
            self._samples.append((now_ns, self.updates, self.rows, self.bytes))

    def read(self) -> Stats:
        now_ns = self._clock.monotonic_ns()
        recent = [sample for sample in self._samples if now_ns - sample[0] <= RATE_WINDOW_NS]
        rates = (0.0, 0.0, 0.0)
        if recent:
            first_ns, updates, rows, size = recent[0]
            seconds = max(now_ns - first_ns, 1) / 1e9
            if seconds >= 0.1:
                rates = (
                    (self.updates - updates) / seconds,
                    (self.rows - rows) / seconds,
                    (self.bytes - size) / seconds,
                )
        return Stats(
            updates=self.updates,
            rows=self.rows,
            bytes=self.bytes,
            frames=self.frames,
            reconnects=self.reconnects,
            callback_errors=self.callback_errors,
            updates_per_second=rates[0],
            rows_per_second=rates[1],
            bytes_per_second=rates[2],
            bodies=self.bodies.read(),
        )

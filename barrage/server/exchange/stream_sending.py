"""What one stream has sent, and how far behind it is; counted for all streams together as well.

Cost for each update of each stream: some additions. What all streams of a delivery share (the lag,
its observation) is done once for them in :mod:`barrage.server.exchange.stream_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.clock import SystemClock
from barrage.server.identity.current_call import current_call
from barrage.server.runtime.measures import SendingMeasures
from barrage.server.runtime.observation import Observation

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.server.identity.current_call import CurrentCall
    from barrage.server.runtime.observation import UpdateOrigin


class SendingAccount:
    """What all streams of a server count in, and by which clock. The event loop's."""

    def __init__(
        self,
        measures: SendingMeasures | None = None,
        observation: Observation | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.measures = SendingMeasures() if measures is None else measures
        self.observation = Observation() if observation is None else observation
        self.clock: Clock = SystemClock() if clock is None else clock
        self.lag_ns: int | None = None
        """Of the update that is being delivered."""

    def begin_delivery(self, origin: UpdateOrigin | None) -> None:
        """An update is put to its streams now."""
        told_ns = None if origin is None else origin.source_time_ns
        self.lag_ns = None if told_ns is None else max(0, self.clock.wall_ns() - told_ns)


class StreamSending:
    """The account of one stream. The event loop's."""

    __slots__ = (
        "account",
        "begun_ns",
        "bytes_sent",
        "call",
        "held_since_ns",
        "interval_ms",
        "is_subscription",
        "lag_ns",
        "peer",
        "stream_id",
        "updates_sent",
    )

    def __init__(self, account: SendingAccount, stream_id: int, peer: str = "") -> None:
        self.account = account
        self.stream_id = stream_id
        self.peer = peer
        self.call: CurrentCall | None = current_call()
        """Who calls, and about which tables."""
        if self.call is not None:
            self.call.stream_id = stream_id
        self.begun_ns = account.clock.wall_ns()
        self.is_subscription = False
        self.interval_ms = 0
        """The interval that was asked for."""
        self.updates_sent = 0
        self.bytes_sent = 0
        self.lag_ns: int | None = None
        """Of the update that its transport took last: from the commit of its newest change."""
        self.held_since_ns: int | None = None
        """By the monotonic clock, while it is held."""

    def sent_at_once(self, byte_count: int) -> None:
        """The transport took an update within its delivery."""
        measures = self.account.measures
        measures.updates_sent += 1
        measures.bytes_sent += byte_count
        measures.posted += 1
        self.updates_sent += 1
        self.bytes_sent += byte_count
        self.lag_ns = self.account.lag_ns

    def sent_later(self, byte_count: int, origin: UpdateOrigin | None) -> None:
        """The transport has taken an update that waited."""
        account = self.account
        account.measures.updates_sent += 1
        account.measures.bytes_sent += byte_count
        self.updates_sent += 1
        self.bytes_sent += byte_count
        if origin is None:
            return
        if origin.source_time_ns is not None:
            self.lag_ns = max(0, account.clock.wall_ns() - origin.source_time_ns)
            account.measures.lag.observe(self.lag_ns)
        observer = account.observation.observer
        if observer is not None:
            observer.written(origin, (self.stream_id,))

    def received(self, byte_count: int) -> None:
        """Its client has sent a message."""
        self.account.measures.bytes_received += byte_count

    def held(self) -> None:
        """It is held from now on."""
        self.held_since_ns = self.account.clock.monotonic_ns()

    def released(self) -> None:
        """It is held no more."""
        self.held_since_ns = None

"""The engine's table of streams: which table each of them is subscribed to.

Belongs to the engine thread. The loop knows a stream by the same number and nothing of what stands
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barrage.engine.propagation.producer import Producer
    from barrage.engine.tables.table import Table


class ProducerStore(Protocol):
    """What the registry needs of the engine's runtime."""

    def existing_producer(self, table: Table) -> Producer | None: ...

    def producer_shrank(self, table: Table) -> None: ...


@dataclass(frozen=True, slots=True)
class SubscribedStream:
    """A stream as the engine knows it."""

    stream_id: int
    table: Table


class SubscriptionRegistry:
    """Every stream that is subscribed, by its number.

    A stream stands here from its subscription to the notice that it has ended. Its producer may be
    gone before: that of a table that has failed ends all subscriptions at once.
    """

    def __init__(self, producers: ProducerStore) -> None:
        self._producers = producers
        self._streams: dict[int, SubscribedStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream_id: int, table: Table) -> None:
        """Note a stream that its producer has taken."""
        assert stream_id not in self._streams
        self._streams[stream_id] = SubscribedStream(stream_id, table)

    def producer_of(self, stream_id: int) -> Producer | None:
        """The producer a stream is subscribed to, if it is and that is still there."""
        stream = self._streams.get(stream_id)
        return None if stream is None else self._producers.existing_producer(stream.table)

    def remove(self, stream_id: int) -> None:
        """Forget a stream, and end its subscription if it has one."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        producer = self._producers.existing_producer(stream.table)
        if producer is not None:
            producer.remove(stream_id)
            self._producers.producer_shrank(stream.table)

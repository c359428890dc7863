"""The loop's table of streams: the open DoExchange calls by number.

Belongs to the event loop. The engine thread knows a stream by the same number and nothing of what
stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, SlowConsumerError
from barrage.server.exchange.exchange_messages import EncodedUpdate
from barrage.server.exchange.lazy_update import LazyUpdate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.server.exchange.exchange_messages import (
        AnswerAnnounced,
        EncodedViews,
        StreamEnded,
        StreamUpdate,
    )
    from barrage.server.exchange.exchange_stream import ExchangeStream


class StreamTable:
    """Every stream that has not ended. Events for others concern streams that ended meanwhile."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._streams: dict[int, ExchangeStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[ExchangeStream]:
        """Those that are open now; more may come and go meanwhile."""
        return iter(list(self._streams.values()))

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._streams

    def check_room(self) -> None:
        """LimitExceededError when one more would be too many."""
        count = len(self._streams) + 1
        if count > self._count_max:
            raise LimitExceededError(
                "number of open exchanges", actual=count, maximum=self._count_max, unit="streams"
            )

    def add(self, stream: ExchangeStream) -> None:
        self._streams[stream.stream_id] = stream

    def remove(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    def deliver(self, update: StreamUpdate, full: list[int]) -> None:
        """Queue an update for its streams. Those whose outbox is full by it are added to
        ``full``."""
        streams = self._streams
        item = update if isinstance(update, EncodedUpdate) else LazyUpdate(update)
        for stream_id in update.stream_ids:
            stream = streams.get(stream_id)
            if stream is not None and stream.enqueue(item):
                full.append(stream_id)

    def deliver_views(self, views: EncodedViews, full: list[int]) -> None:
        """The same for updates of many views."""
        streams = self._streams
        for stream_id, frame in zip(views.stream_ids, views.frames, strict=True):
            stream = streams.get(stream_id)
            if stream is not None and stream.enqueue_frame(frame):
                full.append(stream_id)

    def announce(self, event: AnswerAnnounced) -> None:
        """Say on a stream what its next update answers."""
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.announce(event)

    def held(self, stream_ids: Iterable[int]) -> list[int]:
        """Those of them whose outbox is full still."""
        found = ((stream_id, self._streams.get(stream_id)) for stream_id in stream_ids)
        return [stream_id for stream_id, stream in found if stream is not None and stream.is_held]

    def end(self, event: StreamEnded) -> None:
        """End a stream with what is wrong. A reader that is too slow would never take what is
        queued, so it is not waited for."""
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.finish(event.error, is_flushed=not isinstance(event.error, SlowConsumerError))

"""The loop's table of streams: the open DoExchange calls by number.

Belongs to the event loop. The engine thread knows a stream by the same number and nothing of what
stands here.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, SlowConsumerError
from barrage.server.exchange.exchange_messages import EncodedUpdate
from barrage.server.exchange.lazy_update import LazyUpdate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from barrage.server.exchange.exchange_messages import (
        AnswerAnnounced,
        EncodedViews,
        StreamEnded,
        StreamUpdate,
    )
    from barrage.server.exchange.exchange_stream import ExchangeStream
    from barrage.server.exchange.stream_sending import SendingAccount
    from barrage.server.identity.current_call import CurrentCall
    from barrage.server.runtime.observation import UpdateOrigin


class StreamTable:
    """Every stream that has not ended. Events for others concern streams that ended meanwhile."""

    def __init__(self, count_max: int, account: SendingAccount) -> None:
        self._count_max = count_max
        self._account = account
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

    def call_of(self, stream_id: int) -> CurrentCall | None:
        """The call that a stream is; None for one that has ended."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.sending.call

    def add(self, stream: ExchangeStream) -> None:
        self._streams[stream.stream_id] = stream

    def remove(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    def deliver(self, update: StreamUpdate, full: list[int]) -> None:
        """Queue an update for its streams. Those whose outbox is full by it are added to
        ``full``."""
        item = update if isinstance(update, EncodedUpdate) else LazyUpdate(update)
        items = itertools.repeat(item, len(update.stream_ids))
        self._deliver(update.stream_ids, items, update.origin, full=full)

    def deliver_views(self, views: EncodedViews, full: list[int]) -> None:
        """The same for updates of many views."""
        self._deliver(views.stream_ids, views.frames, views.origin, full=full)

    def _deliver(
        self,
        stream_ids: Sequence[int],
        items: Iterable[bytes | EncodedUpdate | LazyUpdate],
        origin: UpdateOrigin | None,
        *,
        full: list[int],
    ) -> None:
        streams, account = self._streams, self._account
        measures, observer = account.measures, account.observation.observer
        account.begin_delivery(origin)
        posted_before = measures.posted
        for stream_id, item in zip(stream_ids, items, strict=True):
            stream = streams.get(stream_id)
            if stream is not None and stream.enqueue(item, origin):
                full.append(stream_id)
        posted = measures.posted - posted_before
        if posted and account.lag_ns is not None:
            measures.lag.observe(account.lag_ns, posted)
        if observer is not None and origin is not None:
            waiting = {each for each in stream_ids if self._is_waiting(each)}
            observer.delivered(origin, stream_ids)
            observer.written(origin, [each for each in stream_ids if each not in waiting])

    def _is_waiting(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is None or stream.has_pending

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

"""What the engine thread hands to the event loop: what producers say, as messages to streams.

A message of one frame is encoded here, once for all its subscribers; a larger one is planned, and
encoded as it is sent (:mod:`barrage.server.exchange.lazy_update`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from barrage.clock import SystemClock
from barrage.engine.changelog.making import Delivery, Disconnect, ViewAnswered, ViewDelivery
from barrage.errors import BarrageError
from barrage.model.update import STATIC_STEP
from barrage.server.exchange.exchange_messages import (
    AnswerAnnounced,
    EncodedUpdate,
    EncodedViews,
    PlannedUpdate,
    StreamEnded,
)
from barrage.server.runtime.failure import unexpected_failure
from barrage.server.runtime.observation import UpdateOrigin
from barrage.wire.updates.update_codec import BEGINNING
from barrage.wire.updates.view_frames import view_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from barrage.clock import Clock
    from barrage.model.update import FullUpdate, ViewUpdate
    from barrage.model.view_updates import ViewUpdates
    from barrage.server.exchange.exchange_messages import EncodingPlan, StreamEvent
    from barrage.server.runtime.measures import SendingMeasures
    from barrage.wire.updates.update_codec import UpdateEncoder

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """The part of :class:`barrage.wire.updates.update_codec.UpdateEncoder` used here; equal
    options, one encoder."""

    def plan(self, message: FullUpdate | ViewUpdate) -> EncodingPlan: ...


def convert(
    item: Delivery | ViewDelivery | ViewAnswered | Disconnect, timing: EncodeTiming | None = None
) -> Iterable[StreamEvent]:
    """Events for what a producer said. An update that cannot be encoded ends its subscriptions."""
    if isinstance(item, Disconnect):
        return (StreamEnded(stream_id=item.subscription_id, error=item.error),)
    timing = EncodeTiming() if timing is None else timing
    if isinstance(item, ViewDelivery):
        return _convert_views(item, timing)
    if isinstance(item, ViewAnswered):
        return (AnswerAnnounced(stream_id=item.subscription_id, token=item.token),)
    encoder = cast("Encoder", item.encoding)
    stream_ids = item.subscription_ids
    begun_ns = timing.now_ns()
    try:
        plan = encoder.plan(item.message)
        first, mark = plan.frame_at(BEGINNING)
        origin = timing.origin(item.message, begun_ns)
        if mark is None:
            return (EncodedUpdate.of(stream_ids, (first,), origin),)
        return (
            PlannedUpdate(stream_ids=stream_ids, plan=plan, first=first, mark=mark, origin=origin),
        )
    except BarrageError as error:
        failure: BarrageError = error
    except Exception:
        failure = unexpected_failure(log, "an update could not be encoded")
    return [StreamEnded(stream_id=stream_id, error=failure) for stream_id in stream_ids]


def _convert_views(item: ViewDelivery, timing: EncodeTiming) -> list[StreamEvent]:
    """Views that are laid out together are one event; the others are told one by one."""
    encoder = cast("UpdateEncoder[Any]", item.encoding)
    begun_ns = timing.now_ns()
    try:
        frames = view_frames(encoder, item.updates, item.which)
    except Exception:
        unexpected_failure(log, "views could not be encoded together")
        frames = [None] * len(item.which)
    events: list[StreamEvent] = []
    rest = np.flatnonzero([frame is None for frame in frames])
    if len(rest):
        for alone in item.pick(rest).deliveries():
            events += convert(alone, timing)
        made = np.flatnonzero([frame is not None for frame in frames])
        item, frames = item.pick(made), [frames[index] for index in made.tolist()]
    if len(item.subscription_ids) > len(frames):
        frames = [frames[index] for index in np.repeat(np.arange(len(frames)), item.counts)]
    if frames:
        found = cast("list[bytes]", frames)
        origin = timing.origin(item.updates, begun_ns)
        events.append(EncodedViews(stream_ids=item.subscription_ids, frames=found, origin=origin))
    return events


class EncodeTiming:
    """Measures how long encoding takes. Any thread."""

    def __init__(self, measures: SendingMeasures | None = None, clock: Clock | None = None) -> None:
        self._measures = measures
        self.now_ns = (SystemClock() if clock is None else clock).monotonic_ns

    def origin(self, message: FullUpdate | ViewUpdate | ViewUpdates, begun_ns: int) -> UpdateOrigin:
        """That of a message which was encoded from then until now."""
        ended_ns = self.now_ns()
        if self._measures is not None:
            self._measures.encoded(ended_ns - begun_ns)
        return UpdateOrigin(
            step=getattr(message, "last_step", STATIC_STEP),
            source_time_ns=getattr(message, "source_time_ns", None),
            is_snapshot=getattr(message, "is_snapshot", False),
            encode_begun_ns=begun_ns,
            encode_ended_ns=ended_ns,
        )


class EventOutlet:
    """The way of events to the loop (:class:`barrage.server.runtime.runtime.EngineOutlet`)."""

    def __init__(
        self, hand_over: Callable[[Sequence[Any]], None], timing: EncodeTiming | None = None
    ) -> None:
        """``hand_over`` is called on the engine thread and passes events on to the loop."""
        self.hand_over = hand_over
        self._timing = EncodeTiming() if timing is None else timing

    def convert(
        self, item: Delivery | ViewDelivery | ViewAnswered | Disconnect
    ) -> Iterable[StreamEvent]:
        """Events for what a producer said. Any thread."""
        return convert(item, self._timing)

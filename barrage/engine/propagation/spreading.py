"""Who gets which of the messages that were made for many shapes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.changelog import VIEWS_AT
from barrage.engine.changelog.making import Delivery, ViewDelivery
from barrage.engine.changelog.together import distinct, runs_of_equals
from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from barrage.engine.changelog.changelog import Messages
    from barrage.engine.changelog.making import Told
    from barrage.engine.changelog.subscription import SubscriberTable
    from barrage.errors import BarrageError
    from barrage.model.view_updates import ViewUpdates
    from barrage.rowset.arrays import Int64Array


def spread(
    subscribers: SubscriberTable,
    answer: Messages,
    which: Int64Array,
    *,
    slots: Int64Array,
    output: list[Told],
) -> list[tuple[int, BarrageError]]:
    """Append one delivery per message and encoding to ``output``, and one per encoding for views
    that are told together; ``which`` tells each slot's message. The slots whose subscriptions end
    instead, and why."""
    ended: list[tuple[int, BarrageError]] = []
    if answer.views:
        number = which // VIEWS_AT
        for at, updates in enumerate(answer.views, 1):
            views, told = which[number == at] - at * VIEWS_AT, slots[number == at]
            spread_views(subscribers, updates, views, slots=told, output=output)
        which, slots = which[number <= 0], slots[number <= 0]
        if not len(slots):
            return ended
    encodings = subscribers.encoding[slots]
    order, starts = runs_of_equals(which, encodings)
    which, slots, encodings = which[order], slots[order], encodings[order]
    ids = subscribers.ids[slots].tolist()
    stops = [*starts[1:].tolist(), len(ids)]
    for start, stop, index, encoding in zip(
        starts.tolist(), stops, which[starts].tolist(), encodings[starts].tolist(), strict=True
    ):
        if index < 0:
            continue
        message = answer.messages[index]
        if isinstance(message, LimitExceededError):
            ended += [(slot, message) for slot in slots[start:stop].tolist()]
            continue
        output.append(
            Delivery(
                message=message,
                subscription_ids=tuple(ids[start:stop]),
                encoding=subscribers.encodings[encoding],
            )
        )
    return ended


def spread_views(
    subscribers: SubscriberTable,
    updates: ViewUpdates,
    views: Int64Array,
    *,
    slots: Int64Array,
    output: list[Told],
) -> None:
    """Append one delivery per encoding to ``output``; ``views`` tells each slot's view of
    ``updates``."""
    encodings = subscribers.encoding[slots]
    for encoding in distinct(encodings).tolist():
        is_equal = encodings == encoding
        which, ids = views[is_equal], subscribers.ids[slots[is_equal]]
        order = np.argsort(which, kind="stable")
        which, ids = which[order], ids[order]
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        output.append(
            ViewDelivery(
                updates=updates,
                which=which[starts],
                counts=np.diff(starts, append=len(which)),
                subscription_ids=ids.tolist(),
                encoding=subscribers.encodings[encoding],
            )
        )

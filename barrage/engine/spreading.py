"""Who gets which of the messages that were made for many shapes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.making import Delivery
from barrage.engine.propagation.together import runs_of_equals
from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from barrage.engine.propagation.feed import Messages
    from barrage.engine.subscription import Roster
    from barrage.errors import BarrageError
    from barrage.rowset.arrays import Int64Array


def spread(
    roster: Roster,
    answer: Messages,
    which: Int64Array,
    *,
    slots: Int64Array,
    output: list[Delivery],
) -> list[tuple[int, BarrageError]]:
    """Append one Delivery per message and encoding to ``output``; ``which`` tells each slot's
    message. The slots whose subscriptions end instead, and why."""
    ended: list[tuple[int, BarrageError]] = []
    encodings = roster.encoding[slots]
    order, starts = runs_of_equals(which, encodings)
    which, slots, encodings = which[order], slots[order], encodings[order]
    ids = roster.ids[slots].tolist()
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
                encoding=roster.encodings[encoding],
            )
        )
    return ended

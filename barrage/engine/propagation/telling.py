"""Telling some subscribers of one table something of its present, at once or beside the engine
thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.making import Delivery, MakingPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.engine.changelog.changelog import Changelog, Message, PinnedMoment, TableMoment
    from barrage.engine.changelog.making import Makings, Told
    from barrage.engine.changelog.subscription import SubscriberTable


class Teller:
    """Makes deliveries of messages; equal encodings share one."""

    def __init__(
        self, subscribers: SubscriberTable, changelog: Changelog, makings: Makings
    ) -> None:
        self._subscribers = subscribers
        self._changelog = changelog
        self._makings = makings

    def tell(self, message: Message, slots: list[int], output: list[Told]) -> None:
        """Have ``slots`` get ``message``."""
        for encoding, ids in self._makings.readers_of(slots):
            output.append(Delivery(message=message, subscription_ids=ids, encoding=encoding))

    def told(
        self,
        place: MakingPlace,
        slots: list[int],
        tell: Callable[[TableMoment], Message],
        *,
        output: list[Told],
    ) -> bool:
        """Whether ``slots`` get what ``tell`` says of the present, now or as soon as it is made;
        otherwise they wait for room."""
        if place is MakingPlace.BESIDE:
            return self.make_beside(slots, tell, output)
        self.tell(tell(self._changelog.present), slots, output)
        self._subscribers.sent(np.array(slots))
        return True

    def make_beside(
        self, slots: list[int], tell: Callable[[PinnedMoment], Message], output: list[Told]
    ) -> bool:
        """Have made, from the present as it is now, what ``tell`` says of it; whether there is room
        for that."""

        def prepare() -> Callable[[], list[Message]]:
            pinned = self._changelog.present.pinned()
            return lambda: [tell(pinned)]

        making = self._makings.begin(slots, prepare)
        if making is not None:
            output.append(making)
        return making is not None

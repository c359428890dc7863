"""What is told in large messages, made beside the engine thread from a pinned state of the table.

Reading and encoding a large message takes long, wherever it is done. So the engine thread only pins
the table, lets the subscribers stand where the message will have brought them, and goes on. They
get nothing until the message is made; what happens meanwhile they find in the delta log, as every
reader does that was held there. So nothing is lost, and nothing comes twice or too early.

Much at a time is not made (``makings_max`` of a server): every message under way keeps a pinned
table alive. Who wants another one waits where he stands, and the tables take turns.

Threads: :meth:`Making.deliveries` may be called on any thread, once; everything else belongs to the
engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from barrage.engine.changelog.subscription import SlotInput
from barrage.rowset.arrays import expand

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from barrage.engine.changelog.changelog import Message
    from barrage.engine.changelog.subscription import SubscriberTable
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate, ViewUpdate
    from barrage.model.view_updates import ViewUpdates
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message for all ``subscription_ids``, which all use ``encoding``."""

    message: FullUpdate | ViewUpdate
    subscription_ids: tuple[int, ...]
    encoding: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDelivery:
    """Messages of many views, which all use ``encoding``: view ``which[i]`` of ``updates`` is for
    ``counts[i]`` subscriptions, whose numbers stand one after the other in ``subscription_ids``.

    Flat, so that a tick leaves no objects behind for the garbage collector to look at.
    """

    updates: ViewUpdates
    which: Int64Array
    counts: Int64Array
    subscription_ids: list[int]
    encoding: Hashable

    def pick(self, places: Int64Array) -> ViewDelivery:
        """That of some of the views, by their places in ``which``."""
        ids = np.array(self.subscription_ids, dtype=np.int64)
        starts, counts = (np.cumsum(self.counts) - self.counts)[places], self.counts[places]
        return replace(
            self,
            which=self.which[places],
            counts=counts,
            subscription_ids=ids[expand(starts, counts)].tolist(),
        )

    def portions(self, views_max: int) -> Iterator[ViewDelivery]:
        """The same in parts of at most so many views."""
        if len(self.which) <= views_max:
            yield self
            return
        for start in range(0, len(self.which), views_max):
            yield self.pick(np.arange(start, min(start + views_max, len(self.which))))

    def deliveries(self) -> Iterator[Delivery]:
        """The same one by one."""
        stops = np.cumsum(self.counts)
        starts = (stops - self.counts).tolist()
        for view, start, stop in zip(self.which.tolist(), starts, stops.tolist(), strict=True):
            yield Delivery(
                message=self.updates.view(view),
                subscription_ids=tuple(self.subscription_ids[start:stop]),
                encoding=self.encoding,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """The subscription has ended with ``error``; the producer has forgotten it already."""

    subscription_id: int
    error: BarrageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewAnswered:
    """What this subscription is told next is the answer to its request with this token."""

    subscription_id: int
    token: bytes


PATIENCE = 4
"""How many times the work of a turn a delta in a steady flow may be: to pin a table may cost as
much as to read it, and would in every cycle."""


class MakingPlace(Enum):
    """Where a message is made."""

    NOW = auto()
    """By the engine thread, in this turn."""
    NEXT_TURN = auto()
    """By the engine thread, when it has done something else."""
    BESIDE = auto()


class Making:
    """Messages in the making, equal for all their subscribers but for the encoding."""

    def __init__(
        self,
        make: Callable[[], Sequence[Message]],
        readers: Sequence[tuple[Hashable, tuple[int, ...]]],
        room: MakingRoom,
    ) -> None:
        self._make: Callable[[], Sequence[Message]] | None = make
        self._readers = readers
        self._room = room

    def deliveries(self) -> list[Delivery]:
        """Any thread: make the messages, to be delivered in this order."""
        assert self._make is not None
        messages = self._make()
        return [
            Delivery(message=message, subscription_ids=ids, encoding=encoding)
            for message in messages
            for encoding, ids in self._readers
        ]

    def close(self) -> None:
        """Let go of the pinned table, and let somebody else begin."""
        if self._make is not None:
            self._make = None
            self._room.give_back()


class MakingRoom:
    """What the tables of a server share: how many messages are made beside at a time, and how much
    reading the engine thread does itself in one turn."""

    def __init__(self, limits: Limits) -> None:
        self._turn_work_max = limits.turn_work_max
        self._free = limits.makings_max
        self._spent = 0
        self._waiting: dict[object, None] = {}

    def begin_turn(self) -> None:
        """A new turn of the engine thread."""
        self._spent = 0

    def place_for(self, work: int) -> MakingPlace:
        """Where a message of so many row operations is made; what is made now counts at once."""
        if work > self._turn_work_max:
            return MakingPlace.BESIDE
        if self._spent and self._spent + work > self._turn_work_max:
            return MakingPlace.NEXT_TURN
        self._spent += work
        return MakingPlace.NOW

    def is_small(self, work: int) -> bool:
        """Whether a message in a steady flow, which is not counted, is made now."""
        return work <= PATIENCE * self._turn_work_max

    def is_free(self, who: object) -> bool:
        """Whether it is the turn of ``who`` to begin a message."""
        return self._free > 0 and next(iter(self._waiting), who) is who

    def take(self, who: object) -> bool:
        """Begin a message, if it is the turn of ``who``; otherwise that is remembered."""
        if not self.is_free(who):
            self._waiting[who] = None
            return False
        self._free -= 1
        self._waiting.pop(who, None)
        return True

    def leave(self, who: object) -> None:
        """``who`` does not wait any more."""
        self._waiting.pop(who, None)

    def give_back(self) -> None:
        """A message has been made, or will not be."""
        self._free += 1


class Makings:
    """The subscribers of one table whose messages are made beside, or wait for room."""

    def __init__(self, subscribers: SubscriberTable, room: MakingRoom | None) -> None:
        """Without ``room`` everything is made by the producer itself."""
        self._subscribers = subscribers
        self._room = room
        self._begun: dict[int, Making] = {}
        self._queued: dict[int, None] = {}

    def place_for(self, work: int) -> MakingPlace:
        """Where a message of so many row operations is made."""
        return MakingPlace.NOW if self._room is None else self._room.place_for(work)

    def is_small(self, work: int) -> bool:
        """Whether a message in a steady flow, of so many row operations, is made now."""
        return self._room is None or self._room.is_small(work)

    def begin(
        self, slots: Sequence[int], prepare: Callable[[], Callable[[], Sequence[Message]]]
    ) -> Making | None:
        """Have messages made for ``slots``: ``prepare`` pins what they are made of, what it returns
        makes them. Where there is no room yet, the slots wait for it and there is nothing."""
        room = self._room
        assert room is not None
        is_room = room.take(self)
        for slot in slots:
            self._subscribers.move(slot, SlotInput.AWAIT)
        if not is_room:
            self._queued.update(dict.fromkeys(slots))
            return None
        making = Making(prepare(), self.readers_of(slots), room)
        self._begun.update(dict.fromkeys(slots, making))
        return making

    def readers_of(self, slots: Iterable[int]) -> list[tuple[Hashable, tuple[int, ...]]]:
        """The subscriptions in ``slots``, those of one encoding together."""
        subscribers = self._subscribers
        alike: dict[int, list[int]] = {}
        for slot in slots:
            alike.setdefault(int(subscribers.encoding[slot]), []).append(int(subscribers.ids[slot]))
        return [(subscribers.encodings[number], tuple(ids)) for number, ids in alike.items()]

    @property
    def is_due(self) -> bool:
        """Whether somebody waits for room, and there is some."""
        return bool(self._queued) and self._room is not None and self._room.is_free(self)

    def resume(self) -> None:
        """If there is room, let those who wait for it be due again."""
        if self.is_due:
            queued, self._queued = self._queued, {}
            for slot in queued:
                self._subscribers.move(slot, SlotInput.ARRIVE)

    def settle(self) -> None:
        """Everybody has been asked: a place in the line for room is kept by those who wait only."""
        if self._room is not None and not self._queued:
            self._room.leave(self)

    def arrived(self, making: Making) -> list[int]:
        """The messages are made: the slots that still wait for them, which flow again."""
        slots = [slot for slot, found in self._begun.items() if found is making]
        for slot in slots:
            del self._begun[slot]
            self._subscribers.move(slot, SlotInput.ARRIVE)
        return slots

    def forget(self, slot: int) -> None:
        """The subscription in ``slot`` has gone."""
        self._begun.pop(slot, None)
        if slot in self._queued:
            del self._queued[slot]
            self.settle()

    def validate(self, awaiting: set[int]) -> None:
        """Check the invariants; for tests and simulation."""
        assert not self._begun.keys() & self._queued.keys()
        assert self._begun.keys() | self._queued.keys() == awaiting


Told: TypeAlias = "Delivery | ViewDelivery | ViewAnswered | Disconnect | Making"
"""What a propagation yields."""

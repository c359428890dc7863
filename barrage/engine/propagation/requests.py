"""Subscription requests that await their snapshots, and how they are answered.

* First requests of contiguous views are answered together, and so are views that jump.
* A view that changes is told what happened to its rows before, and then what the new one lacks.
* A view that jumps, of which nothing stays, is told the new rows alone: nobody looks for changes
  of rows that go at once, and one message goes out instead of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.making import MakingPlace, ViewAnswered
from barrage.engine.changelog.span_updates import first_kind
from barrage.engine.changelog.subscription import FLOWING, IS_SILENT, NOWHERE, ShapeKind
from barrage.engine.propagation.spreading import spread_views

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Iterator

    from barrage.engine.changelog.changelog import Changelog
    from barrage.engine.changelog.making import Makings, Told
    from barrage.engine.changelog.subscription import Shape, SubscriberTable
    from barrage.engine.propagation.telling import Teller
    from barrage.rowset.arrays import BoolArray, Int64Array


@dataclass(frozen=True, slots=True)
class _Request:
    """What one slot waits for. ``shape`` is None for the first request: the slot has it."""

    shape: int | None
    asked_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """Subscribers that show the same rows, none of which they want to keep."""

    slots: list[int]
    old: Shape
    new: Shape
    new_number: int
    size_known: int
    """Rows the table had when they were told of it last."""


class SnapshotRequests:
    """The requests of one table's subscribers, by slot."""

    def __init__(
        self,
        subscribers: SubscriberTable,
        changelog: Changelog,
        makings: Makings,
        *,
        teller: Teller,
    ) -> None:
        self._subscribers = subscribers
        self._changelog = changelog
        self._makings = makings
        self._teller = teller
        self._waiting: dict[int, _Request] = {}
        self._tokens: dict[int, bytes] = {}
        """Those of requests whose answers are to be announced."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[int]:
        return iter(self._waiting)

    # --- asking -----------------------------------------------------------------------------------

    def announce(self, slot: int, token: bytes | None) -> None:
        """The answer to what ``slot`` has asked last is announced by this token, or not at all."""
        if token is not None:
            self._tokens[slot] = token
        elif self._tokens:
            self._tokens.pop(slot, None)

    def ask_first(self, slot: int, now_ns: int) -> None:
        """A new subscription wants its first state."""
        self._waiting[slot] = _Request(shape=None, asked_ns=now_ns)

    def ask(self, slot: int, shape: Shape, now_ns: int) -> None:
        """A subscription wants another shape; of several requests the last counts."""
        shapes = self._subscribers.shapes
        before = self._waiting.get(slot)
        if before is not None and before.shape is None:
            self._subscribers.reshape(slot, shapes.take(shape))
            return
        number = shapes.take(shape)
        if before is not None and before.shape is not None:
            shapes.drop(before.shape)
        self._waiting[slot] = _Request(shape=number, asked_ns=now_ns)

    def forget(self, slot: int) -> None:
        """The subscription has gone."""
        self._tokens.pop(slot, None)
        request = self._waiting.pop(slot, None)
        if request is not None and request.shape is not None:
            self._subscribers.shapes.drop(request.shape)

    def due_ns(self) -> Iterable[int]:
        """When each of those asked that can be told anything now."""
        states = self._subscribers.state
        return [
            each.asked_ns for slot, each in self._waiting.items() if not IS_SILENT[states[slot]]
        ]

    def is_any_of(self, slots: Iterable[int]) -> bool:
        """Whether one of ``slots`` waits."""
        return not self._waiting.keys().isdisjoint(slots)

    @property
    def changing_count(self) -> int:
        """Requests that hold a shape besides that of their slot."""
        return sum(request.shape is not None for request in self._waiting.values())

    # --- answering --------------------------------------------------------------------------------

    def send(self, waiting: Container[int], output: list[Told]) -> None:
        """Answer all that are told anything now, and are not ``waiting`` for something else before;
        equal ones share one message."""
        shapes = self._subscribers.shapes
        first: dict[Hashable, list[tuple[Shape, list[int]]]] = {}
        for (old_number, number), slots in self._equal(waiting).items():
            shape = shapes[number]
            old = None if old_number is None else shapes[old_number]
            place = self._makings.place_for(self._changelog.snapshot_work(shape))
            if place is MakingPlace.NEXT_TURN:
                continue
            if old is None and place is MakingPlace.NOW:
                first.setdefault(first_kind(shape), []).append((shape, slots))
                continue
            if old is not None:
                for slot in slots:
                    self._clear(slot, old, output)
            place_of_answer, announced = len(output), self._announcements(slots)
            if self._teller.told(place, slots, methodcaller("snapshot", shape, old), output=output):
                output[place_of_answer:place_of_answer] = announced
                self._settle(slots, None if old_number is None else number)
        for kind, asked in first.items():
            self._send_first(kind, asked, output)

    def send_jumps(self, waiting: Container[int], is_due: BoolArray, output: list[Told]) -> None:
        """Answer those whose views jump; they are not due any more."""
        shapes, changelog = self._subscribers.shapes, self._changelog
        together: dict[Hashable, list[_Jump]] = {}
        sizes: dict[int, int] = {}
        for (point, old, new), slots in self._jumps(waiting).items():
            if self._makings.place_for(changelog.snapshot_work(shapes[new])) is MakingPlace.NOW:
                if point not in sizes:
                    sizes[point] = changelog.known(point, with_keys=False).size
                jump = _Jump(
                    slots=slots,
                    old=shapes[old],
                    new=shapes[new],
                    new_number=new,
                    size_known=sizes[point],
                )
                together.setdefault(first_kind(jump.new), []).append(jump)
        for kind, jumps in together.items():
            for jump in jumps:
                output += self._announcements(jump.slots)
            self._send_alike(kind, jumps, output)
            for jump in jumps:
                self._settle(jump.slots, jump.new_number)
                is_due[jump.slots] = False

    def _send_alike(self, kind: Hashable, jumps: list[_Jump], output: list[Told]) -> None:
        """Tell of jumps: together where the views are of a kind, and many."""
        views = None
        if kind is not None:
            views = self._changelog.jumps(
                [jump.new for jump in jumps],
                [jump.old for jump in jumps],
                [jump.size_known for jump in jumps],
            )
        if views is None:
            for jump in jumps:
                message = self._changelog.present.jump(jump.new, jump.old, jump.size_known)
                self._teller.tell(message, jump.slots, output)
            return
        slots, which = _numbered([jump.slots for jump in jumps])
        spread_views(self._subscribers, views, which, slots=slots, output=output)

    def _announcements(self, slots: list[int]) -> list[ViewAnswered]:
        """What is said ahead of the answer to ``slots``."""
        if not self._tokens:
            return []
        return [
            ViewAnswered(subscription_id=int(self._subscribers.ids[slot]), token=self._tokens[slot])
            for slot in slots
            if slot in self._tokens
        ]

    def _equal(self, waiting: Container[int]) -> dict[tuple[int | None, int], list[int]]:
        """Slots by the numbers of the shape they have (None for a first request) and of the one
        they want."""
        subscribers = self._subscribers
        together: dict[tuple[int | None, int], list[int]] = {}
        for slot, request in self._waiting.items():
            if IS_SILENT[subscribers.state[slot]] or slot in waiting:
                continue
            current = int(subscribers.shape[slot])
            key = (None, current) if request.shape is None else (current, request.shape)
            together.setdefault(key, []).append(slot)
        return together

    def _jumps(self, waiting: Container[int]) -> dict[tuple[int, int, int], list[int]]:
        """Slots by the point at which they stand and the shapes they have and want."""
        subscribers = self._subscribers
        found: dict[tuple[int, int, int], list[int]] = {}
        for slot, request in self._waiting.items():
            point, wanted = int(subscribers.point[slot]), request.shape
            if (
                wanted is not None
                and point != NOWHERE
                and subscribers.state[slot] == FLOWING
                and slot not in waiting
                and _is_jump(subscribers.shape_of(slot), subscribers.shapes[wanted])
            ):
                key = point, int(subscribers.shape[slot]), wanted
                found.setdefault(key, []).append(slot)
        return found

    def _send_first(
        self, kind: Hashable, asked: list[tuple[Shape, list[int]]], output: list[Told]
    ) -> None:
        """Answer first requests: together where the views are of a kind, and many."""
        for _, alike in asked:
            output += self._announcements(alike)
        views = None
        if kind is not None:
            views = self._changelog.first_states([shape for shape, _ in asked])
        slots, which = _numbered([alike for _, alike in asked])
        if views is None:
            for shape, alike in asked:
                message = self._changelog.present.snapshot(shape, None)
                self._teller.tell(message, alike, output)
        else:
            spread_views(self._subscribers, views, which, slots=slots, output=output)
        self._subscribers.sent(slots)
        self._settle(slots.tolist(), None)

    def _clear(self, slot: int, shape: Shape, output: list[Told]) -> None:
        """Take away what a blink subscriber still shows, since the snapshot will say that there is
        nothing."""
        clearing = self._changelog.clearing(int(self._subscribers.point[slot]), shape)
        if clearing is not None:
            self._teller.tell(clearing, [slot], output)

    def _settle(self, slots: list[int], new_shape: int | None) -> None:
        """``slots`` got a snapshot: they stand at the present, with their new shape if they changed
        it."""
        subscribers = self._subscribers
        for slot in slots:
            del self._waiting[slot]
            if self._tokens:
                self._tokens.pop(slot, None)
            point = int(subscribers.point[slot])
            if point != NOWHERE:
                self._changelog.leave(point, 1)
            if new_shape is not None:
                subscribers.reshape(slot, new_shape)
        subscribers.place(np.array(slots), self._changelog.join(len(slots)))


def _numbered(groups: list[list[int]]) -> tuple[Int64Array, Int64Array]:
    """The slots of all groups, and for each of them which group it is of."""
    slots = np.array([slot for group in groups for slot in group], dtype=np.int64)
    return slots, np.repeat(np.arange(len(groups)), [len(group) for group in groups])


def _is_jump(old: Shape, new: Shape) -> bool:
    """Whether none of the positions of a contiguous view is on show already."""
    if old.kind is not ShapeKind.SPAN or new.kind is not ShapeKind.SPAN:
        return False
    return old.is_reverse != new.is_reverse or old.stop <= new.start or new.stop <= old.start

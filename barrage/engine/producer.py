"""Turns the updates of one table into what each of its subscribers is told.

One producer per table. The engine calls :meth:`Producer.record` once per cycle that changed the
table and :meth:`Producer.propagate` at cycle boundaries; nothing here reads a clock or does IO.

Who is due is decided here, what they are told in :mod:`barrage.engine.propagation`:

* Subscribers of equal (rounded) interval form a group. A change that comes at least one interval
  after the group's last propagation is sent at once, otherwise together with all others when the
  interval is over. A subscriber that joins or changes in between gets its snapshot at once and
  takes part in the group's next propagation.
* A held subscriber gets nothing. It stands at its point of the delta log, which costs row sets and
  no values; released, it gets one update up to the present. What that costs is bounded by points
  and by bytes (:mod:`barrage.engine.lagging`); past a bound its next update is the whole table.
* Work is shared: subscribers standing at one point with equal columns and viewport share one
  message, all views in which nothing changed share one, and subscribers with equal encodings share
  one Delivery.
* A subscriber that comes back with the rows of an older version stands on a branch of the delta log
  (:mod:`barrage.engine.resume`) and catches up from there; it gets no snapshot.

Cost: a propagation in which no view changes is a fixed number of numpy calls over all subscribers,
plus one tuple of ids. See `benchmarks/propagation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.held_bytes import HeldBytes
from barrage.engine.intervals import IntervalGroup, rounded_interval_ns
from barrage.engine.lagging import Lagging
from barrage.engine.open_plans import OpenPlans
from barrage.engine.propagation.blink_feed import BlinkFeed
from barrage.engine.propagation.table_feed import TableFeed
from barrage.engine.propagation.together import distinct, distinct_and_index, runs_of_equals
from barrage.engine.subscription import (
    CATCHING_UP,
    FLOWING,
    FREE,
    HELD,
    NOWHERE,
    Roster,
    Shape,
    ShapeKind,
    SlotInput,
)
from barrage.errors import (
    BarrageError,
    LimitExceededError,
    RemoteProtocolError,
    ResumeRefusedError,
    SlowConsumerError,
    TableFailedError,
)
from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.engine.propagation.feed import Feed, Known, Messages
    from barrage.engine.resume import ResumePlan
    from barrage.engine.subscription import SubscriptionSpec
    from barrage.engine.table import Table
    from barrage.model.update import FullUpdate, TableUpdate, ViewUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.rowset.arrays import BoolArray, Int64Array

CHANGE_REFUSED = "cannot change from full subscription to viewport or vice versa"
REVERSE_BLINK_REFUSED = "Reverse viewport is not supported for blink tables"
ALREADY_FAILED = "Table is already failed"
"""Texts of the reference server (barrage-wire.md section 13)."""

RESYNCS_MAX = 1
"""Whole tables told in one propagation to readers of row keys whose changes were given up."""

JITTER_DIVISOR = 8
"""A group's next propagation counts from when the last one was due, up to interval / 8 before it
really happened. Otherwise every late cycle would move all later ones, and the rate would drop below
what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message for all ``subscription_ids``, which all use ``encoding``."""

    message: FullUpdate | ViewUpdate
    subscription_ids: tuple[int, ...]
    encoding: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """The subscription has ended with ``error``; the producer has forgotten it already."""

    subscription_id: int
    error: BarrageError


@dataclass(frozen=True, slots=True)
class _Request:
    """A subscription request that awaits its snapshot. ``shape`` is None for the first one: the
    slot has it."""

    shape: int | None
    asked_ns: int


class Producer:
    """The subscriptions of one table. A :class:`Holder <barrage.engine.held_bytes.Holder>`.

    ``step`` is the table's ``changed_step`` at construction; it numbers snapshots sent before the
    table changes.
    """

    def __init__(
        self,
        table: Table,
        limits: Limits = DEFAULT_LIMITS,
        *,
        step: int = 0,
        held: HeldBytes | None = None,
    ) -> None:
        """``held`` counts what all tables of a server keep for slow readers."""
        self._table = table
        self._limits = limits
        self._feed: Feed = (
            BlinkFeed(table, limits, step=step)
            if table.is_blink
            else TableFeed(table, limits, step=step)
        )
        self._roster = Roster()
        self._groups: dict[int, IntervalGroup] = {}
        self._requests: dict[int, _Request] = {}
        self._held_ns: dict[int, int] = {}
        self._held_rounds: dict[int, int] = {}
        self._unstamped: list[int] = []
        self._plans = OpenPlans(self._feed)
        self._held = HeldBytes(limits) if held is None else held
        self._lagging = Lagging(self._roster, self._feed, self._plans, limits, self._held.stats)
        self._earlier: dict[int, ResumePlan] = {}

    @property
    def table(self) -> Table:
        return self._table

    @property
    def subscription_count(self) -> int:
        """Subscriptions that are neither removed nor disconnected."""
        return len(self._roster)

    @property
    def held_nbytes(self) -> int:
        return self._lagging.nbytes if len(self._roster) else 0

    def shed(self) -> bool:
        return self._lagging.shed()

    # --- subscribers come, change and go ----------------------------------------------------------

    def open_plans(self) -> list[ResumePlan]:
        """Plans that others may still join, oldest first."""
        return self._plans.plans()

    def can_resume(self, plan: ResumePlan) -> bool:
        """Whether :meth:`add` would take the plan: it leads to the present, or was in use a moment
        ago."""
        return self._plans.is_usable(plan)

    def add(
        self,
        subscription_id: int,
        spec: SubscriptionSpec,
        now_ns: int,
        *,
        resume: ResumePlan | None = None,
    ) -> None:
        """Take a subscription; its snapshot comes with the next :meth:`propagate`.

        With ``resume`` it gets what it missed instead, as ``resume.update_count`` updates.

        Raises RemoteProtocolError, LimitExceededError or TableFailedError if it cannot be served,
        ResumeRefusedError if only a snapshot can be.
        """
        if self._table.failure is not None:
            raise TableFailedError(ALREADY_FAILED)
        shape = Shape.of_spec(spec, column_count=len(self._table.schema))
        self._check(shape)
        if resume is not None:
            self._check_plan(resume, shape)
        interval_ns = rounded_interval_ns(spec.interval_ns, self._limits)
        slot = self._roster.add(
            subscription_id,
            shape=shape,
            group=interval_ns,
            encoding=spec.encoding,
            is_resumed=resume is not None,
        )
        group = self._groups.setdefault(interval_ns, IntervalGroup(interval_ns, last_ns=now_ns))
        group.members += 1
        if resume is None:
            self._requests[slot] = _Request(shape=None, asked_ns=now_ns)
            return
        self._roster.place(np.array([slot]), self._plans.stand(resume, now_ns))
        if resume.earlier:
            self._earlier[slot] = resume

    def _check_plan(self, plan: ResumePlan, shape: Shape) -> None:
        if plan.table is not self._table or not self._plans.is_usable(plan):
            raise ResumeRefusedError("the table has changed since the way to its rows was found")
        if shape.kind is ShapeKind.KEYED_VIEW:
            raise ResumeRefusedError("a viewport in row keys cannot be resumed")
        if plan.shape is not None and plan.shape != shape:
            raise ResumeRefusedError("the steps were told for another subscription")

    def change(
        self,
        subscription_id: int,
        columns: ColumnSet | None,
        viewport: Viewport | None,
        now_ns: int,
    ) -> None:
        """Ask for another viewport or other columns; several requests before :meth:`propagate`
        count as the last.

        Raises RemoteProtocolError or LimitExceededError when the change is not allowed; the
        subscription then still stands as it was.
        """
        roster = self._roster
        slot = roster.slot_of(subscription_id)
        old = roster.shape_of(slot)
        if old.kind is ShapeKind.FULL or viewport is None:
            raise RemoteProtocolError(CHANGE_REFUSED)
        shape = Shape.of(
            columns,
            viewport,
            column_count=len(self._table.schema),
            is_key_space=old.kind is ShapeKind.KEYED_VIEW,
        )
        self._check(shape)
        waiting = self._requests.get(slot)
        if waiting is not None and waiting.shape is None:
            roster.reshape(slot, roster.shapes.take(shape))
            return
        number = roster.shapes.take(shape)
        if waiting is not None and waiting.shape is not None:
            roster.shapes.drop(waiting.shape)
        self._requests[slot] = _Request(shape=number, asked_ns=now_ns)

    def _check(self, shape: Shape) -> None:
        if shape.viewport is None:
            return
        if shape.is_reverse and self._table.is_blink:
            raise RemoteProtocolError(REVERSE_BLINK_REFUSED)
        rows = len(shape.window(self._table.size))
        if rows > self._limits.viewport_rows_max:
            raise LimitExceededError(
                "viewport", actual=rows, maximum=self._limits.viewport_rows_max, unit="rows"
            )

    def remove(self, subscription_id: int) -> None:
        """Forget a subscription; unknown ids are fine, since a disconnect may have crossed the
        removal."""
        if subscription_id in self._roster:
            self._remove(self._roster.slot_of(subscription_id))

    def _remove(self, slot: int) -> None:
        roster = self._roster
        point = int(roster.point[slot])
        if point != NOWHERE:
            self._feed.leave(point, 1)
        request = self._requests.pop(slot, None)
        if request is not None and request.shape is not None:
            roster.shapes.drop(request.shape)
        self._forget_hold(slot)
        self._lagging.forget(slot)
        self._earlier.pop(slot, None)
        interval_ns = int(roster.group[slot])
        group = self._groups[interval_ns]
        group.members -= 1
        if not group.members:
            del self._groups[interval_ns]
        roster.remove(slot)
        self._held.note(self)

    def fail(self, error: BarrageError) -> list[Disconnect]:
        """The table failed: every subscription ends, between two updates."""
        return [self._disconnect(slot, error) for slot in self._slots_in_order()]

    def _slots_in_order(self) -> list[int]:
        return [self._roster.slot_of(each) for each in self._roster.subscription_ids()]

    def _disconnect(self, slot: int, error: BarrageError) -> Disconnect:
        subscription_id = int(self._roster.ids[slot])
        self._remove(slot)
        return Disconnect(subscription_id=subscription_id, error=error)

    # --- slow readers -----------------------------------------------------------------------------

    def hold(self, subscription_id: int, now_ns: int | None = None) -> None:
        """Send nothing to this subscription until released; its changes coalesce.

        The stall limit counts from ``now_ns``; without it, from the next :meth:`propagate`.
        """
        slot = self._roster.slot_of(subscription_id)
        if self._roster.state[slot] == FLOWING:
            self._held_rounds[slot] = self._groups[int(self._roster.group[slot])].round
        elif self._roster.state[slot] == CATCHING_UP:
            self._held_rounds[slot] = NOWHERE  # it has missed a round already
        self._roster.move(slot, SlotInput.HOLD)
        if now_ns is None:
            self._unstamped.append(slot)
        else:
            self._held_ns.setdefault(slot, now_ns)

    def release(self, subscription_id: int) -> None:
        """Send again: what was missed comes as one update with the next :meth:`propagate`.

        A subscriber that missed no propagation of its interval simply takes part in the next one.
        """
        slot = self._roster.slot_of(subscription_id)
        group = self._groups[int(self._roster.group[slot])]
        is_behind = self._held_rounds.get(slot, group.round) != group.round
        self._roster.move(slot, SlotInput.RELEASE_BEHIND if is_behind else SlotInput.RELEASE)
        self._forget_hold(slot)
        point = int(self._roster.point[slot])
        if point != NOWHERE and self._feed.has_news(point):
            group.is_pending = True

    def _forget_hold(self, slot: int) -> None:
        self._held_ns.pop(slot, None)
        self._held_rounds.pop(slot, None)

    def _disconnect_stalled(self, now_ns: int) -> list[Disconnect]:
        for slot in self._unstamped:
            if slot in self._held_rounds:
                self._held_ns.setdefault(slot, now_ns)
        self._unstamped.clear()
        stall_ns_max = self._limits.stall_ns_max
        if now_ns - min(self._held_ns.values(), default=now_ns) < stall_ns_max:
            return []
        stalled = [
            (slot, now_ns - since)
            for slot, since in self._held_ns.items()
            if now_ns - since >= stall_ns_max
        ]
        return [
            self._disconnect(slot, SlowConsumerError(stalled_ns=ns, stall_ns_max=stall_ns_max))
            for slot, ns in stalled
        ]

    # --- time -------------------------------------------------------------------------------------

    def record(self, update: TableUpdate, wall_ns: int) -> None:
        """Note what a cycle changed; ``wall_ns`` is its commit time."""
        self._feed.record(update, wall_ns)
        for group in self._groups.values():
            group.is_pending = True
        self._lagging.recorded()
        if len(self._roster):
            self._held.settle(self)

    def next_due_ns(self) -> int | None:
        """When :meth:`propagate` will next have something to do, or None. May lie in the past."""
        due = [group.due_ns for group in self._groups.values() if group.is_pending]
        roster = self._roster
        due += [
            request.asked_ns
            for slot, request in self._requests.items()
            if roster.state[slot] != HELD
        ]
        if roster.catching_up_count or self._lagging.is_urgent:
            due.append(0)
        if self._held_ns:
            due.append(min(self._held_ns.values()) + self._limits.stall_ns_max)
        return min(due, default=None)

    def propagate(self, now_ns: int) -> list[Delivery | Disconnect]:
        """Everything due now. Call only between cycles, after the last cycle's update was recorded.

        The order matters: messages of one subscription are to be sent in list order.
        """
        output: list[Delivery | Disconnect] = []
        if self._held_rounds:
            output += self._disconnect_stalled(now_ns)
        output += [self._disconnect(*doomed) for doomed in list(self._lagging.doomed.items())]
        if self._earlier:
            self._send_earlier(output)
        is_due = self._due(now_ns)
        if self._lagging.known:
            self._send_resyncs(is_due, output)
        self._send_deltas(np.flatnonzero(is_due & (self._roster.point != NOWHERE)), output)
        if self._requests:
            self._send_snapshots(output)
        if self._table.is_blink and not self._table.size:
            self._await_removals(now_ns)
        self._plans.close_due(now_ns)
        if not self._roster.catching_up_count:
            self._feed.settle()
        self._held.note(self)
        return output

    def _await_removals(self, now_ns: int) -> None:
        """Whoever now shows rows of a blink table that has none any more waits for their
        removal."""
        for group in self._groups.values():
            if not group.is_pending and self._has_news(group):
                group.is_pending = True
                if group.due_ns <= now_ns:
                    group.last_ns = now_ns

    def _has_news(self, group: IntervalGroup) -> bool:
        roster = self._roster
        members = (roster.group == group.interval_ns) & (roster.state == FLOWING)
        points = distinct(roster.point[members & (roster.point != NOWHERE)])
        return any(self._feed.has_news(point) for point in points.tolist())

    def _due(self, now_ns: int) -> BoolArray:
        """Which slots get what they lack now: those of due groups, catching up, or about to get a
        snapshot."""
        roster = self._roster
        is_due: BoolArray = roster.state == CATCHING_UP
        for group in self._groups.values():
            if group.is_pending and now_ns >= group.due_ns:
                is_due |= (roster.group == group.interval_ns) & (roster.state == FLOWING)
                group.is_pending = False
                group.round += 1
                group.last_ns = max(group.due_ns, now_ns - group.interval_ns // JITTER_DIVISOR)
        for slot in self._requests:
            is_due[slot] |= roster.state[slot] == FLOWING
        return is_due

    # --- messages ---------------------------------------------------------------------------------

    def _send_earlier(self, output: list[Delivery | Disconnect]) -> None:
        """The updates of resumed subscribers that come before the one they stand before."""
        roster = self._roster
        together: dict[tuple[ResumePlan, int], list[int]] = {}
        for slot in [slot for slot in self._earlier if roster.state[slot] != HELD]:
            plan = self._earlier.pop(slot)
            together.setdefault((plan, int(roster.encoding[slot])), []).append(slot)
        for (plan, _), slots in together.items():
            output += [self._delivery(message, slots) for message in plan.earlier]

    def _send_resyncs(self, is_due: BoolArray, output: list[Delivery | Disconnect]) -> None:
        """Updates for subscribers whose changes were given up; equal ones share one message."""
        roster = self._roster
        together: dict[tuple[int, int], dict[int, list[int]]] = {}
        known_by: dict[int, Known] = {}
        for slot in self._lagging.ready(is_due):
            known = self._lagging.known[slot]
            if known.keys and id(known) not in known_by and len(known_by) >= RESYNCS_MAX:
                self._lagging.hurry(slot)
                continue
            known_by[id(known)] = self._lagging.take(slot)
            alike = together.setdefault((id(known), int(roster.shape[slot])), {})
            alike.setdefault(int(roster.encoding[slot]), []).append(slot)
        for (known_id, shape), by_encoding in together.items():
            message = self._feed.resync(roster.shapes[shape], known_by[known_id])
            for slots in by_encoding.values():
                output.append(self._delivery(message, slots))
                roster.place(np.array(slots), self._feed.join(len(slots)))
                roster.sent(np.array(slots))

    def _send_deltas(self, due: Int64Array, output: list[Delivery | Disconnect]) -> None:
        """Bring the slots ``due`` to the present, one point at a time."""
        roster = self._roster
        points = roster.point[due]
        ended: list[tuple[int, BarrageError]] = []
        told: list[list[Delivery | Disconnect]] = []
        spent_bytes = 0
        # The newest first: what leads from there is part of what leads from the older ones.
        for point in reversed(distinct(points).tolist()):
            slots = due[points == point]
            is_too_much = spent_bytes > self._limits.propagation_bytes_max
            if is_too_much and self._requests.keys().isdisjoint(slots.tolist()):
                for slot in slots.tolist():
                    roster.move(slot, SlotInput.DEFER)
                continue
            roster.sent(slots)
            if not self._feed.has_news(point):
                continue
            numbers, shape_index = distinct_and_index(roster.shape[slots])
            answer = self._feed.messages(point, numbers, roster.shapes)
            spent_bytes += answer.work_bytes
            told.append([])
            self._deliver(answer, answer.which[shape_index], slots, told[-1], ended)
            roster.place(slots, self._feed.advance(point, len(slots)))
        for deliveries in reversed(told):
            output += deliveries
        output += [self._disconnect(slot, error) for slot, error in ended]

    def _deliver(
        self,
        answer: Messages,
        which: Int64Array,
        slots: Int64Array,
        output: list[Delivery | Disconnect],
        ended: list[tuple[int, BarrageError]],
    ) -> None:
        """One Delivery per message and encoding; ``which`` tells each slot's message."""
        encodings = self._roster.encoding[slots]
        order, starts = runs_of_equals(which, encodings)
        which, slots, encodings = which[order], slots[order], encodings[order]
        ids = self._roster.ids[slots].tolist()
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
                    encoding=self._roster.encodings[encoding],
                )
            )

    def _delivery(self, message: FullUpdate | ViewUpdate, slots: list[int]) -> Delivery:
        return Delivery(
            message=message,
            subscription_ids=tuple(self._roster.ids[slots].tolist()),
            encoding=self._roster.encodings[int(self._roster.encoding[slots[0]])],
        )

    def _send_snapshots(self, output: list[Delivery | Disconnect]) -> None:
        """Answer all requests of subscribers that are not held, nor still to be resynchronised
        before; equal ones share one message."""
        roster = self._roster
        waiting = self._lagging.known
        ready = [s for s in self._requests if roster.state[s] != HELD and s not in waiting]
        together: dict[tuple[int | None, int], dict[int, list[int]]] = {}
        for slot in ready:
            request = self._requests.pop(slot)
            old = None
            if request.shape is not None:
                old = roster.shape_of(slot)
                self._clear(slot, old, output)
            number = int(roster.shape[slot]) if request.shape is None else request.shape
            key = (None if old is None else int(roster.shape[slot]), number)
            together.setdefault(key, {}).setdefault(int(roster.encoding[slot]), []).append(slot)
        for (old_number, number), by_encoding in together.items():
            old = None if old_number is None else roster.shapes[old_number]
            message = self._feed.snapshot(roster.shapes[number], old)
            output += [self._delivery(message, slots) for slots in by_encoding.values()]
        for (old_number, number), by_encoding in together.items():
            for slots in by_encoding.values():
                self._settle(slots, None if old_number is None else number)

    def _clear(self, slot: int, shape: Shape, output: list[Delivery | Disconnect]) -> None:
        """Take away what a blink subscriber still shows, since the snapshot will say that there is
        nothing."""
        clearing = self._feed.clearing(int(self._roster.point[slot]), shape)
        if clearing is not None:
            output.append(self._delivery(clearing, [slot]))

    def _settle(self, slots: list[int], new_shape: int | None) -> None:
        """``slots`` got a snapshot: they stand at the present, with their new shape if they changed
        it."""
        roster = self._roster
        for slot in slots:
            point = int(roster.point[slot])
            if point != NOWHERE:
                self._feed.leave(point, 1)
            if new_shape is not None:
                roster.reshape(slot, new_shape)
        roster.place(np.array(slots), self._feed.join(len(slots)))
        roster.sent(np.array(slots))

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        self._roster.validate()
        self._feed.validate()
        states = self._roster.state
        placed = (states != FREE) & (self._roster.point != NOWHERE)
        assert self._feed.standing_count == int(placed.sum()) + len(self._plans)
        changing = sum(request.shape is not None for request in self._requests.values())
        assert self._roster.shapes.use_count == len(self._roster) + changing
        assert sum(group.members for group in self._groups.values()) == len(self._roster)
        assert all(states[slot] != FREE for slot in self._requests)
        assert set(self._held_rounds) == set(np.flatnonzero(states == HELD).tolist())
        assert set(self._held_ns) <= set(self._held_rounds)
        self._lagging.validate()

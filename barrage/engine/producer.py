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
from operator import methodcaller
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from barrage.engine.held_bytes import HeldBytes
from barrage.engine.holds import NO_ROUND, Holds
from barrage.engine.intervals import IntervalGroup, rounded_interval_ns
from barrage.engine.lagging import Lagging
from barrage.engine.making import Delivery, Disconnect, Making, Makings, Way
from barrage.engine.open_plans import OpenPlans
from barrage.engine.propagation.blink_feed import BlinkFeed
from barrage.engine.propagation.table_feed import TableFeed
from barrage.engine.propagation.together import distinct, distinct_and_index
from barrage.engine.spreading import spread
from barrage.engine.subscription import (
    AWAITING,
    AWAITING_HELD,
    CATCHING_UP,
    FLOWING,
    FREE,
    HELD,
    IS_SILENT,
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
    from collections.abc import Callable

    from barrage.engine.making import MakingRoom
    from barrage.engine.propagation.feed import Feed, Known, Message, State
    from barrage.engine.propagation.present import Present
    from barrage.engine.resume import ResumePlan
    from barrage.engine.subscription import SubscriptionSpec
    from barrage.engine.table import Table
    from barrage.model.update import TableUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.rowset.arrays import BoolArray, Int64Array

Told: TypeAlias = Delivery | Disconnect | Making
"""What a propagation yields."""

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
        room: MakingRoom | None = None,
    ) -> None:
        """``held`` counts what all tables of a server keep for slow readers; with ``room`` large
        messages are made beside."""
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
        self._holds = Holds()
        self._plans = OpenPlans(self._feed)
        self._held = HeldBytes(limits) if held is None else held
        self._lagging = Lagging(self._roster, self._feed, self._plans, limits, self._held.stats)
        self._earlier: dict[int, ResumePlan] = {}
        self._makings = Makings(self._roster, room)

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
        self._holds.end(slot)
        self._lagging.forget(slot)
        self._makings.forget(slot)
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
        is_flowing = self._roster.state[slot] == FLOWING
        round_ = self._groups[int(self._roster.group[slot])].round if is_flowing else NO_ROUND
        self._holds.begin(slot, round_, now_ns)
        self._roster.move(slot, SlotInput.HOLD)

    def release(self, subscription_id: int) -> None:
        """Send again: what was missed comes as one update with the next :meth:`propagate`.

        A subscriber that missed no propagation of its interval simply takes part in the next one.
        """
        slot = self._roster.slot_of(subscription_id)
        group = self._groups[int(self._roster.group[slot])]
        is_behind = self._holds.is_behind(slot, group.round)
        self._roster.move(slot, SlotInput.RELEASE_BEHIND if is_behind else SlotInput.RELEASE)
        self._holds.end(slot)
        point = int(self._roster.point[slot])
        if point != NOWHERE and self._feed.has_news(point):
            group.is_pending = True

    def _disconnect_stalled(self, now_ns: int) -> list[Disconnect]:
        stall_ns_max = self._limits.stall_ns_max
        self._holds.stamp(now_ns)
        return [
            self._disconnect(slot, SlowConsumerError(stalled_ns=ns, stall_ns_max=stall_ns_max))
            for slot, ns in self._holds.longer_than(stall_ns_max, now_ns)
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
            if not IS_SILENT[roster.state[slot]]
        ]
        if self._makings.is_due or roster.catching_up_count or self._lagging.is_urgent:
            due.append(0)
        oldest_ns = self._holds.oldest_ns
        if oldest_ns is not None:
            due.append(oldest_ns + self._limits.stall_ns_max)
        return min(due, default=None)

    def propagate(self, now_ns: int) -> list[Told]:
        """Everything due now. Call only between cycles, after the last cycle's update was recorded.

        The order matters: messages of one subscription are to be sent in list order. What is to be
        made beside is given back to :meth:`made`, however it ended.
        """
        output: list[Told] = []
        self._makings.resume()
        if self._holds:
            output += self._disconnect_stalled(now_ns)
        output += [self._disconnect(*doomed) for doomed in list(self._lagging.doomed.items())]
        if self._earlier:
            self._send_earlier(output)
        is_due = self._due(now_ns)
        self._lagging.give_up_far(is_due)
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
        self._makings.settle()
        self._held.note(self)
        return output

    def made(self, making: Making, error: BarrageError | None = None) -> list[Disconnect]:
        """The messages of a making have been sent, or could not be made: then their subscriptions
        end."""
        slots = self._makings.arrived(making)
        making.close()
        return [] if error is None else [self._disconnect(slot, error) for slot in slots]

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

    def _send_earlier(self, output: list[Told]) -> None:
        """The updates of resumed subscribers that come before the one they stand before."""
        roster = self._roster
        together: dict[ResumePlan, list[int]] = {}
        for slot in [slot for slot in self._earlier if not IS_SILENT[roster.state[slot]]]:
            together.setdefault(self._earlier.pop(slot), []).append(slot)
        for plan, slots in together.items():
            for message in plan.earlier:
                self._tell(message, slots, output)

    def _send_resyncs(self, is_due: BoolArray, output: list[Told]) -> None:
        """Updates for subscribers whose changes were given up; equal ones share one message."""
        roster = self._roster
        together: dict[tuple[int, int], list[int]] = {}
        known_by: dict[int, Known] = {}
        for slot in self._lagging.ready(is_due):
            known = self._lagging.known[slot]
            if known.keys and id(known) not in known_by and len(known_by) >= RESYNCS_MAX:
                self._lagging.hurry(slot)
                continue
            known_by[id(known)] = known
            together.setdefault((id(known), int(roster.shape[slot])), []).append(slot)
        for (known_id, number), slots in together.items():
            shape, known = roster.shapes[number], known_by[known_id]
            way = self._makings.way(self._feed.resync_work(shape, known))
            if way is Way.NEXT_TURN:
                for slot in slots:
                    self._lagging.hurry(slot)
                continue
            if self._told(way, slots, methodcaller("resync", shape, known), output):
                for slot in slots:
                    self._lagging.take(slot)
                roster.place(np.array(slots), self._feed.join(len(slots)))

    def _told(
        self, way: Way, slots: list[int], tell: Callable[[State], Message], output: list[Told]
    ) -> bool:
        """Whether ``slots`` get what ``tell`` says of the present, now or as soon as it is made;
        otherwise they wait for room."""
        if way is Way.BESIDE:
            return self._make_beside(slots, tell, output)
        self._tell(tell(self._feed.present), slots, output)
        self._roster.sent(np.array(slots))
        return True

    def _make_beside(
        self, slots: list[int], tell: Callable[[Present], Message], output: list[Told]
    ) -> bool:
        def prepare() -> Callable[[], list[Message]]:
            pinned = self._feed.present.pinned()
            return lambda: [tell(pinned)]

        making = self._makings.begin(slots, prepare)
        if making is not None:
            output.append(making)
        return making is not None

    def _send_deltas(self, due: Int64Array, output: list[Told]) -> None:
        """Bring the slots ``due`` to the present, one point at a time."""
        roster = self._roster
        points = roster.point[due]
        ended: list[tuple[int, BarrageError]] = []
        told: list[list[Delivery]] = []
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
            slots = self._tell_large(point, slots, output)
            if not len(slots):
                spent_bytes += self._feed.merged_bytes(point)
                continue
            numbers, shape_index = distinct_and_index(roster.shape[slots])
            answer = self._feed.messages(point, numbers, roster.shapes)
            spent_bytes += answer.work_bytes
            deliveries: list[Delivery] = []
            told.append(deliveries)
            which = answer.which[shape_index]
            ended += spread(roster, answer, which, slots=slots, output=deliveries)
            roster.place(slots, self._feed.advance(point, len(slots)))
        for deliveries in reversed(told):
            output += deliveries
        output += [self._disconnect(slot, error) for slot, error in ended]

    def _tell_large(self, point: int, slots: Int64Array, output: list[Told]) -> Int64Array:
        """Have the large messages among those that lead from ``point`` made beside; the slots that
        get the others."""
        numbers, shape_index = distinct_and_index(self._roster.shape[slots])
        work = self._feed.delta_work(point, numbers, self._roster.shapes)
        if work is None:
            return slots
        is_large = np.array([not self._makings.is_small(each) for each in work.tolist()])
        for index in np.flatnonzero(is_large).tolist():
            shape = self._roster.shapes[int(numbers[index])]
            alike = slots[shape_index == index]
            tell = self._feed.told_later(point, shape)
            if self._make_beside(alike.tolist(), tell, output):
                self._roster.place(alike, self._feed.advance(point, len(alike)))
        rest: Int64Array = slots[~is_large[shape_index]]
        return rest

    def _tell(self, message: Message, slots: list[int], output: list[Told]) -> None:
        for encoding, ids in self._makings.readers_of(slots):
            output.append(Delivery(message=message, subscription_ids=ids, encoding=encoding))

    def _send_snapshots(self, output: list[Told]) -> None:
        """Answer all requests of subscribers that are told anything now, and are not still to be
        resynchronised before; equal ones share one message."""
        roster = self._roster
        waiting = self._lagging.known
        ready = [s for s in self._requests if not IS_SILENT[roster.state[s]] and s not in waiting]
        together: dict[tuple[int | None, int], list[int]] = {}
        for slot in ready:
            wanted = self._requests[slot].shape
            current = int(roster.shape[slot])
            key = (None, current) if wanted is None else (current, wanted)
            together.setdefault(key, []).append(slot)
        for (old_number, number), slots in together.items():
            shape = roster.shapes[number]
            old = None if old_number is None else roster.shapes[old_number]
            way = self._makings.way(self._feed.snapshot_work(shape))
            if way is Way.NEXT_TURN:
                continue
            if old is not None:
                for slot in slots:
                    self._clear(slot, old, output)
            if self._told(way, slots, methodcaller("snapshot", shape, old), output):
                for slot in slots:
                    del self._requests[slot]
                self._settle(slots, None if old_number is None else number)

    def _clear(self, slot: int, shape: Shape, output: list[Told]) -> None:
        """Take away what a blink subscriber still shows, since the snapshot will say that there is
        nothing."""
        clearing = self._feed.clearing(int(self._roster.point[slot]), shape)
        if clearing is not None:
            self._tell(clearing, [slot], output)

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
        is_held = (states == HELD) | (states == AWAITING_HELD)
        assert set(self._holds.slots) == set(np.flatnonzero(is_held).tolist())
        is_awaiting = (states == AWAITING) | (states == AWAITING_HELD)
        self._makings.validate(set(np.flatnonzero(is_awaiting).tolist()))
        self._holds.validate()
        self._lagging.validate()

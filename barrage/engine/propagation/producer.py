"""Turns the updates of one table into what each of its subscribers is told.

One producer per table. The engine calls :meth:`Producer.record` once per cycle that changed the
table and :meth:`Producer.propagate` at cycle boundaries; nothing here reads a clock or does IO.

Who is due is decided here, what they are told in :mod:`barrage.engine.changelog`:

* Subscribers of equal (rounded) interval form a group. A change that comes at least one interval
  after the group's last propagation is sent at once, otherwise together with all others when the
  interval is over. A subscriber that joins or changes in between gets its snapshot at once and
  takes part in the group's next propagation.
* A held subscriber gets nothing. It stands at its point of the delta log, which costs row sets and
  no values; released, it gets one update up to the present. What that costs is bounded by points
  and by bytes (:mod:`.lagging`); past a bound its next update is the whole table.
* Work is shared: subscribers at one point with equal columns and viewport share one
  message, all views in which nothing changed share one, and subscribers with equal encodings share
  one Delivery.
* A subscriber that comes back with the rows of an older version stands on a branch of the delta log
  (:mod:`barrage.engine.resume.resume`) and catches up from there; it gets no snapshot.

Cost: a propagation in which no view changes is a fixed number of numpy calls over all subscribers,
plus one tuple of ids. See `benchmarks/propagation.py`.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.blink_changelog import BlinkChangelog
from barrage.engine.changelog.making import Disconnect, Making, MakingPlace, Makings
from barrage.engine.changelog.subscription import (
    AWAITING,
    AWAITING_HELD,
    CATCHING_UP,
    FLOWING,
    FREE,
    HELD,
    IS_SILENT,
    NOWHERE,
    Shape,
    ShapeKind,
    SlotInput,
    SubscriberTable,
)
from barrage.engine.changelog.table_changelog import TableChangelog
from barrage.engine.changelog.together import distinct, distinct_and_index
from barrage.engine.propagation.admission import check_plan, check_shape
from barrage.engine.propagation.held_bytes import HeldBytes
from barrage.engine.propagation.holds import NO_ROUND, Holds
from barrage.engine.propagation.intervals import (
    EACH_STEP_NS,
    JITTER_DIVISOR,
    IntervalGroup,
    rounded_interval_ns,
)
from barrage.engine.propagation.lagging import Lagging
from barrage.engine.propagation.open_plans import OpenPlans, ResumePlan
from barrage.engine.propagation.requests import SnapshotRequests
from barrage.engine.propagation.spreading import spread
from barrage.engine.propagation.telling import Teller
from barrage.errors import (
    BarrageError,
    CycleTooLongError,
    RemoteProtocolError,
    SlowConsumerError,
    TableFailedError,
)
from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from barrage.engine.changelog.changelog import (
        Changelog,
        Known,
    )
    from barrage.engine.changelog.making import MakingRoom, Told
    from barrage.engine.changelog.subscription import SubscriptionSpec
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.rowset.arrays import BoolArray, Int64Array

CHANGE_REFUSED = "cannot change from full subscription to viewport or vice versa"
ALREADY_FAILED = "Table is already failed"
"""Texts of the reference server (barrage-wire.md section 13)."""

RESYNCS_MAX = 1
"""Whole tables told in one propagation to readers of row keys whose changes were given up."""


class Producer:
    """The subscriptions of one table, and one of those who keep bytes for readers (``Holder``).

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
        self._changelog: Changelog = (
            BlinkChangelog(table, limits, step=step)
            if table.is_blink
            else TableChangelog(table, limits, step=step)
        )
        self._subscribers = SubscriberTable()
        self._groups: dict[int, IntervalGroup] = {}
        self._holds = Holds()
        self._plans = OpenPlans(self._changelog)
        self._held = HeldBytes(limits) if held is None else held
        self._lagging = Lagging(
            self._subscribers, self._changelog, self._plans, limits=limits, stats=self._held.stats
        )
        self._earlier: dict[int, ResumePlan] = {}
        self._makings = Makings(self._subscribers, room)
        self._teller = Teller(self._subscribers, self._changelog, self._makings)
        self._requests = SnapshotRequests(
            self._subscribers, self._changelog, self._makings, teller=self._teller
        )

    @property
    def table(self) -> Table:
        return self._table

    @property
    def subscription_count(self) -> int:
        """Subscriptions that are neither removed nor disconnected."""
        return len(self._subscribers)

    @property
    def tells_each_step(self) -> bool:
        """Whether somebody is to be told every step by itself."""
        return EACH_STEP_NS in self._groups

    @property
    def held_nbytes(self) -> int:
        return self._lagging.nbytes if len(self._subscribers) else 0

    def shed(self) -> bool:
        return self._lagging.shed()

    # --- subscribers come, change and go ----------------------------------------------------------

    def open_plans(self) -> list[ResumePlan]:
        """Plans that others may still join, oldest first."""
        return self._plans.plans()

    def add(
        self,
        subscription_id: int,
        spec: SubscriptionSpec,
        now_ns: int,
        *,
        resume: ResumePlan | None = None,
        token: bytes | None = None,
    ) -> None:
        """Take a subscription; its snapshot comes with the next :meth:`propagate`.

        With ``resume`` it gets what it missed instead, as ``resume.update_count`` updates. A
        ``token`` announces the snapshot (:class:`ViewAnswered`).

        Raises RemoteProtocolError, LimitExceededError or TableFailedError if it cannot be served,
        ResumeRefusedError if only a snapshot can be.
        """
        failure = self._table.failure
        if isinstance(failure, CycleTooLongError):
            raise failure.anew()
        if failure is not None:
            raise TableFailedError(ALREADY_FAILED)
        shape = Shape.of_spec(spec, column_count=len(self._table.schema))
        check_shape(shape, self._table, self._limits)
        if resume is not None:
            check_plan(resume, shape, self._table, plans=self._plans)
        interval_ns = rounded_interval_ns(spec.interval_ns, self._limits)
        slot = self._subscribers.add(
            subscription_id,
            shape=shape,
            group=interval_ns,
            encoding=spec.encoding,
            is_resumed=resume is not None,
        )
        group = self._groups.setdefault(interval_ns, IntervalGroup(interval_ns, last_ns=now_ns))
        group.members += 1
        if resume is None:
            self._requests.ask_first(slot, now_ns)
            self._requests.announce(slot, token)
            return
        self._subscribers.place(np.array([slot]), self._plans.stand(resume, now_ns))
        if resume.earlier:
            self._earlier[slot] = resume

    def change(
        self,
        subscription_id: int,
        columns: ColumnSet | None,
        viewport: Viewport | None,
        *,
        now_ns: int,
        token: bytes | None = None,
    ) -> None:
        """Ask for another viewport or other columns; several requests before :meth:`propagate`
        count as the last. A ``token`` announces the answer.

        Raises RemoteProtocolError or LimitExceededError when the change is not allowed; the
        subscription then still stands as it was.
        """
        subscribers = self._subscribers
        slot = subscribers.slot_of(subscription_id)
        old = subscribers.shape_of(slot)
        if old.kind is ShapeKind.FULL or viewport is None:
            raise RemoteProtocolError(CHANGE_REFUSED)
        shape = Shape.of(
            columns,
            viewport,
            column_count=len(self._table.schema),
            is_key_space=old.kind is ShapeKind.KEYED_VIEW,
        )
        check_shape(shape, self._table, self._limits)
        self._requests.ask(slot, shape, now_ns)
        self._requests.announce(slot, token)

    def remove(self, subscription_id: int) -> None:
        """Forget a subscription; unknown ids are fine, since a disconnect may have crossed the
        removal."""
        if subscription_id in self._subscribers:
            self._remove(self._subscribers.slot_of(subscription_id))

    def _remove(self, slot: int) -> None:
        subscribers = self._subscribers
        point = int(subscribers.point[slot])
        if point != NOWHERE:
            self._changelog.leave(point, 1)
        self._requests.forget(slot)
        self._holds.end(slot)
        self._lagging.forget(slot)
        self._makings.forget(slot)
        self._earlier.pop(slot, None)
        interval_ns = int(subscribers.group[slot])
        group = self._groups[interval_ns]
        group.members -= 1
        if not group.members:
            del self._groups[interval_ns]
        subscribers.remove(slot)
        self._held.note(self)

    def fail(self, error: BarrageError) -> list[Disconnect]:
        """The table failed: every subscription ends, between two updates."""
        return [self._disconnect(slot, error) for slot in self._slots_in_order()]

    def _slots_in_order(self) -> list[int]:
        return [self._subscribers.slot_of(each) for each in self._subscribers.subscription_ids()]

    def _disconnect(self, slot: int, error: BarrageError) -> Disconnect:
        subscription_id = int(self._subscribers.ids[slot])
        self._remove(slot)
        return Disconnect(subscription_id=subscription_id, error=error)

    # --- slow readers -----------------------------------------------------------------------------

    def hold(self, subscription_id: int, now_ns: int | None = None) -> None:
        """Send nothing to this subscription until released; its changes coalesce.

        The stall limit counts from ``now_ns``; without it, from the next :meth:`propagate`.
        """
        slot = self._subscribers.slot_of(subscription_id)
        is_flowing = self._subscribers.state[slot] == FLOWING
        round_ = self._groups[int(self._subscribers.group[slot])].round if is_flowing else NO_ROUND
        self._holds.begin(slot, round_, now_ns)
        self._subscribers.move(slot, SlotInput.HOLD)

    def release(self, subscription_id: int) -> None:
        """Send again: what was missed comes as one update with the next :meth:`propagate`.

        A subscriber that missed no propagation of its interval simply takes part in the next one.
        """
        slot = self._subscribers.slot_of(subscription_id)
        group = self._groups[int(self._subscribers.group[slot])]
        is_behind = self._holds.is_behind(slot, group.round)
        self._subscribers.move(slot, SlotInput.RELEASE_BEHIND if is_behind else SlotInput.RELEASE)
        self._holds.end(slot)
        point = int(self._subscribers.point[slot])
        if point != NOWHERE and self._changelog.has_news(point):
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
        self._changelog.record(update, wall_ns)
        for group in self._groups.values():
            group.is_pending = True
        self._lagging.recorded()
        if len(self._subscribers):
            self._held.settle(self)

    def next_due_ns(self) -> int | None:
        """When :meth:`propagate` will next have something to do, or None. May lie in the past."""
        due = [group.due_ns for group in self._groups.values() if group.is_pending]
        subscribers = self._subscribers
        due += self._requests.due_ns()
        if self._makings.is_due or subscribers.catching_up_count or self._lagging.is_urgent:
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
        if self._requests and not self._table.is_blink:
            self._requests.send_jumps(self._lagging.known, is_due, output)
        self._lagging.give_up_far(is_due)
        if self._lagging.known:
            self._send_resyncs(is_due, output)
        self._send_deltas(np.flatnonzero(is_due & (self._subscribers.point != NOWHERE)), output)
        if self._requests:
            self._requests.send(self._lagging.known, output)
        if self._table.is_blink and not self._table.size:
            self._await_removals(now_ns)
        self._plans.close_due(now_ns)
        if not self._subscribers.catching_up_count:
            self._changelog.settle()
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
        subscribers = self._subscribers
        members = (subscribers.group == group.interval_ns) & (subscribers.state == FLOWING)
        points = distinct(subscribers.point[members & (subscribers.point != NOWHERE)])
        return any(self._changelog.has_news(point) for point in points.tolist())

    def _due(self, now_ns: int) -> BoolArray:
        """Which slots get what they lack now: those of due groups, catching up, or about to get a
        snapshot."""
        subscribers = self._subscribers
        is_due: BoolArray = subscribers.state == CATCHING_UP
        for group in self._groups.values():
            if group.is_pending and now_ns >= group.due_ns:
                is_due |= (subscribers.group == group.interval_ns) & (subscribers.state == FLOWING)
                group.is_pending = False
                group.round += 1
                group.last_ns = max(group.due_ns, now_ns - group.interval_ns // JITTER_DIVISOR)
        for slot in self._requests:
            is_due[slot] |= subscribers.state[slot] == FLOWING
        return is_due

    # --- messages ---------------------------------------------------------------------------------

    def _send_earlier(self, output: list[Told]) -> None:
        """The updates of resumed subscribers that come before the one they stand before."""
        subscribers = self._subscribers
        together: dict[ResumePlan, list[int]] = {}
        for slot in [slot for slot in self._earlier if not IS_SILENT[subscribers.state[slot]]]:
            together.setdefault(self._earlier.pop(slot), []).append(slot)
        for plan, slots in together.items():
            for message in plan.earlier:
                self._teller.tell(message, slots, output)

    def _send_resyncs(self, is_due: BoolArray, output: list[Told]) -> None:
        """Updates for subscribers whose changes were given up; equal ones share one message."""
        subscribers = self._subscribers
        together: dict[tuple[int, int], list[int]] = {}
        known_by: dict[int, Known] = {}
        for slot in self._lagging.ready(is_due):
            known = self._lagging.known[slot]
            if known.keys and id(known) not in known_by and len(known_by) >= RESYNCS_MAX:
                self._lagging.hurry(slot)
                continue
            known_by[id(known)] = known
            together.setdefault((id(known), int(subscribers.shape[slot])), []).append(slot)
        for (known_id, number), slots in together.items():
            shape, known = subscribers.shapes[number], known_by[known_id]
            place = self._makings.place_for(self._changelog.resync_work(shape, known))
            if place is MakingPlace.NEXT_TURN:
                for slot in slots:
                    self._lagging.hurry(slot)
                continue
            if self._teller.told(place, slots, methodcaller("resync", shape, known), output=output):
                for slot in slots:
                    self._lagging.take(slot)
                subscribers.place(np.array(slots), self._changelog.join(len(slots)))

    def _send_deltas(self, due: Int64Array, output: list[Told]) -> None:
        """Bring the slots ``due`` to the present, one point at a time."""
        subscribers = self._subscribers
        points = subscribers.point[due]
        ended: list[tuple[int, BarrageError]] = []
        told: list[list[Told]] = []
        spent_bytes = 0
        # The newest first: what leads from there is part of what leads from the older ones.
        for point in reversed(distinct(points).tolist()):
            slots = due[points == point]
            is_too_much = spent_bytes > self._limits.propagation_bytes_max
            if is_too_much and not self._requests.is_any_of(slots.tolist()):
                for slot in slots.tolist():
                    subscribers.move(slot, SlotInput.DEFER)
                continue
            subscribers.sent(slots)
            if not self._changelog.has_news(point):
                continue
            slots, numbers, shape_index = self._tell_large(point, slots, output)
            if not len(slots):
                spent_bytes += self._changelog.merged_bytes(point)
                continue
            answer = self._changelog.messages(point, numbers, subscribers.shapes)
            spent_bytes += answer.work_bytes
            deliveries: list[Told] = []
            told.append(deliveries)
            which = answer.which[shape_index]
            ended += spread(subscribers, answer, which, slots=slots, output=deliveries)
            subscribers.place(slots, self._changelog.advance(point, len(slots)))
        for deliveries in reversed(told):
            output += deliveries
        output += [self._disconnect(slot, error) for slot, error in ended]

    def _tell_large(
        self, point: int, slots: Int64Array, output: list[Told]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Have the large messages among those that lead from ``point`` made beside; the slots that
        get the others, the numbers of their shapes, and which of these each slot has."""
        numbers, shape_index = distinct_and_index(self._subscribers.shape[slots])
        work = self._changelog.delta_work(point, numbers, self._subscribers.shapes)
        if work is None:
            return slots, numbers, shape_index
        is_large = np.array([not self._makings.is_small(each) for each in work.tolist()])
        for index in np.flatnonzero(is_large).tolist():
            shape = self._subscribers.shapes[int(numbers[index])]
            alike = slots[shape_index == index]
            tell = self._changelog.message_later(point, shape)
            if self._teller.make_beside(alike.tolist(), tell, output):
                self._subscribers.place(alike, self._changelog.advance(point, len(alike)))
        is_rest = ~is_large[shape_index]
        index_of_rest = np.cumsum(~is_large) - 1
        return slots[is_rest], numbers[~is_large], index_of_rest[shape_index[is_rest]]

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        self._subscribers.validate()
        self._changelog.validate()
        states = self._subscribers.state
        placed = (states != FREE) & (self._subscribers.point != NOWHERE)
        assert self._changelog.reader_count == int(placed.sum()) + len(self._plans)
        in_use = len(self._subscribers) + self._requests.changing_count
        assert self._subscribers.shapes.use_count == in_use
        assert sum(group.members for group in self._groups.values()) == len(self._subscribers)
        assert all(states[slot] != FREE for slot in self._requests)
        is_held = (states == HELD) | (states == AWAITING_HELD)
        assert set(self._holds.slots) == set(np.flatnonzero(is_held).tolist())
        is_awaiting = (states == AWAITING) | (states == AWAITING_HELD)
        self._makings.validate(set(np.flatnonzero(is_awaiting).tolist()))
        self._holds.validate()
        self._lagging.validate()

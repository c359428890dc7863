"""Readers that lag behind, and what happens when they cost too much.

A reader that is held, or that asked for long intervals, stands at its point of the delta log, which
keeps what changed since. That is bounded twice: by the number of points
(``limits.delta_segments_max``) and by bytes (:mod:`barrage.engine.propagation.held_bytes`). Past a
bound the oldest points are *vacated*: what their readers missed is forgotten, and only what they
*know* is remembered. Their next update removes all of that and adds the table, which is legal and
complete, only coarser. A view in positions knows no more than a number of rows. A reader of row
keys knows those, kept in compressed form, because clients take the removal of rows they do not have
for an error.

The steps, in this order:

1. merge the updates between neighbouring points;
2. close plans that are open for others who may still come back;
3. vacate the oldest point, then the next one, ...;
4. disconnect those whose keys are remembered longest. Nothing else is left that would free memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.making import PATIENCE
from barrage.engine.changelog.subscription import FLOWING, FREE, IS_SILENT, NOWHERE, ShapeKind
from barrage.engine.changelog.together import distinct, distinct_and_index
from barrage.errors import ReaderMemoryError

if TYPE_CHECKING:
    from barrage.engine.changelog.changelog import Changelog, Known
    from barrage.engine.changelog.subscription import SubscriberTable
    from barrage.engine.propagation.held_bytes import HeldStats
    from barrage.engine.propagation.open_plans import OpenPlans
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.rowset.arrays import BoolArray, Int64Array

PATIENT_INTERVAL_NS = 1_000_000_000
"""Readers of longer intervals can be vacated like held ones; all others are told soon."""


class Lagging:
    """What one table keeps for its readers that lag behind.

    Invariant: whoever is in :attr:`known` stands nowhere.
    """

    def __init__(
        self,
        subscribers: SubscriberTable,
        changelog: Changelog,
        plans: OpenPlans,
        *,
        limits: Limits,
        stats: HeldStats,
    ) -> None:
        self.known: dict[int, Known] = {}
        """What the reader in each slot knows, where its changes were given up; oldest first."""
        self.doomed: dict[int, BarrageError] = {}
        """Slots that are to be disconnected."""
        self._subscribers = subscribers
        self._changelog = changelog
        self._plans = plans
        self._limits = limits
        self._stats = stats
        self._patient: set[int] = set()
        self._known_nbytes = 0
        self._is_folded = False

    @property
    def nbytes(self) -> int:
        """Bytes of the delta log and of all that is known."""
        return self._changelog.nbytes + self._known_nbytes

    def recorded(self) -> None:
        """The table has changed."""
        self._is_folded = False
        self._vacate_crowd()

    def shed(self) -> bool:
        """Take the next step of those above; False when there is none left."""
        if not self._is_folded:
            self._is_folded = True
            self._changelog.fold()
            return True
        if self._plans.close_oldest():
            return True
        return self._vacate_oldest() or self._doom_oldest()

    def _vacate_crowd(self) -> None:
        """Vacate the oldest points for as long as there are too many, wherever only held
        subscribers stand."""
        crowded = self._changelog.crowded_points()
        surplus = len(crowded) - self._limits.delta_segments_max
        for point in crowded:
            if surplus <= 0:
                return
            slots = self._slots_at(point)
            # Only a branch may stand at the point, or a plan that is open.
            if len(slots) and IS_SILENT[self._subscribers.state[slots]].all():
                self._vacate(point, slots)
                surplus -= 1

    def give_up_far(self, is_due: BoolArray) -> None:
        """Vacate, of the views in positions that are due, those for which working out what changed
        takes longer than a turn may, and longer than to read all that they show."""
        subscribers = self._subscribers
        due = np.flatnonzero(is_due & (subscribers.point != NOWHERE))
        points = subscribers.point[due]
        for point in distinct(points).tolist():
            if not self._changelog.has_news(point):
                continue
            work = self._changelog.view_work(point)
            if work <= PATIENCE * self._limits.turn_work_max:
                continue
            slots = due[points == point]
            kinds = subscribers.shapes.kind[subscribers.shape[slots]]
            slots = slots[(kinds == ShapeKind.SPAN) | (kinds == ShapeKind.SCATTERED)]
            numbers, shape_index = distinct_and_index(subscribers.shape[slots])
            is_less = [
                self._changelog.snapshot_work(subscribers.shapes[n]) < work
                for n in numbers.tolist()
            ]
            slots = slots[np.array(is_less, dtype=np.bool_)[shape_index]]
            if len(slots):
                self._vacate(point, slots)

    def _vacate_oldest(self) -> bool:
        subscribers = self._subscribers
        for point in self._changelog.waiting_points():
            slots = self._slots_at(point)
            is_patient = (subscribers.state[slots] == FLOWING) & (
                subscribers.group[slots] > PATIENT_INTERVAL_NS
            )
            if len(slots) and (is_patient | IS_SILENT[subscribers.state[slots]]).all():
                self._patient.update(slots[is_patient].tolist())
                self._vacate(point, slots)
                return True
        return False

    def _slots_at(self, point: int) -> Int64Array:
        return np.flatnonzero(
            (self._subscribers.point == point) & (self._subscribers.state != FREE)
        )

    def _vacate(self, point: int, slots: Int64Array) -> None:
        kinds = self._subscribers.shapes.kind[self._subscribers.shape[slots]]
        with_keys = bool(((kinds == ShapeKind.FULL) | (kinds == ShapeKind.KEYED_VIEW)).any())
        known = self._changelog.known(point, with_keys=with_keys)
        for slot in slots.tolist():
            self.known[slot] = known
        self._changelog.leave(point, len(slots))
        self._subscribers.place(slots, NOWHERE)
        self._stats.resynchronised += len(slots)
        self._recount()

    def _doom_oldest(self) -> bool:
        """Give up those who know the same keys, remembered longest."""
        nbytes = self.nbytes
        oldest = next((known for known in self.known.values() if known.nbytes), None)
        if oldest is None:
            return False
        for slot in [slot for slot, known in self.known.items() if known is oldest]:
            kind = self._subscribers.shape_of(slot).kind
            if kind in (ShapeKind.FULL, ShapeKind.KEYED_VIEW):
                self.doomed[slot] = ReaderMemoryError(
                    nbytes=nbytes, nbytes_max=self._limits.held_table_bytes_max
                )
                self._stats.disconnected += 1
                del self.known[slot]
            else:
                self.known[slot] = oldest.without_keys()
        self._recount()
        return True

    @property
    def is_urgent(self) -> bool:
        """Whether somebody is to be told, or ended, as soon as possible."""
        return bool(self.doomed) or any(
            not IS_SILENT[self._subscribers.state[slot]] and slot not in self._patient
            for slot in self.known
        )

    def ready(self, is_due: BoolArray) -> list[int]:
        """Slots that are to be resynchronised now, oldest first: all but those still held, and
        those whose long interval is not over."""
        states = self._subscribers.state
        return [
            slot
            for slot in self.known
            if not IS_SILENT[states[slot]] and (slot not in self._patient or is_due[slot])
        ]

    def hurry(self, slot: int) -> None:
        """The reader in ``slot`` is due, but has to wait for the next propagation."""
        self._patient.discard(slot)

    def take(self, slot: int) -> Known:
        """What the reader in ``slot`` knows, which is forgotten here."""
        known = self.known.pop(slot)
        self._patient.discard(slot)
        self._recount()
        return known

    def forget(self, slot: int) -> None:
        """The reader in ``slot`` is gone."""
        self.doomed.pop(slot, None)
        if slot in self.known:
            self.take(slot)

    def _recount(self) -> None:
        distinct = {id(known): known.nbytes for known in self.known.values()}
        self._known_nbytes = sum(distinct.values())

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        counted = self._known_nbytes
        self._recount()
        assert counted == self._known_nbytes
        assert all(self._subscribers.point[slot] == NOWHERE for slot in (*self.known, *self.doomed))
        assert self._patient <= set(self.known)
        assert not set(self.doomed) & set(self.known)

"""What it takes to bring readers that stand far behind to the present: counted in row sets that are
merged on the thread of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from barrage.engine.changelog import delta_log
from barrage.engine.changelog.delta_log import FOLD_EVERY, DeltaLog
from barrage.engine.changelog.making import Disconnect, Making, MakingRoom
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.producer import Producer
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model import coalesce as coalescing
from barrage.model.update import TableUpdate
from barrage.model.viewport import Viewport
from tests.helpers.fake_table import FakeTable
from tests.helpers.receivers import KeyReceiver, ViewReceiver

READERS = 12
VIEWPORT = Viewport.of(3, 20)
NO_TURN = replace(Limits(), turn_work_max=0, query_work_max=10**9)
"""Everything is more than a turn may do."""


class Merges:
    """Counts what is merged, and between what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.firsts: list[TableUpdate] = []
        honest = coalescing.coalesce

        def counted(first: TableUpdate, second: TableUpdate) -> TableUpdate:
            self.firsts.append(first)
            return honest(first, second)

        monkeypatch.setattr(coalescing, "coalesce", counted)
        monkeypatch.setattr(delta_log, "coalesce", counted)

    def during(self, work: Callable[[], object]) -> int:
        before = len(self.firsts)
        work()
        return len(self.firsts) - before


class Scene:
    """Readers of one table, each held at a point of its own."""

    def __init__(self, limits: Limits, viewport: Viewport | None) -> None:
        self.table = FakeTable(range(0, 4000, 2))
        self.room = MakingRoom(limits)
        self.producer = Producer(self.table, limits, room=self.room)
        self.now_ns = 0
        is_key_space = viewport is None
        self.spec = SubscriptionSpec(
            columns=None,
            viewport=viewport,
            interval_ns=100 * NANOS_PER_MS,
            is_key_space=is_key_space,
            encoding="plain",
        )
        self.receivers = {
            number: KeyReceiver(3) if is_key_space else ViewReceiver(3) for number in range(READERS)
        }
        for number in self.receivers:
            self.producer.add(number, self.spec, self.now_ns)
            self.bring()
            self.producer.hold(number, self.now_ns)
            self.change()

    def change(self) -> None:
        step = self.table.step
        update = self.table.update(
            removed=range(8 * step, 8 * step + 6, 2),
            added=range(2001 + 60 * step, 2041 + 60 * step, 2),
            modified=[(key, 1) for key in range(3000, 3200, 2)],
        )
        self.producer.record(update, self.now_ns)

    def propagate(self) -> list[Making]:
        """One step of the engine; what is made beside later."""
        self.now_ns += 1000 * NANOS_PER_MS
        self.room.begin_turn()
        told = self.producer.propagate(self.now_ns)
        self.deliver([each for each in told if not isinstance(each, Making)])
        return [each for each in told if isinstance(each, Making)]

    def deliver(self, told: list) -> None:
        for each in told:
            assert not isinstance(each, Disconnect)
            for number in each.subscription_ids:
                self.receivers[number].receive(each.message)

    def make(self, makings: list[Making]) -> None:
        for making in makings:
            self.deliver(making.deliveries())
            assert self.producer.made(making) == []
        self.producer.validate()

    def bring(self) -> None:
        """Go on until nothing is to be done."""
        self.make(self.propagate())
        while self.producer.next_due_ns() == 0:
            self.make(self.propagate())

    def check(self, *numbers: int) -> None:
        for number in numbers or self.receivers:
            receiver = self.receivers[number]
            if isinstance(receiver, KeyReceiver):
                receiver.check(self.table.rows)
            else:
                receiver.check([self.table.rows[key] for key in sorted(self.table.rows)])


def test_views_far_behind_are_told_all_they_show_instead_of_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(NO_TURN, VIEWPORT)
    merges = Merges(monkeypatch)
    for number in scene.receivers:
        scene.producer.release(number)
    assert merges.during(scene.bring) == 0
    scene.check()
    scene.change()
    scene.bring()
    scene.check()


def test_views_a_little_behind_are_told_what_changed() -> None:
    scene = Scene(Limits(), VIEWPORT)
    for number in scene.receivers:
        scene.producer.release(number)
    scene.bring()
    scene.check()
    assert scene.producer._held.stats.resynchronised == 0


def test_what_leads_from_far_behind_is_merged_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the oldest of all readers goes on: everything between is merged for it alone."""
    scene = Scene(NO_TURN, None)
    merges = Merges(monkeypatch)
    scene.producer.release(0)
    makings: list[Making] = []
    assert merges.during(lambda: makings.extend(scene.propagate())) == 0
    assert len(makings) == 1
    scene.change()
    assert merges.during(lambda: scene.make(makings)) >= READERS - 1
    scene.bring()
    scene.check(0)


def test_readers_who_wait_for_room_are_not_worked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All go on together, and two large messages are made at a time: those who come later wait
    where they are."""
    limits = replace(NO_TURN, turn_work_max=60, propagation_bytes_max=0)
    scene = Scene(limits, None)
    for number in scene.receivers:
        scene.producer.release(number)
    merges = Merges(monkeypatch)
    makings: list[Making] = []
    assert merges.during(lambda: makings.extend(scene.propagate())) <= 1
    while makings or scene.producer.next_due_ns() == 0:
        scene.make(makings)
        makings.clear()
        # Points that are left are merged into the one before, so many at a time.
        assert merges.during(lambda: makings.extend(scene.propagate())) <= FOLD_EVERY
    scene.check()


def test_who_leaves_because_of_a_crowd_takes_keys_along_that_are_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(replace(Limits(), delta_segments_max=READERS), None)
    merges = Merges(monkeypatch)
    scene.producer.add(READERS, scene.spec, scene.now_ns)
    scene.receivers[READERS] = KeyReceiver(3)
    scene.bring()
    scene.producer.hold(READERS, scene.now_ns)
    assert merges.during(scene.change) == 0
    assert scene.producer._held.stats.resynchronised == 1
    for number in scene.receivers:
        scene.producer.release(number)
    scene.bring()
    scene.check()


def test_keys_of_the_oldest_point_are_right_while_points_come_and_go() -> None:
    """Held readers leave from the old end while others come: the keys follow through what lies
    between, a few updates at a time."""
    scene = Scene(Limits(), None)
    for number in range(3 * READERS):
        scene.producer.remove(number)
        fresh = READERS + number
        scene.producer.add(fresh, scene.spec, scene.now_ns)
        scene.receivers[fresh] = KeyReceiver(3)
        scene.bring()
        scene.producer.hold(fresh, scene.now_ns)
        step = scene.table.step
        scene.producer.record(
            scene.table.update(removed=[2000 + 2 * step], added=[100_001 + 2 * step]), 0
        )
        scene.producer.validate()
    log = scene.producer._changelog._log
    assert log._oldest is not None
    assert len(log._oldest.pending) <= delta_log.PENDING_MAX


def test_a_long_wait_merges_what_has_gathered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FakeTable(range(0, 4000, 2))
    log = DeltaLog(table.row_keys)
    log.join()
    for step in range(FOLD_EVERY):
        log.record(table.update(removed=[2 * step], added=[], modified=[]), table.row_keys)
    gathered = log._points[0].updates[0]
    merges = Merges(monkeypatch)
    for step in range(FOLD_EVERY, 2 * FOLD_EVERY - 1):
        log.record(table.update(removed=[2 * step], added=[], modified=[]), table.row_keys)
    assert len(merges.firsts) == FOLD_EVERY - 1
    assert sum(first is gathered for first in merges.firsts) == 1
    assert all(len(first.removed_keys_pre) < FOLD_EVERY for first in merges.firsts[:-1])

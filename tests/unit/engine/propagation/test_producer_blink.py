"""Blink tables: rows live for one cycle (barrage-wire.md section 11.1). The cases follow recordings
of a real server: blink.json."""

from __future__ import annotations

import pytest

from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.producer import Producer
from barrage.errors import RemoteProtocolError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.update import FullUpdate
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.fake_table import FakeTable
from tests.helpers.receivers import KeyReceiver, ViewReceiver

MS = NANOS_PER_MS
EMPTY = RowSet.empty()


class BlinkScene:
    """A blink table, one subscriber with an interval of 300 ms, and what it received."""

    def __init__(self, viewport: Viewport | None = None, limits: Limits | None = None, **settings):
        self.table = FakeTable(is_blink=True)
        self.producer = Producer(self.table, limits or Limits())
        self.now_ns = 0
        self.expected: list[tuple] = []
        spec = SubscriptionSpec(
            **{
                "columns": None,
                "viewport": viewport,
                "interval_ns": 300 * MS,
                "is_key_space": viewport is None,
                "encoding": 0,
                **settings,
            }
        )
        is_key_space = spec.is_key_space
        self.receiver = KeyReceiver(3) if is_key_space else ViewReceiver(3)
        self.producer.add(1, spec, 0)

    def publish(self, row_count: int) -> None:
        self.producer.record(self.table.blink(row_count), self.now_ns)
        self.expected += self.table.row_list()

    def send(self, after_ms: int = 0):
        """The single message due now, checked against all rows published since the last one."""
        self.now_ns += after_ms * MS
        sent = self.producer.propagate(self.now_ns)
        self.producer.validate()
        for each in sent:
            self.receiver.receive(each.message)
        if sent:
            rows, self.expected = self.expected, []
            if isinstance(self.receiver, KeyReceiver):
                self.receiver.check(dict(enumerate(rows)))
            else:
                self.receiver.check(rows)
        return [each.message for each in sent]


def test_a_full_subscription_gets_cycles_laid_end_to_end_and_then_a_removal() -> None:
    scene = BlinkScene()
    (snapshot,) = scene.send()
    assert snapshot.is_snapshot
    assert snapshot.added_keys_post == snapshot.included_keys_post == EMPTY
    assert snapshot.table_size == 0
    scene.publish(5)
    scene.publish(3)
    (rows,) = scene.send(300)
    assert (rows.first_step, rows.last_step) == (1, 2)
    assert rows.added_keys_post == RowSet.of_range(0, 7)
    assert rows.removed_keys_pre == EMPTY
    assert rows.table_size == 8
    scene.publish(0)
    assert scene.send(100) == []
    (removal,) = scene.send(200)
    assert (removal.first_step, removal.last_step) == (3, 3)
    assert removal.removed_keys_pre == RowSet.of_range(0, 7)
    assert removal.added_keys_post == EMPTY
    assert removal.table_size == 0
    assert scene.producer.next_due_ns() is None
    scene.publish(2)
    (rows,) = scene.send(500)
    assert rows.removed_keys_pre == EMPTY
    scene.publish(4)
    (rows,) = scene.send(300)
    assert rows.removed_keys_pre == RowSet.of_range(0, 1)
    assert rows.added_keys_post == RowSet.of_range(0, 3)


def test_a_removal_follows_also_when_its_cycle_was_coalesced_with_the_rows() -> None:
    scene = BlinkScene()
    scene.send()
    scene.publish(3)
    scene.publish(0)
    (rows,) = scene.send(300)
    assert (rows.first_step, rows.last_step, rows.table_size) == (1, 2, 3)
    due_ns = scene.producer.next_due_ns()
    assert scene.now_ns < due_ns <= scene.now_ns + 300 * MS
    (removal,) = scene.send(300)
    assert (removal.first_step, removal.last_step) == (-1, -1)
    assert removal.removed_keys_pre == RowSet.of_range(0, 2)
    assert scene.producer.next_due_ns() is None


def test_cycles_without_rows_are_not_told_to_those_who_show_none() -> None:
    scene = BlinkScene()
    scene.send()
    scene.publish(3)
    scene.send(300)
    scene.publish(0)
    scene.send(300)
    scene.producer.record(scene.table.update(), 0)
    assert scene.send(300) == []
    assert scene.producer.next_due_ns() is None


def test_a_viewport_cuts_the_concatenation_by_position() -> None:
    scene = BlinkScene(Viewport.of(1, 6))
    scene.send()
    scene.publish(2)
    scene.publish(3)
    (rows,) = scene.send(300)
    assert rows.added_positions == RowSet.of_range(0, 3)
    assert rows.table_size == 5
    scene.publish(8)
    (rows,) = scene.send(300)
    assert rows.removed_positions == RowSet.of_range(0, 3)
    assert rows.added_positions == RowSet.of_range(0, 4)


def test_a_viewport_of_two_ranges_and_some_columns() -> None:
    scene = BlinkScene(Viewport(positions=RowSet.parse("0-1,4-5")), columns=(0, 2))
    scene.send()
    scene.publish(3)
    scene.publish(9)
    (rows,) = scene.send(300)
    assert rows.added_positions == RowSet.of_range(0, 3)


def test_a_draft_viewport_is_told_all_keys_and_the_values_in_view() -> None:
    scene = BlinkScene(Viewport.of(2, 4), is_key_space=True)
    scene.send()
    scene.publish(6)
    (rows,) = scene.send(300)
    assert isinstance(rows, FullUpdate)
    assert rows.added_keys_post == RowSet.of_range(0, 5)
    assert rows.included_keys_post == RowSet.of_range(2, 3)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_viewport_change_first_takes_away_what_is_visible(is_over: bool) -> None:
    scene = BlinkScene(Viewport.of(0, 4))
    scene.send()
    scene.publish(5)
    scene.send(300)
    if is_over:
        scene.publish(0)
    scene.producer.change(1, None, Viewport.of(0, 2), now_ns=scene.now_ns)
    removal, snapshot = scene.send()
    assert removal.removed_positions == RowSet.of_range(0, 3)
    assert removal.last_step == (2 if is_over else -1)
    assert snapshot.is_snapshot
    assert snapshot.effective_viewport == RowSet.of_range(0, 1)
    assert snapshot.removed_positions == snapshot.added_positions == EMPTY
    scene.publish(3)
    (rows,) = scene.send(300)
    assert rows.removed_positions == EMPTY
    assert rows.added_positions == RowSet.of_range(0, 1)


def test_rows_waiting_when_the_viewport_changes_are_delivered_before() -> None:
    scene = BlinkScene(Viewport.of(0, 4))
    scene.send()
    scene.publish(3)
    scene.producer.change(1, None, Viewport.of(1, 4), now_ns=scene.now_ns)
    sent = scene.producer.propagate(0)
    rows, removal, snapshot = [each.message for each in sent]
    assert rows.added_positions == RowSet.of_range(0, 2)
    assert removal.removed_positions == RowSet.of_range(0, 2)
    assert snapshot.is_snapshot


def test_a_reverse_viewport_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="Reverse viewport is not supported for blink"):
        BlinkScene(Viewport.of(0, 4, is_reverse=True))


def test_rows_of_a_held_subscriber_are_kept_up_to_the_limit() -> None:
    scene = BlinkScene(limits=Limits(blink_rows_max=10))
    scene.send()
    scene.producer.hold(1)
    for _ in range(5):
        scene.publish(4)
    scene.expected = scene.expected[-8:]  # the newest cycles that fit into ten rows
    scene.producer.release(1)
    (rows,) = scene.send(300)
    assert rows.added_keys_post == RowSet.of_range(0, 7)
    assert (rows.first_step, rows.last_step) == (4, 5)


def test_one_cycle_over_the_limit_is_kept_whole() -> None:
    scene = BlinkScene(limits=Limits(blink_rows_max=10))
    scene.send()
    scene.publish(11)
    (rows,) = scene.send(300)
    assert rows.table_size == 11


def test_nothing_is_kept_for_nobody() -> None:
    scene = BlinkScene()
    scene.send()
    scene.producer.remove(1)
    scene.table.reads = 0
    scene.publish(100)
    assert scene.table.reads == 0
    scene.producer.validate()

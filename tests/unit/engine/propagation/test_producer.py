"""The producer: who is told what and when. Contents under random load are tests/property's
business."""

from __future__ import annotations

import pytest

from barrage.engine.changelog.making import Delivery, Disconnect
from barrage.engine.changelog.snapshot import snapshot_messages
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.producer import Producer, rounded_interval_ns
from barrage.errors import (
    EngineError,
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    SlowConsumerError,
    TableFailedError,
)
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.fake_table import FakeTable
from tests.helpers.receivers import KeyReceiver, ViewReceiver

MS = NANOS_PER_MS
NOTHING = RowSet.empty()


def spec(viewport: Viewport | None = None, **settings) -> SubscriptionSpec:
    return SubscriptionSpec(
        **{
            "columns": None,
            "viewport": viewport,
            "interval_ns": 100 * MS,
            "is_key_space": viewport is None,
            "encoding": "plain",
            **settings,
        }
    )


class Scene:
    """A table of twenty rows, its producer, and a clock."""

    def __init__(self, limits: Limits | None = None, table: FakeTable | None = None) -> None:
        self.table = FakeTable(range(20)) if table is None else table
        self.producer = Producer(self.table, limits or Limits())
        self.now_ns = 0

    def subscribe(self, number: int, viewport: Viewport | None = None, **settings) -> None:
        self.producer.add(number, spec(viewport, **settings), self.now_ns)

    def change(self, **changes) -> None:
        """One step of the table."""
        self.producer.record(self.table.update(**changes), self.now_ns)

    def send(self, after_ms: int = 0) -> list:
        self.now_ns += after_ms * MS
        sent = self.producer.propagate(self.now_ns)
        self.producer.validate()
        return sent

    def messages(self, after_ms: int = 0) -> list:
        return [each.message for each in self.send(after_ms)]


# --- intervals ------------------------------------------------------------------------------------


def test_a_change_after_a_quiet_interval_is_sent_at_once() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.send()
    scene.now_ns = 150 * MS
    scene.change(added=[30])
    assert scene.producer.next_due_ns() <= scene.now_ns
    assert len(scene.send()) == 1


def test_changes_within_the_interval_are_sent_together_when_it_is_over() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.send()
    scene.now_ns = 200 * MS
    scene.change(added=[30])
    scene.send()
    due_ns = scene.producer.next_due_ns()
    assert due_ns is None
    for key in (31, 32, 33):
        scene.change(added=[key])
        assert scene.send(10) == []
    due_ns = scene.producer.next_due_ns()
    assert 250 * MS < due_ns <= 300 * MS
    scene.now_ns = due_ns - 1
    assert scene.send() == []
    scene.now_ns = due_ns
    (message,) = scene.messages()
    assert (message.first_step, message.last_step) == (2, 4)
    assert message.added_keys_post == RowSet([31, 32, 33])


def test_a_late_cycle_does_not_slow_the_rate_down() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.send()
    scene.change(added=[30])
    scene.send(100 + 5)  # due at 100 ms
    scene.change(added=[31])
    assert scene.producer.next_due_ns() == 200 * MS


def test_a_snapshot_comes_at_once_and_the_group_goes_on_together() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.send()
    scene.change(added=[30])
    scene.subscribe(2)
    assert scene.producer.next_due_ns() == 0
    (snapshot,) = scene.send(10)
    assert snapshot.subscription_ids == (2,)
    assert snapshot.message.is_snapshot
    scene.change(added=[31])
    first, second = scene.send(100)
    assert {first.subscription_ids, second.subscription_ids} == {(1,), (2,)}
    assert {first.message.added_keys_post, second.message.added_keys_post} == {
        RowSet([30, 31]),
        RowSet([31]),
    }
    scene.change(added=[32])
    (together,) = scene.send(100)
    assert sorted(together.subscription_ids) == [1, 2]


@pytest.mark.parametrize(
    ("asked_ms", "given_ms"), [(0, 1000), (-5, 1000), (1, 10), (10, 10), (11, 20), (1001, 1100)]
)
def test_intervals_are_rounded_up_so_that_groups_share(asked_ms: int, given_ms: int) -> None:
    assert rounded_interval_ns(asked_ms * MS, Limits()) == given_ms * MS


def test_an_interval_without_a_minimum_is_the_one_asked_for() -> None:
    limits = Limits(interval_ns_min=0, interval_ns_default=0)
    assert rounded_interval_ns(7, limits) == 7
    assert rounded_interval_ns(0, limits) == 1


def test_nothing_is_due_on_a_static_table() -> None:
    scene = Scene(table=FakeTable(range(5), is_static=True))
    scene.subscribe(1, Viewport.of(0, 3))
    (message,) = scene.messages()
    assert (message.first_step, message.last_step) == (-1, -1)
    assert scene.producer.next_due_ns() is None
    assert scene.messages(10_000) == []


# --- snapshots and changes ------------------------------------------------------------------------


def test_a_full_snapshot_names_every_field_a_client_may_touch() -> None:
    scene = Scene()
    scene.subscribe(1, columns=(0, 2, 9))
    (message,) = scene.messages()
    assert isinstance(message, FullUpdate)
    assert message.effective_viewport is None
    assert message.effective_columns == (0, 2, 9)
    assert message.added_keys_post == message.included_keys_post == RowSet.of_range(0, 19)
    assert message.removed_keys_pre == NOTHING
    assert message.modified_keys_post == (NOTHING,) * 3
    assert [len(column) for column in message.added_columns] == [20, 0, 20]
    assert message.table_size == 20


def test_the_direction_of_a_full_subscription_is_only_echoed() -> None:
    scene = Scene()
    scene.subscribe(1, is_reverse_echo=True)
    (message,) = scene.messages()
    assert message.is_effective_reverse
    assert message.effective_viewport is None


def test_a_change_is_answered_by_the_old_views_delta_then_a_snapshot() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5))
    scene.send()
    scene.change(removed=[0], modified=[(3, 1)])
    scene.producer.change(1, (0, 1), Viewport.of(2, 1000), now_ns=scene.now_ns)
    delta, snapshot = scene.messages()
    assert not delta.is_snapshot
    assert delta.removed_positions == RowSet([0])
    assert delta.added_positions == RowSet([4])
    assert delta.modified_positions[1] == RowSet([2])
    assert snapshot.is_snapshot
    assert snapshot.effective_viewport == RowSet.of_range(2, 999)
    assert snapshot.effective_columns == (0, 1)
    assert snapshot.removed_positions == RowSet([0, 1])
    assert snapshot.added_positions == RowSet.of_range(3, 16)
    assert len(snapshot.added_columns[0]) == 14
    assert (snapshot.first_step, snapshot.last_step) == (1, 1)


@pytest.mark.parametrize(
    ("columns", "viewport", "removed", "added"),
    [
        ((0, 1), Viewport.of(0, 5), "", ""),  # the same again
        ((0,), Viewport.of(0, 5), "", ""),  # a column less
        ((0, 2), Viewport.of(0, 5), "0-4", "0-4"),  # a column more
        ((0, 1), Viewport.of(0, 5, is_reverse=True), "0-4", "0-4"),  # the other direction
        ((0, 1), Viewport.of(3, 8), "0-2", "2-4"),
        ((0, 1), Viewport.of(50, 60), "0-4", ""),
        ((0, 1), Viewport(positions=NOTHING), "0-4", ""),
    ],
)
def test_a_snapshot_after_a_change_has_only_what_the_client_lacks(
    columns, viewport: Viewport, removed: str, added: str
) -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5), columns=(0, 1))
    scene.send()
    scene.producer.change(1, columns, viewport, now_ns=scene.now_ns)
    (message,) = scene.messages()
    assert message.is_snapshot
    assert message.effective_viewport == viewport.positions
    assert message.is_effective_reverse == viewport.is_reverse
    assert message.removed_positions == RowSet.parse(removed)
    assert message.added_positions == RowSet.parse(added)
    assert len(message.added_columns[0]) == len(message.added_positions)


def test_of_several_requests_the_last_counts() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5))
    scene.producer.change(1, None, Viewport.of(1, 6), now_ns=scene.now_ns)
    scene.producer.change(1, None, Viewport.of(2, 7), now_ns=scene.now_ns)
    (message,) = scene.messages()
    assert message.effective_viewport == RowSet.of_range(2, 6)
    assert message.removed_positions == NOTHING
    scene.producer.change(1, None, Viewport.of(3, 8), now_ns=scene.now_ns)
    scene.producer.change(1, None, Viewport.of(4, 9), now_ns=scene.now_ns)
    (message,) = scene.messages()
    assert message.effective_viewport == RowSet.of_range(4, 8)
    assert message.removed_positions == RowSet([0, 1])


@pytest.mark.parametrize(
    ("first", "second"),
    [(None, Viewport.of(0, 3)), (None, None), (Viewport.of(0, 3), None)],
)
def test_full_and_viewport_do_not_change_into_each_other(first, second) -> None:
    scene = Scene()
    scene.subscribe(1, first)
    scene.send()
    with pytest.raises(RemoteProtocolError, match="cannot change from full subscription to view"):
        scene.producer.change(1, None, second, now_ns=0)
    scene.change(added=[50])
    assert len(scene.send(200)) == 1


def test_every_change_of_the_table_is_told_to_views_it_does_not_touch() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5))
    scene.subscribe(2, Viewport(positions=NOTHING))
    scene.subscribe(3, Viewport.of(100, 200))
    scene.send()
    scene.change(added=[50, 51])
    (delivery,) = scene.send(100)
    assert sorted(delivery.subscription_ids) == [1, 2, 3]
    message = delivery.message
    assert isinstance(message, ViewUpdate)
    assert message.table_size == 22
    assert message.removed_positions == message.added_positions == NOTHING


def test_a_viewport_beyond_the_end_fills_as_the_table_grows() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(18, 25))
    (first,) = scene.messages()
    assert first.added_positions == RowSet([0, 1])
    scene.change(added=range(20, 40))
    (message,) = scene.messages(100)
    assert message.added_positions == RowSet.of_range(2, 6)
    assert message.added_columns[1].to_pylist() == [
        scene.table.rows[key][1] for key in range(20, 25)
    ]


def test_modifications_of_other_columns_leave_a_view_quiet() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5), columns=(0,))
    scene.subscribe(2, Viewport.of(0, 5), columns=(1,))
    scene.send()
    scene.change(modified=[(2, 1)])
    deliveries = {each.subscription_ids: each.message for each in scene.send(100)}
    assert deliveries[1,].modified_positions == (NOTHING,) * 3
    assert deliveries[2,].modified_positions == (NOTHING, RowSet([2]), NOTHING)


# --- sharing --------------------------------------------------------------------------------------


def test_the_last_column_covers_the_modified_rows_of_all_for_who_asks() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.subscribe(2, is_last_column_covering=True)
    scene.subscribe(3, columns=(0, 1), is_last_column_covering=True)
    scene.send()
    scene.change(modified=[(1, 0), (2, 0), (3, 0), (2, 1), (9, 1)])
    told = {each.subscription_ids[0]: each.message for each in scene.send(100)}
    every = RowSet.from_keys([1, 2, 3, 9])
    first, second = RowSet.from_keys([1, 2, 3]), RowSet.from_keys([2, 9])
    assert told[1].modified_keys_post == (first, second, NOTHING)
    assert told[2].modified_keys_post == (first, second, every)
    assert told[3].modified_keys_post == (first, every, NOTHING)
    assert [len(column) for column in told[2].modified_columns] == [3, 2, 4]


def test_equal_subscriptions_share_one_delivery_per_encoding() -> None:
    scene = Scene()
    for number in range(6):
        scene.subscribe(number, Viewport.of(0, 5), encoding="lists" if number % 2 else "plain")
    first = scene.send()
    assert sorted(each.subscription_ids for each in first) == [(0, 2, 4), (1, 3, 5)]
    assert first[0].message is first[1].message
    scene.change(modified=[(2, 0)])
    scene.table.reads = 0
    sent = scene.send(100)
    assert sorted(each.subscription_ids for each in sent) == [(0, 2, 4), (1, 3, 5)]
    assert sent[0].message is sent[1].message
    assert scene.table.reads == 1


# --- slow readers ---------------------------------------------------------------------------------


def test_a_held_subscriber_gets_one_update_up_to_its_release() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.subscribe(2)
    scene.send()
    scene.producer.hold(2, scene.now_ns)
    for step in range(1, 5):
        scene.change(added=[100 + step], removed=[99 + step] if step > 1 else [])
        (delivery,) = scene.send(100)
        assert delivery.subscription_ids == (1,)
    scene.producer.release(2)
    assert scene.producer.next_due_ns() <= scene.now_ns
    (delivery,) = scene.send()
    assert delivery.subscription_ids == (2,)
    message = delivery.message
    assert (message.first_step, message.last_step) == (1, 4)
    assert message.added_keys_post == RowSet([104])
    assert message.removed_keys_pre == NOTHING


def test_a_subscriber_released_in_time_goes_on_with_its_group() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.subscribe(2)
    scene.send()
    scene.change(added=[100])
    scene.producer.hold(2)
    assert scene.send(50) == []
    scene.producer.release(2)
    (delivery,) = scene.send(50)
    assert sorted(delivery.subscription_ids) == [1, 2]


def test_a_held_subscribers_request_waits_for_its_release() -> None:
    scene = Scene()
    scene.subscribe(1, Viewport.of(0, 5))
    scene.producer.hold(1)
    assert scene.send() == []
    assert scene.producer.next_due_ns() == Limits().stall_ns_max
    scene.producer.release(1)
    assert len(scene.send()) == 1


def test_a_subscriber_that_stays_held_is_disconnected_at_the_limit() -> None:
    scene = Scene(Limits(stall_ns_max=500 * MS))
    scene.subscribe(1)
    scene.send()
    scene.producer.hold(1, scene.now_ns)
    assert scene.producer.next_due_ns() == 500 * MS
    assert scene.send(499) == []
    (ended,) = scene.send(1)
    assert isinstance(ended, Disconnect)
    assert ended.subscription_id == 1
    assert isinstance(ended.error, SlowConsumerError)
    assert ended.error.stalled_ns == 500 * MS
    assert scene.producer.subscription_count == 0
    scene.producer.remove(1)


def test_without_a_time_the_stall_counts_from_the_next_propagation() -> None:
    scene = Scene(Limits(stall_ns_max=500 * MS))
    scene.subscribe(1)
    scene.send()
    scene.producer.hold(1)
    scene.producer.hold(1)
    scene.send(100)
    assert scene.producer.next_due_ns() == 600 * MS


@pytest.mark.parametrize("viewport", [None, Viewport.of(3, 9), Viewport.of(0, 4, is_reverse=True)])
@pytest.mark.parametrize("points", [2, 3])
def test_past_the_limit_of_points_the_oldest_held_are_resynchronised(viewport, points) -> None:
    scene = Scene(Limits(delta_segments_max=2))
    receivers = {}
    for number in range(points):
        scene.subscribe(number, viewport)
        receivers[number] = KeyReceiver(3) if viewport is None else ViewReceiver(3)
        for each in scene.send(100):
            for told in each.subscription_ids:
                receivers[told].receive(each.message)
        scene.producer.hold(number)
        scene.change(removed=[number], added=[100 + number], modified=[(15, 1)])
    for number in range(points):
        scene.producer.release(number)
    sent = {each.subscription_ids[0]: each.message for each in scene.send(100)}
    assert list(sent) == list(range(points))
    for number, message in sent.items():
        receivers[number].receive(message)
        check = scene.table.rows if viewport is None else scene.table.row_list()
        receivers[number].check(check)
        assert not message.is_snapshot
    if viewport is None:
        is_coarse = len(sent[0].added_keys_post) == 20
        assert is_coarse == (points == 3)
    assert sent[0].first_step == 1


def test_points_where_somebody_flows_are_not_vacated() -> None:
    """Only who is held may be resynchronised; others leave their points within an interval."""
    scene = Scene(Limits(delta_segments_max=1))
    for number in range(4):
        scene.subscribe(number, interval_ns=10_000 * MS)
        scene.send()
        scene.change(added=[100 + number])
        scene.producer.validate()
    sent = [each.message for each in scene.send(10_000)]
    assert sorted(len(message.added_keys_post) for message in sent) == [1, 2, 3, 4]


# --- limits, failures, misuse ---------------------------------------------------------------------


def test_a_viewport_at_the_row_limit_is_served_and_one_past_it_is_refused() -> None:
    scene = Scene(Limits(viewport_rows_max=10))
    scene.subscribe(1, Viewport.of(0, 10))
    scene.subscribe(2, Viewport.of(15, 1000))
    with pytest.raises(LimitExceededError, match="viewport is 11 rows, the limit is 10 rows"):
        scene.subscribe(3, Viewport.of(0, 11))
    with pytest.raises(LimitExceededError):
        scene.producer.change(1, None, Viewport(positions=RowSet.parse("0-9,15")), now_ns=0)
    assert len(scene.send()) == 2


@pytest.mark.parametrize(
    ("positions", "is_key_space"), [("10-1000", False), ("10-11,13-1000", False), ("5-999", True)]
)
def test_a_view_that_outgrows_the_limit_ends(positions: str, is_key_space: bool) -> None:
    scene = Scene(Limits(viewport_rows_max=30))
    viewport = Viewport(positions=RowSet.parse(positions))
    scene.subscribe(1, viewport, is_key_space=is_key_space)
    scene.subscribe(2, Viewport.of(0, 30))
    scene.send()
    scene.change(added=range(100, 200))
    ended = [each for each in scene.send(100) if isinstance(each, Disconnect)]
    assert [each.subscription_id for each in ended] == [1]
    assert isinstance(ended[0].error, LimitExceededError)
    assert scene.producer.subscription_count == 1


def test_a_failing_table_ends_every_subscription() -> None:
    scene = Scene()
    scene.subscribe(1)
    scene.subscribe(2, Viewport.of(0, 5))
    scene.send()
    error = EngineError("operator failed")
    ended = scene.producer.fail(error)
    assert [(each.subscription_id, each.error) for each in ended] == [(1, error), (2, error)]
    scene.table.failure = error
    with pytest.raises(TableFailedError, match="Table is already failed"):
        scene.subscribe(3)
    assert scene.producer.subscription_count == 0


def test_ids_are_unique_and_must_be_known() -> None:
    scene = Scene()
    scene.subscribe(1)
    with pytest.raises(LocalProtocolError, match="subscription 1 exists already"):
        scene.subscribe(1)
    for misuse in (scene.producer.hold, scene.producer.release):
        with pytest.raises(LocalProtocolError, match="no subscription 9"):
            misuse(9)
    scene.producer.remove(9)


def test_slots_and_shapes_are_reused_after_removal() -> None:
    scene = Scene()
    for number in range(200):
        scene.subscribe(number, Viewport.of(number % 7, 10), columns=(number % 3,))
        scene.send()
        if number % 3:
            scene.producer.change(number, None, Viewport.of(number % 5, 9), now_ns=0)
        scene.producer.remove(number)
        scene.producer.validate()
    assert scene.producer.subscription_count == 0
    assert scene.producer.next_due_ns() is None


def test_deliveries_carry_the_time_of_the_newest_step() -> None:
    scene = Scene()
    scene.subscribe(1)
    assert scene.messages()[0].source_time_ns is None
    scene.producer.record(scene.table.update(added=[30]), 123)
    scene.producer.record(scene.table.update(added=[31]), 456)
    (delivery,) = scene.send(100)
    assert isinstance(delivery, Delivery)
    assert delivery.message.source_time_ns == 456


# --- the 2020 draft -------------------------------------------------------------------------------


def test_a_draft_viewport_tells_all_keys_and_the_values_in_view() -> None:
    scene = Scene(table=FakeTable(range(0, 200, 10)))
    scene.subscribe(1, Viewport.of(2, 5), is_key_space=True)
    (snapshot,) = scene.messages()
    assert snapshot.added_keys_post == RowSet(range(0, 200, 10))
    assert snapshot.included_keys_post == RowSet([20, 30, 40])
    scene.change(removed=[0, 30], added=[25, 500], modified=[(20, 1), (40, 1), (60, 1)])
    (delta,) = scene.messages(100)
    assert delta.removed_keys_pre == RowSet([0, 30])
    assert delta.added_keys_post == RowSet([25, 500])
    assert delta.included_keys_post == RowSet([25, 50])  # 50 was scoped in, 500 is out of view
    assert delta.modified_keys_post == (NOTHING, RowSet([40]), NOTHING)
    scene.producer.change(1, None, Viewport.of(3, 6), now_ns=0)
    (changed,) = scene.messages()
    assert changed.included_keys_post == RowSet([60])
    assert changed.effective_viewport == RowSet.of_range(3, 5)


# --- one-off snapshots ----------------------------------------------------------------------------


def test_a_one_off_snapshot_has_the_fields_of_its_own_kind() -> None:
    table = FakeTable(range(20))
    (message,) = snapshot_messages(table, (1,), Viewport.of(0, 3, is_reverse=True), step=7)
    assert (message.first_step, message.last_step, message.is_snapshot) == (7, 7, True)
    assert message.added_keys_post == RowSet.of_range(0, 19)
    assert message.included_keys_post == RowSet([17, 18, 19])
    assert message.effective_viewport == RowSet.of_range(0, 2)
    assert message.is_effective_reverse
    assert message.effective_columns == (1,)
    assert message.removed_keys_pre is None
    assert message.modified_keys_post is None
    assert message.table_size is None
    assert [len(column) for column in message.added_columns] == [0, 3, 0]


@pytest.mark.parametrize(
    ("rows", "viewport", "count"),
    [
        (0, None, 0),
        (5, Viewport(positions=NOTHING), 0),
        (5, Viewport.of(10, 20), 1),
        (5, None, 1),
    ],
)
def test_a_static_table_with_nothing_to_send_sends_no_message(rows, viewport, count) -> None:
    table = FakeTable(range(rows), is_static=True)
    messages = snapshot_messages(table, None, viewport, step=7)
    assert len(messages) == count
    assert all(message.first_step == -1 for message in messages)


def test_a_ticking_table_without_rows_sends_an_empty_message() -> None:
    (message,) = snapshot_messages(FakeTable(), None, None, step=7, is_reverse_echo=True)
    assert message.included_keys_post == NOTHING
    assert message.is_effective_reverse

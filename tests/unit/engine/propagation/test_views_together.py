"""Many views told together: who gets which, from how many readings of the table."""

from __future__ import annotations

from barrage.engine.changelog.making import Delivery, ViewDelivery
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.fake_table import FakeTable
from tests.helpers.told import each_told
from tests.unit.engine.propagation.test_producer import MS, Scene


def test_different_views_share_one_read_per_group_of_columns() -> None:
    scene = Scene(table=FakeTable(range(1000)))
    for number in range(100):
        scene.subscribe(number, Viewport.of(number * 10, number * 10 + 10))
    scene.send()
    scene.change(modified=[(key, column) for key in range(5, 1000, 10) for column in range(3)])
    scene.table.reads = 0
    [sent] = scene.send(100)
    assert [each.subscription_ids for each in sent.deliveries()] == [(i,) for i in range(100)]
    assert scene.table.reads == 1


def test_different_views_that_join_together_share_one_read() -> None:
    scene = Scene(table=FakeTable(range(1000)))
    for number in range(100):
        scene.subscribe(number, Viewport.of(number * 9, number * 9 + 10))
    [sent] = scene.send()
    assert scene.table.reads == 1
    rows = scene.table.row_list()
    for number, each in enumerate(sent.deliveries()):
        values = [column.to_pylist() for column in each.message.added_columns]
        start = number * 9
        assert list(zip(*values, strict=True)) == rows[start : start + 10]
        assert each.message.effective_viewport == RowSet.of_span(start, start + 10)


def told_by(sent: list) -> dict[int, object]:
    """The message of each subscription."""
    return {number: each.message for each in each_told(sent) for number in each.subscription_ids}


def test_equal_views_share_one_and_encodings_are_told_apart() -> None:
    scene = Scene(table=FakeTable(range(100)))
    for number in range(60):
        view = number // 3
        encoding = "plain" if number % 3 else "other"
        scene.subscribe(number, Viewport.of(view * 5, view * 5 + 5), encoding=encoding)
    scene.send()
    scene.change(modified=[(key, 0) for key in range(100)])
    sent = scene.send(100)
    assert {each.encoding for each in sent} == {"plain", "other"}
    for each in sent:
        assert isinstance(each, ViewDelivery)
        shared = 2 if each.encoding == "plain" else 1
        assert each.counts.tolist() == [shared] * 20
    assert sorted(told_by(sent)) == list(range(60))


def test_views_in_which_rows_move_are_told_with_the_others() -> None:
    scene = Scene(table=FakeTable(range(100)))
    for number in range(20):
        scene.subscribe(number, Viewport.of(number * 5, number * 5 + 5))
    scene.send()
    scene.change(removed=[52], modified=[(key, 1) for key in range(50)])
    [sent] = scene.send(100)
    assert isinstance(sent, ViewDelivery)
    told = told_by([sent])
    assert [told[n].modified_positions[1] for n in range(10)] == [RowSet.of_span(0, 5)] * 10
    assert told[10].removed_positions == RowSet([2])
    assert [told[n].removed_positions for n in range(11, 20)] == [RowSet([0])] * 9
    assert [told[n].added_positions for n in range(10, 19)] == [RowSet([4])] * 9
    rows = scene.table.row_list()
    for n in range(10, 19):
        [last] = zip(*(column.to_pylist() for column in told[n].added_columns), strict=True)
        assert last == rows[n * 5 + 4]
    assert told[19].added_positions.is_empty


def test_a_held_view_misses_what_the_others_are_told_and_then_gets_it() -> None:
    scene = Scene(table=FakeTable(range(100)))
    for number in range(20):
        scene.subscribe(number, Viewport.of(number * 5, number * 5 + 5))
    scene.send()
    scene.producer.hold(7)
    scene.change(modified=[(key, 0) for key in range(100)])
    assert sorted(told_by(scene.send(100))) == [n for n in range(20) if n != 7]
    scene.producer.release(7)
    [(number, message)] = told_by(scene.send()).items()
    assert number == 7
    assert message.modified_positions[0] == RowSet.of_span(0, 5)


def test_few_views_are_told_one_by_one() -> None:
    scene = Scene(table=FakeTable(range(100)))
    for number in range(5):
        scene.subscribe(number, Viewport.of(number * 5, number * 5 + 5))
    assert all(isinstance(each, Delivery) for each in scene.send())
    scene.change(modified=[(key, 0) for key in range(100)])
    assert all(isinstance(each, Delivery) for each in scene.send(100))


def test_a_view_that_jumps_is_told_the_new_rows_alone() -> None:
    scene = Scene(table=FakeTable(range(100)))
    scene.subscribe(1, Viewport.of(0, 10))
    scene.subscribe(2, Viewport.of(0, 10))
    scene.send()
    scene.change(removed=[3, 4], modified=[(8, 1)])
    scene.producer.change(1, None, Viewport.of(50, 60), now_ns=scene.now_ns)
    [(number, message)] = told_by(scene.send()).items()
    assert number == 1
    assert message.is_snapshot
    assert message.removed_positions == RowSet.of_span(0, 10)
    assert message.added_positions == RowSet.of_span(0, 10)
    assert message.table_size == 98
    values = [column.to_pylist() for column in message.added_columns]
    assert list(zip(*values, strict=True)) == scene.table.row_list()[50:60]
    scene.change(modified=[(52, 0), (9, 0)])
    told = told_by(scene.send(100))
    assert told[1].modified_positions[0] == RowSet([0])  # its first row has the key 52
    assert told[2].removed_positions == RowSet([3, 4])


def test_a_jump_from_a_view_past_the_end_takes_away_what_was_shown() -> None:
    scene = Scene(table=FakeTable(range(20)))
    scene.subscribe(1, Viewport.of(15, 30))
    scene.send()
    scene.change(removed=range(10))
    scene.producer.change(1, None, Viewport.of(0, 5), now_ns=scene.now_ns)
    [message] = told_by(scene.send()).values()
    assert message.removed_positions == RowSet.of_span(0, 5)
    assert message.added_positions == RowSet.of_span(0, 5)


def test_views_that_jump_together_share_one_read() -> None:
    scene = Scene(table=FakeTable(range(1000)))
    for number in range(50):
        scene.subscribe(number, Viewport.of(number * 10, number * 10 + 10))
    scene.send()
    scene.change(removed=range(495, 510))
    for number in range(50):
        place = 500 + number * 8
        scene.producer.change(number, None, Viewport.of(place, place + 12), now_ns=scene.now_ns)
    scene.table.reads = 0
    [sent] = scene.send()
    assert isinstance(sent, ViewDelivery)
    assert scene.table.reads == 1
    told, rows = told_by([sent]), scene.table.row_list()
    assert sorted(told) == list(range(50))
    for number, message in told.items():
        place = 500 + number * 8
        shown = range(min(place, 985), min(place + 12, 985))
        assert message.is_snapshot
        assert message.effective_viewport == RowSet.of_span(place, place + 12)
        assert message.removed_positions == RowSet.of_span(0, 10)
        assert message.added_positions == RowSet.of_span(0, len(shown))
        values = [column.to_pylist() for column in message.added_columns]
        assert list(zip(*values, strict=True)) == [rows[at] for at in shown]


def test_views_that_jump_from_different_moments_each_lose_what_they_show() -> None:
    scene = Scene(table=FakeTable(range(40)))
    for number in range(12):
        interval_ns = (10_000 if number < 6 else 100) * MS
        scene.subscribe(number, Viewport.of(30, 50), interval_ns=interval_ns)
    scene.send()
    scene.change(modified=[(0, 0)])
    scene.send(100)
    scene.change(removed=range(5))
    assert sorted(told_by(scene.send(100))) == list(range(6, 12))
    for number in range(12):
        scene.producer.change(number, None, Viewport.of(number, number + 3), now_ns=scene.now_ns)
    [sent] = scene.send()
    assert isinstance(sent, ViewDelivery)
    told = told_by([sent])
    lost = [len(told[number].removed_positions) for number in range(12)]
    assert lost == [10] * 6 + [5] * 6

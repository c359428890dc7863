"""The delta log: points, segments, and what lies between."""

from __future__ import annotations

import pytest

from barrage.engine.changelog.delta_log import FOLD_EVERY, DeltaLog
from barrage.model.coalesce import coalesce
from tests.helpers.fake_table import FakeTable


def step(log: DeltaLog, table: FakeTable, key: int):
    """Record a step that adds a key."""
    update = table.update(added=[key])
    log.record(update, table.row_keys)
    log.validate()
    return update


def test_updates_are_merged_where_nobody_stands() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    start = log.join()
    merged = step(log, table, 0)
    for key in range(1, 3 * FOLD_EVERY):
        merged = coalesce(merged, step(log, table, key))
    assert log.point_count == 2
    assert log.since(start) == merged
    assert log.keys_at(start).is_empty
    assert log.since(log.head) is None


def test_each_occupied_point_has_its_own_update() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    points = []
    for key in range(5):
        points.append(log.join())
        step(log, table, key)
    assert log.points() == [*points, log.head]
    for missed, point in enumerate(points):
        assert list(log.since(point).added_keys_post) == list(range(missed, 5))
        assert log.since(point) is log.since(point)


def test_a_point_that_is_left_merges_into_the_one_before() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    points = []
    for key in range(FOLD_EVERY + 2):
        points.append(log.join())
        step(log, table, key)
    for point in points[1:]:
        log.leave(point)
        log.validate()
    assert log.point_count == 2
    assert list(log.since(points[0]).added_keys_post) == list(range(FOLD_EVERY + 2))
    log.leave(points[0])
    assert log.points() == [log.head]


def test_nothing_is_kept_for_nobody() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    for key in range(3):
        step(log, table, key)
    assert log.points() == [log.head]
    assert log.keys_at(log.head) == table.row_keys


def test_wrong_counts_and_points_are_errors() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    point = log.join(2)
    with pytest.raises(ValueError, match="3 subscribers leave point 0, where 2 stand"):
        log.leave(point, 3)
    step(log, table, 1)
    log.leave(point, 2)
    with pytest.raises(KeyError):
        log.since(point)


def test_a_branch_leads_to_a_point_and_then_on() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    step(log, table, 4)
    old = table.row_keys
    way = table.update(added=[7])
    log.record(way, table.row_keys)
    branch = log.branch(old, way)
    log.validate()
    assert log.keys_at(branch) == old
    assert log.since(branch) is way, "the point it leads to is the present"
    later = step(log, table, 9)
    assert log.since(branch) == coalesce(way, later)
    assert log.since(branch) is log.since(branch)
    assert log.points()[0] == branch
    assert log.reader_count == 1


def test_a_branch_keeps_its_point_until_the_last_one_leaves() -> None:
    table = FakeTable()
    log = DeltaLog(table.row_keys)
    way = step(log, table, 1)
    branch = log.branch(table.row_keys, way)
    log.join_branch(branch, 2)
    base = log.head
    for key in range(2, 5):
        step(log, table, key)
    log.leave(branch, 2)
    log.validate()
    assert base in log.points()
    assert log.reader_count == 1
    log.leave(branch)
    log.validate()
    assert log.points() == [log.head]
    with pytest.raises(KeyError):
        log.join_branch(branch)

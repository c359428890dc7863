"""The staging area: what it keeps, for how long, and how much of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.errors import LimitExceededError
from barrage.limits import Limits
from barrage.server.ingest.staging import (
    BATCH_BYTES_MIN,
    PART_BYTES_MIN,
    BatchName,
    StagedLostError,
    StagedPart,
    StagingArea,
)
from tests.helpers.virtual_clock import VirtualClock

ROWS = pa.record_batch({"x": pa.array(range(1000))})
NAME = BatchName(table="t", writer="w", batch=3)
SECOND = 1_000_000_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def area(clock: VirtualClock) -> StagingArea:
    return StagingArea(Limits(), clock)


def staged(
    area: StagingArea, name: BatchName = NAME, partition: int = 0, attempt: int = 0, count: int = 1
) -> StagedPart:
    part = area.open(name, partition, attempt)
    for _ in range(count):
        area.add(part, ROWS, ROWS.nbytes)
    area.complete(part, ROWS.schema)
    return part


def test_complete_parts_are_found_in_the_order_asked_for(area):
    first, second = staged(area, partition=0), staged(area, partition=1, count=2)
    assert area.find(NAME, [(1, 0), (0, 0)]) == [second, first]
    assert second.rows().num_rows == 2000
    assert area.part_count == 2


def test_a_part_under_way_is_not_staged_and_counts(area):
    part = area.open(NAME, 0, 0)
    area.add(part, ROWS, 5000)
    assert area.byte_count == PART_BYTES_MIN + 5000
    with pytest.raises(StagedLostError, match=r"^staged-lost: partition 0, attempt 0 of batch 3"):
        area.find(NAME, [(0, 0)])
    area.discard(part)
    assert (area.byte_count, area.part_count) == (0, 0)


def test_an_attempt_that_is_sent_again_takes_the_place_of_the_first(area):
    staged(area)
    second = staged(area, count=3)
    assert area.find(NAME, [(0, 0)]) == [second]
    assert area.part_count == 1
    assert area.byte_count == second.byte_count


def test_a_part_is_withdrawn_once_and_never_another_in_its_place(area):
    first = staged(area)
    second = staged(area)
    area.withdraw(first)
    assert area.find(NAME, [(0, 0)]) == [second]
    area.withdraw(second)
    area.withdraw(second)
    assert (area.byte_count, area.part_count) == (0, 0)


def test_attempts_writers_and_tables_do_not_mix(area):
    staged(area)
    others = (
        BatchName(table="u", writer="w", batch=3),
        BatchName(table="t", writer="v", batch=3),
        BatchName(table="t", writer="w", batch=4),
    )
    for other in others:
        with pytest.raises(StagedLostError):
            area.find(other, [(0, 0)])
    with pytest.raises(StagedLostError):
        area.find(NAME, [(0, 1)])


def test_a_commit_forgets_the_batch_and_those_before_it(area):
    for batch in (1, 3, 5):
        staged(area, BatchName(table="t", writer="w", batch=batch))
    staged(area, BatchName(table="t", writer="v", batch=1))
    assert area.forget_upto(NAME) == 2000
    assert area.part_count == 2
    assert area.find(BatchName(table="t", writer="w", batch=5), [(0, 0)])


def test_an_abort_forgets_the_batch_alone(area):
    for batch in (2, 3, 4):
        staged(area, BatchName(table="t", writer="w", batch=batch))
    assert area.forget_batch(NAME) == 1000
    assert area.part_count == 2
    assert area.forget_batch(NAME) == 0


def test_rows_nobody_comes_for_are_dropped_when_their_time_is_up(area, clock):
    staged(area)
    clock.advance(Limits().staging_ttl_ns - 1)
    assert area.find(NAME, [(0, 0)])
    clock.advance(SECOND)
    with pytest.raises(StagedLostError):
        area.find(NAME, [(0, 0)])
    assert (area.byte_count, area.part_count) == (0, 0)


def test_parts_are_bounded_in_number(clock):
    area = StagingArea(Limits(staging_parts_max=2), clock)
    staged(area)
    under_way = area.open(NAME, 1, 0)
    with pytest.raises(LimitExceededError, match="staged parts is 3"):
        area.open(NAME, 2, 0)
    area.discard(under_way)
    assert area.open(NAME, 2, 0)


def test_bytes_are_bounded_at_the_limit_and_one_past_it(clock):
    area = StagingArea(Limits(staging_bytes_max=PART_BYTES_MIN + 2000), clock)
    part = area.open(NAME, 0, 0)
    area.add(part, ROWS, 2000)
    with pytest.raises(LimitExceededError, match="staged rows"):
        area.add(part, ROWS, 1)
    assert area.byte_count == PART_BYTES_MIN + 2000


def test_small_batches_cost_more_than_their_rows(area):
    part = area.open(NAME, 0, 0)
    area.add(part, ROWS.slice(0, 1), 8)
    assert area.byte_count == PART_BYTES_MIN + BATCH_BYTES_MIN


def test_room_is_made_by_what_has_expired(clock):
    limits = Limits(staging_bytes_max=2 * PART_BYTES_MIN + 10_000, staging_ttl_ns=10 * SECOND)
    area = StagingArea(limits, clock)
    staged(area)
    part = area.open(NAME, 1, 0)
    with pytest.raises(LimitExceededError):
        area.add(part, ROWS, 9_000)
    clock.advance(11 * SECOND)
    area.add(part, ROWS, 9_000)
    assert area.part_count == 1


def test_a_part_under_way_that_brings_nothing_for_too_long_is_given_up(area, clock):
    ttl = Limits().staging_ttl_ns
    part = area.open(NAME, 0, 0)
    area.add(part, ROWS, 5000)
    clock.advance(ttl - SECOND)
    area.add(part, ROWS, 5000)
    clock.advance(ttl - SECOND)
    area.sweep()
    assert area.part_count == 1
    clock.advance(2 * SECOND)
    area.sweep()
    assert (area.byte_count, area.part_count) == (0, 0)
    for more in (lambda: area.add(part, ROWS, 5000), lambda: area.complete(part, ROWS.schema)):
        with pytest.raises(StagedLostError, match=r"^staged-lost: partition 0, attempt 0 of bat"):
            more()
    area.discard(part)
    assert (area.byte_count, area.part_count) == (0, 0)


def test_an_abort_forgets_what_is_under_way_of_its_batch_too(area):
    part, other = area.open(NAME, 0, 0), area.open(BatchName(table="t", writer="w", batch=4), 0, 0)
    area.add(part, ROWS, 5000)
    assert area.forget_batch(NAME) == 1000
    assert area.part_count == 1
    with pytest.raises(StagedLostError):
        area.complete(part, ROWS.schema)
    area.complete(other, ROWS.schema)
    assert area.part_count == 1


def test_what_stalls_makes_room_for_others(clock):
    area = StagingArea(Limits(staging_bytes_max=20_000), clock)
    stalled = area.open(NAME, 0, 0)
    area.add(stalled, ROWS, 15_000)
    clock.advance(Limits().staging_ttl_ns + SECOND)
    staged(area, BatchName(table="t", writer="v", batch=1))
    assert stalled.is_given_up
    assert not stalled.batches

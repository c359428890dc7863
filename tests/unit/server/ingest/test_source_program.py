"""When a batch that is written in parts is safe, and when it is let go."""

from __future__ import annotations

from itertools import permutations

import pytest

from barrage.limits import Limits
from barrage.proto.connector.stream_desk import StreamDesk
from barrage.server.ingest.connector.source_connection import ConnectorConnection
from barrage.server.ingest.connector.source_program import BatchWork, MappedPart


class Owner:
    """Of the streams of a batch."""

    def __init__(self) -> None:
        self.settled = 0

    def settle(self, **_) -> None:
        self.settled += 1


def scene() -> tuple[StreamDesk, BatchWork, Owner, list[MappedPart]]:
    desk, owner = StreamDesk("p", {}, limits=Limits()), Owner()
    desk._count(owner, 10)
    batch = desk.take_batch()
    assert batch is not None
    work = BatchWork(batch, desk, None)
    parts = [MappedPart(work, None, {}, is_last=at == 2, byte_count=0) for at in range(3)]
    return desk, work, owner, parts


def answered(work: BatchWork) -> None:
    work.parts_under_way -= 1
    work.finish()


def test_a_batch_is_safe_when_every_part_is() -> None:
    desk, work, owner, parts = scene()
    for part in parts[:2]:
        work.handed_over(part)
    answered(work)
    answered(work)
    assert owner.settled == 0, "the last part has not been handed over"
    work.handed_over(parts[2])
    assert desk.batches_under_way == 1
    answered(work)
    assert (owner.settled, desk.batches_under_way, desk.unsafe_bytes) == (1, 0, 0)
    work.fail("too late")
    assert (desk.is_open, desk.batches_under_way) == (True, 0)


@pytest.mark.parametrize("refused", list(permutations(range(3), 1)) + list(permutations(range(3))))
def test_a_batch_that_failed_is_under_way_until_all_parts_were_answered(refused) -> None:
    desk, work, owner, parts = scene()
    for part in parts:
        work.handed_over(part)
    for at in range(3):
        assert desk.batches_under_way == 1
        work.parts_under_way -= 1
        if at in refused:
            work.fail()
        work.finish()
    assert (owner.settled, desk.is_open) == (0, False)
    assert (desk.batches_under_way, desk.unsafe_bytes) == (0, 0)


def test_a_batch_that_was_never_handed_over_is_let_go_at_once() -> None:
    desk, work, _, _ = scene()
    work.fail()
    work.fail()
    assert desk.batches_under_way == 0


def test_what_a_further_turn_has_read_is_handed_over() -> None:
    """Also when it was the last of what had come."""

    class Session:
        has_unread = True

        def read_on(self) -> None:
            self.has_unread = False

    class Worker:
        touched = 0

        def new_session(self, _) -> Session:
            return Session()

        def touch(self, _) -> None:
            self.touched += 1

    worker = Worker()
    connection = ConnectorConnection(worker)
    connection.read_on()
    assert worker.touched == 1
    connection.read_on()
    assert worker.touched == 1

"""How far producers have got: resends, order, and what is forgotten."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, UpdateGraph
from barrage.errors import SequenceError
from barrage.server.journaling.producer_positions import (
    PRODUCER_CHARS_MAX,
    ProducerPosition,
    ProducerPositions,
)


@pytest.fixture
def table() -> AppendOnlyTable:
    return AppendOnlyTable(UpdateGraph(), pa.schema({"x": pa.int64()}))


def at(sequence: int, producer: str = "p") -> ProducerPosition:
    return ProducerPosition(producer, sequence)


@pytest.mark.parametrize("producer", ["", "x" * (PRODUCER_CHARS_MAX + 1), "a\nb", 7, None])
def test_names_that_are_refused(producer):
    with pytest.raises(SequenceError, match="named by"):
        ProducerPosition(producer, 1)


@pytest.mark.parametrize("sequence", [-1, 2**63, True, "1", 1.0, None])
def test_numbers_that_are_refused(sequence):
    with pytest.raises(SequenceError, match="whole number"):
        ProducerPosition("p", sequence)


def test_the_longest_name_and_the_largest_number_are_taken(table):
    position = ProducerPosition("x" * PRODUCER_CHARS_MAX, 2**63 - 1)
    positions = ProducerPositions(1)
    positions.stage(table, position)
    assert positions.commit() == {table: {position.id: position.sequence}}


def test_a_resend_is_known_before_and_after_the_cycle(table):
    positions = ProducerPositions(10)
    assert not positions.is_resend(table, at(5))
    positions.stage(table, at(5))
    assert positions.is_resend(table, at(5))
    assert positions.committed(table, "p") is None
    assert positions.commit() == {table: {"p": 5}}
    assert positions.is_resend(table, at(5))
    assert positions.is_resend(table, at(0))
    assert not positions.is_resend(table, at(6))
    assert not positions.is_resend(table, at(5, "other"))
    assert positions.committed(table, "p") == 5
    assert positions.commit() == {}


def test_in_a_table_that_failed_nobody_has_moved(table):
    positions = ProducerPositions(10)
    positions.stage(table, at(5))
    assert positions.commit([table]) == {}
    assert positions.committed(table, "p") is None


def test_the_producer_that_is_silent_longest_is_forgotten_first(table):
    positions = ProducerPositions(2)
    for producer, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        positions.stage(table, at(sequence, producer))
        positions.commit()
    known = positions.of(table)
    assert known is not None
    assert dict(known.committed) == {"a": 2, "c": 1}


def test_after_a_refusal_the_refused_write_comes_first(table):
    positions = ProducerPositions(10)
    positions.refuse(table, at(5))
    positions.refuse(table, at(6))
    with pytest.raises(SequenceError, match="write 5 of producer 'p' was refused"):
        positions.check_order(table, at(6))
    positions.check_order(table, at(6, "other"))
    positions.check_order(table, at(5))
    positions.check_order(table, at(6))


def test_a_producer_that_asks_where_it_stands_begins_anew(table):
    positions = ProducerPositions(10)
    positions.refuse(table, at(5))
    positions.mend(table, "p")
    positions.check_order(table, at(6))


def test_what_a_journal_kept_is_known(table):
    positions = ProducerPositions(10)
    positions.restore(table, {})
    assert positions.of(table) is None
    positions.restore(table, {"p": 7})
    assert positions.is_resend(table, at(7))

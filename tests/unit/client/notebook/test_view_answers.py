"""Which request an update answers, by what it repeats of it."""

from __future__ import annotations

import pytest

from barrage import wire
from barrage.client.notebook.view_answers import ViewAnswers
from barrage.errors import RemoteProtocolError
from barrage.rowset import RowSet
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import UpdateMetadata

REVISION = wire.WireRevision.R1_0_0


def frame(message):
    return encode_flight_data(FlightFrame(metadata=wire.encode_wrapper(message, REVISION)))


def asked(answers, token, start, stop, columns=None, is_reverse=False):
    answers.asked(
        frame(
            wire.SubscriptionRequest(
                ticket=b"s/t",
                viewport=RowSet.of_span(start, stop),
                columns=columns,
                is_reverse=is_reverse,
                subscription_token=token,
            )
        )
    )


def told(start, stop, columns=None, is_reverse=False, is_snapshot=True):
    none = RowSet.empty()
    return frame(
        UpdateMetadata(
            is_snapshot=is_snapshot,
            effective_viewport=RowSet.of_span(start, stop),
            effective_reverse_viewport=is_reverse,
            effective_column_set=columns,
            added_rows=none,
            removed_rows=none,
            table_size=100,
        )
    )


def test_an_answer_is_announced_once():
    answers = ViewAnswers()
    asked(answers, b"a", 0, 10, columns=(1, 3))
    assert answers.answered(told(0, 10, columns=(1, 3), is_snapshot=False)) is None
    assert answers.answered(told(0, 10, columns=(1, 2))) is None
    assert answers.answered(told(0, 10, columns=(1, 3), is_reverse=True)) is None
    assert answers.answered(told(0, 10, columns=(1, 3))) == b"a"
    assert answers.answered(told(0, 10, columns=(1, 3))) is None


def test_requests_that_were_overtaken_are_forgotten():
    answers = ViewAnswers()
    for start in range(5):
        asked(answers, str(start).encode(), start, start + 10)
    assert answers.answered(told(2, 12)) == b"2"
    assert answers.answered(told(1, 11)) is None
    assert answers.answered(told(4, 14)) == b"4"
    assert answers.answered(told(3, 13)) is None


def test_the_newest_of_equal_requests_is_answered():
    answers = ViewAnswers()
    asked(answers, b"a", 0, 10)
    asked(answers, b"b", 5, 15)
    asked(answers, b"c", 0, 10)
    assert answers.answered(told(0, 10)) == b"c"
    assert answers.answered(told(5, 15)) is None


def test_all_columns_may_be_said_by_naming_none():
    answers = ViewAnswers()
    asked(answers, b"a", 0, 10, columns=(0, 1, 2))
    assert answers.answered(told(0, 10)) == b"a"


def test_what_is_no_request_and_no_update_is_nothing():
    answers = ViewAnswers()
    answers.asked(encode_flight_data(FlightFrame(header=b"h")))
    asked(answers, b"a", 0, 10)
    assert answers.answered(encode_flight_data(FlightFrame(header=b"h"))) is None
    for method in (answers.asked, answers.answered):
        with pytest.raises(RemoteProtocolError):
            method(b"\xff")

"""A read by ticket on a DoExchange stream: every message in every state."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.events import BodiesReleased, HalfClosed, NewsAsked, ReadRequested
from barrage.proto.read_exchange import (
    QUESTION_BYTES_MAX,
    TRANSITIONS,
    ReadExchange,
    ReadInput,
    ReadState,
    encode_answer,
    encode_end,
    encode_read,
    is_end,
)
from barrage.wire.flight_data import decode_flight_data, encode_flight_data
from barrage.wire.frame import FlightFrame

TICKET = encode_read(b"a descriptor")
RELEASED = encode_flight_data(FlightFrame(released=struct.pack("<2Q", 64, 2**63)))
QUESTION = encode_flight_data(FlightFrame(metadata=bytes(QUESTION_BYTES_MAX)))
OTHER = encode_flight_data(FlightFrame(metadata=bytes(QUESTION_BYTES_MAX + 1)))
MESSAGES = {
    ReadInput.TICKET: TICKET,
    ReadInput.RELEASED_BODIES: RELEASED,
    ReadInput.QUESTION: QUESTION,
    ReadInput.OTHER: OTHER,
}


def in_state(state: ReadState) -> ReadExchange:
    exchange = ReadExchange()
    if state in (ReadState.READING, ReadState.FINISHING):
        exchange.receive_frame(TICKET)
    if state in (ReadState.FINISHING, ReadState.CLOSED):
        exchange.receive_half_close()
    assert exchange.state is state
    return exchange


@pytest.mark.parametrize(("state", "given"), list(product(ReadState, ReadInput)))
def test_every_message_in_every_state_moves_as_declared_or_is_refused(state, given):
    exchange = in_state(state)
    following = TRANSITIONS.get((state, given))
    if given is ReadInput.HALF_CLOSE:
        exchange.receive_half_close()
        assert exchange.state is following
        return
    if following is None:
        with pytest.raises(RemoteProtocolError, match=state.name.lower()):
            exchange.receive_frame(MESSAGES[given])
        assert exchange.state is ReadState.CLOSED
        return
    exchange.receive_frame(MESSAGES[given])
    assert exchange.state is following


def test_what_the_messages_mean():
    exchange = ReadExchange()
    assert exchange.receive_frame(TICKET) == ReadRequested(descriptor=b"a descriptor")
    assert exchange.receive_frame(RELEASED) == BodiesReleased(ids=(64, 2**63))
    assert exchange.receive_frame(QUESTION) == NewsAsked(question=bytes(QUESTION_BYTES_MAX))
    assert exchange.receive_half_close() == HalfClosed()
    assert in_state(ReadState.OPENED).receive_half_close() == HalfClosed()


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        encode_flight_data(FlightFrame(metadata=b"")),
        encode_flight_data(FlightFrame(metadata=b"1", header=b"x")),
        encode_flight_data(FlightFrame(metadata=b"1", body=b"x")),
        encode_flight_data(FlightFrame(metadata=b"1", released=bytes(8))),
        encode_flight_data(FlightFrame(released=b"")),
        encode_flight_data(FlightFrame(released=b"1234567")),
        encode_flight_data(FlightFrame(released=bytes(8 * (DEFAULT_LIMITS.body_ranges_max + 1)))),
    ],
)
def test_malformed_messages_close_it(message):
    exchange = in_state(ReadState.READING)
    with pytest.raises(RemoteProtocolError):
        exchange.receive_frame(message)
    assert exchange.state is ReadState.CLOSED


def test_the_end_is_told_from_everything_else():
    assert is_end(decode_flight_data(encode_end()))
    assert not is_end(decode_flight_data(OTHER))
    assert not is_end(decode_flight_data(TICKET))
    assert decode_flight_data(encode_answer(b"q")).metadata == b"q"
    assert not is_end(FlightFrame(header=b"x", metadata=b"end"))

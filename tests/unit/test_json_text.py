"""JSON of peers: how deep it may nest, and every place that reads some."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.client.connection.table_info import info_of_flight
from barrage.client.writing.put import PutProgress, _progress
from barrage.client.writing.writer import _facts
from barrage.errors import BarrageError, ExpressionError, RemoteProtocolError
from barrage.json_text import (
    DeepJsonError,
    JsonTextError,
    checked_json,
    outermost,
    read_json,
)
from barrage.limits import JSON_DEPTH_MAX, Limits
from barrage.model.query import Query
from barrage.relay.listing import Listing
from barrage.server.flight.result_calls import _result_of
from barrage.server.flight.writes_elsewhere import acted_on, written_table
from barrage.server.history.journal_tickets import JOURNAL_ROUTE, parse_ticket
from barrage.server.settings.json_fields import Fields
from barrage.transport.flight_messages import Descriptor, FlightInfo
from barrage.transport.over_websocket.control_messages import (
    UnreadableCallError,
    read_message,
    told_result,
)
from barrage.wire.dissociated.negotiation import Answer, Offer

DEEP = b"[" * 3000 + b"]" * 3000
VALUES = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(depth: int) -> bytes:
    """Objects and lists in turn."""
    pairs = [(b'{"a":', b"}") if each % 2 else (b"[", b"]") for each in range(depth)]
    return b"".join(a for a, _ in pairs) + b"1" + b"".join(b for _, b in reversed(pairs))


def depth_of(value) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def test_at_the_depth_and_one_past_it():
    assert depth_of(read_json(nested(JSON_DEPTH_MAX))) == JSON_DEPTH_MAX
    with pytest.raises(DeepJsonError, match=f"nests {JSON_DEPTH_MAX + 1} deep"):
        read_json(nested(JSON_DEPTH_MAX + 1))


def test_brackets_in_texts_and_beside_each_other_are_not_deep():
    for value in ("[" * 3000, ['"{' * 300 + "\\"] * 300, [[]] * 3000):
        assert read_json(json.dumps(value)) == value


@given(VALUES, st.booleans())
def test_what_is_read_is_what_was_written(value, is_ascii):
    assert read_json(json.dumps(value, ensure_ascii=is_ascii)) == value


@given(st.dictionaries(st.text(), VALUES))
def test_the_outermost_of_an_object_has_its_plain_values(value):
    shown = json.loads(outermost(json.dumps(value)))
    assert shown == {k: 0 if isinstance(v, dict | list) else v for k, v in value.items()}


@given(st.text(alphabet='[]{}"\\a') | st.binary())
def test_whatever_comes_is_refused_or_read(text):
    data = text.encode() if isinstance(text, str) else text
    for text in (data * 200, b"[" * 300 + data):
        with contextlib.suppress(JsonTextError):
            assert checked_json(text) == text


@pytest.mark.parametrize("text", ['"\ud800"', '"\\ud800"', b'"\\udc00x"', b'"\xed\xa0\x80"'])
def test_half_of_a_surrogate_pair_is_no_text(text):
    with pytest.raises(JsonTextError):
        read_json(text)


def call(body: bytes) -> str:
    return '{"type":"call","call":7,"action":"x","body":' + body.decode() + "}"


PLACES = {
    "a query": (Query.parse, ExpressionError),
    "a query's argument": (
        lambda text: Query.parse(b'{"table":"t","ops":[["where",' + text + b"]]}"),
        ExpressionError,
    ),
    "the body of an action": (lambda text: Fields.parse(text, "action body"), RemoteProtocolError),
    "a ticket of a journal": (
        lambda text: parse_ticket(JOURNAL_ROUTE + text, Limits()),
        BarrageError,
    ),
    "what a page says": (lambda text: read_message(text.decode()), RemoteProtocolError),
    "a page's call": (lambda text: read_message(call(text)), UnreadableCallError),
    "what a page is answered": (lambda text: told_result(1, text), RemoteProtocolError),
    "a list of tables": (Listing.parse, RemoteProtocolError),
    "an offer of bodies": (Offer.from_json, RemoteProtocolError),
    "an answer about bodies": (Answer.from_json, RemoteProtocolError),
    "facts of a table": (
        lambda text: info_of_flight(flight_info(text).encode()),
        RemoteProtocolError,
    ),
    "an acknowledgement": (_facts, RemoteProtocolError),
    "progress of an upload": (
        lambda text: _progress(text, 1, PutProgress(rows=0, total=1, step=None)),
        RemoteProtocolError,
    ),
}


def flight_info(metadata: bytes) -> FlightInfo:
    return FlightInfo(
        schema_message=b"",
        descriptor=Descriptor(command=b"x"),
        endpoints=(),
        total_records=-1,
        total_bytes=-1,
        metadata=metadata,
        is_ordered=False,
    )


@pytest.mark.parametrize("place", PLACES)
def test_deep_json_is_a_typed_error_wherever_it_is_read(place):
    read, error = PLACES[place]
    with pytest.raises(error):
        read(DEEP)


def test_deep_json_names_no_table_and_no_result():
    assert acted_on(b'{"table":' + DEEP + b"}") is None
    assert written_table(Descriptor(command=DEEP).encode(), Limits()) is None
    assert _result_of(flight_info(DEEP)) is None


def test_a_call_that_is_too_deep_is_known_by_its_number():
    with pytest.raises(UnreadableCallError, match="nests 3001 deep") as caught:
        read_message(call(DEEP))
    assert caught.value.call == 7
    inside = '{"x":"\\"]","call":9,"y":' + DEEP.decode() + "}"
    with pytest.raises(UnreadableCallError) as caught:
        read_message('{"body":' + inside + ',"type":"call","action":"x","call":7}')
    assert caught.value.call == 7


@pytest.mark.parametrize("body", [b'{"a":"\\ud800"}', b"{nonsense}"])
def test_a_call_whose_body_is_no_json(body):
    with pytest.raises(UnreadableCallError, match="body of the action"):
        read_message(call(body))


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"hello","x":' + DEEP.decode() + "}",
        '{"type":"call","call":' + DEEP.decode() + ',"action":"x"}',
        call(DEEP[:-1]),
        '{"type":"hello","authorization":"\ud800"}',
        '{"type":"hello","authorization":"\\ud800"}',
    ],
)
def test_a_message_that_is_none(text):
    with pytest.raises(RemoteProtocolError, match="not a message") as caught:
        read_message(text)
    assert not isinstance(caught.value, UnreadableCallError)

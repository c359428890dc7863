"""The client's state machine: every state and stimulus, matching of answers, and broken peers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.model.viewport import Viewport
from barrage.proto.client_events import ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import (
    TRANSITIONS,
    ClientExchange,
    ClientState,
    Stimulus,
)
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.flight_data import decode_flight_data, encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import SnapshotRequest, SubscriptionOptions, SubscriptionRequest
from barrage.wire.metadata import decode_wrapper
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.int64())])
EMPTY = RowSet.empty()
NOTHING = pa.array([], pa.int64())


class Peer:
    """A server that says what it is told to."""

    def __init__(self, revision=WireRevision.R1_0_0):
        self.encoder = UpdateEncoder(SCHEMA, EncodeOptions(revision=revision))

    def schema(self):
        return [self.encoder.schema_frame()]

    def view(self, added="", *, viewport=None, is_reverse=False, columns=(0, 1), removed=""):
        rows = RowSet.parse(added)
        values = pa.array(range(len(rows)), pa.int64())
        return list(
            self.encoder.encode(
                ViewUpdate(
                    first_step=1,
                    last_step=1,
                    is_snapshot=viewport is not None,
                    effective_viewport=None if viewport is None else RowSet.parse(viewport),
                    is_effective_reverse=is_reverse,
                    effective_columns=columns if viewport is not None else None,
                    table_size=100,
                    added_columns=tuple(values if i in columns else NOTHING for i in (0, 1)),
                    modified_columns=(NOTHING, NOTHING),
                    removed_positions=RowSet.parse(removed),
                    added_positions=rows,
                    modified_positions=(EMPTY, EMPTY),
                )
            )
        )

    def full(self, added="", *, is_snapshot=False, viewport=None, included=None, columns=(0, 1)):
        rows = RowSet.parse(added if included is None else included)
        values = pa.array(range(len(rows)), pa.int64())
        return list(
            self.encoder.encode(
                FullUpdate(
                    first_step=1,
                    last_step=1,
                    is_snapshot=is_snapshot,
                    effective_viewport=None if viewport is None else RowSet.parse(viewport),
                    is_effective_reverse=False,
                    effective_columns=columns if is_snapshot else None,
                    table_size=100,
                    added_columns=(values, values),
                    modified_columns=(NOTHING, NOTHING),
                    removed_keys_pre=EMPTY,
                    shifts=RowSetShiftData.empty(),
                    added_keys_post=RowSet.parse(added),
                    included_keys_post=None if included is None else rows,
                    modified_keys_post=(EMPTY, EMPTY),
                )
            )
        )


def receive(exchange, frames):
    return [event for frame in frames for event in exchange.receive_frame(frame)]


def flags(events):
    return [(event.is_consistent, event.is_current) for event in events]


def subscribed(viewport=None, **arguments):
    exchange, peer = ClientExchange(), Peer()
    exchange.subscribe(b"s/t", viewport=viewport, **arguments)
    assert receive(exchange, peer.schema()) == [SchemaArrived(schema=SCHEMA)]
    return exchange, peer


def test_the_first_message_is_metadata_only():
    frame = decode_flight_data(
        ClientExchange().subscribe(
            b"s/t", columns=(1,), viewport=Viewport.of(2, 5, is_reverse=True),
            options=SubscriptionOptions(min_update_interval_ms=7), token=b"me",
        )
    )  # fmt: skip
    assert (frame.descriptor, frame.header, frame.body) == (None, None, None)
    assert decode_wrapper(frame.metadata, WireRevision.R1_0_0) == SubscriptionRequest(
        ticket=b"s/t",
        columns=(1,),
        viewport=RowSet.parse("2-4"),
        is_reverse=True,
        options=SubscriptionOptions(min_update_interval_ms=7),
        subscription_token=b"me",
    )


def test_a_snapshot_request_is_metadata_only():
    frame = decode_flight_data(ClientExchange().take_snapshot(b"s/t", columns=(0,)))
    assert decode_wrapper(frame.metadata, WireRevision.R1_0_0) == SnapshotRequest(
        ticket=b"s/t", columns=(0,)
    )


def test_a_full_subscription_is_ready_without_effective_viewport():
    exchange, peer = subscribed()
    grown = receive(exchange, peer.full("0-9", is_snapshot=True, viewport="0-2", included="0-2"))
    delta = receive(exchange, peer.full("10"))
    assert flags(grown + delta) == [(False, False)] * 2
    assert exchange.state is ClientState.GROWING
    assert flags(receive(exchange, peer.full("0-10", is_snapshot=True))) == [(True, True)]
    assert exchange.state is ClientState.LIVE
    assert not exchange.is_viewport


def test_columns_asked_for_must_be_echoed():
    exchange, peer = subscribed(columns=(1,))
    events = receive(exchange, peer.full("0", is_snapshot=True))
    assert flags(events) == [(False, False)]


@pytest.mark.parametrize("asked", [None, (0, 1)])
def test_all_columns_count_as_none_named(asked):
    exchange, peer = subscribed(Viewport.of(0, 3), columns=asked)
    assert flags(receive(exchange, peer.view("0-2", viewport="0-2"))) == [(True, True)]


def test_direction_counts():
    exchange, peer = subscribed(Viewport.of(0, 3, is_reverse=True))
    assert flags(receive(exchange, peer.view("0-2", viewport="0-2"))) == [(False, False)]
    answer = peer.view(viewport="0-2", is_reverse=True)
    assert flags(receive(exchange, answer)) == [(True, True)]


def test_deltas_before_the_answer_show_the_old_setting():
    exchange, peer = subscribed(Viewport.of(0, 3))
    receive(exchange, peer.view("0-2", viewport="0-2"))
    exchange.change(columns=None, viewport=Viewport.of(5, 8))
    assert exchange.state is ClientState.CHANGING
    assert flags(receive(exchange, peer.view())) == [(True, False)]
    assert flags(receive(exchange, peer.view("0-2", viewport="5-7", removed="0-2"))) == [
        (True, True)
    ]


def test_an_answer_to_an_earlier_request_of_a_burst_is_consistent_but_not_current():
    exchange, peer = subscribed(Viewport.of(0, 3))
    for start in (10, 20, 30):
        exchange.change(columns=None, viewport=Viewport.of(start, start + 3))
    assert flags(receive(exchange, peer.view("0-2", viewport="10-12"))) == [(True, False)]
    assert exchange.state is ClientState.CHANGING
    # Nobody ever asked for this: it is a part of something else.
    assert flags(receive(exchange, peer.view(viewport="30-31"))) == [(False, False)]
    assert flags(receive(exchange, peer.view(viewport="30-32"))) == [(True, True)]


def test_going_back_to_an_earlier_setting_needs_its_own_answer():
    exchange, peer = subscribed(Viewport.of(0, 3))
    receive(exchange, peer.view("0-2", viewport="0-2"))
    exchange.change(columns=None, viewport=Viewport.of(5, 8))
    exchange.change(columns=None, viewport=Viewport.of(0, 3))
    assert flags(receive(exchange, peer.view(viewport="0-2"))) == [(True, True)]


def test_late_answers_are_recognised_after_a_setting_was_asked_for_twice():
    exchange, peer = subscribed(Viewport.of(0, 3))
    exchange.change(columns=None, viewport=Viewport.of(5, 8))
    exchange.change(columns=None, viewport=Viewport.of(0, 3))
    first = peer.view("0-2", viewport="0-2")
    assert flags(receive(exchange, first)) == [(True, True)]  # taken for the third answer
    second = peer.view("0-2", viewport="5-7", removed="0-2")
    assert flags(receive(exchange, second)) == [(True, False)]
    assert exchange.state is ClientState.CHANGING
    third = peer.view("0-2", viewport="0-2", removed="0-2")
    assert flags(receive(exchange, third)) == [(True, True)]
    assert exchange.state is ClientState.LIVE


def test_a_full_subscription_cannot_change():
    exchange, _ = subscribed()
    with pytest.raises(LocalProtocolError, match="subscribe again"):
        exchange.change(columns=(0,), viewport=None)


def test_the_draft_speaks_row_keys_in_viewports():
    exchange = ClientExchange(revision=WireRevision.DRAFT_2020)
    exchange.subscribe(b"s/t", viewport=Viewport.of(0, 3))
    assert exchange.is_viewport
    assert not exchange.has_view_positions
    peer = Peer(WireRevision.DRAFT_2020)
    receive(exchange, peer.schema())
    update = peer.full("0-9", is_snapshot=True, viewport="0-2", included="0-2")
    assert flags(receive(exchange, update)) == [(True, True)]


def test_a_subscription_that_its_server_completes_is_lost():
    exchange, _ = subscribed()
    (event,) = exchange.receive_end(None)
    assert isinstance(event.error, ConnectionLostError)
    assert exchange.receive_end(None) == []


def test_a_snapshot_that_ends_in_the_middle_of_an_update_is_an_error():
    exchange = ClientExchange()
    exchange.take_snapshot(b"s/t")
    encoder = UpdateEncoder(SCHEMA, EncodeOptions(batch_rows_max=2))
    peer = Peer()
    peer.encoder = encoder
    receive(exchange, peer.schema())
    frames = peer.full("0-4", is_snapshot=True)
    assert receive(exchange, frames[:1]) == []
    (event,) = exchange.receive_end(None)
    assert isinstance(event.error, RemoteProtocolError)


def test_a_complete_snapshot_ends_quietly():
    exchange, peer = ClientExchange(), Peer()
    exchange.take_snapshot(b"s/t")
    receive(exchange, peer.schema())
    (event,) = receive(exchange, peer.full("0-4", is_snapshot=True))
    assert isinstance(event, UpdateArrived)
    exchange.half_close()
    assert exchange.receive_end(None) == [ExchangeEnded(error=None)]


@pytest.mark.parametrize("frame", [b"\xff", b"", b"\x12\x03abc"])
def test_garbage_ends_the_exchange(frame):
    exchange, _ = subscribed()
    try:
        exchange.receive_frame(frame)
    except RemoteProtocolError:
        assert exchange.state is ClientState.ENDED
    with pytest.raises(RemoteProtocolError):
        receive(exchange, Peer().view("0", viewport="0"))


def test_a_delta_first_is_refused():
    exchange, peer = subscribed(Viewport.of(0, 3))
    with pytest.raises(RemoteProtocolError, match="begin with a snapshot"):
        receive(exchange, peer.view("0"))


@pytest.mark.parametrize(
    ("state", "stimulus"),
    list(itertools.product(ClientState, Stimulus)),
    ids=lambda item: item.name,
)
def test_every_state_and_stimulus_is_a_declared_step_or_refused(state, stimulus):
    exchange = ClientExchange()
    exchange._state = state
    after = TRANSITIONS.get((state, stimulus))
    if after is not None:
        exchange._step(stimulus)
        assert exchange.state is after
        return
    is_ours = stimulus in (
        Stimulus.SUBSCRIBE, Stimulus.CHANGE, Stimulus.TAKE_SNAPSHOT, Stimulus.RESUME,
    )  # fmt: skip
    with pytest.raises(LocalProtocolError if is_ours else RemoteProtocolError):
        exchange._step(stimulus)


def test_messages_whose_bodies_came_apart_are_taken_like_others():
    (apart, peer), (together, _) = subscribed(), subscribed()
    frames = peer.full("0-9", is_snapshot=True)
    expected = receive(together, frames)
    events = []
    for raw in frames:
        frame = decode_flight_data(raw)
        events += apart.receive(replace(frame, body=pa.py_buffer(bytes(frame.body))))
    assert events == expected
    assert apart.state is together.state is ClientState.LIVE


def test_a_message_whose_body_is_elsewhere_is_refused_and_ends_the_exchange():
    exchange, peer = subscribed()
    (raw,) = peer.full("0-9", is_snapshot=True)
    frame = replace(decode_flight_data(raw), body=None, body_reference=b"")
    with pytest.raises(RemoteProtocolError, match="outside a stream that has none"):
        exchange.receive_frame(encode_flight_data(frame))
    assert exchange.state is ClientState.ENDED
    with pytest.raises(RemoteProtocolError, match="while ended"):
        exchange.receive(frame)


def test_a_message_before_any_request_is_refused():
    with pytest.raises(RemoteProtocolError, match="while idle"):
        ClientExchange().receive(FlightFrame())


def test_an_exchange_that_is_abandoned_takes_nothing_more():
    exchange = ClientExchange()
    exchange.subscribe(b"t")
    exchange.abandon()
    assert exchange.state is ClientState.ENDED
    with pytest.raises(RemoteProtocolError, match="while ended"):
        exchange.receive_frame(b"")
    assert exchange.receive_end(None) == []

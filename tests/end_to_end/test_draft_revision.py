"""The 2020 draft over real sockets, where the random workload does not go."""

from __future__ import annotations

import base64
import time

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage import wire
from barrage.rowset import RowSet
from barrage.server import ServerConfig
from barrage.server.presentation.conversions import check_conversions, is_made_text
from barrage.transport import flight_messages
from barrage.transport.deephaven_messages import MESSAGES
from barrage.transport.flight_messages import MESSAGES as HANDSHAKES
from barrage.wire.messages import NewSessionRequest, RefreshSessionRequest, SessionInfoResponse
from barrage.wire.updates.update_assembler import SchemaReceived, UpdateAssembler
from tests.helpers.server_process import (
    FLIGHT,
    TIMEOUT_SECONDS,
    RawExchange,
    metadata_frame,
    raw_channel,
)
from tests.helpers.users import ALICE_PASSWORD, users_file

DRAFT = wire.WireRevision.DRAFT_2020
HEADERS = (("x-barrage-revision", "2020"),)


@pytest.fixture
def channel():
    with barrage.Server() as server, raw_channel(server.address) as opened:
        server.create_table("t", data={"x": list(range(10)), "y": ["a"] * 10})
        yield opened


@pytest.mark.parametrize("revision", list(wire.WireRevision))
def test_a_do_get_is_answered_in_the_revision_asked_for(channel, revision):
    request = flight_messages.encode_ticket(b"s/t")
    call = channel.unary_stream(FLIGHT + "DoGet")(
        request, metadata=(("x-barrage-revision", revision.value),), timeout=TIMEOUT_SECONDS
    )
    assembler = UpdateAssembler(revision=revision, is_viewport=False)
    schema, update = [assembler.receive_frame(wire.decode_flight_data(frame)) for frame in call]
    assert isinstance(schema, SchemaReceived)
    assert update.is_snapshot
    assert update.added_columns[0].to_pylist() == list(range(10))


def test_a_snapshot_request_of_the_draft(channel):
    request = wire.SnapshotRequest(ticket=b"s/t", columns=(1,), viewport=RowSet.of_span(8, 20))
    with RawExchange(channel, headers=HEADERS, revision=DRAFT) as exchange:
        exchange.send(metadata_frame(wire.encode_wrapper(request, DRAFT)))
        answer = exchange.read_update()
        assert answer.data_keys_post == RowSet.of_span(8, 10)
        assert [column.to_pylist() for column in answer.added_columns] == [[], ["a", "a"]]


# --- session messages -----------------------------------------------------------------------------


def test_session_messages_in_an_exchange_are_answered(channel):
    with RawExchange(channel, headers=HEADERS, revision=DRAFT) as exchange:
        for asked in (
            NewSessionRequest(protocol_version=1),
            RefreshSessionRequest(session=b"Bearer nothing"),
        ):
            exchange.send(metadata_frame(wire.encode_wrapper(asked, DRAFT)))
            told = info_of(wire.decode_flight_data(exchange.read()).metadata)
            assert told.session_token.startswith(b"Bearer ")
        # The stream is one for a subscription still.
        request = wire.SubscriptionRequest(ticket=b"s/t")
        exchange.send(metadata_frame(wire.encode_wrapper(request, DRAFT)))
        assert exchange.read_update().is_snapshot


def info_of(metadata):
    told = wire.decode_wrapper(metadata, DRAFT)
    assert isinstance(told, SessionInfoResponse)
    assert told.metadata_header == b"authorization"
    assert told.token_refresh_deadline_ms / 1000 > time.time()
    return told


def shaken(channel, payload):
    """The payload of the answer to one handshake."""
    call = channel.stream_stream(FLIGHT + "Handshake", None, None)
    request = HANDSHAKES.encode("HandshakeRequest", payload=payload)
    [answer] = call(iter([request]), timeout=TIMEOUT_SECONDS)
    return bytes(HANDSHAKES.decode("HandshakeResponse", answer).payload)


def test_session_messages_in_a_handshake_are_answered(tmp_path):
    config = ServerConfig(users=str(users_file(tmp_path / "users")))
    shown = f"Basic {base64.b64encode(f'alice:{ALICE_PASSWORD}'.encode()).decode()}"
    with barrage.Server(config=config) as server, raw_channel(server.address) as channel:
        server.create_table("t", data={"x": [1]})
        message = wrapped_authentication(shown)
        new = NewSessionRequest(protocol_version=1, payload=message)
        told = info_of(shaken(channel, wire.encode_wrapper(new, DRAFT)))
        refresh = RefreshSessionRequest(session=told.session_token)
        again = info_of(shaken(channel, wire.encode_wrapper(refresh, DRAFT)))
        assert again.session_token != told.session_token
        info = channel.unary_unary(FLIGHT + "GetFlightInfo", None, None)
        descriptor = flight_messages.Descriptor(path=("t",)).encode()
        token = (("authorization", again.session_token.decode()),)
        assert info(descriptor, metadata=token, timeout=TIMEOUT_SECONDS)
        for wrong in (
            NewSessionRequest(payload=wrapped_authentication("Basic YWxpY2U6d3Jvbmc=")),
            RefreshSessionRequest(session=b"Bearer nothing"),
            RefreshSessionRequest(),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                shaken(channel, wire.encode_wrapper(wrong, DRAFT))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def wrapped_authentication(header):
    kind, _, secret = header.partition(" ")
    return MESSAGES.encode("WrappedAuthenticationRequest", type=kind, payload=secret.encode())


# --- column_conversion_mode -----------------------------------------------------------------------


def subscribed(channel, mode, *, revision=DRAFT, kind="subscribe", headers=HEADERS):
    """The first update of a session that asks with a mode."""
    options = {"column_conversion_mode": mode}
    if kind == "subscribe":
        request = wire.SubscriptionRequest(
            ticket=b"s/odd", options=wire.SubscriptionOptions(**options)
        )
    else:
        request = wire.SnapshotRequest(ticket=b"s/odd", options=wire.SnapshotOptions(**options))
    with RawExchange(channel, headers=headers, revision=revision) as exchange:
        exchange.send(metadata_frame(wire.encode_wrapper(request, revision)))
        return exchange.read_update()


@pytest.fixture
def odd_channel():
    """A table with a column that sessions see as text, and headers that bring a session."""
    with barrage.Server() as server, raw_channel(server.address) as opened:
        column = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
        server.create_table("odd", data=pa.table({"x": [1], "m": column}))
        call = opened.stream_stream(FLIGHT + "Handshake", None, None)
        shaken = call(iter([b""]), timeout=TIMEOUT_SECONDS)
        list(shaken)
        token = dict(shaken.initial_metadata())["authorization"]
        yield opened, ("authorization", token)


@pytest.mark.parametrize("kind", ["subscribe", "snapshot"])
def test_a_mode_of_conversion_does_what_it_says(odd_channel, kind):
    channel, session = odd_channel
    headers = (*HEADERS, session)
    shown = subscribed(channel, 1, kind=kind, headers=headers)
    assert pa.types.is_string(shown.added_columns[1].type)
    for mode, code, text in (
        (2, grpc.StatusCode.UNIMPLEMENTED, "no Java objects"),
        (3, grpc.StatusCode.INVALID_ARGUMENT, "column 'm'"),
        (0, grpc.StatusCode.INVALID_ARGUMENT, "column_conversion_mode is 0"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            subscribed(channel, mode, kind=kind, headers=headers)
        assert caught.value.code() is code
        assert text in caught.value.details()
    # Without a session nothing is converted, and in 1.0.0 the mode is retired.
    assert pa.types.is_map(subscribed(channel, 3, kind=kind).added_columns[1].type)
    later = subscribed(channel, 3, kind=kind, revision=wire.WireRevision.R1_0_0, headers=(session,))
    assert pa.types.is_string(later.added_columns[1].type)


def test_types_of_their_own_pass_whatever_the_mode():
    schema = pa.schema({"x": pa.uint64(), "d": pa.decimal128(5), "l": pa.list_(pa.string())})
    for mode in (1, 2, 3):
        check_conversions(schema, "deephaven", mode)
    assert is_made_text(pa.list_(pa.map_(pa.string(), pa.int8())), "deephaven")
    assert not is_made_text(pa.dictionary(pa.int8(), pa.large_string()), "ticking")
    assert is_made_text(pa.binary(), "ticking")

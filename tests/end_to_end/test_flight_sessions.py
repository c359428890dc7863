"""Options of a Flight client's session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.transport import flight_messages
from barrage.transport.flight_messages import Descriptor, OptionError, OptionValue
from tests.helpers.flight_peer import FlightPeer, status

CODE = grpc.StatusCode
LIMITS = replace(DEFAULT_LIMITS, flight_sessions_max=2, session_options_max=4)


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=LIMITS)) as running:
        running.create_table("t", data=pa.table({"x": range(10)}))
        yield running


@pytest.fixture
def peer(server: barrage.Server) -> Iterator[FlightPeer]:
    with FlightPeer(server.address) as connected:
        yield connected


def put(peer: FlightPeer, **options: OptionValue) -> dict[str, int]:
    body = flight_messages.encode_options("SetSessionOptionsRequest", options)
    answer = peer.act("SetSessionOptions", body)
    cookie = peer.answered.get("set-cookie")
    if cookie is not None:
        peer.headers.append(("cookie", cookie.partition(";")[0]))
    return flight_messages.decode_option_errors(answer)


def options_of(peer: FlightPeer) -> dict[str, OptionValue]:
    return flight_messages.decode_options("GetSessionOptionsResult", peer.act("GetSessionOptions"))


def test_options_hold_for_the_calls_of_their_session(
    server: barrage.Server, peer: FlightPeer
) -> None:
    assert put(peer, endpoint_rows=4, lifetime_ms=5_000) == {}
    assert peer.headers[0][1].startswith("arrow_flight_session_id=")
    assert put(peer, lifetime_ms=6_000) == {}
    assert "set-cookie" not in peer.answered
    assert options_of(peer) == {"endpoint_rows": 4, "lifetime_ms": 6_000}
    assert len(peer.finished(b"s/t").info.endpoints) == 3
    assert len(peer.info(Descriptor(path=("t",))).endpoints) == 3
    with FlightPeer(server.address) as other:
        assert len(other.finished(b"s/t").info.endpoints) == 1


def test_wrong_options_are_told_one_by_one(peer: FlightPeer) -> None:
    refused = put(peer, endpoint_rows=0, lifetime_ms="long", catalog="x")
    assert refused == {
        "endpoint_rows": OptionError.INVALID_VALUE,
        "lifetime_ms": OptionError.INVALID_VALUE,
        "catalog": OptionError.INVALID_NAME,
    }
    assert options_of(peer) == {}
    most = LIMITS.result_lifetime_ns_max // 1_000_000
    assert put(peer, lifetime_ms=most + 1) == {"lifetime_ms": OptionError.INVALID_VALUE}
    assert put(peer, lifetime_ms=most, endpoint_rows=True) == {
        "endpoint_rows": OptionError.INVALID_VALUE
    }
    # An option without a value is forgotten.
    assert put(peer, lifetime_ms=None) == {}
    assert options_of(peer) == {}


@pytest.mark.parametrize("value", ["text", True, -5, 2.5, ["a", "b"], None, []])
def test_every_kind_of_value_travels(value: OptionValue) -> None:
    body = flight_messages.encode_options("SetSessionOptionsRequest", {"name": value})
    assert flight_messages.decode_options("SetSessionOptionsRequest", body) == {"name": value}


def test_a_session_ends_when_it_is_closed(peer: FlightPeer) -> None:
    put(peer, endpoint_rows=4)
    assert flight_messages.decode_close_result(peer.act("CloseSession")) == 1
    assert "Max-Age=0" in peer.answered["set-cookie"]
    for kind in ("GetSessionOptions", "CloseSession"):
        with status(CODE.NOT_FOUND, "no session"):
            peer.act(kind)


@pytest.mark.parametrize(
    "cookie", ["", "arrow_flight_session_id=", "arrow_flight_session_id=x", ";;=;", "a" * 5000]
)
def test_cookies_of_no_session(peer: FlightPeer, cookie: str) -> None:
    peer.headers.append(("cookie", cookie))
    with status(CODE.NOT_FOUND, "SetSessionOptions begins one"):
        peer.act("GetSessionOptions")


def test_sessions_and_options_are_bounded(server: barrage.Server, peer: FlightPeer) -> None:
    with status(CODE.RESOURCE_EXHAUSTED, "options in one request is 5"):
        put(peer, **{f"o{number}": 1 for number in range(5)})
    put(peer, **{f"o{number}": 1 for number in range(4)})
    with FlightPeer(server.address) as second, FlightPeer(server.address) as third:
        put(second, endpoint_rows=4)
        with status(CODE.RESOURCE_EXHAUSTED, "sessions of Flight clients"):
            put(third, endpoint_rows=4)


def test_a_session_of_a_token_has_options_and_is_closed(server: barrage.Server) -> None:
    """A handshake with nothing to show opens a session where nothing need be shown."""
    with FlightPeer(server.address) as peer:
        handshake = peer.channel.stream_stream(flight_messages.FLIGHT + "Handshake", None, None)
        call = handshake(iter([b""]), timeout=60)
        [_] = list(call)
        token = dict(call.initial_metadata())["authorization"]
        peer.headers.append(("authorization", token))
        assert options_of(peer) == {}
        assert put(peer, endpoint_rows=4) == {}
        assert options_of(peer) == {"endpoint_rows": 4}
        assert flight_messages.decode_close_result(peer.act("CloseSession")) == 1
        peer.headers[:] = [("authorization", token)]
        with pytest.raises(grpc.RpcError):
            peer.act("GetSessionOptions")


@pytest.mark.parametrize("kind", ["SetSessionOptions", "GetSessionOptions", "CloseSession"])
def test_bodies_that_are_no_message(peer: FlightPeer, kind: str) -> None:
    with status(CODE.INVALID_ARGUMENT, "malformed"):
        peer.act(kind, b"\xff\xff\xff")

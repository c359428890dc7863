"""Asking for ucx:// locations where UCX is not switched on, and where it must not be."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import ConfigError, LimitExceededError, RemoteProtocolError, SchemaError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.flight.dissociated_calls import DissociatedRequest, is_dissociated_request
from barrage.server.settings.config import ServerConfig
from barrage.transport.flight_messages import Descriptor, Endpoint, FlightInfo

COMMAND = b'{"dissociated": {"table": "t"}}'


@pytest.mark.parametrize("bodies", ["inline", "shm"])
def test_a_server_without_ucx_says_so(bodies: str) -> None:
    with (
        barrage.Server(bodies=bodies) as server,
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        server.create_table("t", {"a": "int64"})
        with pytest.raises(NotImplementedError, match="--bodies ucx"):
            client.get_flight_info(flight.FlightDescriptor.for_command(COMMAND))
        # Every other request is what it was.
        info = client.get_flight_info(flight.FlightDescriptor.for_path("t"))
        assert info.endpoints[0].locations == []


def test_what_a_command_asks_for() -> None:
    request = DissociatedRequest.parse(COMMAND, DEFAULT_LIMITS)
    assert request == (b"s/t", "packed", False)
    query = b'{"dissociated": {"query": {"table": "t", "ops": [["head", 1]]}, "locations": 1}}'
    assert DissociatedRequest.parse(query, DEFAULT_LIMITS) == (
        b'q/{"table": "t", "ops": [["head", 1]]}',
        "packed",
        True,
    )
    told = b'{"dissociated": {"table": "t", "bodies": "rma"}}'
    assert DissociatedRequest.parse(told, DEFAULT_LIMITS).place == "rma"
    wrongs = (
        b"{",
        b"[]",
        b'{"dissociated": []}',
        b'{"dissociated": {"table": "t", "x": 1}}',
        b'{"dissociated": {"table": "t"}, "x": 1}',
        b'{"dissociated": {"table": "t", "locations": 3}}',
        b'{"dissociated": {"query": [], "locations": 3}}',
    )
    for wrong in wrongs:
        with pytest.raises(RemoteProtocolError):
            DissociatedRequest.parse(wrong, DEFAULT_LIMITS)
    with pytest.raises(RemoteProtocolError, match=r"commands in JSON are .*q/<query>"):
        DissociatedRequest.parse(b'{"other": 1}', DEFAULT_LIMITS)
    with pytest.raises((RemoteProtocolError, SchemaError)):
        DissociatedRequest.parse(b'{"dissociated": {"table": ""}}', DEFAULT_LIMITS)


def test_a_command_that_is_too_long_is_not_even_read() -> None:
    limits = replace(DEFAULT_LIMITS, ticket_bytes_max=len(COMMAND))
    assert DissociatedRequest.parse(COMMAND, limits).ticket == b"s/t"
    with pytest.raises(LimitExceededError):
        DissociatedRequest.parse(COMMAND + b" ", limits)


def test_no_ticket_is_taken_for_such_a_command() -> None:
    assert is_dissociated_request(COMMAND)
    for other in (None, b"", b"s/t", b"q/{}", b"e\0\0\0\0", b'"x"'):
        assert not is_dissociated_request(other)


def test_locations_travel_in_a_flight_info() -> None:
    info = FlightInfo(
        schema_message=b"s",
        descriptor=Descriptor(command=b"c"),
        endpoints=(
            Endpoint(ticket=b"t", locations=("ucx://a:1?want_data=1", "ucx://a:1?want_data=2")),
            Endpoint(ticket=b"u", expires_ns=1_700_000_000_000_000_001, metadata=b"m"),
        ),
        total_records=1,
        total_bytes=-1,
        metadata=b"",
    )
    assert FlightInfo.decode(info.encode()) == info


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.org"])
def test_an_address_others_can_reach_needs_a_second_word(host: str) -> None:
    with pytest.raises(ConfigError, match="ucx_allow_network"):
        ServerConfig(bodies="ucx", ucx_host=host)
    assert ServerConfig(bodies="ucx", ucx_host=host, ucx_allow_network=True).ucx_host == host


@pytest.mark.further
def test_nothing_of_ucx_is_loaded_until_it_is_switched_on() -> None:
    code = (
        "import sys, barrage\n"
        "with barrage.Server(bodies='shm') as server:\n"
        "    with barrage.connect(server.uri) as session: session.tables()\n"
        "print([name for name in sys.modules if 'cffi' in name or '.ucx.' in name])\n"
        "print('libucp' in open('/proc/self/maps').read())\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.splitlines() == ["[]", "False"]

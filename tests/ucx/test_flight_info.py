"""Any table of a running server, for clients that ask GetFlightInfo for ucx:// locations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import ConnectionLostError, TransportUnavailableError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.transport.ucx import (
    ErrorMode,
    RegisteredMemory,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    fetch,
    open_batches,
)
from barrage.wire.dissociated.location import UcxLocation
from tests.helpers.ucx_streams import sample
from tests.ucx.children import child
from tests.ucx.stream_children import example_client

ROWS = 30_000


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    config = ServerConfig(bodies="shm,ucx", ucx_rma=True)
    with barrage.Server(config=config) as running:
        running.create_table("quotes", data=sample(ROWS).drop_columns("nothing"))
        running.create_table("empty", {"a": "int64"})
        running.create_table("keyed", {"k": "int64", "v": "string"}, key="k")
        yield running


@pytest.fixture
def client(server: barrage.Server) -> Iterator[flight.FlightClient]:
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as opened:
        yield opened


def info_of(client: flight.FlightClient, table: str, **details: Any) -> flight.FlightInfo:
    command = json.dumps({"dissociated": {"table": table, **details}}).encode()
    return client.get_flight_info(flight.FlightDescriptor.for_command(command))


def locations_of(info: flight.FlightInfo) -> tuple[str, str, bytes]:
    """Headers, bodies, ticket."""
    (endpoint,) = info.endpoints
    metadata, bodies = (location.uri.decode() for location in endpoint.locations)
    return metadata, bodies, endpoint.ticket.ticket


def fetched(library: UcxLibrary, info: flight.FlightInfo, **details: Any) -> pa.Table:
    async def scenario() -> pa.Table:
        # The server runs in this process and has a context of its own.
        context = UcxContext(library, UcxSettings(rma=True))
        try:
            return await fetch(*locations_of(info), context=context, **details)
        finally:
            context.close()

    return asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """The server of this module keeps its context between tests."""


@pytest.mark.parametrize("place", ["packed", "shm", "rma"])
@pytest.mark.parametrize("one_connection", [False, True])
def test_a_table_comes_as_it_is(
    library: UcxLibrary, client: flight.FlightClient, place: str, one_connection: bool
) -> None:
    info = info_of(client, "quotes", bodies=place)
    got = fetched(library, info, one_connection=one_connection)
    table = sample(ROWS).drop_columns("nothing")
    assert got.equals(table.cast(got.schema))
    assert got.schema.equals(info.schema)
    assert info.total_records == ROWS


def test_the_locations_are_those_of_the_protocol(client: flight.FlightClient) -> None:
    metadata, bodies, ticket = locations_of(info_of(client, "quotes"))
    headers_at, bodies_at = UcxLocation.parse(metadata), UcxLocation.parse(bodies)
    assert headers_at.want_data != bodies_at.want_data
    assert (headers_at.host, headers_at.port) == (bodies_at.host, bodies_at.port)
    assert bodies_at.free_data is None
    assert len(ticket) == 16
    lent = UcxLocation.parse(locations_of(info_of(client, "quotes", bodies="shm"))[1])
    assert lent.free_data is not None
    assert lent.remote_handle is not None
    assert lent.remote_handle.startswith(b"barrage-")


def test_a_query_comes_from_one_location(library: UcxLibrary, client: flight.FlightClient) -> None:
    query = {"table": "keyed", "ops": [["drop", ["v"]]]}
    command = flight.FlightDescriptor.for_command(
        json.dumps({"dissociated": {"query": query, "locations": 1}}).encode()
    )
    info = client.get_flight_info(command)
    [endpoint] = info.endpoints
    [location] = (each.uri.decode() for each in endpoint.locations)

    async def scenario() -> pa.Table:
        context = UcxContext(library, UcxSettings())
        try:
            ticket = endpoint.ticket.ticket
            return await fetch(location, None, ticket, context=context)
        finally:
            context.close()

    got = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert got.schema.names == ["k"]
    assert client.get_schema(command).schema.equals(got.schema)


def test_all_streams_lie_in_the_same_remote_memory(client: flight.FlightClient) -> None:
    told = [locations_of(info_of(client, "quotes", bodies="rma"))[1] for _ in range(3)]
    places = [UcxLocation.parse(each) for each in told]
    assert len({place.remote_handle for place in places}) == 1
    assert len({place.free_data for place in places}) == 3


def test_a_ticket_is_of_use_once(library: UcxLibrary, client: flight.FlightClient) -> None:
    info = info_of(client, "quotes")
    assert fetched(library, info).num_rows == ROWS
    with pytest.raises(TransportUnavailableError):
        fetched(library, info, timeout=3)


def test_the_rows_are_those_of_the_moment_of_the_request(
    library: UcxLibrary, server: barrage.Server, client: flight.FlightClient
) -> None:
    keyed = server.table("keyed")
    keyed.upsert({"k": [1, 2], "v": ["a", "b"]})
    info = info_of(client, "keyed")
    keyed.upsert({"k": [2, 3], "v": ["c", "d"]})
    got = fetched(library, info)
    assert sorted(map(tuple, (row.values() for row in got.to_pylist()))) == [
        (1, "a"),
        (2, "c"),
        (3, "d"),
    ]


def test_an_empty_table(library: UcxLibrary, client: flight.FlightClient) -> None:
    got = fetched(library, info_of(client, "empty"))
    assert got.num_rows == 0
    assert got.schema.names == ["a"]


@pytest.mark.parametrize("error_mode", list(ErrorMode))
def test_a_client_that_does_as_the_example_does(
    client: flight.FlightClient, error_mode: ErrorMode
) -> None:
    info = info_of(client, "quotes")
    with child(example_client, *locations_of(info), error_mode) as reader:
        rows = reader.receive()
    assert len(rows) == ROWS
    assert rows[7]["text"] == "row 7"
    assert rows[8]["word"] == "w3"


@pytest.mark.parametrize(
    ("command", "error", "what"),
    [
        (b"{", pa.ArrowInvalid, "not JSON"),
        (b"{}", pa.ArrowInvalid, "dissociated"),
        (b'{"dissociated": 1}', pa.ArrowInvalid, "must be an object"),
        (b'{"dissociated": {}}', pa.ArrowInvalid, "table"),
        (b'{"dissociated": {"table": 7}}', pa.ArrowInvalid, "table"),
        (b'{"dissociated": {"table": "quotes", "body": "shm"}}', pa.ArrowInvalid, "bodies"),
        (b'{"dissociated": {"table": "quotes", "bodies": "x"}}', pa.ArrowInvalid, "packed"),
        (b'{"dissociated": {"table": "quotes"}, "x": 1}', pa.ArrowInvalid, "unknown field"),
        (b'{"dissociated": {"table": "nope"}}', KeyError, "nope"),
        (b'{"dissociated": {"table": "' + b"x" * 5000 + b'"}}', pa.ArrowException, "limit"),
    ],
)
def test_commands_that_are_none(
    client: flight.FlightClient, command: bytes, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        client.get_flight_info(flight.FlightDescriptor.for_command(command))


def test_places_that_are_not_switched_on(library: UcxLibrary) -> None:
    with (
        barrage.Server(bodies="ucx") as server,
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        server.create_table("t", data=pa.table({"a": np.arange(5)}))
        for place, what in (("shm", "--bodies shm,ucx"), ("rma", "ucx_rma")):
            with pytest.raises(NotImplementedError, match=what):
                info_of(client, "t", bodies=place)
        assert fetched(library, info_of(client, "t")).column("a").to_pylist() == list(range(5))


def test_a_server_that_stops_ends_its_streams(library: UcxLibrary) -> None:
    limits = replace(DEFAULT_LIMITS, body_window_bytes=4_000_000)

    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            metadata, bodies, ticket = locations_of(info_of(client, "t"))
            opening = open_batches(metadata, bodies, ticket, context=context, limits=limits)
            async with opening as batches:
                await anext(batches)
                stopping = asyncio.get_running_loop().run_in_executor(None, server.stop)
                await asyncio.wait_for(stopping, 30)
                with pytest.raises(ConnectionLostError):
                    [batch async for batch in batches]
        finally:
            context.close()

    server = barrage.Server(config=ServerConfig(bodies="ucx", limits=limits))
    server.start()
    try:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            server.create_table("t", data=pa.table({"a": np.arange(5_000_000)}))
            asyncio.run(asyncio.wait_for(scenario(), 60))
    finally:
        server.stop()


def test_memory_that_clients_read_outlives_their_connections(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads it for them as long as they are connected, whatever is there then."""
    connected: list[int] = []
    unregister = RegisteredMemory.close

    def close(memory: RegisteredMemory) -> None:
        connected.append(len(memory._context.workers))
        unregister(memory)

    monkeypatch.setattr(RegisteredMemory, "close", close)
    limits = replace(DEFAULT_LIMITS, body_window_bytes=4_000_000)

    async def scenario() -> None:
        context = UcxContext(library, UcxSettings(rma=True))
        try:
            places = locations_of(info_of(client, "t", bodies="rma"))
            async with open_batches(*places, context=context, limits=limits, timeout=30) as batches:
                await anext(batches)
                await asyncio.get_running_loop().run_in_executor(None, server.stop)
        finally:
            context.close()

    server = barrage.Server(config=ServerConfig(bodies="ucx", ucx_rma=True, limits=limits))
    server.start()
    try:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            server.create_table("t", data=pa.table({"a": np.arange(5_000_000)}))
            asyncio.run(asyncio.wait_for(scenario(), 60))
    finally:
        server.stop()
    assert connected == [0]

"""Tables that clients may only read: by both APIs, under one name or another."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import AuthenticationError, PermissionDeniedError, StatusCode
from barrage.server import AsyncServer

pytestmark = pytest.mark.usefixtures("on_a_port")

ROWS = pa.table({"x": [1, 2]})


def put(uri: str, name: str) -> None:
    with flight.connect(uri) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), ROWS.schema)
        with writer:
            writer.write_table(ROWS)


def test_one_table_under_a_name_to_write_and_one_to_read(server):
    table = server.create_table("open", ROWS.schema)
    server.publish("closed", table, is_read_only=True)
    put(server.uri, "open")
    with pytest.raises(flight.FlightUnauthorizedError, match="'closed' is published for reading"):
        put(server.uri, "closed")
    assert server.table("closed").to_arrow() == ROWS


def test_a_client_is_told_that_it_may_not_with_an_error_of_its_own(server):
    server.create_table("fixed", data=ROWS, is_read_only=True)
    reading_only = pytest.raises(PermissionDeniedError, match="'fixed' is published for reading")
    with barrage.connect(server.address) as session, reading_only as told:
        session.put("fixed", ROWS)
    assert not isinstance(told.value, AuthenticationError)
    assert told.value.status_code is StatusCode.PERMISSION_DENIED


def test_the_owner_writes_a_read_only_table(server):
    table = server.create_table("fixed", ROWS.schema, is_read_only=True)
    table.add(ROWS)
    server.table("fixed").add(ROWS)
    assert len(table) == 4


def test_deleting_and_replacing_are_refused_as_well(server):
    server.create_table("fixed", data=ROWS, key="x", is_read_only=True)
    with flight.connect(server.uri) as client:
        for mode in ("delete", "replace", "upsert"):
            command = b'{"table": "fixed", "mode": "%s"}' % mode.encode()
            writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), ROWS.schema)
            with pytest.raises(flight.FlightUnauthorizedError), writer:
                writer.write_table(ROWS)
    assert server.table("fixed").to_arrow() == ROWS


def test_read_only_tables_of_the_asynchronous_api():
    async def serve() -> None:
        async with AsyncServer() as running:
            table = await running.create_table("fixed", ROWS.schema, is_read_only=True)
            await running.publish("again", table, is_read_only=True)
            for name in ("fixed", "again"):
                with pytest.raises(flight.FlightUnauthorizedError):
                    await asyncio.to_thread(put, running.uri, name)
            await table.add(ROWS)

    asyncio.run(serve())


def test_a_read_only_table_can_be_read(server, flight_client):
    server.create_table("fixed", data=ROWS, is_read_only=True)
    assert flight_client.do_get(flight.Ticket(b"s/fixed")).read_all() == ROWS

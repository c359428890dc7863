"""The protocol between two processes: every arrangement, both types of bodies, other people's
clients and servers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import TransportUnavailableError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx import (
    ErrorMode,
    OfferedTable,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    fetch,
    open_batches,
)
from barrage.wire.dissociated.location import UcxLocation
from tests.ucx.children import Child, child
from tests.ucx.stream_children import (
    FIRST_WANT_DATA,
    example_client,
    example_server,
    limits_of,
    table_of,
    table_server,
)

RMA = UcxSettings(rma=True)
ROWS = 20_000
PLACES = ("packed", "shm", "rma")


@pytest.fixture(scope="module")
def server() -> Iterator[Child]:
    with child(table_server, limits_of(), "127.0.0.1", RMA) as running:
        yield running


def fetched(
    library: UcxLibrary, offered: OfferedTable, *, settings: UcxSettings = RMA, **details: Any
) -> pa.Table:
    async def scenario() -> pa.Table:
        context = UcxContext(library, settings)
        try:
            bodies = offered.bodies if offered.bodies != offered.metadata else None
            options = {"context": context, "timeout": 30, **details}
            return await fetch(offered.metadata, bodies, offered.ticket, **options)
        finally:
            context.close()

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def facts_when(server: Child, condition: Any, seconds: float = 60) -> dict[str, Any]:
    """What the server says of itself once ``condition`` holds of it."""
    deadline = time.monotonic() + seconds
    while not condition(facts := server.ask(("facts", {}))):
        assert time.monotonic() < deadline, facts
        time.sleep(0.01)
    return facts


def is_idle(facts: dict[str, Any]) -> bool:
    return not facts["connections"] and not facts["running"]


# --- our server, our client -----------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("arrangement", ["two connections", "one connection", "one location"])
def test_a_table_arrives_as_it_is(
    library: UcxLibrary, server: Child, place: str, arrangement: str
) -> None:
    is_one = arrangement == "one location"
    details = {"rows": ROWS, "place": place, "is_one_location": is_one}
    offered = server.ask(("offer", details))
    got = fetched(library, offered, one_connection=arrangement == "one connection")
    assert got.equals(table_of(ROWS))
    assert got.column("number").num_chunks > 3
    facts_when(server, is_idle)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [0, 1])
def test_tables_of_no_row_and_of_one(
    library: UcxLibrary, server: Child, rows: int, place: str
) -> None:
    got = fetched(library, server.ask(("offer", {"rows": rows, "place": place})))
    assert got.equals(table_of(rows))


@pytest.mark.parametrize("error_mode", list(ErrorMode))
@pytest.mark.parametrize("place", PLACES)
def test_clients_of_both_error_modes(
    library: UcxLibrary, server: Child, error_mode: ErrorMode, place: str
) -> None:
    offered = server.ask(("offer", {"rows": ROWS, "place": place}))
    assert fetched(library, offered, error_mode=error_mode).equals(table_of(ROWS))
    facts_when(server, is_idle)


@pytest.mark.parametrize("place", PLACES)
def test_numbers_roll_over(library: UcxLibrary, server: Child, place: str) -> None:
    first = 2**32 - 3
    offered = server.ask(("offer", {"rows": ROWS, "place": place, "first_sequence": first}))
    assert fetched(library, offered, first_sequence=first).equals(table_of(ROWS))


def test_halves_from_two_servers(library: UcxLibrary, server: Child) -> None:
    with child(table_server, limits_of()) as other:
        details = {"rows": ROWS, "ticket": b"agreed upon elsewhere"}
        headers = server.ask(("offer", {**details, "halves": ("metadata",)}))
        bodies = other.ask(("offer", {**details, "halves": ("bodies",)}))
        both = replace(headers, bodies=bodies.bodies)
        assert fetched(library, both).equals(table_of(ROWS))
        facts_when(server, is_idle)
        facts_when(other, is_idle)


@pytest.mark.parametrize("place", ["packed", "shm"])
def test_bodies_of_64_mb(library: UcxLibrary, place: str) -> None:
    large = replace(
        DEFAULT_LIMITS, message_bytes_target=32 << 20, body_window_bytes=160 << 20,
        body_segment_bytes=128 << 20,
    )  # fmt: skip
    rows = 2 * (64 << 20) // 8
    with child(table_server, large) as server:
        offered = server.ask(("offer", {"rows": rows, "place": place}))
        got = fetched(library, offered, limits=large)
        assert max(chunk.nbytes for chunk in got.column("number").chunks) >= 64 << 20
        assert got.equals(table_of(rows))
        assert server.ask(("facts", {}))["placed"] == (2 if place == "shm" else 0)


def test_two_streams_at_once_do_not_mix(library: UcxLibrary, server: Child) -> None:
    offers = [server.ask(("offer", {"rows": rows})) for rows in (5_000, 9_000)]

    async def scenario() -> list[pa.Table]:
        context = UcxContext(library, RMA)
        try:
            return await asyncio.gather(
                *(fetch(o.metadata, o.bodies, o.ticket, context=context) for o in offers)
            )
        finally:
            context.close()

    got = asyncio.run(scenario())
    assert [table.num_rows for table in got] == [5_000, 9_000]
    assert got[1].equals(table_of(9_000))


def test_batches_come_one_by_one_to_a_slow_reader(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": ROWS}))

    async def scenario() -> int:
        context = UcxContext(library, RMA)
        rows = 0
        try:
            opening = open_batches(
                offered.metadata, offered.bodies, offered.ticket, context=context,
                limits=replace(DEFAULT_LIMITS, body_window_bytes=300_000, body_window_count=2),
            )  # fmt: skip
            async with opening as batches:
                assert batches.schema.names == table_of(1).schema.names
                async for batch in batches:
                    rows += batch.num_rows
                    await asyncio.sleep(0.02)
            return rows
        finally:
            context.close()

    assert asyncio.run(scenario()) == ROWS
    facts_when(server, is_idle)


def test_a_reader_that_leaves_in_the_middle(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": 200_000}))

    async def scenario() -> None:
        context = UcxContext(library, RMA)
        try:
            opening = open_batches(
                offered.metadata, offered.bodies, offered.ticket, context=context,
                limits=replace(DEFAULT_LIMITS, body_window_bytes=300_000),
            )  # fmt: skip
            async with opening as batches:
                async for _ in batches:
                    break
        finally:
            context.close()

    asyncio.run(scenario())
    # Whether the sender had got rid of the rest by then is up to the library's buffers.
    facts_when(server, is_idle)
    offered = server.ask(("offer", {"rows": 10}))
    assert fetched(library, offered).num_rows == 10


def test_lent_memory_comes_back_when_the_arrays_are_gone(
    library: UcxLibrary, server: Child
) -> None:
    offered = server.ask(("offer", {"rows": ROWS, "place": "shm"}))

    async def scenario() -> None:
        context = UcxContext(library, RMA)
        try:
            opening = open_batches(
                offered.metadata, offered.bodies, offered.ticket, context=context
            )
            async with opening as batches:
                kept = [batch async for batch in batches]
                lent = server.ask(("facts", {}))["lent"]
                assert lent > 500_000
                first = kept[0].column("text")
                del kept
                gc.collect()
                for _ in range(2_000):
                    await asyncio.sleep(0.01)
                    if (left := server.ask(("facts", {}))["lent"]) < lent:
                        break
                assert 0 < left < lent
                assert first[0].as_py() == "row 0"
        finally:
            context.close()

    asyncio.run(scenario())
    facts_when(server, lambda facts: is_idle(facts) and not facts["lent"])


def test_remote_memory_is_given_back(library: UcxLibrary, server: Child) -> None:
    before = server.ask(("facts", {}))["free"]
    offered = server.ask(("offer", {"rows": 200_000, "place": "rma"}))
    assert fetched(library, offered).equals(table_of(200_000))
    facts_when(server, lambda facts: is_idle(facts) and facts["free"] == before)


# --- tickets --------------------------------------------------------------------------------------


def refused(library: UcxLibrary, offered: OfferedTable, within: float = 4.0) -> None:
    started = time.monotonic()
    with pytest.raises(TransportUnavailableError):
        fetched(library, offered, timeout=within)
    assert time.monotonic() - started < within + 20


def test_a_wrong_ticket(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": 10}))
    refused(library, replace(offered, ticket=b"\0" * 16))
    refused(library, replace(offered, ticket=b"x" * 2000))
    # It used up nothing.
    assert fetched(library, offered).num_rows == 10


def test_a_ticket_used_again(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": 10}))
    assert fetched(library, offered).num_rows == 10
    refused(library, offered)


def test_an_expired_ticket(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": 10, "lifetime_ns": 1_000_000}))
    facts_when(server, lambda facts: not facts["offers"])
    refused(library, offered)


def test_nobody_listens(library: UcxLibrary) -> None:
    at = UcxLocation(host="127.0.0.1", port=1, want_data=1 << 40)
    refused(library, OfferedTable(metadata=at, bodies=at, ticket=b"t"))


def test_memory_that_cannot_be_read_here(library: UcxLibrary, server: Child) -> None:
    offered = server.ask(("offer", {"rows": 10, "place": "rma"}))
    with pytest.raises(TransportUnavailableError, match="not switched on"):
        fetched(library, offered, settings=UcxSettings())
    gone = server.ask(("offer", {"rows": 10, "place": "shm"}))
    elsewhere = replace(gone.bodies, remote_handle=b"barrage-" + b"0" * 32)
    with pytest.raises(TransportUnavailableError):
        fetched(library, replace(gone, bodies=elsewhere))


# --- other people's -------------------------------------------------------------------------------


@pytest.mark.parametrize("error_mode", list(ErrorMode))
def test_a_client_that_does_as_the_example_does(
    library: UcxLibrary, server: Child, error_mode: ErrorMode
) -> None:
    offered = server.ask(("offer", {"rows": 5_000}))
    locations = (offered.metadata.encode(), offered.bodies.encode())
    with child(example_client, *locations, offered.ticket, error_mode) as client:
        assert client.receive() == table_of(5_000).to_pylist()
    facts_when(server, is_idle)


@pytest.mark.parametrize("one_connection", [False, True])
def test_a_server_that_does_as_the_example_does(library: UcxLibrary, one_connection: bool) -> None:
    with child(example_server, 5_000) as server:
        at = UcxLocation(host="127.0.0.1", port=server.ready, want_data=FIRST_WANT_DATA)
        bodies_at = replace(at, want_data=FIRST_WANT_DATA << 1)
        offered = OfferedTable(metadata=at, bodies=bodies_at, ticket=b"the name of a table")
        got = fetched(library, offered, one_connection=one_connection)
        assert got.to_pylist() == table_of(5_000).to_pylist()

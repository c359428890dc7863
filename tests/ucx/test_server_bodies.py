"""The server's side of bodies over UCX: who may claim a channel, and what becomes of one that goes
away."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.transport import shared_memory
from barrage.transport.ucx import UcxContext, UcxLibrary, UcxSettings, open_batches
from barrage.transport.ucx.stream_client import open_stream
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import Answer, ConnectionTerms, Offer
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.body_peer import BodyExchange, ask_for_channel, claim_header, read_rows
from tests.helpers.server_process import (
    RawExchange,
    raw_channel,
    snapshot_request,
    subscription_request,
    wait_until,
)

ROWS = 50_000
LIMITS = replace(
    DEFAULT_LIMITS, ucx_unauthenticated_ns=20_000_000_000, body_ticket_ns=5_000_000_000
)


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server(config=ServerConfig(bodies="ucx,shm", limits=LIMITS)) as running:
        running.create_table("t", data={"x": np.arange(ROWS)})
        running.create_table("b", {"x": "int64"}, kind="blink")
        yield running


@pytest.fixture
def channel(server):
    with raw_channel(server.address) as opened:
        yield opened


@pytest.fixture
def offer(library: UcxLibrary) -> Offer:
    terms = ConnectionTerms(release=library.release, settings=UcxSettings().agreement())
    return Offer(terms={BodyWay.UCX: terms}, order=(BodyWay.UCX,))


def counts(server: barrage.Server):
    return next(each for each in server._app.bodies.facts() if each.way is BodyWay.UCX)


def connected(
    library: UcxLibrary, answer: Answer, work: Callable[[object], Awaitable[None]]
) -> None:
    """Run ``work`` with the connection an answer offers."""

    async def run() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            location = UcxLocation.parse(answer.location)
            connection = await open_stream(context, location, answer.ticket, timeout=30)
            try:
                await work(connection)
            finally:
                await connection.close()
        finally:
            context.close()

    asyncio.run(run())


def read_inline(channel, answer: Answer, words: str) -> None:
    with BodyExchange(channel, headers=claim_header(answer, None)) as stream:
        stream.send(snapshot_request("t"))
        assert len(stream.read_update().added_columns[0]) == ROWS
        outcome = stream.outcome()
        assert (outcome.way, words in outcome.reason) == (BodyWay.INLINE, True)


def test_other_releases_and_settings_are_told_apart_before_anybody_connects(channel, offer):
    ours = offer.terms[BodyWay.UCX]
    other = replace(ours, release="0.9")
    answer = ask_for_channel(channel, replace(offer, terms={BodyWay.UCX: other}))
    assert answer.way is BodyWay.INLINE
    assert "0.9" in answer.reason
    name = next(iter(ours.settings))
    other = replace(ours, settings={**ours.settings, name: "?"})
    answer = ask_for_channel(channel, replace(offer, terms={BodyWay.UCX: other}))
    assert name in answer.reason
    answer = ask_for_channel(
        channel, replace(offer, terms={BodyWay.UCX: ConnectionTerms(release="", settings={})})
    )
    assert answer.way is BodyWay.INLINE


def test_a_channel_without_a_connection_means_inline(server, channel, offer):
    answer = ask_for_channel(channel, offer)
    assert answer.way is BodyWay.UCX
    read_inline(channel, answer, "no connection")
    assert counts(server).channels == 0


def test_a_channel_is_good_for_one_stream(server, channel, offer, library):
    answer = ask_for_channel(channel, offer)

    async def claim_twice(_connection) -> None:
        def both() -> None:
            with RawExchange(channel, headers=claim_header(answer, None)) as first:
                first.send(subscription_request("t"))
                first.read()
                assert dict(first.call.initial_metadata())["x-barrage-bodies"] == "ucx"
                read_inline(channel, answer, "unknown")

        await asyncio.to_thread(both)

    connected(library, answer, claim_twice)
    wait_until(lambda: counts(server).counts.streams == 0)


def test_a_connection_nobody_claims_is_closed(server, channel, offer, library):
    answer = ask_for_channel(channel, offer)

    async def wait_for_the_end(connection) -> None:
        ended = asyncio.get_running_loop().create_future()
        connection.on_lost = lambda error: ended.done() or ended.set_result(error)
        await asyncio.wait_for(ended, 30)

    connected(library, answer, wait_for_the_end)
    assert counts(server).channels == 0
    read_inline(channel, answer, "unknown")


def test_a_stream_whose_connection_goes_away_goes_on_inline(server, channel, offer, library):
    """The bodies that were under way are lost, and the client's to miss; what follows is inline."""
    answer = ask_for_channel(channel, offer)
    streams: list[BodyExchange] = []

    async def open_and_go(_connection) -> None:
        def begin() -> None:
            streams.append(BodyExchange(channel, headers=claim_header(answer, None)))
            streams[0].send(subscription_request("b"))
            streams[0].read_update()

        await asyncio.to_thread(begin)

    connected(library, answer, open_and_go)
    with streams[0] as stream:
        assert stream.outcome().way is BodyWay.UCX
        wait_until(lambda: counts(server).counts.fallbacks == 1)
        for number in range(3):
            server.table("b").add({"x": np.full(ROWS, number)})
            assert read_rows(stream)[-1].as_py() == number
        assert sum(stream.inline_bytes) == 3 * 8 * ROWS
        assert counts(server).counts.bodies_out == 0


def test_mixed_subscribers_of_one_table_see_the_same(server):
    table = server.create_table("log", {"x": "int64", "s": "string"}, kind="append_only")
    ways = ("inline", "shm", "ucx")
    sessions = [barrage.connect(server.uri, bodies=way) for way in ways]
    try:
        live = [session.table("log").subscribe(interval_ms=10) for session in sessions]
        for each in live:
            each.wait_ready(30)
        assert [each.bodies.way.value for each in live] == list(ways)
        for number in range(10):
            rows = 20_000 * (number % 3 + 1)
            table.add({"x": np.arange(rows), "s": [f"w{n % 97}" for n in range(rows)]})
        total = sum(20_000 * (number % 3 + 1) for number in range(10))
        wait_until(lambda: all(len(each) == total for each in live))
        first = live[0].to_arrow()
        assert all(first.equals(each.to_arrow()) for each in live)
        for each, way in zip(live, ways, strict=True):
            assert dict(each.stats.bodies.by_way())[way].count > 0
        del first
    finally:
        for session in sessions:
            session.close()
    wait_until(lambda: server.stream_count == 0)
    assert counts(server).counts.streams == 0


def test_streams_of_the_protocol_alone_are_counted(server, library):
    """``_bodies`` tells of all that goes over UCX."""
    command = json.dumps({"dissociated": {"table": "t"}}).encode()
    with flight.connect(f"grpc://{server.address}") as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    [endpoint] = info.endpoints
    metadata, bodies = (location.uri.decode() for location in endpoint.locations)

    async def read() -> int:
        context = UcxContext(library, UcxSettings())
        try:
            async with open_batches(
                metadata, bodies, endpoint.ticket.ticket, context=context, timeout=30
            ) as batches:
                streams = counts(server).counts.streams
                assert sum([batch.num_rows async for batch in batches]) == ROWS
                return streams
        finally:
            context.close()

    assert asyncio.run(read()) == 1
    wait_until(lambda: counts(server).counts.streams == 0)
    found = counts(server)
    assert found.counts.bodies_out == 1
    assert found.counts.bytes_out >= 8 * ROWS
    assert (found.pending_count, found.pending_bytes) == (0, 0)


def test_a_server_without_shared_memory_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``body_arena_bytes`` of a server that dies would be lost until somebody uses shm again."""
    code = (
        "import os, signal, sys\n"
        "from barrage.limits import DEFAULT_LIMITS\n"
        "from barrage.transport.shared_memory import Arena\n"
        "arena = Arena.create(DEFAULT_LIMITS, directory=sys.argv[1])\n"
        "print(arena.name, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    left = tmp_path / killed.stdout.strip()
    assert left.is_file()
    monkeypatch.setattr(shared_memory, "DIRECTORY", str(tmp_path))
    with barrage.Server(bodies="ucx"):
        assert not left.exists()

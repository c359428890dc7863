"""Streams whose peer dies, stops, or lies; and what is left of it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.errors import (
    BarrageError,
    BodyChannelError,
    ConnectionLostError,
    RemoteProtocolError,
    TransportUnavailableError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx import (
    ErrorMode,
    OfferedTable,
    ServedConnection,
    StreamServer,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    fetch,
    open_batches,
    open_stream,
)
from barrage.transport.ucx.stream_server import new_tag
from barrage.wire.dissociated.ranges import BodyRange, encode_ranges
from barrage.wire.dissociated.untagged import encode_end_message, encode_header_message
from tests.helpers.arrow_stream import arrow_messages
from tests.helpers.ucx_streams import messages_of, sample
from tests.ucx.children import child
from tests.ucx.pair import until
from tests.ucx.stream_children import limits_of, reading_client, table_of, table_server
from tests.ucx.test_streams import facts_when, is_idle

NARROW = replace(DEFAULT_LIMITS, body_deadline_ns=2_000_000_000, body_window_bytes=400_000)
PATIENT = replace(NARROW, body_deadline_ns=30_000_000_000)
LONG = 300_000
MODES = pytest.mark.parametrize("error_mode", list(ErrorMode))


async def interrupted(
    library: UcxLibrary, offered: OfferedTable, act: Callable[[], None], error_mode: ErrorMode
) -> tuple[BarrageError, float]:
    """Read a little, let ``act`` happen, read on; the error and how long it took."""
    context = UcxContext(library, UcxSettings())
    try:
        opening = open_batches(
            offered.metadata, offered.bodies, offered.ticket,
            context=context, limits=NARROW, error_mode=error_mode,
        )  # fmt: skip
        async with opening as batches:
            await anext(batches)
            act()
            started = time.monotonic()
            try:
                async for _ in batches:
                    await asyncio.sleep(0)
            except BarrageError as error:
                return error, time.monotonic() - started
            raise AssertionError("the stream came to its end")
    finally:
        context.close()


@MODES
def test_a_server_that_is_killed_in_the_middle(library: UcxLibrary, error_mode: ErrorMode) -> None:
    with child(table_server, limits_of()) as server:
        offered = server.ask(("offer", {"rows": LONG}))
        error, seconds = asyncio.run(interrupted(library, offered, server.kill, error_mode))
        assert isinstance(error, ConnectionLostError)
        assert seconds < 30


@MODES
def test_a_server_that_stops_in_the_middle(library: UcxLibrary, error_mode: ErrorMode) -> None:
    with child(table_server, limits_of()) as server:
        offered = server.ask(("offer", {"rows": LONG}))

        def stop() -> None:
            os.kill(server.pid, signal.SIGSTOP)

        try:
            error, seconds = asyncio.run(interrupted(library, offered, stop, error_mode))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert isinstance(error, BodyChannelError)
        assert 1 < seconds < 30
        facts_when(server, is_idle)


def test_a_server_that_is_stopped_already(library: UcxLibrary) -> None:
    with child(table_server, limits_of()) as server:
        offered = server.ask(("offer", {"rows": 10}))
        os.kill(server.pid, signal.SIGSTOP)

        async def scenario() -> None:
            context = UcxContext(library, UcxSettings())
            try:
                with pytest.raises(TransportUnavailableError, match="no answer"):
                    await open_stream(context, offered.metadata, offered.ticket, timeout=0.5)
            finally:
                context.close()

        started = time.monotonic()
        try:
            asyncio.run(scenario())
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("place", "error_mode"),
    [("packed", ErrorMode.PEER), ("shm", ErrorMode.PEER), ("shm", ErrorMode.NONE),
     ("rma", ErrorMode.NONE)],
)  # fmt: skip
def test_a_client_that_is_killed_while_it_has_bodies(place: str, error_mode: ErrorMode) -> None:
    settings = UcxSettings(rma=True)
    with child(table_server, limits_of(), "127.0.0.1", settings) as server:
        free = server.ask(("facts", {}))["free"]
        offered = server.ask(("offer", {"rows": LONG, "place": place}))
        places = (offered.metadata.encode(), offered.bodies.encode())
        with child(reading_client, *places, offered.ticket, error_mode) as client:
            assert client.receive() > 0
            facts = server.ask(("facts", {}))
            assert facts["running"] == 1
            assert bool(facts["lent"]) == (place == "shm")
            client.kill()
            facts = facts_when(server, is_idle)
            assert (facts["lent"], facts["free"]) == (0, free)


def test_a_client_that_stops_while_it_has_bodies() -> None:
    limits = limits_of(stall_ns_max=3_000_000_000, body_lease_ns_max=3_000_000_000)
    with child(table_server, limits) as server:
        offered = server.ask(("offer", {"rows": LONG, "place": "shm"}))
        places = (offered.metadata.encode(), offered.bodies.encode())
        with child(reading_client, *places, offered.ticket, ErrorMode.PEER) as client:
            assert client.receive() > 0
            os.kill(client.pid, signal.SIGSTOP)
            try:
                assert facts_when(server, is_idle)["lent"] == 0
            finally:
                os.kill(client.pid, signal.SIGCONT)


# --- servers that lie -----------------------------------------------------------------------------


def served(
    library: UcxLibrary,
    send: Callable[[ServedConnection], Awaitable[None]],
    *,
    settings: UcxSettings | None = None,
    **location: Any,
) -> pa.Table:
    """What a client makes of a server in this process that sends what ``send`` says."""

    async def scenario() -> pa.Table:
        context = UcxContext(library, settings or UcxSettings())
        server = StreamServer(context, DEFAULT_LIMITS, SystemClock())
        await server.start("127.0.0.1", 0)
        tasks = []
        offered = server.offer(
            lambda connection, _: tasks.append(asyncio.ensure_future(send(connection))), **location
        )
        try:
            return await fetch(
                offered.location, None, offered.ticket, context=context, limits=PATIENT
            )
        finally:
            await asyncio.gather(*tasks)
            await server.close()
            context.close()

    return asyncio.run(asyncio.wait_for(scenario(), 60))


PLAIN = messages_of(sample(500).drop_columns("word"))


def forget(future: asyncio.Future[Any]) -> None:
    future.add_done_callback(lambda done: done.cancelled() or done.exception())


@pytest.mark.parametrize(
    ("tag", "what"),
    [
        (1 << 32 | 1, "reserved bits"),
        (1 << 54 | 1, "reserved bits"),
        (3 << 55 | 1, "reserved bits"),
        (2 << 56 | 1, "unknown type"),
        (1 << 56 | 1, "named no memory"),
        (1 << 55 | 1, "named no memory"),
    ],
)
def test_tags_that_are_none(library: UcxLibrary, tag: int, what: str) -> None:
    async def send(connection: ServedConnection) -> None:
        forget(connection.send_untagged(encode_header_message(0, PLAIN[0].header)))
        forget(connection.send_tagged(tag, bytes(100_000)))

    with pytest.raises((RemoteProtocolError, TransportUnavailableError), match=what):
        served(library, send)


def test_a_body_past_the_limit(library: UcxLibrary) -> None:
    async def send(connection: ServedConnection) -> None:
        forget(connection.send_untagged(encode_header_message(0, PLAIN[0].header)))
        too_long = bytes(DEFAULT_LIMITS.message_bytes_max + 1)
        forget(connection.send_tagged(1, too_long))
        await until(lambda: connection.is_lost)

    with pytest.raises((RemoteProtocolError, TransportUnavailableError), match="the limit is"):
        served(library, send)


LISTS = {
    "cut off": encode_ranges([BodyRange(0, 8)] * 3)[:-3],
    "overlapping": encode_ranges([BodyRange(64, 8), BodyRange(68, 8)]),
    "too few": encode_ranges([BodyRange(64, 8)]),
    "past the total": encode_ranges([BodyRange(64, 8)], 4),
}


@pytest.mark.parametrize("content", LISTS.values(), ids=LISTS)
def test_lists_that_lie(library: UcxLibrary, content: bytes) -> None:
    from barrage.transport.shared_memory import Arena

    arena = Arena.create(DEFAULT_LIMITS)

    async def send(connection: ServedConnection) -> None:
        for sequence, message in enumerate(PLAIN):
            forget(connection.send_untagged(encode_header_message(sequence, message.header)))
        forget(connection.send_tagged(1 << 56 | 1, content))

    try:
        with pytest.raises(RemoteProtocolError):
            served(library, send, free_data=new_tag(), remote_handle=arena.name.encode())
    finally:
        arena.close()


def test_a_key_that_is_none(library: UcxLibrary) -> None:
    async def send(connection: ServedConnection) -> None:
        """Nobody gets so far."""

    with pytest.raises(TransportUnavailableError):
        served(
            library, send, settings=UcxSettings(rma=True),
            free_data=new_tag(), remote_handle=b"\xff" * 5000,
        )  # fmt: skip


def test_what_arrows_own_writer_sends(library: UcxLibrary) -> None:
    """Batches without rows, columns of nulls, dictionaries that grow; the end before it all."""
    batches = []
    for start, words in ((0, ["a", "b"]), (3, ["a", "b", "c"]), (6, ["a", "b", "c"])):
        rows = 0 if start == 3 else 3
        index = pa.array([0, None, len(words) - 1][:rows], pa.int32())
        columns = [
            pa.array(range(start, start + rows), pa.int64()),
            pa.nulls(rows),
            pa.nulls(rows, pa.string()),
            pa.DictionaryArray.from_arrays(index, pa.array(words)),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, ["n", "none", "text", "word"]))
    schema = batches[0].schema
    messages = arrow_messages(schema, batches, emit_dictionary_deltas=True)
    assert len(messages) == 6

    async def send(connection: ServedConnection) -> None:
        forget(connection.send_untagged(encode_end_message(len(messages))))
        for sequence in reversed(range(len(messages))):
            message = messages[sequence]
            if message.parts is not None:
                forget(connection.send_tagged(sequence, list(message.parts)))
            forget(connection.send_untagged(encode_header_message(sequence, message.header)))
        await until(lambda: connection.is_lost)

    got = served(library, send)
    assert got.to_pylist() == pa.Table.from_batches(batches).to_pylist()
    assert [len(chunk) for chunk in got.column("n").chunks] == [3, 0, 3]


def test_nothing_is_left_of_many_streams(library: UcxLibrary) -> None:
    with child(table_server, limits_of()) as server:
        counts = []

        async def scenario() -> None:
            context = UcxContext(library, UcxSettings())
            try:
                for round_number in range(12):
                    offered = server.ask(("offer", {"rows": 1000, "place": "shm"}))
                    got = await fetch(
                        offered.metadata, offered.bodies, offered.ticket, context=context
                    )
                    assert got.equals(table_of(1000))
                    del got
                    if round_number >= 3:
                        gc.collect()
                        facts_when(server, is_idle)
                        counts.append((server.descriptor_count, len(os.listdir("/proc/self/fd"))))
            finally:
                context.close()

        asyncio.run(scenario())
        assert counts[-1][0] <= counts[0][0] + 2
        assert counts[-1][1] <= counts[0][1] + 2

"""Servers and clients of the dissociated protocol in processes of their own: ours, and such as
behave like the protocol's example (dissociated IPC, its C++ example implementation)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

from barrage.clock import SystemClock
from barrage.errors import TransportError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.transport.shared_memory import Arena
from barrage.transport.ucx import (
    BodyPlace,
    ErrorMode,
    OfferedTable,
    RemoteMemory,
    StreamHalf,
    StreamServer,
    TableStreams,
    UcxConnection,
    UcxContext,
    UcxListener,
    UcxSettings,
    load_library,
    open_batches,
    table_source,
)
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.untagged import encode_end_message, encode_header_message
from tests.helpers.arrow_stream import arrow_messages, read_by_arrow
from tests.helpers.ucx_streams import sample

MANY = 1_000_000

FIRST_WANT_DATA = 0x0100_0001 << 32
"""What the example's locations say: upper bits that tell headers from bodies."""


def limits_of(**changed: int) -> Limits:
    """Limits of a child; a small target makes several batches of a small table, and nobody is
    refused for being slow on a busy machine."""
    usual = {"message_bytes_target": 64 * 1024, "ucx_unauthenticated_ns": 20_000_000_000}
    return replace(DEFAULT_LIMITS, **{**usual, **changed})


def table_of(rows: int) -> pa.Table:
    """The rows both sides can make; many are of one plain column."""
    if rows > MANY:
        return pa.table({"number": np.arange(rows)})
    if rows == 0:
        return sample(1).slice(1)
    return sample(rows)


class _Server:
    """Our server, told by words what to offer."""

    def __init__(self, limits: Limits, host: str, settings: UcxSettings) -> None:
        self._limits = limits
        self._host = host
        self._clock = SystemClock()
        self._context = UcxContext(load_library(), settings)
        self._server = StreamServer(self._context, limits, self._clock)
        self._arena = Arena.create(limits)
        self._memory = RemoteMemory(self._context, 32 << 20) if settings.rma else None
        self._tables = TableStreams(
            self._server, limits, self._clock, arena=self._arena, memory=self._memory
        )

    async def start(self) -> int:
        await self._server.start(self._host, 0)
        return self._server.port

    def answer(self, word: tuple[str, dict[str, Any]]) -> Any:
        kind, details = word
        if kind == "offer":
            return self._offer(**details)
        arena = self._arena.statistics()
        return {
            "connections": self._server.connection_count,
            "running": self._tables.running_count,
            "served": self._tables.served_count,
            "offers": self._server.offer_count,
            "lent": arena.bytes_in_use - arena.bytes_orphaned,
            "placed": arena.placed_count,
            "free": None if self._memory is None else self._memory.bytes_free,
        }

    def _offer(
        self, rows: int, place: str = "packed", halves: tuple[str, ...] = (), **settings: Any
    ) -> OfferedTable:
        if halves:
            settings["halves"] = tuple(StreamHalf(half) for half in halves)
        source = table_source(table_of(rows), self._limits)
        return self._tables.offer(source, place=BodyPlace(place), **settings)

    async def close(self) -> None:
        await self._tables.close()
        await self._server.close()
        if self._memory is not None:
            self._memory.close()
        self._arena.close()
        self._context.close()


def table_server(
    pipe: Connection,
    limits: Limits = DEFAULT_LIMITS,
    host: str = "127.0.0.1",
    settings: UcxSettings | None = None,
) -> None:
    """Our server: says its port, then answers ``("offer", {...})`` and ``("facts", {})`` until it
    is told None."""

    async def serve() -> None:
        server = _Server(limits, host, settings or UcxSettings())
        pipe.send(await server.start())
        await _answer_all(pipe, server.answer)
        await server.close()

    asyncio.run(serve())


async def _answer_all(pipe: Connection, answer: Any) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def heard() -> None:
        try:
            word = pipe.recv()
        except EOFError:
            word = None
        if word is None:
            loop.remove_reader(pipe.fileno())
            ended.set()
        else:
            pipe.send(answer(word))

    loop.add_reader(pipe.fileno(), heard)
    await ended.wait()


# --- as the example does --------------------------------------------------------------------------


class _ExampleServer:
    """One request for headers and one for bodies, told apart by the upper bits of their tags; sends
    batches of type 0 and, without waiting for anything but its flush, the end. Bodies are Arrow's
    own."""

    def __init__(self, rows: int) -> None:
        table = table_of(rows)
        self._messages = arrow_messages(table.schema, table.to_batches(max_chunksize=700))
        self._kept: list[Any] = []

    def accept(self, connection: UcxConnection) -> None:
        self._kept.append(connection)
        connection.on_untagged = lambda _: None

        def tagged() -> None:
            while (probed := connection.probe()) is not None:
                is_headers = probed.tag == FIRST_WANT_DATA
                connection.receive(probed).add_done_callback(
                    lambda _, h=is_headers: self._send(connection, is_headers=h)
                )

        connection.on_tagged = tagged

    def _send(self, connection: UcxConnection, *, is_headers: bool) -> None:
        task = asyncio.ensure_future(
            self._send_headers(connection) if is_headers else self._send_bodies(connection)
        )
        self._kept.append(task)

    async def _send_headers(self, connection: UcxConnection) -> None:
        with suppress(TransportError):
            for sequence, message in enumerate(self._messages):
                await connection.send_untagged(encode_header_message(sequence, message.header))
            await connection.flush()
            await connection.send_untagged(encode_end_message(len(self._messages)))

    async def _send_bodies(self, connection: UcxConnection) -> None:
        with suppress(TransportError):
            for sequence, message in enumerate(self._messages):
                if message.parts is not None:
                    self._kept.append(connection.send_tagged(sequence, list(message.parts)))
            await asyncio.gather(
                *(
                    each
                    for each in self._kept
                    if isinstance(each, asyncio.Future) and not isinstance(each, asyncio.Task)
                ),
                return_exceptions=True,
            )

    async def close(self) -> None:
        for each in self._kept:
            if isinstance(each, asyncio.Task):
                each.cancel()
        for each in self._kept:
            if isinstance(each, UcxConnection):
                await each.close()
        futures = [each for each in self._kept if isinstance(each, asyncio.Future)]
        await asyncio.gather(*futures, return_exceptions=True)


def example_server(pipe: Connection, rows: int) -> None:
    """A server like the example: says its port; its ticket is a name."""

    async def serve() -> None:
        context = UcxContext(load_library(), UcxSettings())
        server = _ExampleServer(rows)
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=server.accept)
        pipe.send(listener.port)
        await _answer_all(pipe, lambda word: word)
        await server.close()
        listener.close()
        context.close()

    asyncio.run(serve())


def example_client(
    pipe: Connection, metadata: str, bodies: str, ticket: bytes, error_mode: ErrorMode
) -> None:
    """A client like the example: two connections, requests sent synchronously one after the other,
    bodies asked for by number under the mask of the protocol. Arrow reads what comes; the text of
    the table's rows goes through the pipe."""

    async def read() -> pa.Table:
        context = UcxContext(load_library(), UcxSettings())
        headers_at, bodies_at = UcxLocation.parse(metadata), UcxLocation.parse(bodies)
        connections = [
            await UcxConnection.connect(
                context, at.host, at.port, timeout=30, error_mode=error_mode
            )
            for at in (headers_at, bodies_at)
        ]
        untagged: asyncio.Queue[bytes] = asyncio.Queue()
        connections[0].on_untagged = lambda data: untagged.put_nowait(bytes(data))
        await connections[0].send_tagged(headers_at.want_data, ticket, synchronous=True)
        await connections[1].send_tagged(bodies_at.want_data, ticket, synchronous=True)
        got = []
        while (message := await asyncio.wait_for(untagged.get(), 30))[0] == 1:
            sequence = int.from_bytes(message[1:5], "little")
            body = b"" if sequence == 0 else await _body(connections[1], sequence)
            got.append((message[5:], body))
        assert len(message) == 5
        assert int.from_bytes(message[1:], "little") == len(got)
        for connection in connections:
            await connection.close()
        context.close()
        return read_by_arrow(got)

    pipe.send("started")
    pipe.send(asyncio.run(read()).to_pylist())


async def _body(connection: UcxConnection, sequence: int) -> bytes:
    into = pa.allocate_buffer(8 << 20)
    came = await asyncio.wait_for(connection.receive_posted(sequence, 0xFFFFFFFF, into), 30)
    assert came.tag >> 56 == 0
    return into.slice(0, came.length).to_pybytes()


def reading_client(
    pipe: Connection, metadata: str, bodies: str, ticket: bytes, error_mode: ErrorMode
) -> None:
    """Our client: keeps a few batches, says how many, and reads no further until it is told."""

    async def read() -> None:
        context = UcxContext(load_library(), UcxSettings(rma=True))
        limits = replace(DEFAULT_LIMITS, body_window_bytes=2_000_000)
        opening = open_batches(
            metadata, bodies, ticket, context=context, limits=limits, error_mode=error_mode
        )
        async with opening as batches:
            kept = [await anext(batches) for _ in range(3)]
            pipe.send(len(kept))
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        context.close()

    pipe.send("started")
    asyncio.run(read())

"""Backends as another package would write them: a transport and a body transport over plain TCP.

Each call has a connection of its own, on which every message is a kind (one byte), a length and so
many bytes. Bodies have a connection for each stream: ticket, then number, length and bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from barrage.errors import BodyChannelError, ConnectionLostError, StatusCode
from barrage.limits import Limits
from barrage.transport.base import Address, ConnectOptions, ListenOptions
from barrage.transport.bodies import ServeOptions
from barrage.transport.findings import Finding, fine
from barrage.transport.inproc.call_server import CallServer
from barrage.transport.inproc.inproc_call import InprocCall
from barrage.transport.inproc.inproc_channel import CallChannel
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.negotiation import ConnectionTerms

CALL, HEADERS, MESSAGE, END, STATUS = b"C", b"H", b"M", b"E", b"S"
WINDOW_BYTES = 1 << 20
_HEAD = struct.Struct("<cI")
_BODY = struct.Struct("<QQ")
_CODES = {code.value: code for code in StatusCode}


def send(writer: asyncio.StreamWriter, kind: bytes, content: bytes) -> None:
    writer.write(_HEAD.pack(kind, len(content)) + content)


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return kind, await reader.readexactly(size)


class ToyTransport:
    """``toy://host:port``."""

    def parse(self, uri: str) -> Address:
        return Address(scheme="toy", target=uri)

    def connect(self, address: Address, options: ConnectOptions) -> ToyChannel:
        return ToyChannel(
            address.target, limits=options.limits, authorization=options.authorization
        )

    def is_local(self, host: str) -> bool:
        return True

    def listen(self, host: str, options: ListenOptions) -> ToyListener:
        return ToyListener(host, options)


class ToyChannel(CallChannel):
    """The client's side."""

    def hand_over(self, call: InprocCall) -> None:
        asyncio.get_running_loop().create_task(self._carry(call))

    async def _carry(self, call: InprocCall) -> None:
        parts = urlsplit(self.target)
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError as error:
            call.finish(StatusCode.UNAVAILABLE, str(error))
            return
        loop = asyncio.get_running_loop()
        call.on_cancel(lambda: loop.call_soon_threadsafe(writer.close))
        send(writer, CALL, json.dumps([call.method, call.metadata]).encode())
        asking = asyncio.create_task(self._ask(call, writer))
        try:
            while call.status is None:
                kind, content = await receive(reader)
                if kind == HEADERS:
                    call.send_headers(tuple(map(tuple, json.loads(content))))
                elif kind == MESSAGE:
                    await call.answers.write(content)
                else:
                    code, details = json.loads(content)
                    call.finish(_CODES.get(code), details)
        except (OSError, EOFError):
            call.finish(StatusCode.UNAVAILABLE, "the toy connection is lost")
        asking.cancel()
        writer.close()

    async def _ask(self, call: InprocCall, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (message := await call.requests.read()) is not None:
                send(writer, MESSAGE, message)
                await writer.drain()
            send(writer, END, b"")


class ToyListener(CallServer):
    """The server's side."""

    def __init__(self, host: str, options: ListenOptions) -> None:
        super().__init__(host, "toy", message_bytes_max=options.message_bytes_max)
        self._socket = socket.socket()
        self._server: asyncio.Server | None = None
        self._port = options.port
        self.port = 0

    @property
    def uri(self) -> str:
        return f"toy://127.0.0.1:{self.port}"

    address = uri

    def bind(self) -> None:
        self._socket.bind(("127.0.0.1", self._port))
        self.port = self._socket.getsockname()[1]

    async def start(self) -> None:
        await super().start()
        self._server = await asyncio.start_server(self._take, sock=self._socket)

    async def stop(self, grace_s: float | None) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()
        await super().stop(grace_s)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, head = await receive(reader)
        method, metadata = json.loads(head)
        call = InprocCall(method, tuple(map(tuple, metadata)), window_bytes=WINDOW_BYTES)
        host, port = writer.get_extra_info("peername")
        self.accept(call, f"ipv4:{host}:{port}")
        asked = asyncio.create_task(self._asked(call, reader))
        with contextlib.suppress(OSError):
            send(writer, HEADERS, json.dumps(await call.headers()).encode())
            while (message := await call.answers.read()) is not None:
                send(writer, MESSAGE, message)
                await writer.drain()
            code, details = call.status or (StatusCode.INTERNAL, "")
            send(writer, STATUS, json.dumps([code and code.value, details]).encode())
            await writer.drain()
        asked.cancel()
        writer.close()

    async def _asked(self, call: InprocCall, reader: asyncio.StreamReader) -> None:
        try:
            while (got := await receive(reader))[0] == MESSAGE:
                await call.requests.write(got[1])
            call.requests.end()
            await reader.read()
        except (OSError, EOFError):
            pass
        call.cancel()


# --- bodies ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySettings:
    """What a server can be told: ``toy_release``."""

    release: str = "1"


class ToyBodies:
    """The way ``toy``. ``served`` are the settings its servers were started with."""

    settings = ToySettings

    def __init__(self) -> None:
        self.served: list[ToySettings] = []

    def dial(self, limits: Limits) -> ToyDialer:
        return ToyDialer()

    async def serve(self, options: ServeOptions) -> ToyBodyServer:
        self.served.append(options.settings)
        made = ToyBodyServer(options.settings.release)
        await made.start()
        return made

    def examine(self) -> list[Finding]:
        return [fine("toy", "plays")]


class ToyDialer:
    def terms(self) -> ConnectionTerms:
        return ConnectionTerms(release="1", settings={})

    async def connect(self, location: str, ticket: bytes, timeout: float) -> ToyConnection:  # noqa: ASYNC109
        place = urlsplit(location)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(ticket)
        await reader.readexactly(1)
        return ToyConnection(reader, writer)

    def close(self) -> None:
        """There is nothing that outlives its connections."""


class ToyConnection:
    """The client's end of one stream's bodies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> tuple[int, pa.Buffer]:
        try:
            sequence, size = _BODY.unpack(await self._reader.readexactly(_BODY.size))
            return sequence, pa.py_buffer(await self._reader.readexactly(size))
        except (OSError, EOFError) as error:
            raise BodyChannelError("the toy connection is lost") from error

    async def close(self) -> None:
        self._writer.close()


class ToyBodyServer:
    """The server's side."""

    tables = None

    def __init__(self, release: str) -> None:
        self._release = release
        self._tickets: dict[bytes, Callable[[Any], None]] = {}
        self._numbers = itertools.count()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)

    def refusal(self, terms: ConnectionTerms) -> str:
        return "" if terms.release == self._release else f"the toy is of release {self._release}"

    def offer(
        self, on_connection: Callable[[Any], None], lifetime_ns: int, peer: str
    ) -> tuple[str, bytes]:
        ticket = secrets.token_bytes(16)
        self._tickets[ticket] = on_connection
        host, port = self._server.sockets[0].getsockname()
        return f"toy://{host}:{port}", ticket

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ticket = await reader.readexactly(16)
        self._tickets.pop(ticket)(writer)
        writer.write(b"!")

    def sender(self, connection: asyncio.StreamWriter) -> ToySender:
        return ToySender(connection)

    async def close(self) -> None:
        self._server.close()


class ToySender:
    """The server's end of one stream's bodies."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @property
    def is_lost(self) -> bool:
        return self._writer.is_closing()

    def send(self, sequence: int, frame: DetachedFrame) -> None:
        if self.is_lost:
            raise ConnectionLostError("the toy connection is lost")
        self._writer.write(_BODY.pack(sequence, frame.body_bytes) + b"".join(frame.parts))

    def close(self) -> None:
        self._writer.close()

"""Calls by hand, on raw bytes, as a client that does everything wrong would make them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa

from barrage import wire
from barrage.transport.deephaven_messages import (
    CONFIG_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)

if TYPE_CHECKING:
    from tests.interop.driven_server import DrivenServer

FLIGHT_SERVICE = "arrow.flight.protocol.FlightService"
TIMEOUT_SECONDS = 15.0
SHORT_SECONDS = 3.0
"""For calls that may never end."""

ANONYMOUS = "Anonymous"


def export(number: int) -> bytes:
    return b"e" + number.to_bytes(4, "little", signed=True)


def ticket(value: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=value)


def reference(value: bytes) -> Any:
    return MESSAGES.new("TableReference", ticket=ticket(value))


class RawSession:
    """A channel of its own and a token. ``call`` gives the status of a call as text: "OK" or the
    code's name."""

    def __init__(self, server: DrivenServer, authorization: str | None = ANONYMOUS) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.server = server
        if server.ca is None:
            self.channel = grpc.insecure_channel(server.address, options=options)
        else:
            shown = grpc.ssl_channel_credentials(Path(server.ca).read_bytes())
            self.channel = grpc.secure_channel(server.address, shown, options=options)
        self._ids = itertools.count(1)
        self.details = ""
        self.authorization = authorization
        if authorization == ANONYMOUS:
            request = MESSAGES.new("ConfigurationConstantsRequest").SerializeToString()
            method = f"/{CONFIG_SERVICE}/GetConfigurationConstants"
            login = ANONYMOUS if server.ca is None else f"Bearer {server.bearer}"
            _, call = self.channel.unary_unary(method).with_call(
                request, metadata=(("authorization", login),), timeout=TIMEOUT_SECONDS
            )
            self.authorization = dict(call.initial_metadata())["authorization"]
        self._opened_as = self.authorization

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self.authorization is None else (("authorization", self.authorization),)

    def new_export(self) -> bytes:
        return export(next(self._ids))

    def call(
        self, service: str, method: str, request: Any = b"", *, seconds=TIMEOUT_SECONDS
    ) -> str:
        """A call with one request; the answers are read to the end."""
        return self.stream(service, method, [request], seconds=seconds)

    def stream(
        self,
        service: str,
        method: str,
        requests: list,
        *,
        seconds: float = TIMEOUT_SECONDS,
        is_kept_open: bool = False,
    ) -> str:
        """A call with these requests and then a half-close, unless it is to be kept open."""
        messages = [r if isinstance(r, bytes) else r.SerializeToString() for r in requests]
        is_over = threading.Event()

        def outgoing() -> Iterator[bytes]:
            yield from messages
            if is_kept_open:
                is_over.wait(seconds)

        call = self.channel.stream_stream(f"/{service}/{method}")(
            outgoing(), metadata=self.metadata, timeout=seconds
        )
        self.answers: list[bytes] = []
        with contextlib.suppress(grpc.RpcError):
            self.answers.extend(call)
        is_over.set()
        self.details = call.details() or ""
        return call.code().name

    def table(self, method: str, **fields: Any) -> str:
        """A call of TableService with a new result ticket, the request by its method's name."""
        name = REQUESTS.get(method, f"{method}Request")
        self.result = self.new_export()
        return self.call(
            TABLE_SERVICE, method, MESSAGES.new(name, result_id=ticket(self.result), **fields)
        )

    def fetch(self, source: bytes) -> str:
        return self.table("FetchTable", source_id=reference(source))

    def opened(self, name: str) -> bytes:
        """The export of a table of the server."""
        status = self.fetch(b"s/" + name.encode())
        assert status == "OK", self.details
        return self.result

    def release(self, value: bytes) -> str:
        request = MESSAGES.new("ReleaseRequest", id=ticket(value))
        return self.call(SESSION_SERVICE, "Release", request)

    def upload(self, rows: pa.Table) -> bytes:
        """Rows under a new export ticket."""
        value = self.new_export()
        status = self.put(["export", str(int.from_bytes(value[1:], "little"))], rows)
        assert status == "OK", self.details
        return value

    def put(self, path: list[str], rows: pa.Table, *, batches: int = 1) -> str:
        messages = list(ipc_messages(rows))[: 1 + batches]
        frames = [
            flight_frame(messages[0], path),
            *(flight_frame(message) for message in messages[1:]),
        ]
        return self.stream(FLIGHT_SERVICE, "DoPut", frames)

    def exchange(
        self, *frames: bytes, seconds: float = SHORT_SECONDS, is_kept_open: bool = False
    ) -> str:
        return self.stream(
            FLIGHT_SERVICE, "DoExchange", list(frames), seconds=seconds, is_kept_open=is_kept_open
        )

    def close(self) -> None:
        """End the session, which may have ended before, and the connection."""
        self.authorization = self._opened_as
        request = MESSAGES.new("HandshakeRequest", payload=(self._opened_as or "").encode())
        self.call(SESSION_SERVICE, "CloseSession", request)
        self.channel.close()


REQUESTS = {
    "UnstructuredFilter": "UnstructuredFilterTableRequest",
    "Filter": "FilterTableRequest",
    "Sort": "SortTableRequest",
    "Head": "HeadOrTailRequest",
    "Tail": "HeadOrTailRequest",
    "HeadBy": "HeadOrTailByRequest",
    "View": "SelectOrUpdateRequest",
    "Update": "SelectOrUpdateRequest",
    "Select": "SelectOrUpdateRequest",
    "NaturalJoinTables": "NaturalJoinTablesRequest",
}


def ipc_messages(rows: pa.Table):
    """(header, body) of the schema and of every batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = b"" if message.body is None else message.body.to_pybytes()
        yield message.metadata.to_pybytes(), body


def flight_frame(message: tuple[bytes, bytes], path: list[str] | None = None) -> bytes:
    """One FlightData message, by hand: descriptor 1, header 2, body 1000."""
    header, body = message
    frame = b""
    if path is not None:
        descriptor = b"\x08\x01" + b"".join(_field(3, part.encode()) for part in path)
        frame += _field(1, descriptor)
    return frame + _field(2, header) + _field(1000, body)


def command_frame(command: bytes) -> bytes:
    """A first message that has a descriptor only."""
    return _field(1, b"\x08\x02" + _field(2, command))


def metadata_frame(metadata: bytes) -> bytes:
    return wire.encode_flight_data(wire.FlightFrame(metadata=metadata))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)

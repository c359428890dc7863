"""A Deephaven client as a stranger would write it: a session over raw gRPC, and random requests."""

from __future__ import annotations

import random
from typing import Any

import grpc
import pyarrow as pa

from barrage import wire
from barrage.server.deephaven.operations.operation_table import OPERATIONS
from barrage.transport.deephaven_messages import (
    CONFIG_SERVICE,
    CONSOLE_SERVICE,
    INPUT_TABLE_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    STORAGE_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import Descriptor

TIMEOUT_SECONDS = 180

REQUESTS: tuple[tuple[str, str, str], ...] = (
    *((TABLE_SERVICE, operation.method, operation.request) for operation in OPERATIONS.values()),
    (TABLE_SERVICE, "GetExportedTableCreationResponse", "Ticket"),
    (TABLE_SERVICE, "SeekRow", "SeekRowRequest"),
    (TABLE_SERVICE, "Batch", "BatchTableRequest"),
    (SESSION_SERVICE, "Release", "ReleaseRequest"),
    (SESSION_SERVICE, "ExportFromTicket", "ExportRequest"),
    (SESSION_SERVICE, "PublishFromTicket", "PublishRequest"),
    (SESSION_SERVICE, "NewSession", "HandshakeRequest"),
    (INPUT_TABLE_SERVICE, "AddTableToInputTable", "AddTableRequest"),
    (INPUT_TABLE_SERVICE, "DeleteTableFromInputTable", "DeleteTableRequest"),
    (CONSOLE_SERVICE, "StartConsole", "StartConsoleRequest"),
    (CONSOLE_SERVICE, "BindTableToVariable", "BindTableToVariableRequest"),
    (CONSOLE_SERVICE, "ExecuteCommand", "ExecuteCommandRequest"),
    (STORAGE_SERVICE, "ListItems", "ListItemsRequest"),
    (CONFIG_SERVICE, "GetConfigurationConstants", "ConfigurationConstantsRequest"),
)
"""Service, method and request of the calls that end by themselves."""


def export(number: int) -> bytes:
    return b"e" + number.to_bytes(4, "little", signed=True)


def ticket(raw: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=raw)


def reference(raw: bytes) -> Any:
    return MESSAGES.new("TableReference", ticket=ticket(raw))


def place(offset: int) -> Any:
    return MESSAGES.new("TableReference", batch_offset=offset)


class DeephavenPeer:
    """One session over one connection of its own. Results get the export ids from 1 on."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.bearer = "Anonymous"
        self.last_id = 0
        self.ask(CONFIG_SERVICE, "GetConfigurationConstants")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", self.bearer),)

    def ask(self, service: str, method: str, request: bytes = b"") -> bytes:
        """A unary call; grpc.RpcError."""
        unary = self.channel.unary_unary(f"/{service}/{method}")
        answer, call = unary.with_call(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)
        self.bearer = dict(call.initial_metadata()).get("authorization", self.bearer)
        return answer

    def begin(self, service: str, method: str, request: bytes = b"") -> Any:
        """A unary call whose answer nobody waits for yet."""
        unary = self.channel.unary_unary(f"/{service}/{method}")
        return unary.future(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def stream(self, service: str, method: str, request: bytes = b"") -> Any:
        call = self.channel.unary_stream(f"/{service}/{method}")
        return call(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def exchange(self, service: str, method: str, requests: Any) -> Any:
        call = self.channel.stream_stream(f"/{service}/{method}")
        return call(requests, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def status(self, service: str, method: str, request: bytes = b"") -> grpc.StatusCode:
        """How a call ends; a stream is read to its end."""
        try:
            if method == "Batch":
                list(self.stream(service, method, request))
            else:
                self.ask(service, method, request)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def new_ticket(self) -> bytes:
        self.last_id += 1
        return export(self.last_id)

    def make(self, method: str, request: str, **fields: Any) -> bytes:
        """The ticket of the table a call makes; grpc.RpcError."""
        result = self.new_ticket()
        message = MESSAGES.encode(request, result_id=ticket(result), **fields)
        self.ask(TABLE_SERVICE, method, message)
        return result

    def close(self) -> None:
        """End the session, then the connection."""
        request = MESSAGES.encode("HandshakeRequest", payload=self.bearer.encode())
        self.ask(SESSION_SERVICE, "CloseSession", request)
        self.channel.close()


def upload_frames(number: int, rows: pa.Table, times: int = 1) -> list[bytes]:
    """The messages of an upload to an export."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for _ in range(times):
            writer.write_table(rows)
    descriptor = Descriptor(path=("export", str(number))).encode()
    frames = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        frame = wire.FlightFrame(
            descriptor=None if frames else descriptor,
            header=message.metadata.to_pybytes(),
            body=None if message.body is None else message.body.to_pybytes(),
        )
        frames.append(wire.encode_flight_data(frame))
    return frames


def subscription(raw: bytes) -> bytes:
    """A subscription to whatever a ticket names."""
    request = wire.SubscriptionRequest(
        ticket=raw,
        columns=None,
        viewport=None,
        is_reverse=False,
        options=wire.SubscriptionOptions(min_update_interval_ms=10),
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    return wire.encode_flight_data(wire.FlightFrame(metadata=metadata))


_NAMES = ["a", "i32", "s", "b", "d", "f", "c", "l", "t", "bin", "k", "v", "x"]
_FORMULAS = [
    *("a=a", "X=a+i32", "Y=s+s", "d > 0.5", "s.contains(`t`)", "a in 1,2", "isNull(a)", "b && b"),
    *("a>2", "k>1", "x>3", "z=x+1", "w=k", "X=i"),
]
_ODD = ["", "é\u202e\u0000", "a" * 70, "=", "==", "a=", "(", "`", "ii", "PT1S", "-PT1S", "(a+)+$"]
_TEXTS = [*(_NAMES * 8), *(_FORMULAS * 4), *_ODD, "2026-01-01T00:00:00Z", "[a-z]{1,9}.*"]
_NUMBERS = [0, 1, -1, 2, 5, 100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**6, 10**9]
_FRACTIONS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324]
_TICKETS = [b"", b"e", export(-1), b"q/{}", b"a/scope/f/small", b"\xff" * 10, b"s/" + b"x" * 5000]
_UNION = pa.union([pa.field("x", pa.int64())], "sparse")
_SCHEMAS = [
    pa.schema(fields).serialize().to_pybytes()
    for fields in (
        [],
        [("", pa.int64())],
        [("a", pa.int64())],
        [("a", pa.int64()), ("a", pa.int64())],
        [("k", pa.int64()), ("v", pa.float64())],
        [("u", _UNION), ("k", pa.null())],
        [("s", pa.struct([("a", pa.int64())]))],
        [("l", pa.list_(pa.list_(pa.list_(pa.int8()))))],
    )
]


class RandomRequests:
    """Requests of every kind that name real tables and columns often enough to get somewhere."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.exports: list[int] = [1]

    def request(self, peer: DeephavenPeer) -> tuple[str, str, bytes, int]:
        """Service, method, message and the export it makes, which is 0 for none."""
        service, method, name = self._random.choice(REQUESTS)
        message = MESSAGES.new(name)
        self._fill(message, 0)
        made = 0
        if "result_id" in message.DESCRIPTOR.fields_by_name and name != "PublishRequest":
            message.result_id.ticket = peer.new_ticket()
            made = 0 if method == "StartConsole" else peer.last_id
        request = message.SerializeToString()
        return service, method, self._mutated(request), made

    def _mutated(self, request: bytes) -> bytes:
        if self._random.random() > 0.15 or not request:
            return request
        changed = bytearray(request)
        for _ in range(self._random.randint(1, 3)):
            where = self._random.randrange(len(changed) + 1)
            stop = where + self._random.randrange(3)
            changed[where:stop] = self._random.randbytes(self._random.randrange(3))
        return bytes(changed)

    def _fill(self, message: Any, depth: int) -> None:
        kept = [self._random.choice(group.fields) for group in message.DESCRIPTOR.oneofs]
        for field in message.DESCRIPTOR.fields:
            is_out = field.containing_oneof is not None and field not in kept
            if is_out or self._random.random() < 0.03 or depth > 6:
                continue
            value = getattr(message, field.name)
            if hasattr(value, "append"):
                for _ in range(self._random.choice([0, 1, 1, 2, 3])):
                    self._append(value, field, depth)
            elif field.message_type is not None:
                value.SetInParent()
                self._fill(value, depth + 1)
            else:
                setattr(message, field.name, self._scalar(field))

    def _append(self, values: Any, field: Any, depth: int) -> None:
        if field.message_type is None:
            values.append(self._scalar(field))
        else:
            self._fill(values.add(), depth + 1)

    def _scalar(self, field: Any) -> Any:
        kinds = type(field)
        if field.type == kinds.TYPE_STRING:
            return self._random.choice(_TEXTS)
        if field.type == kinds.TYPE_BYTES:
            return self._random.choice(_SCHEMAS) if field.name == "schema" else self._ticket()
        if field.type == kinds.TYPE_BOOL:
            return self._random.random() < 0.5
        if field.type == kinds.TYPE_ENUM:
            return self._random.choice([*field.enum_type.values_by_number, 99])
        if field.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT):
            return self._random.choice(_FRACTIONS)
        number = self._random.choice(_NUMBERS)
        if field.cpp_type == kinds.CPPTYPE_INT32:
            return max(-(2**31), min(number, 2**31 - 1))
        return number

    def _ticket(self) -> bytes:
        kind = self._random.random()
        if kind < 0.5:
            return export(self._random.choice(self.exports[-15:]))
        if kind < 0.96:
            return self._random.choice([b"s/small"] * 5 + [b"s/full"] * 3 + [b"s/ticks", b"s/nope"])
        if kind < 0.98:
            return b"h" + bytes([self._random.randrange(3)])
        return self._random.choice(_TICKETS)

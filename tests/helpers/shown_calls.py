"""Any call of any service as somebody, and all that came of it: to be compared with what comes of
the same call about a table that is not there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa

from barrage.client.writing.put import put_descriptor, schema_frame
from barrage.proto.read_exchange import HEADER, READ
from barrage.server.deephaven.operations.operation_table import OPERATIONS
from barrage.transport.deephaven_messages import MESSAGES
from barrage.transport.flight_messages import (
    FLIGHT,
    Descriptor,
    PollInfo,
    encode_action,
    encode_ticket,
)
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from tests.helpers.server_process import snapshot_request, subscription_request

HANG_SECONDS = 120
ROWS_SCHEMA = pa.schema({"x": pa.int64()})
POLL = FLIGHT + "PollFlightInfo"
RESULT = b"e" + (7).to_bytes(4, "little")


@dataclass(frozen=True)
class Outcome:
    """How a call ended, and every byte that was told."""

    status: grpc.StatusCode
    details: str = ""
    answers: tuple[bytes, ...] = ()

    @property
    def told(self) -> bytes:
        return self.details.encode() + b"".join(self.answers)

    def about(self, name: str) -> Outcome:
        """The same, with the name taken out."""
        return Outcome(
            self.status,
            self.details.replace(name, "*"),
            tuple(each.replace(name.encode(), b"*") for each in self.answers),
        )


@dataclass(frozen=True)
class Request:
    """One call: the full name of its method, its messages, and headers besides credentials."""

    method: str
    messages: tuple[bytes, ...] = (b"",)
    kind: str = "unary"
    headers: tuple[tuple[str, str], ...] = ()
    answers_max: int = 1_000
    """After which it is cut: some never end."""


@dataclass
class Peer:
    """Somebody who calls over a channel of its own."""

    channel: grpc.Channel
    header: str | None = None
    seconds: float = HANG_SECONDS
    _kept: list[Any] = field(default_factory=list)

    def ask(self, request: Request) -> Outcome:
        metadata = list(request.headers)
        if self.header is not None:
            metadata.append(("authorization", self.header))
        options = {"metadata": metadata, "timeout": self.seconds}
        answers: list[bytes] = []
        call: Any = None
        try:
            if request.kind == "unary":
                call = self.channel.unary_unary(request.method)
                answer = call(request.messages[0], **options)
                while request.method == POLL and (further := PollInfo.decode(answer).descriptor):
                    # A query goes on, as any may for a while: what comes of it counts.
                    answer = call(further.encode(), **options)
                return Outcome(grpc.StatusCode.OK, answers=(answer,))
            if request.kind == "server_stream":
                call = self.channel.unary_stream(request.method)(request.messages[0], **options)
            else:
                call = self.channel.stream_stream(request.method)(iter(request.messages), **options)
            for answer in call:
                answers.append(answer)
                if len(answers) >= request.answers_max:
                    call.cancel()
                    break
        except grpc.RpcError as error:
            return Outcome(error.code(), error.details() or "", tuple(answers))
        return Outcome(grpc.StatusCode.OK, answers=tuple(answers))


# --- Flight ---


def info(method: str, descriptor: Descriptor) -> Request:
    return Request(FLIGHT + method, (descriptor.encode(),))


def infos(descriptor: Descriptor) -> tuple[Request, ...]:
    methods = "GetFlightInfo", "GetSchema", "PollFlightInfo"
    return tuple(info(method, descriptor) for method in methods)


def got(ticket: bytes) -> Request:
    return Request(FLIGHT + "DoGet", (encode_ticket(ticket),), "server_stream")


def snapshot(name: str, **headers: str) -> Request:
    return Request(
        FLIGHT + "DoExchange", (snapshot_request(name),), "bidi", tuple(headers.items()), 2
    )


def subscription(name: str, *headers: tuple[str, str]) -> Request:
    return Request(FLIGHT + "DoExchange", (subscription_request(name),), "bidi", headers, 2)


def read_by_ticket(ticket: bytes) -> Request:
    """A journal read by an exchange."""
    descriptor = Descriptor(command=ticket).encode()
    message = encode_flight_data(FlightFrame(descriptor=descriptor))
    return Request(FLIGHT + "DoExchange", (message,), "bidi", ((HEADER, READ),), 3)


def put(name: str, **options: Any) -> Request:
    return upload(put_descriptor(name, **options))


def upload(descriptor: bytes) -> Request:
    return Request(FLIGHT + "DoPut", (schema_frame(ROWS_SCHEMA, descriptor),), "bidi")


def acted(action: str, **body: Any) -> Request:
    message = encode_action(action, json.dumps(body).encode() if body else b"")
    return Request(FLIGHT + "DoAction", (message,), "server_stream")


def journal_ticket(**fields: Any) -> bytes:
    return b"j/" + json.dumps(fields).encode()


# --- Deephaven's services ---


def ticket(raw: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=raw)


def filled(message: Any, raw: bytes) -> Any:
    """The message with every ticket and reference in it naming that table, and lists of tables
    having one."""
    for described in message.DESCRIPTOR.fields:
        of = described.message_type
        if of is None or described.name == "result_id":
            continue
        if of.name == "Ticket":
            filled_in: list[Any] = [ticket(raw)]
        elif of.name == "TableReference":
            filled_in = [MESSAGES.new("TableReference", ticket=ticket(raw))]
        else:
            continue
        place = getattr(message, described.name)
        if isinstance(place, Iterable) and hasattr(place, "extend"):
            place.extend(filled_in)
        else:
            place.CopyFrom(filled_in[0])
    return message


def operation_requests(raw: bytes) -> Iterator[tuple[str, Request]]:
    """Each operation that has a source, done alone, with that table as every source."""
    service = "/io.deephaven.proto.backplane.grpc.TableService/"
    for operation in OPERATIONS.values():
        message = filled(MESSAGES.new(operation.request, result_id=ticket(RESULT)), raw)
        if operation.references(message):
            yield (
                operation.method,
                Request(service + operation.method, (message.SerializeToString(),)),
            )


def deephaven(service: str, method: str, message: str, **fields: Any) -> Request:
    encoded = MESSAGES.encode(message, **fields)
    return Request(f"/{service}/{method}", (encoded,))

"""The unary messages of Arrow Flight, both ways: descriptors, tickets, infos, actions.

Field numbers and types: ``proto_schemas/flight.proto``. FlightData is in :mod:`barrage.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from barrage.errors import RemoteProtocolError
from barrage.transport._proto.flight_descriptor import FILE_DESCRIPTOR
from barrage.transport.protobuf import MessageSet

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_NAME = "arrow.flight.protocol.FlightService"

FLIGHT = f"/{SERVICE_NAME}/"
"""What the full names of its methods begin with."""

MESSAGES = MessageSet(FILE_DESCRIPTOR)
"""All of them, by their names."""

NANOS_PER_S = 1_000_000_000

_PATH = 1
_CMD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A FlightDescriptor: a path, or the bytes of a command."""

    path: tuple[str, ...] = ()
    command: bytes | None = None

    @classmethod
    def decode(cls, buffer: bytes | memoryview) -> Descriptor:
        """Read the message; RemoteProtocolError when it is malformed or names nothing."""
        found = cls.of_message(MESSAGES.decode("FlightDescriptor", buffer))
        if found is None:
            raise RemoteProtocolError("flight descriptor has neither a path nor a command")
        return found

    @classmethod
    def of_message(cls, message: Any) -> Descriptor | None:
        """The same of a message that was read; None when it names nothing."""
        if message.type == _PATH:
            return cls(path=tuple(message.path))
        if message.type == _CMD:
            return cls(command=bytes(message.cmd))
        return None

    def to_message(self) -> Any:
        if self.command is not None:
            return MESSAGES.new("FlightDescriptor", type=_CMD, cmd=self.command)
        return MESSAGES.new("FlightDescriptor", type=_PATH, path=list(self.path))

    def encode(self) -> bytes:
        return bytes(self.to_message().SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where some of the rows of a flight are to be had."""

    ticket: bytes
    locations: tuple[str, ...] = ()
    """Any of them will do; none says: where this came from."""
    expires_ns: int | None = None
    """Wall clock: until then the ticket may be used any number of times and gives the same rows.
    None where nothing is promised."""
    metadata: bytes = b""

    def to_message(self) -> Any:
        message = MESSAGES.new(
            "FlightEndpoint",
            ticket=MESSAGES.new("Ticket", ticket=self.ticket),
            app_metadata=self.metadata,
        )
        message.location.extend(MESSAGES.new("Location", uri=uri) for uri in self.locations)
        if self.expires_ns is not None:
            message.expiration_time.CopyFrom(timestamp_of(self.expires_ns))
        return message

    @classmethod
    def of_message(cls, message: Any) -> Endpoint:
        has_end = message.HasField("expiration_time")
        return cls(
            ticket=bytes(message.ticket.ticket),
            locations=tuple(str(location.uri) for location in message.location),
            expires_ns=ns_of_timestamp(message.expiration_time) if has_end else None,
            metadata=bytes(message.app_metadata),
        )

    def encode(self) -> bytes:
        return bytes(self.to_message().SerializeToString())

    @classmethod
    def decode(cls, buffer: bytes) -> Endpoint:
        """RemoteProtocolError when it is malformed."""
        return cls.of_message(MESSAGES.decode("FlightEndpoint", buffer))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightInfo:
    """What ListFlights and GetFlightInfo tell about one table, or one plan of reading it.

    ``schema_message`` is an encapsulated IPC message; each endpoint has further rows; totals of -1
    are not known. ``is_ordered``: the endpoints are in the order of the rows.
    """

    schema_message: bytes
    descriptor: Descriptor
    endpoints: tuple[Endpoint, ...]
    total_records: int
    total_bytes: int
    metadata: bytes
    is_ordered: bool = True

    @property
    def ticket(self) -> bytes:
        """That of the first endpoint; no bytes when there is none."""
        return self.endpoints[0].ticket if self.endpoints else b""

    def to_message(self) -> Any:
        return MESSAGES.new(
            "FlightInfo",
            schema=self.schema_message,
            flight_descriptor=self.descriptor.to_message(),
            endpoint=[endpoint.to_message() for endpoint in self.endpoints],
            total_records=self.total_records,
            total_bytes=self.total_bytes,
            app_metadata=self.metadata,
            ordered=self.is_ordered,
        )

    def encode(self) -> bytes:
        return bytes(self.to_message().SerializeToString())

    @classmethod
    def of_message(cls, info: Any) -> FlightInfo:
        return cls(
            schema_message=bytes(info.schema),
            descriptor=Descriptor.of_message(info.flight_descriptor) or Descriptor(),
            endpoints=tuple(Endpoint.of_message(end) for end in info.endpoint),
            total_records=int(info.total_records),
            total_bytes=int(info.total_bytes),
            metadata=bytes(info.app_metadata),
            is_ordered=bool(info.ordered),
        )

    @classmethod
    def decode(cls, buffer: bytes) -> FlightInfo:
        """Read the message of any Flight server; RemoteProtocolError when it is malformed."""
        return cls.of_message(MESSAGES.decode("FlightInfo", buffer))


@dataclass(frozen=True, slots=True, kw_only=True)
class PollInfo:
    """How far a query has got: ``info`` is what there is of it so far."""

    info: FlightInfo
    descriptor: Descriptor | None
    """What to ask for next time; None: the query is finished."""
    progress: float | None = None
    expires_ns: int | None = None
    """Wall clock: for how long the descriptor is good if nobody asks."""

    def encode(self) -> bytes:
        message = MESSAGES.new("PollInfo", info=self.info.to_message())
        if self.descriptor is not None:
            message.flight_descriptor.CopyFrom(self.descriptor.to_message())
        if self.progress is not None:
            message.progress = self.progress
        if self.expires_ns is not None:
            message.expiration_time.CopyFrom(timestamp_of(self.expires_ns))
        return bytes(message.SerializeToString())

    @classmethod
    def decode(cls, buffer: bytes) -> PollInfo:
        """Read the message of any Flight server; RemoteProtocolError when it is malformed."""
        poll = MESSAGES.decode("PollInfo", buffer)
        has_end = poll.HasField("expiration_time")
        has_next = poll.HasField("flight_descriptor")
        return cls(
            info=FlightInfo.of_message(poll.info),
            descriptor=Descriptor.of_message(poll.flight_descriptor) if has_next else None,
            progress=float(poll.progress) if poll.HasField("progress") else None,
            expires_ns=ns_of_timestamp(poll.expiration_time) if has_end else None,
        )


def timestamp_of(wall_ns: int) -> Any:
    """A moment as a Timestamp message."""
    seconds, nanos = divmod(wall_ns, NANOS_PER_S)
    return MESSAGES.new("Timestamp", seconds=seconds, nanos=nanos)


def ns_of_timestamp(message: Any) -> int:
    """The moment of a Timestamp message."""
    return int(message.seconds) * NANOS_PER_S + int(message.nanos)


def encode_ticket(ticket: bytes) -> bytes:
    return MESSAGES.encode("Ticket", ticket=ticket)


def decode_ticket(buffer: bytes) -> bytes:
    """The bytes inside a Ticket message."""
    return bytes(MESSAGES.decode("Ticket", buffer).ticket)


def decode_criteria(buffer: bytes) -> bytes:
    """The expression of a Criteria message."""
    return bytes(MESSAGES.decode("Criteria", buffer).expression)


def encode_action(kind: str, body: bytes) -> bytes:
    return MESSAGES.encode("Action", type=kind, body=body)


def decode_action(buffer: bytes) -> tuple[str, bytes]:
    """Type and body of an Action."""
    action = MESSAGES.decode("Action", buffer)
    return str(action.type), bytes(action.body)


def encode_action_type(name: str, description: str) -> bytes:
    return MESSAGES.encode("ActionType", type=name, description=description)


def decode_action_type(buffer: bytes) -> str:
    """The name of an action, as ListActions tells it."""
    return str(MESSAGES.decode("ActionType", buffer).type)


def encode_result(body: bytes) -> bytes:
    return MESSAGES.encode("Result", body=body)


def decode_result(buffer: bytes) -> bytes:
    """The body of an action's Result."""
    return bytes(MESSAGES.decode("Result", buffer).body)


def decode_handshake(buffer: bytes) -> tuple[int, bytes]:
    """Protocol version and payload of a HandshakeRequest."""
    request = MESSAGES.decode("HandshakeRequest", buffer)
    return int(request.protocol_version), bytes(request.payload)


def decode_basic_auth(buffer: bytes) -> tuple[str, str]:
    """User name and password of a BasicAuth payload."""
    auth = MESSAGES.decode("BasicAuth", buffer)
    return str(auth.username), str(auth.password)


def encode_handshake_response(payload: bytes) -> bytes:
    return MESSAGES.encode("HandshakeResponse", payload=payload)


def encode_schema_result(schema_message: bytes) -> bytes:
    return MESSAGES.encode("SchemaResult", schema=schema_message)


def encode_put_result(metadata: bytes) -> bytes:
    return MESSAGES.encode("PutResult", app_metadata=metadata)


def decode_put_result(buffer: bytes) -> bytes:
    """The app_metadata of a PutResult."""
    return bytes(MESSAGES.decode("PutResult", buffer).app_metadata)


# --- actions that the Flight RPC document defines ------------------------------------------------

CANCEL: Final = "CancelFlightInfo"
RENEW: Final = "RenewFlightEndpoint"
SET_OPTIONS: Final = "SetSessionOptions"
GET_OPTIONS: Final = "GetSessionOptions"
CLOSE_SESSION: Final = "CloseSession"

OptionValue: TypeAlias = "str | bool | int | float | list[str] | None"
"""None stands for an option that is to be forgotten."""


class CancelStatus(IntEnum):
    UNSPECIFIED = 0
    CANCELLED = 1
    CANCELLING = 2
    NOT_CANCELLABLE = 3


class OptionError(IntEnum):
    """Why an option was not set."""

    INVALID_NAME = 1
    INVALID_VALUE = 2
    ERROR = 3


SESSION_CLOSED: Final = 1
"""``CloseSessionResult.Status.CLOSED``."""


def encode_cancel_request(info: FlightInfo) -> bytes:
    return MESSAGES.encode("CancelFlightInfoRequest", info=info.to_message())


def decode_cancel_request(body: bytes) -> FlightInfo:
    """RemoteProtocolError, also when there is no information in it."""
    request = MESSAGES.decode("CancelFlightInfoRequest", body)
    if not request.HasField("info"):
        raise RemoteProtocolError(
            f"the body of {CANCEL} has the FlightInfo that is to be cancelled"
        )
    return FlightInfo.of_message(request.info)


def encode_cancel_result(status: CancelStatus) -> bytes:
    return MESSAGES.encode("CancelFlightInfoResult", status=int(status))


def decode_cancel_result(body: bytes) -> CancelStatus:
    """RemoteProtocolError; a status nobody knows is unspecified."""
    status = int(MESSAGES.decode("CancelFlightInfoResult", body).status)
    known = {each.value for each in CancelStatus}
    return CancelStatus(status) if status in known else CancelStatus.UNSPECIFIED


def encode_renew_request(endpoint: Endpoint) -> bytes:
    return MESSAGES.encode("RenewFlightEndpointRequest", endpoint=endpoint.to_message())


def decode_renew_request(body: bytes) -> Endpoint:
    """RemoteProtocolError, also when there is no endpoint in it."""
    request = MESSAGES.decode("RenewFlightEndpointRequest", body)
    if not request.HasField("endpoint"):
        raise RemoteProtocolError(f"the body of {RENEW} has the endpoint that is to be renewed")
    return Endpoint.of_message(request.endpoint)


# --- options of a session -------------------------------------------------------------------------


def encode_options(kind: str, options: Mapping[str, OptionValue]) -> bytes:
    """A message of the type ``kind`` that has options."""
    message = MESSAGES.new(kind)
    for name, value in options.items():
        _put(message.session_options[name], value)
    return bytes(message.SerializeToString())


def decode_options(kind: str, body: bytes) -> dict[str, OptionValue]:
    """RemoteProtocolError."""
    message = MESSAGES.decode(kind, body)
    return {str(name): _value(value) for name, value in message.session_options.items()}


def encode_option_errors(errors: Mapping[str, OptionError]) -> bytes:
    message = MESSAGES.new("SetSessionOptionsResult")
    for name, error in errors.items():
        message.errors[name].value = int(error)
    return bytes(message.SerializeToString())


def decode_option_errors(body: bytes) -> dict[str, int]:
    """Of each option that was not set, why; RemoteProtocolError."""
    message = MESSAGES.decode("SetSessionOptionsResult", body)
    return {str(name): int(error.value) for name, error in message.errors.items()}


def check_empty(kind: str, body: bytes) -> None:
    """RemoteProtocolError for bytes that are not a message of a type without fields."""
    MESSAGES.decode(kind, body)


def encode_close_result(status: int) -> bytes:
    return MESSAGES.encode("CloseSessionResult", status=status)


def decode_close_result(body: bytes) -> int:
    return int(MESSAGES.decode("CloseSessionResult", body).status)


def _put(message: Any, value: OptionValue) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, int):
        message.int64_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif value is not None:
        message.string_list_value.values.extend(value)
        message.string_list_value.SetInParent()


def _value(message: Any) -> OptionValue:
    match message.WhichOneof("option_value"):
        case "string_value":
            return str(message.string_value)
        case "bool_value":
            return bool(message.bool_value)
        case "int64_value":
            return int(message.int64_value)
        case "double_value":
            return float(message.double_value)
        case "string_list_value":
            return [str(each) for each in message.string_list_value.values]
    return None

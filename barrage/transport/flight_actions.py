"""The actions that the Flight RPC document itself defines: their names and messages, both ways."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from barrage.errors import RemoteProtocolError
from barrage.transport.flight_messages import MESSAGES, Endpoint, FlightInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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

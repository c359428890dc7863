"""Text messages of ``barrage-flight.v1`` (docs/web-protocol.md): what a page says, checked as
declared, and what it is told."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from barrage.errors import RemoteProtocolError
from barrage.json_text import checked_json, outermost, read_json

STREAM_MAX = 2**31 - 1
WINDOW_MAX = 64
WINDOW_DEFAULT = 8

Stream = Annotated[int, Meta(ge=1, le=STREAM_MAX)]
Method = Literal["DoExchange", "DoGet", "DoPut"]
Window = Annotated[int, Meta(ge=1, le=WINDOW_MAX)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=4096)]


class PageHello(Struct, tag="hello", frozen=True, kw_only=True):
    """Who calls. The first message."""

    authorization: Annotated[str, Meta(max_length=16_384)] | None = None


class Open(Struct, tag="open", frozen=True, kw_only=True):
    """A call begins."""

    stream: Stream
    method: Method
    headers: dict[str, Text] = {}
    window: Window = WINDOW_DEFAULT


class HalfClose(Struct, tag="half_close", frozen=True, kw_only=True):
    """The page sends nothing more on a stream."""

    stream: Stream


class Cancel(Struct, tag="cancel", frozen=True, kw_only=True):
    """A call is of no use any more."""

    stream: Stream


class Acknowledge(Struct, tag="ack", frozen=True, kw_only=True):
    """So many messages of each stream have been shown."""

    streams: dict[Stream, Count]


class Pause(Struct, tag="pause", frozen=True, kw_only=True):
    """Nothing is looked at for now; without streams, none of them."""

    streams: list[Stream] | None = None


class Resume(Struct, tag="resume", frozen=True, kw_only=True):
    """The opposite."""

    streams: list[Stream] | None = None


class RunAction(Struct, tag="call", frozen=True, kw_only=True):
    """An action is to be run."""

    call: Stream
    action: Annotated[str, Meta(min_length=1, max_length=256)]
    body: msgspec.Raw = msgspec.Raw(b"")


PageMessage = PageHello | Open | HalfClose | Cancel | Acknowledge | Pause | Resume | RunAction

_DECODER: msgspec.json.Decoder[PageMessage] = msgspec.json.Decoder(PageMessage)
_ENCODER = msgspec.json.Encoder()


class UnreadableCallError(RemoteProtocolError):
    """The body of an action is no JSON that is read, but the message is one: its action can be
    answered."""

    def __init__(self, call: int, reason: str) -> None:
        super().__init__(f"the body of the action cannot be read: {reason}")
        self.call = call


def read_message(text: str) -> PageMessage:
    """What a page says; RemoteProtocolError that says what is wrong with it."""
    try:
        return _DECODER.decode(checked_json(text))
    except ValueError as error:
        call = _unreadable_call(text)
        if call is not None:
            raise UnreadableCallError(call.call, str(error)) from None
        raise RemoteProtocolError(f"not a message: {error}") from None


def _unreadable_call(text: str) -> RunAction | None:
    """The call whose body, and nothing else of it, makes a text unreadable."""
    try:
        message = _DECODER.decode(outermost(text))
    except ValueError:
        return None
    return message if isinstance(message, RunAction) else None


def told(kind: str, **members: object) -> bytes:
    """A message to a page."""
    return _ENCODER.encode({"type": kind, **members})


def told_result(call: int, body: bytes) -> bytes:
    """The result of an action, which is JSON already; RemoteProtocolError when it is not."""
    try:
        read_json(body or b"null")
    except ValueError as error:
        raise RemoteProtocolError(f"what the action has answered is no JSON: {error}") from None
    return _ENCODER.encode({"type": "result", "call": call, "body": msgspec.Raw(body or b"null")})

"""What a peer's bytes mean, for whoever serves its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    from barrage.transport.over_http2.http2_stream import Http2Stream

    Headers: TypeAlias = list[tuple[bytes, bytes]]
    Http2Event: TypeAlias = "CallOpened | CallReadable | CallRefused | CallCut | MessageTaken"


@dataclass(slots=True)
class CallOpened:
    """A client has sent the headers of a request."""

    stream: Http2Stream
    headers: Headers


@dataclass(slots=True)
class CallReadable:
    """Messages have come, or the end of them."""

    stream: Http2Stream


@dataclass(slots=True)
class CallRefused:
    """A message came that is not taken: the call must be ended with a status that says so."""

    stream: Http2Stream
    is_too_long: bool
    text: str


@dataclass(slots=True)
class CallCut:
    """The stream is gone, by its client or by an offence: nothing can be read or sent."""

    stream: Http2Stream


@dataclass(slots=True)
class MessageTaken:
    """What was queued with this ticket is on its way."""

    ticket: object

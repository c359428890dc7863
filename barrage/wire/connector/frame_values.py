"""The frames of the connector protocol as values (docs/connector-protocol.md, section 2).

Stream and message ids are unsigned 64-bit numbers. What a dialect cannot say is not encoded for it:
the encoder raises LocalProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import NamedTuple, TypeAlias

NONE_SEEN = 2**64 - 1
"""In the published dialect: nothing of the stream has been seen. No message has it as its id."""

MESSAGE_ID_MAX = 2**64 - 2

PUBLISHED_VERSION = "0.0.1"
DRAFT_VERSION = "771c6498c8845159dff82cffc6cfa1cf"
"""In hexadecimal; on the wire 16 raw bytes."""


class Dialect(Enum):
    """The two forms of the protocol. One port serves both; the fifth byte of a connection, the tag
    of its HELLO, tells which it is."""

    PUBLISHED = "published"
    DRAFT = "draft"


class MessageFlag(Flag):
    """What a message of the draft says about itself."""

    NONE = 0
    EPHEMERAL = 1
    """Its id is not a place to go on from, and it is not sent again."""
    BOUNDARY = 2
    """It has no payload: what came before it in the stream is complete."""
    EOS = 4
    """The stream ends with it."""
    UNSTABLE_REFERENCE = 8
    """The stream cannot go on from its id."""
    EVENT_TIME = 16
    """It has an event time. Set by the encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A connector begins. ``version`` is text, in the draft 32 hexadecimal digits."""

    version: str
    cookie: str = field(repr=False)
    program: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The worker's OK."""

    credits: int
    positions: tuple[tuple[int, int], ...] = ()
    """Stream and the id to go on after, 0 for none; the draft alone has them."""


@dataclass(frozen=True, slots=True)
class EndedByError:
    """ERROR, of either side; the connection ends with it."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """A connector is about to send a stream. ``point`` is what it believes to be the last id."""

    stream: int
    name: bytes
    point: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyAck:
    """Whether the stream may be sent, and the id to go on after. Published dialect."""

    is_accepted: bool
    stream: int
    point: int


class SentMessage(NamedTuple):
    """One message; a tuple, since there are many. The published dialect has no flags and always an
    event time and a key, the draft has no key."""

    stream: int
    id: int
    event_time: int | None
    key: bytes | None
    payload: bytes
    flags: int = 0
    """Bits of :class:`MessageFlag`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Credits given back, and for some streams the last id that is safe."""

    credits: int
    positions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """A stream is to be announced and sent again from after ``point``, 0 for its beginning.
    Draft."""

    credits: int
    stream: int
    point: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The session ends; connect again, to ``host:port`` when there is one. Published dialect."""

    address: str = ""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """A stream ends. Published dialect; in the draft it is a flag of the last message."""

    stream: int


Frame: TypeAlias = (
    Hello
    | Welcome
    | EndedByError
    | Notify
    | NotifyAck
    | SentMessage
    | Ack
    | Nack
    | Restart
    | EndOfStream
)

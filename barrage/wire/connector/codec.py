"""Frames to bytes and back. A frame is a length of four bytes, a tag, and a body.

The published dialect is big endian with numbers for tags, the draft little endian with letters.
Decoding raises RemoteProtocolError for whatever is too short, too long or out of range.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.wire.connector.frame_values import (
    Ack,
    Dialect,
    EndedByError,
    EndOfStream,
    Frame,
    Hello,
    MessageFlag,
    Nack,
    Notify,
    NotifyAck,
    Restart,
    SentMessage,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHORT_BYTES_MAX = 65_535
WORKERS_LEFT = 9
"""Tag of a frame that exists inside a cluster and towards sinks, and is never taken."""

ORDERS: Final = {Dialect.PUBLISHED: ">", Dialect.DRAFT: "<"}
DIALECT_OF_TAG: Final = {
    **dict.fromkeys(range(10), Dialect.PUBLISHED),
    **dict.fromkeys(b"HOENMA!", Dialect.DRAFT),
}
"""What the first tag of a connection says; one that begins with another frame than HELLO can be
told so in its own dialect."""

_VERSION_BYTES = 16
_KNOWN_FLAGS = sum(flag.value for flag in MessageFlag)
_EPHEMERAL, _BOUNDARY = MessageFlag.EPHEMERAL.value, MessageFlag.BOUNDARY.value
_UNSTABLE, _EVENT_TIME = (
    MessageFlag.UNSTABLE_REFERENCE.value,
    MessageFlag.EVENT_TIME.value,
)
_MESSAGE_HEAD = struct.Struct(">BQQqH")
_DRAFT_HEAD = struct.Struct("<BHQQ")
_DRAFT_TIME = struct.Struct("<Q")
_EVENT_TIME_MAX = 2**63 - 1


class _Reader:
    """The fields of one body, in order."""

    def __init__(self, body: bytes, order: str) -> None:
        self._body = body
        self._order = order
        self._at = 1

    def number(self, kind: str) -> int:
        size = struct.calcsize(self._order + kind)
        return int(struct.unpack(self._order + kind, self._take(size))[0])

    def short(self) -> bytes:
        return self._take(self.number("H"))

    def text(self) -> str:
        return _text(self.short())

    def pairs(self, count: int) -> tuple[tuple[int, int], ...]:
        """Pairs of unsigned 64-bit numbers; whether they are there is checked before they are
        made."""
        raw = self._take(16 * count)
        return tuple(struct.iter_unpack(self._order + "QQ", raw))

    def rest_of_pairs(self) -> tuple[tuple[int, int], ...]:
        count, over = divmod(len(self._body) - self._at, 16)
        if over:
            raise RemoteProtocolError(f"a list of pairs ends with {over} bytes that are no pair")
        return self.pairs(count)

    def raw(self, size: int) -> bytes:
        return self._take(size)

    def finish(self) -> None:
        left = len(self._body) - self._at
        if left:
            raise RemoteProtocolError(f"a frame has {left} bytes left over")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise RemoteProtocolError(
                f"a frame of {len(self._body)} bytes is too short: {size} more are wanted at "
                f"{self._at}"
            )
        taken, self._at = self._body[self._at : end], end
        return taken


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a text of a frame is not UTF-8") from None


# --- decoding -------------------------------------------------------------------------------------


def decode_frame(body: bytes, dialect: Dialect) -> Frame:
    """The frame of ``body``, its tag first; RemoteProtocolError."""
    if not body:
        raise RemoteProtocolError("a frame has length 0, and at least its tag is wanted")
    tag = body[0]
    if dialect is Dialect.PUBLISHED:
        if tag == 5:
            return _published_message(body)
    elif tag == 0x4D:
        return _draft_message(body)
    decode = _DECODERS[dialect].get(tag)
    if decode is None:
        known = " (WORKERS_LEFT, which is not for sources)" if tag == WORKERS_LEFT else ""
        raise RemoteProtocolError(f"a frame has the unknown tag {tag}{known}")
    reader = _Reader(body, ORDERS[dialect])
    frame = decode(reader)
    reader.finish()
    return frame


def _published_message(body: bytes) -> SentMessage:
    if len(body) < _MESSAGE_HEAD.size:
        raise RemoteProtocolError(f"a message of {len(body)} bytes is too short")
    _, stream, number, event_time, key_size = _MESSAGE_HEAD.unpack_from(body)
    start = _MESSAGE_HEAD.size + key_size
    if start > len(body):
        raise RemoteProtocolError(f"the key of a message has {key_size} bytes and passes its end")
    return SentMessage(stream, number, event_time, body[_MESSAGE_HEAD.size : start], body[start:])


def _draft_message(body: bytes) -> SentMessage:
    if len(body) < _DRAFT_HEAD.size:
        raise RemoteProtocolError(f"a message of {len(body)} bytes is too short")
    _, flags, stream, number = _DRAFT_HEAD.unpack_from(body)
    _check_flags(flags)
    start, event_time = _DRAFT_HEAD.size, None
    if flags & _EVENT_TIME:
        if len(body) < start + 8:
            raise RemoteProtocolError("a message has no room for the event time it announces")
        (event_time,) = _DRAFT_TIME.unpack_from(body, start)
        start += 8
        if event_time > _EVENT_TIME_MAX:
            raise RemoteProtocolError(f"event time {event_time} is past 2**63 - 1")
    if flags & _BOUNDARY and len(body) > start:
        raise RemoteProtocolError("a boundary has a payload")
    return SentMessage(stream, number, event_time, None, body[start:], flags & ~_EVENT_TIME)


def _check_flags(flags: int) -> None:
    if flags & ~_KNOWN_FLAGS:
        raise RemoteProtocolError(f"a message has unknown flags: {flags:#06x}")
    if flags & _EPHEMERAL and flags & (_BOUNDARY | _UNSTABLE):
        raise RemoteProtocolError("an ephemeral message is no boundary and has no reference")
    if flags & _BOUNDARY and flags & _UNSTABLE:
        raise RemoteProtocolError("a boundary is a stable reference")


def _hello(reader: _Reader) -> Hello:
    version, cookie = reader.text(), reader.text()
    return Hello(version=version, cookie=cookie, program=reader.text(), instance=reader.text())


def _draft_hello(reader: _Reader) -> Hello:
    version, cookie = reader.raw(_VERSION_BYTES).hex(), reader.text()
    return Hello(version=version, cookie=cookie, program=reader.text(), instance=reader.text())


def _notify(reader: _Reader) -> Notify:
    stream, name = reader.number("Q"), reader.short()
    return Notify(stream=stream, name=name, point=reader.number("Q"))


def _notify_ack(reader: _Reader) -> NotifyAck:
    accepted, stream = reader.number("B"), reader.number("Q")
    if accepted > 1:
        raise RemoteProtocolError(f"NOTIFY_ACK says {accepted}, neither 0 nor 1")
    return NotifyAck(is_accepted=bool(accepted), stream=stream, point=reader.number("Q"))


def _ack(reader: _Reader) -> Ack:
    granted, count = reader.number("I"), reader.number("I")
    return Ack(credits=granted, positions=reader.pairs(count))


def _restart(reader: _Reader) -> Restart:
    return Restart(_text(reader.raw(reader.number("I"))))


_DECODERS: Mapping[Dialect, Mapping[int, Callable[[_Reader], Frame]]] = {
    Dialect.PUBLISHED: {
        0: _hello,
        1: lambda reader: Welcome(credits=reader.number("I")),
        2: lambda reader: EndedByError(reader.text()),
        3: _notify,
        4: _notify_ack,
        6: _ack,
        7: _restart,
        8: lambda reader: EndOfStream(reader.number("Q")),
    },
    Dialect.DRAFT: {
        ord("H"): _draft_hello,
        ord("O"): lambda reader: Welcome(
            credits=reader.number("I"), positions=reader.rest_of_pairs()
        ),
        ord("E"): lambda reader: EndedByError(reader.text()),
        ord("N"): _notify,
        ord("A"): lambda reader: Ack(credits=reader.number("I"), positions=reader.rest_of_pairs()),
        ord("!"): lambda reader: Nack(
            credits=reader.number("I"), stream=reader.number("Q"), point=reader.number("Q")
        ),
    },
}


# --- encoding -------------------------------------------------------------------------------------


def encode_frame(frame: Frame, dialect: Dialect) -> bytes:
    """The frame with its length. LocalProtocolError for one the dialect does not have, or with a
    field that is out of range."""
    encode = _ENCODERS[dialect].get(type(frame))
    if encode is None:
        raise LocalProtocolError(f"the {dialect.value} dialect has no {type(frame).__name__}")
    try:
        body = encode(frame)
        return struct.pack(ORDERS[dialect] + "I", len(body)) + body
    except (struct.error, ValueError) as error:
        raise LocalProtocolError(
            f"a {type(frame).__name__} has a field that is out of range: {error}"
        ) from None


def failure_reason(text: str) -> str:
    """``text`` as an ERROR can carry it: cut at a whole character."""
    return text.encode("utf-8", "replace")[:SHORT_BYTES_MAX].decode("utf-8", "ignore")


def _short(value: bytes | str, order: str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(order + "H", len(raw)) + raw


def _pairs(pairs: tuple[tuple[int, int], ...], order: str) -> bytes:
    return struct.pack(f"{order}{2 * len(pairs)}Q", *(number for pair in pairs for number in pair))


def _names(hello: Hello, order: str) -> bytes:
    return b"".join(_short(text, order) for text in (hello.cookie, hello.program, hello.instance))


def _encoded_notify(tag: int, order: str) -> Callable[[Any], bytes]:
    def encode(frame: Notify) -> bytes:
        return (
            struct.pack(order + "BQ", tag, frame.stream)
            + _short(frame.name, order)
            + struct.pack(order + "Q", frame.point)
        )

    return encode


def _encoded_message(frame: SentMessage) -> bytes:
    if frame.flags:
        raise LocalProtocolError("messages of the published dialect have no flags")
    key = frame.key or b""
    head = _MESSAGE_HEAD.pack(5, frame.stream, frame.id, frame.event_time or 0, len(key))
    return head + key + frame.payload


def _encoded_draft_message(frame: SentMessage) -> bytes:
    if frame.key:
        raise LocalProtocolError("messages of the draft have no key")
    flags = frame.flags & ~_EVENT_TIME | (0 if frame.event_time is None else _EVENT_TIME)
    try:
        _check_flags(flags)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None
    if flags & _BOUNDARY and frame.payload:
        raise LocalProtocolError("a boundary has no payload")
    head = _DRAFT_HEAD.pack(0x4D, flags, frame.stream, frame.id)
    time = b"" if frame.event_time is None else _DRAFT_TIME.pack(frame.event_time)
    return head + time + frame.payload


def _encoded_hello(frame: Hello) -> bytes:
    return b"\0" + _short(frame.version, ">") + _names(frame, ">")


def _encoded_draft_hello(frame: Hello) -> bytes:
    version = bytes.fromhex(frame.version)
    if len(version) != _VERSION_BYTES:
        raise LocalProtocolError("a version of the draft has 16 bytes")
    return b"H" + version + _names(frame, "<")


def _encoded_welcome(frame: Welcome) -> bytes:
    if frame.positions:
        raise LocalProtocolError("OK of the published dialect names no streams")
    return struct.pack(">BI", 1, frame.credits)


def _encoded_ack(frame: Ack) -> bytes:
    head = struct.pack(">BII", 6, frame.credits, len(frame.positions))
    return head + _pairs(frame.positions, ">")


def _encoded_restart(frame: Restart) -> bytes:
    raw = frame.address.encode()
    return struct.pack(">BI", 7, len(raw)) + raw


_ENCODERS: Mapping[Dialect, Mapping[type, Callable[[Any], bytes]]] = {
    Dialect.PUBLISHED: {
        Hello: _encoded_hello,
        Welcome: _encoded_welcome,
        EndedByError: lambda frame: b"\x02" + _short(frame.message, ">"),
        Notify: _encoded_notify(3, ">"),
        NotifyAck: lambda frame: struct.pack(
            ">BBQQ", 4, frame.is_accepted, frame.stream, frame.point
        ),
        SentMessage: _encoded_message,
        Ack: _encoded_ack,
        Restart: _encoded_restart,
        EndOfStream: lambda frame: struct.pack(">BQ", 8, frame.stream),
    },
    Dialect.DRAFT: {
        Hello: _encoded_draft_hello,
        Welcome: lambda frame: (
            struct.pack("<cI", b"O", frame.credits) + _pairs(frame.positions, "<")
        ),
        EndedByError: lambda frame: b"E" + _short(frame.message, "<"),
        Notify: _encoded_notify(0x4E, "<"),
        SentMessage: _encoded_draft_message,
        Ack: lambda frame: struct.pack("<cI", b"A", frame.credits) + _pairs(frame.positions, "<"),
        Nack: lambda frame: struct.pack("<cIQQ", b"!", frame.credits, frame.stream, frame.point),
    },
}

"""Bytes of HTTP/2 frames (RFC 9113, sections 4 and 6) and what is wrong with those of a peer."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from barrage.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8

FRAME_HEAD_BYTES = 9
PREFIX_BYTES = 5
"""Of a gRPC message: whether it is compressed, and its length."""
ID_MAX = WINDOW_MAX = 2**31 - 1
WINDOW_DEFAULT = 65_535
FRAME_BYTES_DEFAULT = 16_384

FRAME_HEAD = Struct(">IBI")
"""Length and type in one number, flags, stream."""
MESSAGE_HEAD = Struct(">IBIBI")
"""The head of a DATA frame, and the prefix of the gRPC message that begins in it."""
NUMBER = Struct(">I")
PREFIX = Struct(">BI")
WINDOW_UPDATE_FRAME = Struct(">IBII")
PING_FRAME = Struct(">IB4x8s")
_GOAWAY_HEAD = Struct(">IB4xII")


def window_update(stream_id: int, increment: int) -> bytes:
    """More bytes may come, on a stream or, with 0, on the connection."""
    return WINDOW_UPDATE_FRAME.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """What is to be sent, in one piece."""
    first = parts[0] if len(parts) == 1 else None
    return first if isinstance(first, bytes) else b"".join(parts)


def goaway(last_id: int, code: int, text: str) -> bytes:
    """Nothing past stream ``last_id`` is served, and why."""
    debug = text.encode()
    return _GOAWAY_HEAD.pack(8 + len(debug) << 8 | GOAWAY, 0, last_id, code) + debug


class Http2Error(RemoteProtocolError):
    """The peer broke a rule of HTTP/2, or floods: its connection ends with this code."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        self.code = code
        super().__init__(text)


def too_much(text: str) -> Http2Error:
    """A peer that asks for more work than it may."""
    return Http2Error(ErrorCodes.ENHANCE_YOUR_CALM, text)


def broken(text: str) -> Http2Error:
    """A peer that does not keep to the protocol."""
    return Http2Error(ErrorCodes.PROTOCOL_ERROR, text)


class Rate:
    """How often something may happen in one second."""

    __slots__ = ("_begun_ns", "_count", "_count_max", "_what")

    def __init__(self, what: str, count_max: int) -> None:
        self._what = what
        self._count_max = count_max
        self._count = 0
        self._begun_ns = 0

    def count(self, now_ns: int) -> None:
        """It has happened; Http2Error when that was too often."""
        if now_ns - self._begun_ns >= 1_000_000_000:
            self._begun_ns = now_ns
            self._count = 0
        self._count += 1
        if self._count > self._count_max:
            raise too_much(f"more than {self._count_max} {self._what} in a second")

"""Frames out of bytes that come in pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from barrage.errors import RemoteProtocolError
from barrage.wire.connector.codec import DIALECT_OF_TAG, decode_frame
from barrage.wire.connector.frame_values import Dialect
from barrage.wire.connector.message_run import read_run

if TYPE_CHECKING:
    from barrage.wire.connector.frame_values import Frame
    from barrage.wire.connector.message_run import MessageRun

_HEAD_BYTES = 5
_COMPACTED_BYTES = 1024 * 1024
_BYTE_ORDERS: dict[Dialect, Literal["big", "little"]] = {
    Dialect.PUBLISHED: "big",
    Dialect.DRAFT: "little",
}


class UnknownDialectError(RemoteProtocolError):
    """A connection begins with a frame of neither dialect, so that not even an ERROR could be
    told."""


class ConnectorFrames:
    """Keeps what has come and is no whole frame yet. Once it has raised it is of no more use."""

    def __init__(self, dialect: Dialect | None, frame_bytes_max: int) -> None:
        self.dialect = dialect
        """None until the fifth byte has told."""
        self.frame_bytes_max = frame_bytes_max
        """May be changed between frames."""
        self._buffer = bytearray()
        self._at = 0

    def __len__(self) -> int:
        """Bytes that wait."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes | memoryview) -> None:
        """More bytes have come."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame; None when more bytes are wanted. UnknownDialectError,
        RemoteProtocolError."""
        waiting = len(self._buffer) - self._at
        if self.dialect is None:
            if waiting < _HEAD_BYTES:
                return None
            self.dialect = DIALECT_OF_TAG.get(self._buffer[self._at + 4])
            if self.dialect is None:
                raise UnknownDialectError("a connection begins with a frame of neither dialect")
        if waiting < 4:
            return None
        start = self._at + 4
        length = int.from_bytes(self._buffer[self._at : start], _BYTE_ORDERS[self.dialect])
        if not 0 < length <= self.frame_bytes_max:
            raise RemoteProtocolError(
                f"a frame has length {length}; 1 to {self.frame_bytes_max} are taken"
            )
        if waiting < 4 + length:
            return None
        body = bytes(memoryview(self._buffer)[start : start + length])
        self._move_to(start + length)
        return decode_frame(body, self.dialect)

    def next_run(self) -> MessageRun | None:
        """The messages that come next, when they are several; None when one is to ask for the next
        frame. Never raises: what is wrong is the next frame's."""
        if self.dialect is not Dialect.PUBLISHED:
            return None
        run, end = read_run(self._buffer, self._at, frame_bytes_max=self.frame_bytes_max)
        if run is not None:
            self._move_to(end)
        return run

    def _move_to(self, at: int) -> None:
        self._at = at
        if at == len(self._buffer) or at > _COMPACTED_BYTES:
            del self._buffer[:at]
            self._at = 0

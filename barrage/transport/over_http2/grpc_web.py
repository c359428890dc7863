"""Frames of gRPC-web (gRPC's PROTOCOL-WEB.md): messages as in gRPC, and metadata, which HTTP leaves
to headers and trailers, in frames of a kind of its own."""

from __future__ import annotations

from struct import Struct

from barrage.errors import LimitExceededError, RemoteProtocolError

PREFIX_BYTES = 5

_PREFIX = Struct(">BI")
"""The kind of a frame, and its length."""

_MESSAGE_FRAME, _METADATA_FRAME = 0, 0x80


def message_head(size: int) -> bytes:
    """What stands before a message of ``size`` bytes."""
    return _PREFIX.pack(_MESSAGE_FRAME, size)


def metadata_frame(lines: bytes) -> bytes:
    """Lines of a name, a colon and a value, each with its end."""
    return _PREFIX.pack(_METADATA_FRAME, len(lines)) + lines


class PartialMessage:
    """The messages of one call, which need not come in one piece."""

    def __init__(self, call: str) -> None:
        """``call``: its name in errors."""
        self._call = call
        self._partial = bytearray()

    def __len__(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._partial)

    def take(self, data: bytes, message_bytes_max: int) -> list[bytes]:
        """The messages that are whole now. RemoteProtocolError; LimitExceededError, as soon as the
        length of one that is too long is there."""
        partial = self._partial
        partial += data
        found: list[bytes] = []
        start = 0
        while len(partial) - start >= PREFIX_BYTES:
            kind, size = _PREFIX.unpack_from(partial, start)
            if kind != _MESSAGE_FRAME:
                raise RemoteProtocolError(f"a message of {self._call} is compressed, or is none")
            if size > message_bytes_max:
                raise LimitExceededError(
                    f"a message of {self._call}",
                    actual=size,
                    maximum=message_bytes_max,
                    unit="bytes",
                )
            stop = start + PREFIX_BYTES + size
            if len(partial) < stop:
                break
            found.append(bytes(partial[start + PREFIX_BYTES : stop]))
            start = stop
        del partial[:start]
        return found

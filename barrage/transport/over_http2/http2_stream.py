"""One stream of a connection: messages that are put together, and what waits to be sent.

Plain state, changed by its :class:`~barrage.transport.over_http2.http2_connection.Http2Connection`
alone. What has come is counted three ways: ``uncredited`` (bytes of DATA frames for which the peer
has got no new window), ``queued`` (those of messages that nobody has read) and ``partial`` (those
of the message that is still coming). Window is given for what is none of the last two, and for the
partial message too while somebody waits for it, so that it may be longer than the window.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from barrage.transport.over_http2.http2_frames import PREFIX, PREFIX_BYTES
from barrage.wire.message_parts import MessageParts

_SMALL_BYTES: Final = 1024
_TAIL_BYTES: Final = 16 * 1024

MESSAGE_OVERHEAD_BYTES: Final = 64
"""What a message costs beside its bytes while it waits."""


class MessageRefusedError(Exception):
    """A message that is not taken, which ends its call. Never leaves this package."""

    def __init__(self, *, is_too_long: bool, text: str) -> None:
        self.is_too_long = is_too_long
        super().__init__(text)


class Http2Stream:
    """A call as the connection knows it."""

    __slots__ = (
        "_left",
        "_pieces",
        "_prefix",
        "_tail",
        "has_length",
        "is_answered",
        "is_closed",
        "is_refused",
        "is_remote_ended",
        "is_wanted",
        "messages",
        "partial",
        "pending",
        "queued",
        "receive_window",
        "send_window",
        "stream_id",
        "trailers",
        "uncredited",
    )

    def __init__(self, stream_id: int, *, receive_window: int, send_window: int) -> None:
        self.stream_id = stream_id
        self.receive_window = receive_window
        self.send_window = send_window
        self.messages: deque[bytes] = deque()
        self.uncredited = 0
        self.queued = 0
        self.partial = 0
        self.is_wanted = False
        self.is_answered = False
        self.is_remote_ended = False
        self.is_refused = False
        """What still comes is thrown away."""
        self.is_closed = False
        self.has_length = False
        """Whether the request says how long it is, which h2 would compare with what it sees."""
        self.pending: deque[OutgoingMessage] = deque()
        self.trailers: list[tuple[bytes, bytes]] | None = None
        self._prefix = b""
        self._left = -1
        self._pieces: list[bytes] = []
        self._tail = bytearray()

    @property
    def creditable(self) -> int:
        """Bytes for which the peer may have new window now."""
        held = self.queued if self.is_wanted else self.queued + self.partial
        return self.uncredited - held

    def feed(self, piece: memoryview, message_bytes_max: int) -> int:
        """Take what came in DATA frames; how many messages are whole now. The length of a message
        is checked when its prefix is there. MessageRefusedError."""
        count = 0
        while True:
            if self._left < 0:
                if self._prefix or len(piece) < PREFIX_BYTES:
                    more = PREFIX_BYTES - len(self._prefix)
                    self._prefix += piece[:more]
                    self.partial = len(self._prefix)
                    if self.partial < PREFIX_BYTES:
                        return count
                    head, piece = self._prefix, piece[more:]
                    self._prefix = b""
                    flag, length = PREFIX.unpack(head)
                else:
                    flag, length = PREFIX.unpack_from(piece)
                    piece = piece[PREFIX_BYTES:]
                    self.partial = PREFIX_BYTES
                _check(flag, length, message_bytes_max)
                self._left = length
            taken = piece[: self._left]
            self._left -= len(taken)
            if self._left:
                self._keep(taken)
                return count
            self._complete(bytes(taken))
            count += 1
            piece = piece[len(taken) :]
            if not piece:
                return count

    def _keep(self, piece: memoryview) -> None:
        """Part of a message. Small pieces are gathered: a byte by itself costs fifty."""
        self.partial += len(piece)
        if len(piece) < _SMALL_BYTES and len(self._tail) < _TAIL_BYTES:
            self._tail += piece
            return
        self._flush_tail()
        self._pieces.append(bytes(piece))

    def _flush_tail(self) -> None:
        if self._tail:
            self._pieces.append(bytes(self._tail))
            self._tail.clear()

    def _complete(self, last: bytes) -> None:
        if self._pieces or self._tail:
            self._flush_tail()
            self._pieces.append(last)
            last = b"".join(self._pieces)
            self._pieces = []
        self.messages.append(last)
        self.queued += len(last) + PREFIX_BYTES
        self.partial = 0
        self._left = -1

    def drop_received(self) -> None:
        """Nobody will read what has come."""
        self.messages.clear()
        self.queued = self.partial = 0
        self._prefix = b""
        self._pieces = []
        self._tail.clear()


def _check(flag: int, length: int, length_max: int) -> None:
    if flag:
        raise MessageRefusedError(
            is_too_long=False, text="a message says that it is compressed; identity is the rule"
        )
    if length > length_max:
        raise MessageRefusedError(
            is_too_long=True,
            text=f"Received message larger than max ({length} vs. {length_max})",
        )


class OutgoingMessage:
    """A message that waits for windows. Sent in pieces, none of which is copied before the write
    to the socket."""

    __slots__ = ("is_begun", "parts", "ticket")

    def __init__(
        self, message: bytes | MessageParts, ticket: object, *, is_framed: bool = True
    ) -> None:
        """Not framed are bytes of a body that are no message."""
        self.parts: deque[memoryview] = deque()
        if is_framed:
            self.parts.append(memoryview(PREFIX.pack(0, len(message))))
        if isinstance(message, MessageParts):
            self.parts += message.views
        elif message:
            self.parts.append(memoryview(message))
        self.ticket = ticket
        self.is_begun = False

    def cut(self, room: int) -> tuple[list[memoryview], int]:
        """Up to ``room`` bytes from the front, and how many they are."""
        self.is_begun = True
        taken: list[memoryview] = []
        size = 0
        while self.parts and size < room:
            part = self.parts[0]
            if size + len(part) <= room:
                taken.append(self.parts.popleft())
                size += len(part)
            else:
                taken.append(part[: room - size])
                self.parts[0] = part[room - size :]
                size = room
        return taken, size

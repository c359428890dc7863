"""One WebSocket after its handshake: messages in, messages out, and how it ends.

The protocol is that of ``websockets`` without its IO: frames of the peer, pings, closing. Frames to
the peer are laid out here, since a message is a head of two to ten bytes before what is to be sent.
What is made in one turn of the loop goes out in one write.

Bounds: the peer's messages by ``message_bytes_max``; what is sent by who sends, which stops while
:attr:`WebSocket.is_clogged`; what is sent all the same (answers to a peer that does not read) by
``web_replies_bytes_max``, past which the connection is cut.
"""

from __future__ import annotations

import asyncio
import logging
from enum import IntEnum
from typing import TYPE_CHECKING

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol as FrameProtocol
from websockets.protocol import Side, State

if TYPE_CHECKING:
    from typing import Protocol

    from barrage.limits import Limits

    class SocketPeer(Protocol):
        """What is spoken on a socket."""

        def text_received(self, text: str) -> None:
            """A text message has come."""
            ...

        def binary_received(self, data: bytes) -> None:
            """A binary message has come."""
            ...

        def writable(self) -> None:
            """The socket takes messages again."""
            ...

        def lost(self) -> None:
            """The connection has gone. Once, and nothing after it."""
            ...

        def drain(self) -> None:
            """The server stops: no more calls, and the end once those that are here have ended."""
            ...


class CloseReason(IntEnum):
    """Why a socket was closed, as the peer is told."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_TEXT = 1007
    TOO_LONG = 1009
    INTERNAL = 1011
    TRY_LATER = 1013
    BAD_MESSAGE = 4400
    NOT_LET_IN = 4401
    ORIGIN = 4403
    SILENT = 4408


_REASON_BYTES_MAX = 123
"""What a close frame has room for."""

_FLUSH_BYTES = 128 * 1024
"""What is made in one turn of the loop before it is written ahead of the turn's end."""

_BUFFER_BYTES_HIGH = 64 * 1024
_BUFFER_BYTES_LOW = 16 * 1024
"""Bytes the system has not taken, past which and below which messages wait and go on."""

_LAST_WORDS_SECONDS = 5.0
"""How long a connection that is closed waits for the peer to say so too."""

_JOINED_BYTES_MAX = 4096
"""Messages of fewer bytes are one piece, which costs less than three."""

_PART_BYTES = 2 * 1024
_FRAMES_AT_ONCE = 128
"""What comes is taken in parts until there were so many frames; the rest waits while others have
their turn. A small frame costs some microseconds, one that begins a call a hundred."""

_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)

_TEXT = 0x81
_BINARY = 0x82
_PING = bytes((0x89, 8)) + b"barrage?"

log = logging.getLogger(__name__)


def frame_head(kind: int, size: int) -> bytes:
    """What stands before a message of ``size`` bytes from a server."""
    if size < 126:
        return bytes((kind, size))
    if size < 65_536:
        return bytes((kind, 126)) + size.to_bytes(2, "big")
    return bytes((kind, 127)) + size.to_bytes(8, "big")


class TurnEnd:
    """What the sockets of one listener have made in a turn of the loop is written at its end, by
    one callback for all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[WebSocket] = []

    def add(self, socket: WebSocket) -> None:
        """It has something to send."""
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due.append(socket)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for socket in due:
            socket.flush()


class WebSocket:
    """On the loop of its connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        name: str,
        limits: Limits,
        turn_end: TurnEnd,
        message_bytes_max: int,
        keepalive_ms: int,
    ) -> None:
        """``name``: of the peer, for the log. ``message_bytes_max`` may change."""
        self.is_clogged = False
        self.name = name
        self._transport = transport
        self._limits = limits
        self._turn_end = turn_end
        self._core = FrameProtocol(Side.SERVER, max_size=message_bytes_max)
        self._peer: SocketPeer | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_gone = False
        self._has_said_close = False
        self._unread = b""
        """What has come and waits for the next turn of the loop."""
        self._is_held = False
        """Whether the peer is not to be read from, as who speaks to it says."""
        self._message: bytearray | None = None
        """What has come of a message that is not whole: one piece, so that fragments of no bytes,
        of which there may be any number, are nothing."""
        self._message_opcode = Opcode.BINARY
        self._keepalive_s = keepalive_ms / 1e3
        self._heard_at = self._loop.time()
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=_BUFFER_BYTES_HIGH, low=_BUFFER_BYTES_LOW)

    def begin(self, peer: SocketPeer) -> None:
        """What comes from now on is for ``peer``."""
        self._peer = peer
        if self._keepalive_s:
            self._timer = self._loop.call_later(self._keepalive_s, self._check_silence)

    def allow(self, message_bytes_max: int) -> None:
        """Take messages of so many bytes from now on."""
        self._core.max_message_size = message_bytes_max

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return not self._is_gone and self._core.state is State.OPEN

    # --- what comes -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes of the connection."""
        if self._is_gone:
            return
        self._heard_at = self._loop.time()
        if self._unread:
            self._unread += data
            return
        self._read_part(data)

    def _read_part(self, data: bytes) -> None:
        self._read(data)
        if self._unread:
            self._transport.pause_reading()
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Read on in what has come."""
        data, self._unread = self._unread, b""
        if self._is_gone or not data:
            return
        self._read_part(data)
        if not self._unread and not self._is_held:
            self._transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """As much as one turn of the loop is for."""
        core, at, count = self._core, 0, 0
        while at < len(data) and count < _FRAMES_AT_ONCE:
            core.receive_data(data[at : at + _PART_BYTES])
            at += _PART_BYTES
            frames = core.events_received()
            count += len(frames)
            for frame in frames:
                if isinstance(frame, Frame) and frame.opcode in _DATA and self._is_receiving:
                    self._take(frame)
        self._unread = data[at:]
        self._answer()

    @property
    def _is_receiving(self) -> bool:
        """Whether messages still count: not behind a close of ours, though before one of the
        peer's, which is answered by the time they are looked at."""
        return not self._is_gone and not self._has_said_close

    def eof_received(self) -> None:
        """The peer sends nothing more."""
        if not self._is_gone:
            while self._unread:
                self._read(self._unread)
            self._core.receive_eof()
            self._answer()
            self._transport.close()

    def _answer(self) -> None:
        """Send what the protocol wants sent, and end with it."""
        if self._is_gone:
            return
        for data in self._core.data_to_send():
            if data:
                self._put(data)
        if self._core.state is not State.OPEN:
            self._end()

    def _take(self, frame: Frame) -> None:
        """One frame of a message, which mostly is the whole message."""
        opcode, data = frame.opcode, bytes(frame.data)
        if opcode is not Opcode.CONT and not frame.fin:
            self._message, self._message_opcode = bytearray(data), opcode
            return
        if self._message is not None:
            self._message += data
            if not frame.fin:
                return
            opcode, data = self._message_opcode, bytes(self._message)
            self._message = None
        assert self._peer is not None
        if opcode is Opcode.BINARY:
            self._peer.binary_received(data)
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.close(CloseReason.INVALID_TEXT, "a text message is not UTF-8")
            return
        self._peer.text_received(text)

    # --- what goes --------------------------------------------------------------------------------

    def send_text(self, data: bytes) -> None:
        """One message of text; nothing when the socket is closed."""
        if self.is_open:
            self._put(frame_head(_TEXT, len(data)) + data)

    def send_binary(self, head: bytes, data: bytes) -> None:
        """One binary message, of two parts; nothing when the socket is closed."""
        if self._is_gone or self._core.state is not State.OPEN:
            return
        size = len(head) + len(data)
        if size < _JOINED_BYTES_MAX:
            self._put(b"".join((frame_head(_BINARY, size), head, data)))
        else:
            self._out.append(frame_head(_BINARY, size) + head)
            self._out_bytes += len(head)
            self._put(data)

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._turn_end.add(self)
        elif self._out_bytes > _FLUSH_BYTES and not self.is_clogged:
            self.flush()
        if self.is_clogged and self._waiting_bytes > self._limits.web_replies_bytes_max:
            log.info("%s does not read what it is answered", self.name)
            self.abort()

    @property
    def _waiting_bytes(self) -> int:
        """What was sent and the system has not taken."""
        return self._out_bytes + self._transport.get_write_buffer_size()

    def flush(self) -> None:
        """Write what there is, as far as the socket takes it."""
        self._is_flush_due = False
        out = self._out
        if out and not self._is_gone and not self.is_clogged:
            self._out = []
            self._out_bytes = 0
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)

    def pause_writing(self) -> None:
        """The system takes no more for now."""
        self.is_clogged = True

    def resume_writing(self) -> None:
        """It does again. Not used at once: asyncio calls this in the middle of its own write."""
        self.is_clogged = False
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.flush()
        if not self.is_clogged and self.is_open and self._peer is not None:
            self._peer.writable()

    # --- reading at our own pace ------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Take nothing from the peer for now. Idempotent."""
        self._is_held = True
        if not self._is_gone:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The opposite."""
        self._is_held = False
        if not self._is_gone:
            self._heard_at = self._loop.time()
            if not self._unread:
                self._transport.resume_reading()

    # --- how it ends ------------------------------------------------------------------------------

    def close(self, code: CloseReason, reason: str = "") -> None:
        """Say why, after what was sent before, and end. Idempotent."""
        if not self.is_open:
            return
        self._has_said_close = True
        self._core.send_close(code, _short(reason))
        self._answer()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    def connection_lost(self) -> None:
        """The connection has gone."""
        if self._is_gone:
            return
        self._is_gone = True
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None:
            self._peer.lost()

    def _end(self) -> None:
        """Nothing more is said. What was sent still goes out, and what comes is still read, for a
        while: a connection that is closed with something unread takes our last words with it."""
        self.is_clogged = False
        self.flush()
        if self._core.close_rcvd is not None or self._core.reader.eof:
            self._transport.close()
        elif self._core.eof_sent and self._transport.can_write_eof():
            self._transport.write_eof()
        self.resume_reading()
        self._cut_later()

    def _cut_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LAST_WORDS_SECONDS, self.abort)

    # --- silence ----------------------------------------------------------------------------------

    def _check_silence(self) -> None:
        """Ask a peer that has been silent whether it is there."""
        left = self._keepalive_s - (self._loop.time() - self._heard_at)
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
            return
        self._unsent_bytes = self._waiting_bytes
        self._put(_PING)
        wait = max(self._keepalive_s / 2, 1e-3)
        self._timer = self._loop.call_later(wait, self._check_answer, self._heard_at)

    def _check_answer(self, heard_at: float) -> None:
        """One that takes what was sent before the question is there, if slow."""
        if self._heard_at == heard_at and self._waiting_bytes >= self._unsent_bytes:
            log.info("%s does not answer any more", self.name)
            self.close(CloseReason.SILENT, "no answer to a ping")
            self._cut_later()
        else:
            self._check_silence()


def _short(reason: str) -> str:
    """As much of it as fits, in ASCII."""
    text = reason.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _REASON_BYTES_MAX else text[: _REASON_BYTES_MAX - 3] + "..."

"""Takes the bytes of a peer apart into frames, and refuses those that no peer may send.

What there is much of is read here: DATA as it comes, never a whole frame of it at a time,
WINDOW_UPDATE and PING. Other frames are handed on when they are whole. Frames without effect are
counted, and none costs memory before its length is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from barrage.transport.over_http2 import http2_frames as frames
from barrage.transport.over_http2.http2_frames import (
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    ID_MAX,
    NUMBER,
    PREFACE,
    Http2Error,
    Rate,
    broken,
    too_much,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeAlias

    from barrage.limits import Limits
    from barrage.transport.over_http2.http2_stream import Http2Stream

    class FrameTaker(Protocol):
        """What gets the frames. Every method may raise Http2Error."""

        def open_data(self, stream_id: int, length: int) -> Http2Stream | None: ...
        def receive_payload(self, stream: Http2Stream, piece: memoryview) -> None: ...
        def end_data(self, stream: Http2Stream) -> None: ...
        def receive_window_update(self, stream_id: int, increment: int) -> None: ...
        def receive_ping(self, payload: bytes) -> None: ...
        def receive_reset(self, stream_id: int, frame: bytes) -> None: ...
        def receive_settings(self, frame: bytes) -> None: ...
        def receive_control(self, frame: bytes) -> None: ...

    Read: TypeAlias = Callable[["_Head"], int]

_WINDOW_UPDATE = 4 << 8 | frames.WINDOW_UPDATE
_WINDOW_UPDATE_BYTES = FRAME_HEAD_BYTES + 4
_SETTINGS_BYTES_MAX = 6 * 64

_AT_ONCE = 128
"""Frames that are read before others have their turn: a call takes two, and a tenth of a
millisecond. Those that give credit do not count."""

_MORE = 0
"""Used bytes of a frame that is not whole yet."""


class _Head:
    """The head of a frame, and where it is."""

    __slots__ = ("at", "data", "flags", "length", "stream_id")

    def __init__(self, data: bytes, at: int, length: int) -> None:
        self.data = data
        self.at = at
        self.length = length
        self.flags = data[at + 4]
        self.stream_id = NUMBER.unpack_from(data, at + 5)[0] & ID_MAX

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEAD_BYTES + self.length

    @property
    def is_whole(self) -> bool:
        return len(self.data) - self.at >= self.frame_bytes

    def frame(self) -> bytes:
        return self.data[self.at : self.at + self.frame_bytes]


class FrameReader:
    """What is left over of the bytes so far, and in which frame they end."""

    def __init__(self, taker: FrameTaker, *, limits: Limits, frame_bytes_max: int) -> None:
        self._taker = taker
        self._limits = limits
        self._frame_bytes_max = frame_bytes_max
        self._pings = Rate("PINGs", limits.http2_pings_per_s_max)
        self._idle = Rate("frames without effect", limits.http2_idle_frames_per_s_max)
        self._now_ns = 0
        self._rest = b""
        self.is_open = False
        """Whether the preface and the first settings have come."""
        self.is_behind = False
        """Whether frames that have come are still to be read."""
        self._has_preface = False
        # The frame whose payload is coming: bytes of it, of padding after it, whose, and whether it
        # is the last. That of a stream that has ended is all padding.
        self._payload_left = 0
        self._padding_left = 0
        self._stream: Http2Stream | None = None
        self._ends = False
        # The block of headers that is coming: its stream, and how long it is so far.
        self._block_id = 0
        self._block_bytes = 0
        self._readers: dict[int, Read] = {
            frames.DATA: self._read_data,
            frames.HEADERS: self._read_headers,
            frames.PRIORITY: self._read_priority,
            frames.RST_STREAM: self._read_reset,
            frames.SETTINGS: self._read_settings,
            frames.PUSH_PROMISE: self._read_push,
            frames.PING: self._read_ping,
            frames.WINDOW_UPDATE: self._read_window_update,
            frames.CONTINUATION: self._read_continuation,
        }

    def read(self, data: bytes, now_ns: int) -> None:
        """Take bytes, however they are cut. After many frames the rest waits
        (:attr:`is_behind`) for the next call, which may have nothing to add. Http2Error ends the
        connection."""
        self._now_ns = now_ns
        self.is_behind = False
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        if not self._has_preface:
            at = self._read_preface(data)
            if not self._has_preface:
                return
        size = len(data)
        turns = _AT_ONCE
        window_update = self._taker.receive_window_update
        while at < size:
            if self._payload_left or self._padding_left:
                at = self._read_payload(data, at)
                continue
            if size - at < FRAME_HEAD_BYTES:
                break
            word, _, stream_id = FRAME_HEAD.unpack_from(data, at)
            if (
                word == _WINDOW_UPDATE
                and size - at >= _WINDOW_UPDATE_BYTES
                and not self._block_id
                and self.is_open
            ):
                more = NUMBER.unpack_from(data, at + FRAME_HEAD_BYTES)[0]
                window_update(stream_id & ID_MAX, more & ID_MAX)
                at += _WINDOW_UPDATE_BYTES
                continue
            if not turns:
                self.is_behind = True
                break
            turns -= 1
            used = self._read_frame(data, at, word)
            if used == _MORE:
                break
            at += used
        if at < size:
            self._rest = data[at:]

    def _read_preface(self, data: bytes) -> int:
        have = data[: len(PREFACE)]
        if not PREFACE.startswith(have):
            raise broken("no HTTP/2 client")
        if len(have) < len(PREFACE):
            self._rest = data
            return 0
        self._has_preface = True
        self._taker.receive_control(PREFACE)
        return len(PREFACE)

    def _read_frame(self, data: bytes, at: int, word: int) -> int:
        """Take one frame; how many bytes were used, or none while there are too few."""
        kind, length = word & 0xFF, word >> 8
        if length > self._frame_bytes_max:
            raise _wrong_size("a frame that is too long")
        if not self.is_open and kind != frames.SETTINGS:
            raise broken("the first frame is not SETTINGS")
        if self._block_id and kind != frames.CONTINUATION:
            raise broken("a frame in the middle of a block of headers")
        return self._readers.get(kind, self._read_ignored)(_Head(data, at, length))

    # --- DATA -------------------------------------------------------------------------------------

    def _read_data(self, head: _Head) -> int:
        used = FRAME_HEAD_BYTES
        padding = 0
        if head.flags & frames.PADDED:
            if head.length == 0:
                raise _wrong_size("padding without a length")
            if len(head.data) - head.at <= used:
                return _MORE
            padding = head.data[head.at + used]
            used += 1
            if padding >= head.length:
                raise broken("more padding than there is frame")
        payload = head.length - (used - FRAME_HEAD_BYTES) - padding
        ends = bool(head.flags & frames.END_STREAM)
        stream = self._taker.open_data(head.stream_id, head.length)
        if stream is None:
            payload, padding = 0, padding + payload
        if head.length == 0 and (stream is None or not ends):
            self._idle.count(self._now_ns)
        self._payload_left, self._padding_left = payload, padding
        self._stream, self._ends = stream, ends
        if not payload and not padding:
            self._end_data()
        return used

    def _read_payload(self, data: bytes, at: int) -> int:
        """Take what there is of a payload or of what is thrown away; where it ends."""
        left = self._payload_left
        if left:
            stop = min(at + left, len(data))
            self._payload_left = left - (stop - at)
            if self._stream is not None:
                self._taker.receive_payload(self._stream, memoryview(data)[at:stop])
        else:
            stop = min(at + self._padding_left, len(data))
            self._padding_left -= stop - at
        if not self._payload_left and not self._padding_left:
            self._end_data()
        return stop

    def _end_data(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._ends:
            self._taker.end_data(stream)

    # --- headers ----------------------------------------------------------------------------------

    def _read_headers(self, head: _Head) -> int:
        self._check_block(head.length)
        if not head.is_whole:
            return _MORE
        if not head.flags & frames.END_HEADERS:
            self._block_id = head.stream_id
            self._block_bytes = head.length
        self._taker.receive_control(head.frame())
        return head.frame_bytes

    def _read_continuation(self, head: _Head) -> int:
        if not self._block_id or head.stream_id != self._block_id:
            raise broken("a CONTINUATION of nothing")
        self._check_block(self._block_bytes + head.length)
        if not head.is_whole:
            return _MORE
        self._block_bytes += head.length
        if head.flags & frames.END_HEADERS:
            self._block_id = self._block_bytes = 0
        self._taker.receive_control(head.frame())
        return head.frame_bytes

    def _check_block(self, size: int) -> None:
        if size > self._limits.http2_header_bytes_max:
            raise too_much(f"headers of more than {self._limits.http2_header_bytes_max} bytes")

    # --- the others -------------------------------------------------------------------------------

    def _read_reset(self, head: _Head) -> int:
        if head.length != 4:
            raise _wrong_size("RST_STREAM")
        if not head.is_whole:
            return _MORE
        self._taker.receive_reset(head.stream_id, head.frame())
        return head.frame_bytes

    def _read_settings(self, head: _Head) -> int:
        if head.length > _SETTINGS_BYTES_MAX:
            raise too_much("SETTINGS that are too long")
        if not self.is_open and head.flags & frames.ACK:
            raise broken("the first frame is not SETTINGS")
        if not head.is_whole:
            return _MORE
        self.is_open = True
        self._taker.receive_settings(head.frame())
        return head.frame_bytes

    def _read_ping(self, head: _Head) -> int:
        if head.length != 8:
            raise _wrong_size("PING")
        if head.stream_id:
            raise broken("PING on a stream")
        if not head.is_whole:
            return _MORE
        self._pings.count(self._now_ns)
        if not head.flags & frames.ACK:
            start = head.at + FRAME_HEAD_BYTES
            self._taker.receive_ping(head.data[start : start + 8])
        return head.frame_bytes

    def _read_window_update(self, head: _Head) -> int:
        """One that is cut, since whole ones are taken as they come, or a wrong one."""
        if head.length != 4:
            raise _wrong_size("WINDOW_UPDATE")
        return _MORE

    def _read_priority(self, head: _Head) -> int:
        if head.length != 5:
            raise _wrong_size("PRIORITY")
        if not head.stream_id:
            raise broken("PRIORITY of the connection")
        return self._read_ignored(head)

    def _read_push(self, head: _Head) -> int:
        raise broken("PUSH_PROMISE of a client")

    def _read_ignored(self, head: _Head) -> int:
        """Of an unknown type, or without meaning for a server; a client's GOAWAY too, as it says
        nothing of the calls that are under way."""
        self._idle.count(self._now_ns)
        self._stream, self._ends = None, False
        self._padding_left = head.length
        return FRAME_HEAD_BYTES


def _wrong_size(text: str) -> Http2Error:
    return Http2Error(ErrorCodes.FRAME_SIZE_ERROR, f"the size of {text}")

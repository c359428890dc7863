"""What comes in on one HTTP/2 connection, counted: gRPC messages by stream, and nothing decoded.

A tight loop over the bytes received. A DATA frame that holds exactly one message, which is what
servers send for small ones, costs one turn of it; anything else (messages in pieces, several in a
frame, padding) goes a slower way with the same count. Credit is given back in batches: a stream's
when half of its window is used, the connection's by the mebibyte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np

FRAME_BYTES_MAX = 16384
"""Longest frame we ask for, which is also what HTTP/2 begins with."""

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
ARRIVALS_MAX = 50_000_000
SAMPLE_EVERY = 64
SAMPLES_MAX = 20_000

STREAM_WINDOW_BYTES = 1024 * 1024
CONNECTION_CREDIT_BYTES = 1024 * 1024
"""The connection's credit is given back in portions of this."""

DATA, HEADERS, RST_STREAM, WINDOW_UPDATE = 0, 1, 3, 8
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 0x20
PREFIX_BYTES = 5
"""gRPC's: compressed or not, and the length."""

_HEAD_BYTES = 9
_HEAD = Struct(">HBBBI")
_LENGTH = Struct(">I")
_CREDIT = Struct(">HBBBII")
_STREAM = 0x7FFFFFFF
_IN_PREFIX = -1


class LoadError(RuntimeError):
    """The server does what a benchmark cannot go on with."""


def credit_frame(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE."""
    return _CREDIT.pack(0, 4, WINDOW_UPDATE, 0, stream, size)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame; LoadError when it is too long for a server that said nothing."""
    if len(payload) > FRAME_BYTES_MAX:
        raise LoadError(f"a frame of {len(payload)} bytes, at most {FRAME_BYTES_MAX} may be sent")
    return _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload


@dataclass(slots=True)
class Arrivals:
    """Which view got a message when, for all connections."""

    views: list[int] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """How many messages there were after a portion of bytes, and when that came, in ns."""
    samples: list[tuple[int, bytes]] = field(default_factory=list)
    """Some messages and when they came, in ns since 1970."""
    bytes: int = 0

    def clear(self) -> None:
        """Begin anew."""
        self.views.clear()
        self.marks.clear()
        self.samples.clear()
        self.bytes = 0

    def mark(self, now_ns: int) -> None:
        """A portion is counted; LoadError past the limit."""
        if len(self.views) > ARRIVALS_MAX:
            raise LoadError(f"more than {ARRIVALS_MAX} messages")
        self.marks.append((len(self.views), now_ns))

    def gaps_ms(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Between each two consecutive messages of one view, all views together."""
        if not self.marks:
            return np.empty(0)
        ends, times = np.array(self.marks, np.int64).T
        when = np.repeat(times, np.diff(ends, prepend=0))
        views = np.array(self.views, np.int64)
        order = np.argsort(views, kind="stable")
        is_same = np.diff(views[order]) == 0
        return np.asarray(np.diff(when[order])[is_same] / 1e6)


class FrameCounter:
    """The receiving half of one connection."""

    def __init__(self, arrivals: Arrivals, *, buffer_bytes: int = 1024 * 1024) -> None:
        self.buffer = bytearray(max(buffer_bytes, 2 * (_HEAD_BYTES + FRAME_BYTES_MAX)))
        self.end = 0
        """Bytes of the buffer that are filled; who receives adds to it and calls :meth:`take`."""
        self.credit = bytearray()
        """WINDOW_UPDATE frames to be sent."""
        self.control: list[tuple[int, int, int, bytes]] = []
        """Frames of other kinds, to be looked at by others: kind, flags, stream, payload."""
        self._arrivals = arrivals
        self._views: list[int] = []
        self._left: list[int] = []
        """Bytes that are missing of each stream's message."""
        self._prefixes: dict[int, bytes] = {}
        self._used: list[int] = []
        self._used_together = 0

    def add_stream(self, view: int) -> int:
        """The number of a new stream, whose messages are those of ``view``."""
        self._views.append(view)
        self._left.append(0)
        self._used.append(0)
        return 2 * len(self._views) - 1

    def take(self, now_ns: int, wall_ns: int) -> None:
        """Count the frames that are complete; LoadError for one that is too long, or of a stream
        that nobody opened."""
        buffer, end, at = self.buffer, self.end, 0
        views, left, used = self._views, self._left, self._used
        seen = self._arrivals.views
        append, read_head, read_length = seen.append, _HEAD.unpack_from, _LENGTH.unpack_from
        half = STREAM_WINDOW_BYTES // 2
        together = 0
        while end - at >= _HEAD_BYTES:
            high, low, kind, flags, stream = read_head(buffer, at)
            size = high << 8 | low
            start = at + _HEAD_BYTES
            stop = start + size
            if stop > end:
                if size > FRAME_BYTES_MAX:
                    raise LoadError(f"a frame of {size} bytes, {FRAME_BYTES_MAX} are allowed")
                break
            if kind == DATA:
                local = (stream & _STREAM) >> 1
                if local >= len(views):
                    raise LoadError(f"data of stream {stream}, which nobody opened")
                is_one = (
                    left[local] == 0
                    and size >= PREFIX_BYTES
                    and not flags & PADDED
                    and read_length(buffer, start + 1)[0] == size - PREFIX_BYTES
                )
                if is_one:
                    append(views[local])
                    if not len(seen) % SAMPLE_EVERY:
                        self._sample(wall_ns, start, stop)
                else:
                    self._take_pieces(local, flags, bytes(buffer[start:stop]))
                together += size
                credit = used[local] + size
                if credit >= half:
                    self.credit += credit_frame(stream, credit)
                    credit = 0
                used[local] = credit
            else:
                self.control.append((kind, flags, stream & _STREAM, bytes(buffer[start:stop])))
            at = stop
        self._keep(at, together)
        self._arrivals.mark(now_ns)

    def _sample(self, wall_ns: int, start: int, stop: int) -> None:
        samples = self._arrivals.samples
        if len(samples) < SAMPLES_MAX:
            samples.append((wall_ns, bytes(self.buffer[start + PREFIX_BYTES : stop])))

    def _take_pieces(self, local: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise LoadError("a frame with more padding than bytes")
            payload = payload[1 : len(payload) - payload[0]]
        at = 0
        while at < len(payload):
            if self._left[local] > 0:
                piece = min(self._left[local], len(payload) - at)
                self._left[local] -= piece
                at += piece
            else:
                kept = self._prefixes.pop(local, b"")
                prefix = kept + payload[at : at + PREFIX_BYTES - len(kept)]
                at += len(prefix) - len(kept)
                if len(prefix) < PREFIX_BYTES:
                    self._prefixes[local] = prefix
                    self._left[local] = _IN_PREFIX
                    return
                self._left[local] = _message_bytes(prefix)
            if self._left[local] == 0:
                self._arrivals.views.append(self._views[local])

    def _keep(self, at: int, together: int) -> None:
        """The rest waits for more; the credit of the connection."""
        rest = self.end - at
        if at and rest:
            self.buffer[:rest] = self.buffer[at : self.end]
        self.end = rest
        self._arrivals.bytes += together
        self._used_together += together
        if self._used_together >= CONNECTION_CREDIT_BYTES:
            self.credit += credit_frame(0, self._used_together)
            self._used_together = 0


def _message_bytes(prefix: bytes) -> int:
    size = int(_LENGTH.unpack_from(prefix, 1)[0])
    if size > MESSAGE_BYTES_MAX:
        raise LoadError(f"a message of {size} bytes, {MESSAGE_BYTES_MAX} are allowed")
    return size

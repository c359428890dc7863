"""A page's end in the kernel: it stands where a server has a WebSocket, and what it sends are
messages of a widget.

A message of the widget holds what was made in one turn of the loop. They are numbered, since a
server of notebooks leaves some out when there are many; the page then begins again. So that it need
not, a :class:`Pace` has streams wait in time. Nothing of a stream is sent ahead of what the page
has acknowledged by more than its window, as on a WebSocket.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from barrage.transport.over_websocket.web_socket import CloseReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from barrage.clock import Clock
    from barrage.limits import Limits

    class PortPeer(Protocol):
        """What is spoken at a port."""

        def text_received(self, text: str) -> None:
            """A text message has come."""
            ...

        def binary_received(self, data: bytes) -> None:
            """A binary message has come."""
            ...

        def writable(self) -> None:
            """The port takes messages again."""
            ...

        def lost(self) -> None:
            """The page has gone. Once, and nothing after it."""
            ...

    SendToPage = Callable[[dict[str, Any], list[bytes]], None]
    """Sends one message of the widget, its content and its buffers."""


MESSAGE_BYTES = 200
"""What a message of the widget costs beside what is in it, about."""


class Pace:
    """How many bytes go to pages in a second, of all of them together. Any thread."""

    def __init__(self, clock: Clock, *, bytes_per_s: int, burst: int) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._burst = burst
        self._left = float(burst)
        self._at_ns = clock.monotonic_ns()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """How long nothing may be sent; 0 when something may now."""
        with self._lock:
            now = self._clock.monotonic_ns()
            gained = (now - self._at_ns) / 1e9 * self._bytes_per_s
            self._left = min(self._burst, self._left + gained)
            self._at_ns = now
            return max(0.0, -self._left / self._bytes_per_s)

    def spend(self, size: int) -> None:
        """So much is sent. One message may be more than is left; the next ones wait for it."""
        with self._lock:
            self._left -= size


class PagePort:
    """One page. On the loop of the session."""

    def __init__(self, page: str, send: SendToPage, *, pace: Pace, limits: Limits) -> None:
        self.is_clogged = False
        self._page = page
        self._send = send
        self._pace = pace
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._peer: PortPeer | None = None
        self._allowed = limits.web_message_bytes_max
        self._parts: list[str | None] = []
        self._buffers: list[bytes] = []
        self._bytes = 0
        self._number = 0
        self._is_flush_due = False
        self._is_over = False
        self._last_words: asyncio.TimerHandle | None = None
        """Of a page that is over, while the pace has them wait."""

    def begin(self, peer: PortPeer) -> None:
        """What comes from now on is for ``peer``."""
        self._peer = peer

    @property
    def is_open(self) -> bool:
        """Whether the page is there, as far as it is known."""
        return not self._is_over

    @property
    def is_gone(self) -> bool:
        """Whether it is over, and nothing more goes to it."""
        return self._is_over and self._last_words is None

    # --- what comes -------------------------------------------------------------------------------

    def received(self, parts: Sequence[str | None], buffers: Sequence[bytes]) -> None:
        """The page has sent these: texts, and None for each binary message."""
        binary = iter(buffers)
        for part in parts:
            if self._is_over or self._peer is None:
                return
            data = next(binary, b"") if part is None else part
            if len(data) > self._allowed:
                self.close(CloseReason.TOO_LONG, f"a message of {len(data)} bytes or characters")
            elif isinstance(data, str):
                self._peer.text_received(data)
            else:
                self._peer.binary_received(data)

    def allow(self, message_bytes_max: int) -> None:
        self._allowed = message_bytes_max

    def pause_reading(self) -> None:
        """A kernel cannot have its page wait: one that asks for more than can be answered ends."""
        self.close(CloseReason.TRY_LATER, "more was asked than is answered")

    def resume_reading(self) -> None:
        """There is nothing to go on with."""

    # --- what goes --------------------------------------------------------------------------------

    def send_text(self, data: bytes) -> None:
        self._put(data.decode(), len(data))

    def send_binary(self, head: bytes, data: bytes) -> None:
        if not self._is_over:
            self._buffers.append(head + data)
            self._put(None, len(head) + len(data))

    def _put(self, part: str | None, size: int) -> None:
        if self._is_over:
            return
        self._parts.append(part)
        self._bytes += size
        if self._bytes > self._limits.web_replies_bytes_max:
            self._drop_waiting()
            self.close(CloseReason.TRY_LATER, "the page does not take what it is answered")
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._is_over:
            return
        wait = self._pace.wait_s()
        if wait > 0:
            self.is_clogged = True
            self._loop.call_later(wait, self._flush)
            return
        self._is_flush_due = False
        self._send_waiting({})
        if self.is_clogged:
            self.is_clogged = False
            if self._peer is not None:
                self._peer.writable()

    def _send_waiting(self, more: dict[str, Any]) -> None:
        self._bytes += MESSAGE_BYTES
        content = {"page": self._page, "number": self._number, "parts": self._parts, **more}
        buffers, size = self._buffers, self._bytes
        self._drop_waiting()
        self._number += 1
        self._pace.spend(size)
        self._send(content, buffers)

    def _drop_waiting(self) -> None:
        self._parts, self._buffers, self._bytes = [], [], 0

    # --- how it ends ------------------------------------------------------------------------------

    def close(self, code: CloseReason, reason: str = "") -> None:
        """Say why, after what was sent before, and end. Where the pace has the page wait, only why
        is said, and once that may be. Idempotent."""
        if self._is_over:
            return
        close = {"close": [int(code), reason]}
        wait = self._pace.wait_s()
        if wait > 0:
            self._drop_waiting()
            self._last_words = self._loop.call_later(wait, self._say_at_last, close)
        else:
            self._send_waiting(close)
        self._end()

    def _say_at_last(self, close: dict[str, Any]) -> None:
        wait = self._pace.wait_s()
        if wait > 0:
            self._last_words = self._loop.call_later(wait, self._say_at_last, close)
            return
        self._last_words = None
        self._send_waiting(close)

    def lost(self) -> None:
        """The page has gone: nothing more is sent to it. Idempotent."""
        if self._last_words is not None:
            self._last_words.cancel()
            self._last_words = None
        self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._drop_waiting()
        if self._peer is not None:
            self._loop.call_soon(self._peer.lost)

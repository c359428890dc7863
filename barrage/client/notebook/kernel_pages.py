"""The pages of one widget, in the kernel: whatever thread their messages come on, and what becomes
of pages that say nothing any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from barrage.client.notebook.page_door import CLOSED
from barrage.client.notebook.page_port import MESSAGE_BYTES
from barrage.transport.over_websocket.web_socket import CloseReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from barrage.client.notebook.page_door import PageDoor
    from barrage.client.notebook.page_port import Pace, PagePort, SendToPage
    from barrage.limits import Limits

_UNNUMBERED = -1
"""Of a message that has no place behind those before it: the page begins again."""


class _FromPage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the widget."""

    page: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    parts: Annotated[list[str | None], msgspec.Meta(max_length=4096)]
    opens: bool = False
    close: int | None = None


class KernelPages:
    """Pages live on the loop of the session."""

    def __init__(
        self,
        make_door: Callable[[], PageDoor],
        send: SendToPage,
        *,
        loop: asyncio.AbstractEventLoop,
        pace: Pace,
        limits: Limits,
    ) -> None:
        """``make_door`` is called on the loop. So is ``send``, but on the thread that a message has
        come on once the loop has ended."""
        self._make_door = make_door
        self._door: PageDoor | None = None
        self._send = send
        self._pace = pace
        self._limits = limits
        self._loop = loop
        self._ports: dict[str, PagePort] = {}
        self._heard: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._silence_s = limits.notebook_silence_ns_max / 1e9
        self._is_closed = False

    @property
    def count(self) -> int:
        """Pages that are there."""
        return len(self._ports)

    def received(self, content: object, buffers: Sequence[Any]) -> None:
        """A message of the widget has come. Any thread; what is none is ignored, and so is whatever
        comes after the widget was closed."""
        if self._is_closed:
            return
        try:
            message = msgspec.convert(content, _FromPage)
        except msgspec.ValidationError:
            return
        try:
            self._loop.call_soon_threadsafe(
                self._receive, message, [bytes(each) for each in buffers]
            )
        except RuntimeError:
            # The session is closed, and its loop with it.
            if message.close is None:
                number = 0 if message.opens else _UNNUMBERED
                self._refuse(message.page, number, (CloseReason.NOT_LET_IN, CLOSED))

    def close(self) -> None:
        """The widget is closed: its pages are told, as far as their pace lets them be told now, and
        nothing is sent or kept any more. Any thread."""
        self._is_closed = True
        try:
            self._loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            return  # Its pages went with the loop.

    # --- on the loop ------------------------------------------------------------------------------

    def _receive(self, message: _FromPage, buffers: list[bytes]) -> None:
        if self._is_closed:
            return
        page = message.page
        port = self._ports.get(page)
        if port is not None and not (port.is_open or port.is_gone):
            if message.close is not None:
                port.lost()
            return  # It will be told why it was closed, and begins again then.
        if port is None or not port.is_open:
            self._forget(page)
            if message.close is not None:
                return
            port = self._open(message)
            if port is None:
                return
        self._heard[page] = self._loop.time()
        port.received(message.parts, buffers)
        if message.close is not None:
            port.lost()
            self._forget(page)

    def _open(self, message: _FromPage) -> PagePort | None:
        page = message.page
        if not message.opens:
            self._refuse(page, _UNNUMBERED, (CloseReason.SILENT, "the page was not heard of"))
            return None
        for other in [name for name, port in self._ports.items() if port.is_gone]:
            self._forget(other)
        most = self._limits.notebook_pages_max
        if len(self._ports) >= most:
            reason = f"the table is shown in {most} places, the most there may be"
            self._refuse(page, 0, (CloseReason.TRY_LATER, reason))
            return None
        if self._door is None:
            self._door = self._make_door()
        port = self._ports[page] = self._door.open(page, self._send, self._pace)
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence_s / 4, self._look)
        return port

    def _refuse(self, page: str, number: int, close: tuple[CloseReason, str]) -> None:
        """Unless its pace is used up: a page that hears nothing asks again."""
        code, reason = close
        if self._pace.wait_s() > 0:
            return
        self._pace.spend(MESSAGE_BYTES)
        self._send({"page": page, "number": number, "parts": [], "close": [int(code), reason]}, [])

    def _forget(self, page: str) -> None:
        self._ports.pop(page, None)
        self._heard.pop(page, None)

    def _look(self) -> None:
        """End pages that were not heard of for long: nobody says that a browser has gone."""
        self._timer = None
        oldest = self._loop.time() - self._silence_s
        for page, heard in list(self._heard.items()):
            if heard < oldest:
                port = self._ports[page]
                port.close(CloseReason.SILENT, "the page was not heard of")
                port.lost()
                self._forget(page)
        if self._ports:
            self._timer = self._loop.call_later(self._silence_s / 4, self._look)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for page, port in list(self._ports.items()):
            port.close(CloseReason.NOT_LET_IN, "the widget was closed")
            port.lost()
            self._forget(page)

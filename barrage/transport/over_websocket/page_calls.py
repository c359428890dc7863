"""The calls on the socket of a page: streams with their windows, actions, and who calls."""

from __future__ import annotations

import base64
from collections import deque
from typing import TYPE_CHECKING, Protocol

from barrage.errors import RemoteProtocolError, StatusCode
from barrage.transport import flight_messages
from barrage.transport.over_websocket.control_messages import told
from barrage.transport.over_websocket.socket_call import SocketCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.transport.over_websocket.call_socket import MessageSocket
    from barrage.transport.over_websocket.socket_call import Metadata, SocketCarrier

    class Page(SocketCarrier, Protocol):
        """Whose calls they are."""

        socket: MessageSocket

        def ended(self, call: PageCall, code: StatusCode | None, details: str) -> None:
            """A stream has ended."""
            ...

        def send_result(self, number: int, body: bytes) -> None:
            """The answer to an action."""
            ...

        def fail_action(self, number: int, code: StatusCode, details: str) -> None:
            """It has none."""
            ...

        def end_action(self, number: int) -> None:
            """Nothing more is for it."""
            ...

        def let_in(self, caller: bytes) -> None:
            """The page is somebody: a caller in JSON."""
            ...

        def turn_out(self, code: StatusCode, details: str) -> None:
            """It is nobody, or nobody any more."""
            ...


_UPLOAD = "/DoPut"
_VARINT_BYTES_MAX = 5


class PageCall(SocketCall):
    """A stream. What was sent and not acknowledged is bounded in messages and in bytes."""

    def __init__(
        self,
        page: Page,
        stream: int,
        *,
        method: str,
        metadata: Metadata,
        window: int,
        window_bytes: int,
    ) -> None:
        super().__init__(page, stream, method=method, metadata=metadata)
        self.is_paused = False
        """Whether the page looks at nothing for now."""
        self._page = page
        self._head = varint(stream)
        self._window = window
        self._window_bytes = window_bytes
        self._sizes: deque[int] = deque()
        """Of the messages that are on their way."""
        self._bytes = 0
        self._acknowledged = 0
        self._sent = 0
        self._views: deque[tuple[int, bytes]] = deque()
        """Tokens to be told, each with the number of messages before it."""
        self._renew: Callable[[], None] | None = None
        # Results of an upload are few and small. Were they to wait for a page, the upload would,
        # and with it what the page says on other streams.
        self._is_windowed = not method.endswith(_UPLOAD)

    def has_room(self) -> bool:
        if self._page.is_clogged:
            return False
        if not self._is_windowed or not (self._sizes or self.is_paused):
            return True
        return (
            not self.is_paused
            and len(self._sizes) < self._window
            and self._bytes < self._window_bytes
        )

    def put_headers(self, headers: Metadata) -> None:
        shown = {name: value for name, value in headers if isinstance(value, str)}
        self._page.socket.send_text(told("headers", stream=self.stream, headers=shown))

    def put(self, data: bytes) -> None:
        if self._views and self._views[0][0] == self._sent:
            token = base64.b64encode(self._views.popleft()[1]).decode()
            self._page.socket.send_text(told("view", stream=self.stream, token=token))
        self._sent += 1
        self._page.socket.send_binary(self._head, data)
        if self._is_windowed:
            self._sizes.append(len(data))
            self._bytes += len(data)

    def put_end(self, code: StatusCode | None, details: str, _trailers: Metadata) -> None:
        self._page.ended(self, code, details)

    def acknowledge(self, count: int) -> None:
        """The page has so many messages behind it; RemoteProtocolError when it has not had
        them."""
        if count > self._sent:
            raise RemoteProtocolError(
                f"{count} messages of stream {self.stream} acknowledged, {self._sent} were sent"
            )
        sizes = self._sizes
        while self._acknowledged < count and sizes:
            self._bytes -= sizes.popleft()
            self._acknowledged += 1

    # --- what behaviors see besides ---------------------------------------------------------------

    def announce(self, token: bytes) -> None:
        """The message sent next answers the request with this token."""
        self._views.append((self.messages_accepted, token))

    def while_paused(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called every now and then while the page takes nothing."""
        self._renew = callback

    def be_patient(self) -> None:
        """The page is there, if it looks at nothing."""
        if self._renew is not None:
            self._renew()


class ActionCall(SocketCall):
    """An action, whose one answer is text."""

    def __init__(self, page: Page, number: int, *, method: str, metadata: Metadata) -> None:
        super().__init__(page, number, method=method, metadata=metadata)
        self._page = page
        self._is_answered = False

    def put(self, data: bytes) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._page.send_result(self.stream, flight_messages.decode_result(data))

    def put_end(self, code: StatusCode | None, details: str, _trailers: Metadata) -> None:
        if not self._is_answered:
            self._is_answered = True
            if code is None:
                self._page.send_result(self.stream, b"")
            else:
                self._page.fail_action(self.stream, code, details)
        self._page.end_action(self.stream)


class CallerCall(SocketCall):
    """Who calls: it is answered when the page is let in, and ends when it is not any more."""

    def __init__(self, page: Page, *, method: str, metadata: Metadata) -> None:
        super().__init__(page, 0, method=method, metadata=metadata)
        self._page = page

    def put(self, data: bytes) -> None:
        self._page.let_in(data)

    def put_end(self, code: StatusCode | None, details: str, _trailers: Metadata) -> None:
        self._page.turn_out(code or StatusCode.UNAUTHENTICATED, details)


def varint(number: int) -> bytes:
    """A stream's number as it stands before its messages: unsigned LEB128."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def read_varint(data: bytes) -> tuple[int, int]:
    """The number at the beginning, and where it ends. RemoteProtocolError."""
    number = 0
    for index, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, index + 1
    raise RemoteProtocolError("a binary message begins with the number of its stream, a varint")

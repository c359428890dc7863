"""What both protocols have in common: the calls of a socket, and how they share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.transport.over_websocket.socket_call import held_bytes

if TYPE_CHECKING:
    from typing import Protocol

    from barrage.limits import Limits
    from barrage.transport.base import PeerIdentity
    from barrage.transport.call_running import CallRunner
    from barrage.transport.over_websocket.http_messages import WebRequest
    from barrage.transport.over_websocket.socket_call import SocketCall
    from barrage.transport.over_websocket.web_socket import CloseReason

    class MessageSocket(Protocol):
        """What carries messages both ways: a ``WebSocket``, or what stands in its place."""

        is_clogged: bool
        """Whether it takes nothing for now; what is spoken on it is told once it does
        (``writable``)."""

        def allow(self, message_bytes_max: int) -> None:
            """Take messages of so many bytes from now on."""
            ...

        def send_text(self, data: bytes) -> None:
            """One message of text; nothing when it is closed."""
            ...

        def send_binary(self, head: bytes, data: bytes) -> None:
            """One binary message, of two parts; nothing when it is closed."""
            ...

        def pause_reading(self) -> None:
            """Take nothing from the peer for now. Idempotent."""
            ...

        def resume_reading(self) -> None:
            """The opposite."""
            ...

        def close(self, code: CloseReason, reason: str = "") -> None:
            """Say why, after what was sent before, and end. Idempotent."""
            ...


class CallSocket:
    """Carries calls (``SocketCarrier``). On the
    loop of its socket."""

    def __init__(
        self, socket: MessageSocket, request: WebRequest, *, runner: CallRunner, limits: Limits
    ) -> None:
        self.socket = socket
        self.peer = request.peer
        self.identity: PeerIdentity = request.identity
        self.runner = runner
        self.limits = limits
        self._blocked: dict[SocketCall, None] = {}
        self._unread_bytes = 0
        self._is_reading_paused = False

    # --- what comes -------------------------------------------------------------------------------

    def feed(self, call: SocketCall, message: bytes) -> None:
        """A message for a call. Once too much waits to be read, the socket is not read."""
        if call.feed(message):
            self._unread_bytes += held_bytes(message)
            if self._unread_bytes > self.limits.web_requests_bytes_max:
                self._is_reading_paused = True
                self.socket.pause_reading()

    def taken(self, size: int) -> None:
        self._unread_bytes -= size
        is_low = self._unread_bytes <= self.limits.web_requests_bytes_max // 2
        if self._is_reading_paused and is_low:
            self._is_reading_paused = False
            self.socket.resume_reading()

    # --- what goes --------------------------------------------------------------------------------

    @property
    def is_clogged(self) -> bool:
        return self.socket.is_clogged

    def blocked(self, call: SocketCall) -> None:
        self._blocked[call] = None

    def writable(self) -> None:
        """The socket takes messages again: those that wait go on, one after the other."""
        for call in list(self._blocked):
            if self.socket.is_clogged:
                return
            self.go_on(call)

    def go_on(self, call: SocketCall) -> None:
        """A call may have room now. What it has no room for yet waits behind the others."""
        if call in self._blocked:
            del self._blocked[call]
            if call.go_on():
                self._blocked[call] = None

    def unblock(self, call: SocketCall) -> None:
        """Nothing more is to be sent for it."""
        self._blocked.pop(call, None)

    def cut_all(self, calls: list[SocketCall]) -> None:
        """The connection has gone, and with it these."""
        self._blocked.clear()
        for call in calls:
            call.cut()

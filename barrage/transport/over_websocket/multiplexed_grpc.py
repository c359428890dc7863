"""``grpc-websockets-multiplex``: gRPC calls of any service on one WebSocket.

The JavaScript API of Deephaven makes its calls so where the server is not ``https``
(deephaven-clients.md section 5).

Every message is binary and begins with four bytes: the number of a call, chosen by the client, the
top bit set by who has finished. A call begins with its headers as lines; then come the frames of
gRPC, which need not end where messages do. Answers are frames of gRPC-web: headers and trailers are
frames of a kind of their own. There is no flow control but that of the socket, and no way to end a
call but to finish it.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, RemoteProtocolError, StatusCode
from barrage.transport.over_http2.grpc_web import (
    PREFIX_BYTES,
    PartialMessage,
    message_head,
    metadata_frame,
)
from barrage.transport.over_websocket.call_socket import CallSocket
from barrage.transport.over_websocket.socket_call import SocketCall
from barrage.transport.over_websocket.web_socket import CloseReason

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.call_running import CallRunner
    from barrage.transport.over_websocket.http_messages import WebRequest
    from barrage.transport.over_websocket.socket_call import Metadata
    from barrage.transport.over_websocket.web_socket import WebSocket

PROTOCOL = "grpc-websockets-multiplex"

_ID_BYTES = 4
_FINISHED = 0x8000_0000
_SHUTDOWN = b"\x7f\xff\xff\xff"
_DATA, _HALF_CLOSE = 0, 1
_PATH_HEADER = "grpc-websockets-path"
_OURS = frozenset({_PATH_HEADER, "content-type", "x-grpc-web", "x-user-agent", "te"})
"""Headers that say how a call travels, which handlers need not know."""


class MultiplexedGrpc(CallSocket):
    """One socket. On its loop."""

    def __init__(
        self, socket: WebSocket, request: WebRequest, *, runner: CallRunner, limits: Limits
    ) -> None:
        super().__init__(socket, request, runner=runner, limits=limits)
        self._calls: dict[int, GrpcSocketCall] = {}
        self._highest = -1
        self._partial_bytes = 0
        self._is_draining = False
        self._is_lost = False
        socket.allow(limits.web_upload_bytes_max + PREFIX_BYTES + _ID_BYTES + 1)

    # --- what comes -------------------------------------------------------------------------------

    def text_received(self, _text: str) -> None:
        self.socket.close(CloseReason.PROTOCOL_ERROR, f"{PROTOCOL} has no text messages")

    def binary_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except (RemoteProtocolError, LimitExceededError) as error:
            self.socket.close(CloseReason.PROTOCOL_ERROR, str(error))

    def _take(self, data: bytes) -> None:
        if len(data) < _ID_BYTES:
            raise RemoteProtocolError("a message begins with the four bytes of a call's number")
        number = int.from_bytes(data[:_ID_BYTES], "big")
        stream = number & ~_FINISHED
        if stream > self._highest:
            if number & _FINISHED:
                if data[:_ID_BYTES] == b"\xff\xff\xff\xff":
                    return  # The client has heard that the server stops.
                raise RemoteProtocolError(f"call {stream} was finished before it began")
            self._open(stream, data[_ID_BYTES:])
            return
        call = self._calls.get(stream)
        if call is None:
            return  # It has ended; the two have crossed.
        kind = data[_ID_BYTES] if len(data) > _ID_BYTES else None
        if kind not in (_DATA, _HALF_CLOSE):
            raise RemoteProtocolError(f"a message of call {stream} is neither data nor its end")
        if kind == _DATA:
            self._feed(call, data[_ID_BYTES + 1 :])
        if number & _FINISHED:
            call.half_close()

    def _open(self, stream: int, head: bytes) -> None:
        self._highest = stream
        if len(head) > self.limits.web_head_bytes_max:
            raise RemoteProtocolError(
                f"the headers of call {stream} have {len(head)} bytes; at most "
                f"{self.limits.web_head_bytes_max} are taken"
            )
        headers = _read_headers(head)
        path = next((str(value) for name, value in headers if name == _PATH_HEADER), "")
        metadata = tuple(pair for pair in headers if pair[0] not in _OURS)
        call = GrpcSocketCall(self, stream, method="/" + path.lstrip("/"), metadata=metadata)
        refusal = self._refusal()
        if refusal is not None:
            call.finish(*refusal)
            return
        self._calls[stream] = call
        call.runs_as(self.runner.run(call))

    def _refusal(self) -> tuple[StatusCode, str] | None:
        if self._is_draining:
            return StatusCode.UNAVAILABLE, "the server is shutting down; connect again"
        most = self.limits.http2_streams_max
        if len(self._calls) >= most:
            return StatusCode.RESOURCE_EXHAUSTED, f"there are {most} calls, the most of a socket"
        return None

    def _feed(self, call: GrpcSocketCall, data: bytes) -> None:
        most = self.limits.web_upload_bytes_max
        self._partial_bytes -= call.partial_bytes
        messages = call.messages(data, most)
        self._partial_bytes += call.partial_bytes
        if self._partial_bytes > most:
            raise RemoteProtocolError(f"more than {most} bytes of messages that are not whole yet")
        for message in messages:
            self.feed(call, message)

    # --- what goes --------------------------------------------------------------------------------

    def ended(self, call: GrpcSocketCall) -> None:
        """Nothing more is for it."""
        self._partial_bytes -= call.partial_bytes
        self._calls.pop(call.stream, None)
        self.unblock(call)
        self._end_if_drained()

    # --- how it ends ------------------------------------------------------------------------------

    def lost(self) -> None:
        self._is_lost = True
        self.cut_all(list(self._calls.values()))
        self._calls.clear()

    def drain(self) -> None:
        if self._is_lost or self._is_draining:
            return
        self._is_draining = True
        self.socket.send_binary(b"", _SHUTDOWN)
        self._end_if_drained()

    def end_calls(self, code: StatusCode, details: str) -> None:
        """The server stops now."""
        for call in list(self._calls.values()):
            call.end_with(code, details)
        self.socket.close(CloseReason.GOING_AWAY, details)

    def _end_if_drained(self) -> None:
        if self._is_draining and not self._calls:
            self.socket.close(CloseReason.GOING_AWAY, "the server is shutting down")


class GrpcSocketCall(SocketCall):
    """One call."""

    def __init__(
        self, carrier: MultiplexedGrpc, stream: int, *, method: str, metadata: Metadata
    ) -> None:
        super().__init__(carrier, stream, method=method, metadata=metadata)
        self._multiplexed = carrier
        self._partial = PartialMessage(f"call {stream}")

    @property
    def partial_bytes(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._partial)

    def messages(self, data: bytes, message_bytes_max: int) -> list[bytes]:
        """The messages that are whole now. RemoteProtocolError, LimitExceededError."""
        return self._partial.take(data, message_bytes_max)

    def put_headers(self, headers: Metadata) -> None:
        lines = (("content-type", "application/grpc-web+proto"), *headers)
        self._send_lines(self.stream, lines)

    def put(self, data: bytes) -> None:
        head = self.stream.to_bytes(_ID_BYTES, "big") + message_head(len(data))
        self._multiplexed.socket.send_binary(head, data)

    def put_end(self, code: StatusCode | None, details: str, trailers: Metadata) -> None:
        status = str(0 if code is None else code.value)
        message = (("grpc-message", details),) if details else ()
        self._send_lines(self.stream | _FINISHED, (("grpc-status", status), *message, *trailers))
        self._multiplexed.ended(self)

    def _send_lines(self, number: int, lines: Metadata) -> None:
        block = b"".join(_line(name, value) for name, value in lines)
        self._multiplexed.socket.send_binary(
            number.to_bytes(_ID_BYTES, "big"), metadata_frame(block)
        )


def _line(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return name.encode() + b": " + base64.b64encode(value) + b"\r\n"
    return f"{name}: {value}\r\n".encode("ascii", "backslashreplace")


def _read_headers(head: bytes) -> Metadata:
    """Lines of a name, a colon and a value. RemoteProtocolError."""
    headers: list[tuple[str, str | bytes]] = []
    try:
        for line in head.decode("ascii").split("\r\n"):
            name, colon, text = line.partition(":")
            if not line:
                continue
            if not colon or not name:
                raise RemoteProtocolError("a call begins with lines of a name, a colon, a value")
            text = text.strip()
            if name.lower().endswith("-bin"):
                headers.append((name.lower(), base64.b64decode(f"{text}===")))
            else:
                headers.append((name.lower(), text))
    except (UnicodeDecodeError, binascii.Error) as error:
        raise RemoteProtocolError(f"headers of a call cannot be read: {error}") from None
    return tuple(headers)

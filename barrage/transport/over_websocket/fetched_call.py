"""A call of gRPC-web that travels as one request of HTTP/1.1 and its answer, whose trailers are the
last frame of the body."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from barrage.errors import BarrageError, StatusCode
from barrage.transport.over_http2.grpc_headers import (
    answer_headers,
    read_request,
    status_trailers,
    web_trailers,
)
from barrage.transport.over_http2.grpc_web import PartialMessage, message_head
from barrage.transport.over_websocket.socket_call import SocketCall, held_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from barrage.transport.base import PeerIdentity
    from barrage.transport.over_http2.grpc_headers import RequestHead
    from barrage.transport.over_http2.http2_events import Headers
    from barrage.transport.over_websocket.http_messages import WebRequest
    from barrage.transport.over_websocket.socket_call import Metadata

    class HttpCarrier(Protocol):
        """The connection of the call."""

        peer: str
        identity: PeerIdentity

        @property
        def is_clogged(self) -> bool:
            """Whether the connection takes nothing for now."""
            ...

        def taken(self, size: int) -> None:
            """So many bytes of the client's have been read, or never will be."""
            ...

        def blocked(self, call: SocketCall) -> None:
            """It has something to send as soon as there is room."""
            ...

        def put_head(self, headers: Headers) -> None:
            """The status and the headers of the answer."""
            ...

        def put_body(self, data: bytes) -> None:
            """Part of its body."""
            ...

        def put_last(self) -> None:
            """The body is whole."""
            ...


_OF_CONNECTION = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)


def head_of(request: WebRequest) -> RequestHead:
    """What a request asks for, as if it had come by HTTP/2. RequestRefusal."""
    pseudo = {
        ":method": request.method,
        ":scheme": "https" if request.is_tls else "http",
        ":path": request.target,
        ":authority": request.header("host") or "",
    }
    named = [pair for pair in request.headers if pair[0] not in _OF_CONNECTION]
    return read_request(
        [(name.encode("ascii"), text.encode("latin-1")) for name, text in (*pseudo.items(), *named)]
    )


class FetchedCall(SocketCall):
    """Such a call."""

    def __init__(self, carrier: HttpCarrier, head: RequestHead) -> None:
        super().__init__(carrier, 0, method=head.method, metadata=head.metadata)
        self._http = carrier
        self._head = head
        self._partial = PartialMessage(f"the call of {head.method}")
        self._deadline: asyncio.TimerHandle | None = None
        if head.timeout_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(head.timeout_s, self._expire)

    def feed_body(self, data: bytes, message_bytes_max: int) -> int:
        """Part of the request's body; what its messages hold that wait to be read now and did not
        before. What cannot be taken ends the call."""
        try:
            messages = self._partial.take(data, message_bytes_max)
        except BarrageError as error:
            self.end_with(error.status_code, str(error))
            return 0
        return sum(held_bytes(message) for message in messages if self.feed(message))

    def _expire(self) -> None:
        self.end_with(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def cut(self) -> None:
        self._forget_deadline()
        super().cut()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    # --- what goes --------------------------------------------------------------------------------

    def put_headers(self, headers: Metadata) -> None:
        self._http.put_head(answer_headers(self._head, headers))

    def put(self, data: bytes) -> None:
        self._http.put_body(message_head(len(data)) + data)

    def put_end(
        self,
        code: StatusCode | None,
        details: str,
        trailers: Iterable[tuple[str, str | bytes]],
    ) -> None:
        self._forget_deadline()
        ahead = [] if self.headers_sent else self._head.answer
        fields = status_trailers(code, details, trailers, ahead=ahead)
        if self.headers_sent:
            self._http.put_body(web_trailers(fields))
        else:
            self._http.put_head(fields)
        self._http.put_last()

"""One HTTP/2 connection of a browser: its calls, and whatever else the page asks for.

Browsers speak it where there is TLS. WebSockets come by connections of HTTP/1.1 there too, since
the setting that would let them come by this one (RFC 8441) is not sent.
"""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.transport.over_http2.grpc_headers import is_well_formed
from barrage.transport.over_http2.http2_protocol import Http2Protocol
from barrage.transport.over_websocket.http_messages import WebAnswer, WebRequest
from barrage.transport.over_websocket.page_requests import early_answer, for_other_origin, is_call

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from typing import Any, Protocol

    from barrage.errors import StatusCode, WorkerDiedError
    from barrage.limits import Limits
    from barrage.supervision import OnDeath
    from barrage.transport.base import ListenOptions
    from barrage.transport.call_running import CallRunner
    from barrage.transport.over_http2.http2_events import Headers
    from barrage.transport.over_http2.http2_protocol import ConnectionOwner
    from barrage.transport.over_http2.http2_stream import Http2Stream
    from barrage.transport.over_websocket.http_messages import WebSite
    from barrage.transport.over_websocket.origins import OriginRule

    class PageOwner(ConnectionOwner, Protocol):
        """Who listens."""

        limits: Limits
        site: WebSite
        origins: OriginRule

        def start_answer(
            self, answer: Coroutine[Any, Any, None], *, on_death: OnDeath
        ) -> asyncio.Task[None]:
            """Answer a request that is no call."""
            ...


_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

log = logging.getLogger(__name__)


class PageHttp2(Http2Protocol):
    """From its first byte to its last."""

    def __init__(self, owner: PageOwner, runner: CallRunner, options: ListenOptions) -> None:
        super().__init__(owner, runner, options)
        self._page_owner = owner
        self._answering: dict[Http2Stream, asyncio.Task[None]] = {}

    # --- requests ---------------------------------------------------------------------------------

    def requested(self, stream: Http2Stream, headers: Headers) -> None:
        request = self._web_request(headers)
        if request is None:
            self.core.end(stream, [(b":status", b"400")])
            return
        owner = self._page_owner
        early = early_answer(request, owner.origins, owner.site)
        if early is not None:
            self._send(stream, request, early)
        elif is_call(request):
            further = for_other_origin(request, owner.origins)
            self.begin_call(stream, headers, further=_encoded(further))
        elif len(self._answering) >= owner.limits.web_streams_max:
            most = owner.limits.web_streams_max
            text = f"there are {most} requests, the most of a connection"
            self._send(stream, request, WebAnswer.text(HTTPStatus.TOO_MANY_REQUESTS, text))
        else:
            # What is sent along is of no use: nothing that is served wants it.
            stream.is_refused = True
            self._answering[stream] = owner.start_answer(
                self._answer(stream, request), on_death=partial(self._failed, stream, request)
            )

    def _web_request(self, headers: Headers) -> WebRequest | None:
        """None for one that is no request of HTTP."""
        fields = dict(reversed(headers))
        if not is_well_formed(headers, fields):
            return None
        named = [pair for pair in headers if pair[0][:1] != b":"]
        if b":authority" in fields:
            named = [
                (b"host", fields[b":authority"]),
                *(pair for pair in named if pair[0] != b"host"),
            ]
        return WebRequest(
            method=fields[b":method"].decode("latin-1"),
            target=fields[b":path"].decode("latin-1"),
            headers=tuple(
                (name.decode("ascii"), value.decode("latin-1").strip()) for name, value in named
            ),
            peer=self.peer,
            identity=self.identity,
            is_tls=True,
        )

    async def _answer(self, stream: Http2Stream, request: WebRequest) -> None:
        answer = await self._page_owner.site.answer(request)
        del self._answering[stream]
        self._send(stream, request, answer)

    def _failed(self, stream: Http2Stream, request: WebRequest, error: WorkerDiedError) -> None:
        log.error("%s %s could not be answered: %s", request.method, request.path, error)
        self._answering.pop(stream, None)
        self._send(stream, request, WebAnswer.failed())

    def _send(self, stream: Http2Stream, request: WebRequest, answer: WebAnswer) -> None:
        headers = [(b":status", b"%d" % answer.status), *_encoded(answer.headers)]
        if answer.status not in _WITHOUT_BODY:
            headers.append((b"content-length", b"%d" % len(answer.body)))
        if answer.body and request.method != "HEAD":
            self.core.respond(stream, headers)
            self.core.end_with(stream, answer.body)
        else:
            self.core.end(stream, headers)
        self.flush_soon()

    # --- how it ends ------------------------------------------------------------------------------

    def cut(self, stream: Http2Stream) -> None:
        answering = self._answering.pop(stream, None)
        if answering is not None:
            answering.cancel()
        super().cut(stream)

    def end_calls(self, code: StatusCode, details: str) -> None:
        super().end_calls(code, details)
        for stream in list(self._answering):
            self.core.end(stream, [(b":status", b"503")])
            self._answering.pop(stream).cancel()


def _encoded(fields: tuple[tuple[str, str], ...]) -> Headers:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields]

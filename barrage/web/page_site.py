"""What is served over plain HTTP (docs/web-protocol.md section 7): the page, sessions, health."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, BarrageError
from barrage.supervision import in_thread
from barrage.transport.over_websocket.flight_socket import COOKIE
from barrage.transport.over_websocket.http_messages import WebAnswer
from barrage.web.perspective_files import PREFIX, perspective_files
from barrage.web.static_files import INDEX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Protocol

    from barrage.transport.over_websocket.http_messages import WebRequest
    from barrage.web.static_files import StaticFile

    class PageSessions(Protocol):
        """What knows callers."""

        async def token_for(self, request: WebRequest) -> str | None:
            """A token for the credentials of a request; None where nothing need be shown.
            AuthenticationError, TooManyFailuresError."""
            ...

        def end(self, token: str) -> None:
            """Nobody is let in by this token any more, whoever has kept a copy."""
            ...


SECURITY_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src 'self'; manifest-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=()"),
    ("x-frame-options", "SAMEORIGIN"),
)
"""With every answer: nothing runs in the page but what came with it, and nobody frames it."""

FRAME_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self' data: 'wasm-unsafe-eval'; worker-src data:; "
        "style-src 'self' 'unsafe-inline'; img-src data: blob:; font-src data:; "
        "connect-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
        "sandbox allow-scripts allow-downloads",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("access-control-allow-origin", "*"),
    ("cross-origin-resource-policy", "cross-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=()"),
    ("x-frame-options", "SAMEORIGIN"),
)
"""With what the frame of Perspective is made of. It is of no origin: it has no cookies, reaches
neither the page around it nor any server, and loads its own files as a stranger does."""

_FRAME_PATHS = (f"{PREFIX}viewer.", "/perspective.html", "/perspective_frame-")

_LASTING = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
_NEVER = "no-store"


class PageSite:
    """Of one server."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, StaticFile]],
        *,
        sessions: PageSessions,
        is_serving: Callable[[], Awaitable[bool]],
        read_perspective: Callable[[], Mapping[str, StaticFile]] = perspective_files,
    ) -> None:
        """``read`` reads the files, on a thread, when the first one is asked for, and
        ``read_perspective`` those of Perspective. ``is_serving``: what who asks for health is told.
        """
        self._read = read
        self._files: Mapping[str, StaticFile] | None = None
        self._read_perspective = read_perspective
        self._perspective: Mapping[str, StaticFile] | None = None
        self._sessions = sessions
        self._is_serving = is_serving

    def is_for_any_page(self, request: WebRequest) -> bool:
        """What the frame of Perspective is made of: it asks as a page of no origin."""
        return request.path.startswith(_FRAME_PATHS) and request.method in ("GET", "HEAD")

    async def answer(self, request: WebRequest) -> WebAnswer:
        """The answer to one request."""
        answer = await self._answer(request)
        further = FRAME_HEADERS if request.path.startswith(_FRAME_PATHS) else SECURITY_HEADERS
        return WebAnswer(
            status=answer.status, headers=(*answer.headers, *further), body=answer.body
        )

    async def _answer(self, request: WebRequest) -> WebAnswer:
        if request.path == "/session":
            return await self._session(request)
        if request.method not in ("GET", "HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", allow="GET, HEAD")
        if request.path == "/healthz":
            return await self._health()
        if request.path.startswith(PREFIX):
            if self._perspective is None:
                self._perspective = await in_thread(self._read_perspective)
            return _file(self._perspective, request)
        if self._files is None:
            self._files = await in_thread(self._read)
        return _file(self._files, request)

    # --- health -----------------------------------------------------------------------------------

    async def _health(self) -> WebAnswer:
        is_serving = await self._is_serving()
        told = {"status": "SERVING" if is_serving else "NOT_SERVING"}
        return WebAnswer(
            status=HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE,
            headers=(("content-type", "application/json"), ("cache-control", _NEVER)),
            body=json.dumps(told, separators=(",", ":")).encode(),
        )

    # --- sessions ---------------------------------------------------------------------------------

    async def _session(self, request: WebRequest) -> WebAnswer:
        if request.method == "DELETE":
            token = request.cookie(COOKIE)
            if token:
                self._sessions.end(token)
            return _with_cookie(request, "", "; Max-Age=0")
        if request.method != "POST":
            text = "only POST and DELETE"
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, text, allow="POST, DELETE")
        if request.header("authorization") is None:
            text = "send the header 'authorization', as 'Bearer <token>' or 'Basic <user:password>'"
            return _refused(HTTPStatus.UNAUTHORIZED, text)
        try:
            token = await self._sessions.token_for(request)
        except AuthenticationError as error:
            return _refused(HTTPStatus.UNAUTHORIZED, str(error))
        except BarrageError as error:
            return _refused(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        return (
            _with_cookie(request, token, "") if token else _with_cookie(request, "", "; Max-Age=0")
        )


def _file(files: Mapping[str, StaticFile], request: WebRequest) -> WebAnswer:
    path = INDEX if request.path == "/" else request.path
    file = files.get(path)
    if file is None:
        text = "there is no page here" if path != INDEX else "this build comes without a page"
        return _refused(HTTPStatus.NOT_FOUND, text)
    headers = [
        ("content-type", file.content_type),
        ("cache-control", _LASTING if file.is_lasting else _ASK_AGAIN),
        ("etag", file.tag),
        ("vary", "accept-encoding"),
    ]
    if file.tag in request.words("if-none-match"):
        return WebAnswer(status=HTTPStatus.NOT_MODIFIED, headers=tuple(headers))
    body = file.body
    accepted = [word.partition(";")[0].strip() for word in request.words("accept-encoding")]
    if file.packed is not None and "gzip" in accepted:
        headers.append(("content-encoding", "gzip"))
        body = file.packed
    return WebAnswer(headers=tuple(headers), body=body)


def _with_cookie(request: WebRequest, value: str, further: str) -> WebAnswer:
    """No scripts read it, no other page has it sent."""
    secure = "; Secure" if request.is_tls else ""
    cookie = f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{further}"
    return WebAnswer(
        status=HTTPStatus.NO_CONTENT,
        headers=(("set-cookie", cookie), ("cache-control", _NEVER)),
    )


def _refused(status: HTTPStatus, text: str, *, allow: str | None = None) -> WebAnswer:
    answer = WebAnswer.text(status, text)
    further = () if allow is None else (("allow", allow),)
    return WebAnswer(
        status=status,
        headers=(*answer.headers, ("cache-control", _NEVER), *further),
        body=answer.body,
    )

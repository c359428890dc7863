"""Which pages may speak to the server.

A browser sends cookies of the server, and reaches servers on its own machine, for any page that
asks it to. What tells pages apart is ``Origin``: where the page came from. It must be the server's
own, which is the scheme and ``Host`` of the request, or one that the server was told of.

``Host`` itself is taken for the server's name only where nobody else can have made it up: for an
address, for ``localhost``, and under TLS, whose certificate bears the name. Otherwise a name that
leads to this machine, as anybody may have one, would make a foreign page look like ours.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from barrage.transport.host_names import normal_origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.transport.over_websocket.http_messages import WebRequest


class OriginRule:
    """Of one server."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """``allowed``: origins besides the server's own, as ``https://host:port``."""
        self._allowed = frozenset(filter(None, map(normal_origin, allowed)))
        self._hosts = {urlsplit(origin).hostname for origin in self._allowed}

    def refusal(self, request: WebRequest, *, is_for_any_page: bool = False) -> str | None:
        """Why a request is not let in; None when it is. One without ``Origin`` comes from no page
        of another server, or from no browser. ``is_for_any_page``: the answer is no secret."""
        host = request.header("host") or ""
        if not self._is_ours(host, is_tls=request.is_tls):
            return f"this server is not called {_shown(host)}; add its origin to web_origins"
        origin = request.header("origin")
        if origin is None or is_for_any_page:
            return None
        if self._is_own(origin, request) or self.is_allowed(origin):
            return None
        return f"the origin {_shown(origin)} is not allowed; add it to web_origins"

    def other_origin(self, request: WebRequest) -> str | None:
        """The origin of the page of another server that has sent this request, which was let in;
        None when it was a page of ours, or none."""
        origin = request.header("origin")
        return None if origin is None or self._is_own(origin, request) else origin

    def is_allowed(self, origin: str) -> bool:
        """Whether it is one of those besides the server's own."""
        return normal_origin(origin) in self._allowed

    def _is_own(self, origin: str, request: WebRequest) -> bool:
        scheme = "https" if request.is_tls else "http"
        own = normal_origin(f"{scheme}://{request.header('host') or ''}")
        return own is not None and normal_origin(origin) == own

    def _is_ours(self, host: str, *, is_tls: bool) -> bool:
        try:
            name = urlsplit(f"http://{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        return is_tls or name == "localhost" or name in self._hosts or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    """As it may stand in the reason of a close, which is short."""
    printable = text.encode("ascii", "backslashreplace").decode()
    return repr(printable if len(printable) <= 48 else printable[:45] + "...")

"""The door for browsers beside the server's own listener: the same handlers, the same rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.server.pages.page_sessions import TokenSessions
from barrage.transport.base import ListenOptions
from barrage.transport.registry import SCHEME_DEFAULT, scheme_of
from barrage.web.web_door import web_door

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.settings.config import ServerConfig
    from barrage.transport.over_websocket.web_listener import WebListener
    from barrage.transport.tls.server_tls import ServerTLS

_LOOPBACK = "127.0.0.1"


def web_listener(
    config: ServerConfig,
    tls: ServerTLS | None,
    authenticator: Authenticator,
    *,
    is_serving: Callable[[], Awaitable[bool]],
) -> WebListener | None:
    """What serves browsers; None when they are not served."""
    if not config.web:
        return None
    is_network = scheme_of(config.host) == SCHEME_DEFAULT
    options = ListenOptions(
        port=config.web_port,
        message_bytes_max=config.limits.web_upload_bytes_max,
        keepalive_ms=config.keepalive_ms,
        limits=config.limits,
        tls=tls,
    )
    return web_door(
        config.host if is_network else _LOOPBACK,
        options,
        origins=config.web_origins_listed,
        sessions=TokenSessions(authenticator),
        is_serving=is_serving,
    )

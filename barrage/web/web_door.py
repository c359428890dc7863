"""The door: one listener with the page on it and calls through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.transport.over_websocket.origins import OriginRule
from barrage.transport.over_websocket.web_listener import WebListener
from barrage.web.page_site import PageSite
from barrage.web.static_files import read_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from barrage.transport.base import ListenOptions
    from barrage.web.page_site import PageSessions


def web_door(
    host: str,
    options: ListenOptions,
    *,
    origins: Iterable[str],
    sessions: PageSessions,
    is_serving: Callable[[], Awaitable[bool]],
) -> WebListener:
    """What will listen on ``host`` for browsers. ``origins``: of pages besides its own."""
    site = PageSite(read_files, sessions=sessions, is_serving=is_serving)
    return WebListener(host, options, site=site, origins=OriginRule(origins))

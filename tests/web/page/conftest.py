"""Servers for a browser, and what is on its screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barrage import Server
from barrage.server import ServerConfig
from tests.web.page.screen import Screen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/web/page/" in item.path.as_posix():
            item.add_marker(pytest.mark.web)


def web_server(**config: Any) -> Server:
    return Server(config=ServerConfig(web=True, **config))


@pytest.fixture
def server() -> Iterator[Server]:
    with web_server() as served:
        yield served


@pytest.fixture
def open_screen(browser: Any) -> Iterator[Any]:
    """Opens pages, and sees at the end that none of them has complained."""
    opened: list[Screen] = []

    def open_page(server: Server | str, link: str = "", **options: Any) -> Screen:
        options.setdefault("viewport", {"width": 1280, "height": 760})
        address = server if isinstance(server, str) else server.web_uri
        assert address is not None
        page = browser.new_context(**options).new_page()
        screen = Screen(page)
        opened.append(screen)
        page.goto(address + link)
        return screen

    yield open_page
    complaints = [complaint for screen in opened for complaint in screen.complaints]
    for screen in opened:
        screen.page.context.close()
    assert complaints == []

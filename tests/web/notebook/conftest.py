"""A browser and a JupyterLab for the tests of notebooks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from barrage import Server
from tests.web.notebook.lab import Lab, Notebook

CONNECT = """
import barrage
session = barrage.connect("{uri}")
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/web/notebook/" in item.path.as_posix():
            item.add_marker(pytest.mark.web)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab", reason="needs JupyterLab (make test-web)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = Lab(tmp_path_factory.mktemp("lab"), port)
    started.wait_ready()
    yield started
    started.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(port=0) as served:
        yield served


@pytest.fixture
def open_notebook(browser: Any, lab: Lab, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opens notebooks whose first cell connects, and sees at the end that no page has asked
    anybody but its own server."""
    contexts = []
    asked: list[str] = []

    def opened(server: Server | None, *cells: str) -> Notebook:
        context = browser.new_context(viewport={"width": 1280, "height": 1600})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda made: asked.append(made.url))
        page.on("websocket", lambda made: asked.append(made.url))
        name = f"{request.node.name}-{len(contexts)}"
        before = () if server is None else (CONNECT.format(uri=server.uri),)
        page.goto(lab.notebook(name, *before, *cells))
        notebook = Notebook(page)
        if before:
            notebook.run(0)
        return notebook

    yield opened
    for context in contexts:
        context.close()
    host = lab.url.partition("//")[2]
    own = ("data:", "blob:", f"http://{host}/", f"ws://{host}/")
    assert [url for url in asked if not url.startswith(own)] == []

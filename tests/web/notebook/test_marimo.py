"""Tables in a real marimo: what a cell shows, as a notebook and as an application."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.web.notebook.test_jupyter import filled
from tests.web.page.screen import HANG_SECONDS, READ_GRID, wait_until

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import barrage

    session = barrage.connect("{uri}")
    return (session,)


@app.cell
def _(session):
    session.table("t").show(height=300)
    return


@app.cell
def _(session):
    session.table("t").sort("-id").show(height=300)
    return


if __name__ == "__main__":
    app.run()
"""
SETTINGS = """
[runtime]
auto_instantiate = true
[server]
browser = "default"
"""


class Marimo:
    """A server of one notebook. It listens on this machine alone."""

    def __init__(self, directory: Path, uri: str, mode: str) -> None:
        pytest.importorskip("marimo", reason="needs marimo (make test-web)")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        notebook = directory / "notebook.py"
        notebook.write_text(NOTEBOOK.format(uri=uri))
        settings = directory / "config" / "marimo" / "marimo.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        self.url = f"http://127.0.0.1:{port}"
        self._path = directory / "log"
        self._log = self._path.open("w")
        own = {
            f"XDG_{kind}_HOME": str(directory / kind.lower())
            for kind in ("CONFIG", "STATE", "CACHE")
        }
        flags = ["--headless", "--no-token", f"--port={port}", "--host=127.0.0.1"]
        if mode == "edit":
            flags += ["--skip-update-check", "--no-sandbox"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "marimo", mode, *flags, str(notebook)],
            cwd=directory,
            env={**os.environ, **own, "PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait_ready(self) -> None:
        def answers() -> bool:
            assert self._process.poll() is None, self._path.read_text()
            try:
                return bool(urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200)
            except OSError:
                return False

        wait_until(answers, "marimo")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(HANG_SECONDS)
        self._log.close()


@pytest.fixture
def open_marimo(browser: Any, server: Any, tmp_path: Path) -> Any:
    """Opens the notebook; at the end nobody but its own server was asked for anything."""
    opened: list[Any] = []
    asked: list[str] = []

    def open_page(mode: str) -> Any:
        marimo = Marimo(tmp_path, server.uri, mode)
        opened.append(marimo)
        marimo.wait_ready()
        context = browser.new_context(viewport={"width": 1280, "height": 1400})
        opened.append(context)
        page = context.new_page()
        page.on("websocket", lambda made: asked.append(made.url))
        page.goto(marimo.url)
        return page

    yield open_page
    for each in reversed(opened):
        each.close()
    assert {url.partition("://")[2].partition(":")[0] for url in asked} == {"127.0.0.1"}


def cells(page: Any, index: int) -> dict[int, dict[str, str | None]]:
    grids = page.locator("live-grid")
    rows = grids.nth(index).evaluate(READ_GRID) if grids.count() > index else None
    return {int(row): found for row, found in (rows or {}).items()}


@pytest.mark.parametrize("mode", ["edit", "run"])
def test_cells_show_tables_as_they_change(server, open_marimo, mode):
    table = filled(server, 1000)
    page = open_marimo(mode)
    wait_until(lambda: cells(page, 0).get(3) == {"id": "3", "value": "a"}, "the rows")
    wait_until(lambda: cells(page, 1).get(0) == {"id": "999", "value": "a"}, "the second grid")
    assert page.locator("live-grid .pill").first.text_content() == "live"
    table.upsert({"id": [3, 999], "value": ["changed", "too"]})
    wait_until(lambda: cells(page, 0).get(3, {}).get("value") == "changed", "the change")
    wait_until(lambda: cells(page, 1).get(0, {}).get("value") == "too", "the other change")
    page.locator("live-grid").first.evaluate("grid => grid.goTo(900)")
    wait_until(lambda: cells(page, 0).get(900, {}).get("value") == "a", "the rows below")
    table.remove({"id": [900]})
    wait_until(lambda: cells(page, 0).get(900, {}).get("id") == "901", "the row that moved up")
    assert server.stream_count == 2

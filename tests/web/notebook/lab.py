"""A real JupyterLab with a notebook in it, and what is on its screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.web.page.screen import HANG_SECONDS, READ_CELLS, wait_until

ROOT = Path(__file__).resolve().parents[3]

SETTINGS = {
    "@jupyterlab/apputils-extension:notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    "@jupyterlab/docmanager-extension:plugin.jupyterlab-settings": {"autosave": False},
}


class Lab:
    """One server of notebooks. It listens on this machine alone."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        for name, content in SETTINGS.items():
            extension, file = name.split(":")
            path = directory / "settings" / extension / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        state = {
            f"JUPYTER_{kind}_DIR": str(directory / kind.lower()) for kind in ("CONFIG", "RUNTIME")
        }
        (directory / "notebooks").mkdir()
        self.url = f"http://127.0.0.1:{port}"
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--port={port}", "--port-retries=0", "--ip=127.0.0.1"),
                *(
                    "--LabApp.expose_app_in_browser=True",
                    "--IdentityProvider.token=",
                    "--ServerApp.disable_check_xsrf=True",
                ),
                f"--ServerApp.root_dir={directory / 'notebooks'}",
                f"--LabApp.user_settings_dir={directory / 'settings'}",
                f"--LabApp.workspaces_dir={directory / 'workspaces'}",
            ],
            cwd=directory,
            env={**os.environ, **state, "PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait_ready(self) -> None:
        import urllib.request

        def answers() -> bool:
            assert self._process.poll() is None, (self.directory / "log").read_text()
            try:
                return bool(urllib.request.urlopen(f"{self.url}/api", timeout=5).status == 200)
            except OSError:
                return False

        wait_until(answers, "JupyterLab")

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook of these cells; its address."""
        made = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "source": cell,
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                }
                for number, cell in enumerate(cells)
            ],
        }
        (self.directory / "notebooks" / f"{name}.ipynb").write_text(json.dumps(made))
        return f"{self.url}/lab/tree/{name}.ipynb?reset"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(HANG_SECONDS)
        self._log.close()


RUN = """
async (index) => {
  const { shell, commands } = window.jupyterapp;
  const panel = shell.currentWidget;
  await panel.sessionContext.ready;
  panel.content.activeCellIndex = index;
  panel.content.deselectAll();
  void commands.execute("notebook:run-cell");
}
"""
KERNEL = "(act) => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel[act]()"
READY = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.isReady === true"


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, page: Any) -> None:
        self.page = page
        wait_until(lambda: page.evaluate(READY), "the kernel")

    def cell(self, index: int) -> Any:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def start(self, index: int) -> None:
        """Run a cell, and do not wait for it."""
        self.page.evaluate(RUN, index)

    def run(self, index: int) -> None:
        """Run a cell to its end."""
        count = self.count_of(index)
        self.start(index)
        wait_until(lambda: self.count_of(index) not in (count, "[*]:"), f"cell {index}")

    def count_of(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-InputPrompt").text_content())

    def output(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-Cell-outputArea").inner_text())

    def grids(self) -> int:
        return int(self.page.locator("live-grid").count())

    def cells(self, index: int = 0) -> dict[int, dict[str, str | None]]:
        """Texts by row and column of a grid, of what is whole and as the server has it now."""
        rows = self.page.evaluate(READ_CELLS, index)
        return {int(row): cells for row, cells in (rows or {}).items()}

    def in_grid(self, selector: str, index: int = 0) -> Any:
        return self.page.locator("live-grid").nth(index).locator(selector)

    def pill(self, index: int = 0) -> str:
        return str(self.in_grid(".pill", index).text_content())

    def message(self, index: int = 0) -> str:
        message = self.in_grid(".message", index)
        return str(message.locator("span").text_content()) if message.is_visible() else ""

    def go_to(self, row: int, index: int = 0) -> None:
        self.page.evaluate(
            "([row, index]) => document.querySelectorAll('live-grid')[index].goTo(row)",
            [row, index],
        )

    def interrupt_kernel(self) -> None:
        self.page.evaluate(KERNEL, "interrupt")

    def restart_kernel(self) -> None:
        self.page.evaluate(KERNEL, "restart")

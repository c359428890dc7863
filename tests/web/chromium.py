"""Chromium without a window, steered by its own protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from websockets.sync.client import connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1200,800",
    "--ignore-certificate-errors",
)
HANG_S = 120


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Chromium:
    """One browser with one page."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = self._port()
        listed = urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=HANG_S).read()
        page = next(each for each in json.loads(listed) if each["type"] == "page")
        self._ends = ExitStack()
        opened = connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None)
        self._socket = self._ends.enter_context(opened)
        self._count = 0
        self.console: list[str] = []
        """Errors the page has told."""
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def _port(self) -> int:
        told = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + HANG_S
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < deadline, "the browser does not start"
            assert self._process.poll() is None, "the browser has ended"
            time.sleep(0.05)
        return int(told.read_text().split()[0])

    def ask(self, method: str, **parameters):
        """Call a method and wait for its result."""
        self._count += 1
        asked = {"id": self._count, "method": method, "params": parameters}
        self._socket.send(json.dumps(asked))
        while True:
            message = json.loads(self._socket.recv(timeout=HANG_S))
            self._note(message)
            if message.get("id") == self._count:
                assert "error" not in message, message["error"]
                return message["result"]

    def _note(self, message) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(message["params"])[:500])

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def evaluate(self, expression: str):
        """The value of an expression in the page."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return found["result"].get("value")

    def until(self, expression: str):
        """The value of an expression, once it is something."""
        deadline = time.monotonic() + HANG_S
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            assert time.monotonic() < deadline, f"hangs: {expression}; {self.console}"
            time.sleep(0.1)

    def picture(self) -> str:
        """What is on screen, as a PNG in base64."""
        return self.ask("Page.captureScreenshot", format="png")["data"]

    def close(self) -> None:
        self._ends.close()
        self._process.terminate()
        self._process.wait(60)
        self._profile.cleanup()

"""Other viewers of tables in a page: Deephaven's table widget, out of its wheel and unmodified, and
Perspective's viewer from npm. Each shows 50 rows of 12 columns."""

from __future__ import annotations

import functools
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

from tests.web.one_origin import OneOrigin

PERSPECTIVE = Path(__file__).parent / "perspective"

DRAWN_ON_CANVAS = """
(() => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (/^\\d+\\.\\d+$/.test(String(text))) {
      globalThis.seenAt ??= performance.now();
      globalThis.drawn = (globalThis.drawn ?? 0) + 1;
    }
    return draw.call(this, text, ...place);
  };
})();
"""
"""Notes when the first number is drawn: the grid of Deephaven is a canvas."""


@contextmanager
def deephaven_files() -> Iterator[OneOrigin]:
    """Deephaven's web files behind one origin; it has to be told where WebSockets lead."""
    found = distribution("deephaven-server").files or []
    archive = next(file for file in found if file.name.startswith("deephaven-web-"))
    with tempfile.TemporaryDirectory() as target:
        with zipfile.ZipFile(str(archive.locate())) as packed:
            packed.extractall(target)
        front = OneOrigin(Path(target) / "META-INF" / "resources")
        try:
            yield front
        finally:
            front.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def perspective_page() -> Iterator[str]:
    """The address of a page with Perspective's viewer; npm brings it at the first time."""
    if not (PERSPECTIVE / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--silent"], cwd=PERSPECTIVE, check=True)
    handler = functools.partial(_Quiet, directory=str(PERSPECTIVE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()

"""A browser; Deephaven's JavaScript API, out of its wheel and unmodified, and Node to run it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

NODE_MAJOR_MIN = 20

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--expose-gc",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("BARRAGE_CHROMIUM") or shutil.which("chromium")
    assert chromium, "the tests of the page need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def web_archive() -> Path:
    """The archive of the wheel with everything a browser gets of a Deephaven server."""
    try:
        files = distribution("deephaven-server").files or []
    except PackageNotFoundError:
        pytest.skip("needs deephaven-server (make test-web)")
    found = [file for file in files if file.name.startswith("deephaven-web-")]
    return Path(str(found[0].locate()))


@pytest.fixture(scope="session")
def web_files(web_archive, tmp_path_factory) -> Path:
    """The directory those files are in."""
    target = tmp_path_factory.mktemp("deephaven-web")
    with zipfile.ZipFile(web_archive) as archive:
        archive.extractall(target)
    return target / "META-INF" / "resources"


@pytest.fixture(scope="session")
def js_api(web_files, tmp_path_factory) -> Path:
    """The API as a module of Node, which knows modules by their names."""
    module = tmp_path_factory.mktemp("jsapi") / "dh-core.mjs"
    shutil.copy(web_files / "jsapi" / "dh-core.js", module)
    return module


@pytest.fixture(scope="session")
def node_transport() -> Path:
    """Deephaven's transport for Node, as a module."""
    installed = Path(__file__).parent / "node_transport" / "node_modules"
    module = installed / "@deephaven" / "jsapi-nodejs" / "dist" / "index.js"
    if not module.exists():
        pytest.skip("needs @deephaven/jsapi-nodejs (make test-web)")
    return module


@pytest.fixture(scope="module")
def module_patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session")
def node() -> list[str]:
    """How Node is started, so that it has WebSockets."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("needs Node (make test-web)")
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(told.lstrip("v").partition(".")[0])
    if major < NODE_MAJOR_MIN:
        pytest.skip(f"needs Node {NODE_MAJOR_MIN}, not {told.strip()}")
    flags = [] if major >= 22 else ["--experimental-websocket"]
    return [path, "--no-warnings", *flags]

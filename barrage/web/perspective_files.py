"""What the page needs of Perspective, as it lies in its Python package where that is installed. The
package itself is not imported: its engine is not needed here."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from barrage.web.static_files import static_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.web.static_files import StaticFile

DISTRIBUTION = "perspective-python"

PREFIX = "/perspective/"
"""Where its files are served."""

_STATIC = "perspective/widget/static"
_FILES = {"viewer.js": "perspective-anywidget.js", "viewer.css": "perspective-anywidget.css"}


@cache
def perspective_files() -> Mapping[str, StaticFile]:
    """By the path they are served at; where it is not installed, what says so alone."""
    version, root = _installed()
    told = json.dumps({"version": version}).encode()
    files = {f"{PREFIX}installed.json": static_file(Path("installed.json"), told)}
    if root is not None:
        for name, kept_as in _FILES.items():
            files[PREFIX + name] = static_file(Path(name), (root / kept_as).read_bytes())
    return MappingProxyType(files)


def _installed() -> tuple[str | None, Path | None]:
    """Its version, and the directory of its files. A release without them counts as none."""
    try:
        found = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None, None
    root = Path(str(found.locate_file(_STATIC)))
    if not all((root / kept_as).is_file() for kept_as in _FILES.values()):
        return None, None
    return found.version, root

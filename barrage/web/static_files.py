"""The files of the page, as they lie in the package: read once, packed once. Packing takes some ten
milliseconds, so it is not for an event loop to do."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATIC = Path(__file__).parent / "static"

INDEX = "/index.html"

_TEXTS = {".html", ".js", ".css", ".svg", ".json", ".txt", ".map", ".webmanifest"}
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_PACKED_BYTES_MIN = 512
"""Shorter files are not worth packing."""

_HASHED = re.compile(r"[-.][0-9A-Za-z_-]{8,}\.\w+$")
"""Names that change with what is in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """One file."""

    content_type: str
    body: bytes
    packed: bytes | None
    """By gzip, where that is shorter."""
    tag: str
    """Changes with the body."""
    is_lasting: bool
    """Whether what is in it never changes under this name."""


@cache
def read_files(root: Path = STATIC) -> Mapping[str, StaticFile]:
    """All files under ``root``, by the path they are served at; as they were the first time."""
    return MappingProxyType(dict(_found(root)))


def _found(root: Path) -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield "/" + path.relative_to(root).as_posix(), static_file(path, path.read_bytes())


def static_file(path: Path, body: bytes) -> StaticFile:
    """What is served for a file of this name with this in it."""
    packed = None
    if path.suffix in _TEXTS and len(body) >= _PACKED_BYTES_MIN:
        made = gzip.compress(body, 9, mtime=0)
        packed = made if len(made) < len(body) else None
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return StaticFile(
        content_type=_TYPES.get(path.suffix, guessed),
        body=body,
        packed=packed,
        tag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        is_lasting=_HASHED.search(path.name) is not None,
    )

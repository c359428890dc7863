"""The servers of this suite, and what jobs and clients are told to reach them: in the clear and
asking for nothing, or as :mod:`tests.helpers.secured` has it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.secured import IS_SECURED, Secured, rules


@cache
def _secured() -> tuple[tempfile.TemporaryDirectory[str], Secured]:
    """The files of all of them, for as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="barrage-secured-")
    return folder, Secured.made(Path(folder.name))


def serving(config: ServerConfig | None = None, **named: Any) -> barrage.Server:
    """A server on a free port of 127.0.0.1, not started."""
    config = config or ServerConfig()
    if not IS_SECURED:
        return barrage.Server(config=config, **named)
    secured = replace(config, **_secured()[1].settings())
    return barrage.Server(config=secured, policy=rules(), **named)


def options_for(server: barrage.Server) -> dict[str, str]:
    """Of a source or sink."""
    return {"uri": server.uri, **login_options()}


def login_options() -> dict[str, str]:
    """Those of them that are not the server's address."""
    return _secured()[1].spark_options() if IS_SECURED else {}


def connect(server: barrage.Server) -> barrage.Session:
    """A session of our client."""
    return _secured()[1].connect(server.uri) if IS_SECURED else barrage.connect(server.uri)

"""Levels of the log by part of the program, at the start and while it runs.

A *part* is a package of ``barrage`` without that word (``server.exchange``, ``journal``), or
``barrage`` for all. Only parts there are can be set, so that nobody fills the memory with names.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from barrage import errors
from barrage.errors import ConfigError
from barrage.server.access.method_table import Action
from barrage.server.settings.json_fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.policy.access_gate import AccessGate

log = logging.getLogger(__name__)

SET_LOG_LEVEL = "barrage.set_log_level"

ALL_PARTS = "barrage"
LEVELS = ("debug", "info", "warning", "error")
UNSET = "unset"
"""As the part above says."""

_DESCRIPTION = (
    'Change what is logged, until the server ends. Body: JSON {"level": one of debug, info, '
    'warning, error, unset; "part": a package of barrage such as "journal" or "server.exchange", '
    'all of them when it is missing}. Result: JSON {"levels": what is set, by part}. With rules, '
    "for those who may do everything."
)


@cache
def parts() -> frozenset[str]:
    """Names of all parts."""
    root = Path(errors.__file__).parent
    files = (path.relative_to(root).with_suffix("") for path in root.rglob("*.py"))
    found = (".".join(path.parts).removesuffix(".__init__") for path in files)
    return frozenset({ALL_PARTS, *(name for name in found if not name.startswith("_"))})


def set_level(level: str, part: str = ALL_PARTS) -> None:
    """Set the level of a part. ConfigError names what there is."""
    if level not in (*LEVELS, UNSET):
        known = ", ".join((*LEVELS, UNSET))
        raise ConfigError(f"log level {level[:100]!r} is not one of {known}")
    name = part.removeprefix("barrage.") or ALL_PARTS
    if name not in parts():
        tops = sorted(each for each in parts() if "." not in each)
        raise ConfigError(
            f"there is no part {part[:100]!r} of the log; there are {', '.join(tops)} and the "
            "packages in them, such as server.exchange"
        )
    chosen = logging.NOTSET if level == UNSET else logging.getLevelName(level.upper())
    _logger(name).setLevel(chosen)


def set_levels(text: str) -> None:
    """``warning,journal=debug``: a level for all, then those of parts. ConfigError."""
    for word in filter(None, (each.strip() for each in text.split(","))):
        part, equals, level = word.rpartition("=")
        set_level(level.strip().lower(), part.strip() if equals else ALL_PARTS)


def levels() -> dict[str, str]:
    """What is set, by part."""
    found = {}
    for name in sorted(parts()):
        logger = logging.root.manager.loggerDict.get(_full(name))
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            found[name] = logging.getLevelName(logger.level).lower()
    return found


def _full(part: str) -> str:
    return part if part == ALL_PARTS else f"barrage.{part}"


def _logger(part: str) -> logging.Logger:
    return logging.getLogger(_full(part))


class LogLevelCalls:
    """The action, on the event loop."""

    def __init__(self, gate: AccessGate) -> None:
        self._gate = gate
        self.actions: Mapping[str, Action] = {SET_LOG_LEVEL: Action(_DESCRIPTION, self._set)}

    async def _set(self, body: bytes) -> bytes:
        self._gate.check_keeper("levels of the log are set")
        fields = Fields.parse(body, "action body")
        part = fields.get("part", str, None)
        level = fields.get("level", str)
        fields.finish()
        set_level(level, part or ALL_PARTS)
        log.warning("the level of the log was changed: %s", levels())
        return json.dumps({"levels": levels()}).encode()

"""The ways the body of a record batch can take."""

from __future__ import annotations

import re
from enum import Enum

from barrage.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_TAKEN = frozenset({"auto", "order", "inline"})
"""Words that say something else where a way is named."""

_named: dict[str, BodyWay] = {}


def can_be_way(name: str) -> bool:
    """Whether a way of a plug-in can have this name."""
    return name not in _TAKEN and _NAME.fullmatch(name) is not None


class BodyWay(Enum):
    """How bodies travel. Every stream may use ``INLINE`` at any message, whatever was agreed.

    Those of this package are its members; a plug-in's way is one more value, made by :meth:`named`,
    and like them there is one of each.
    """

    INLINE = "inline"
    """Inside the FlightData message, as Flight has it."""
    SHM = "shm"
    """In shared memory of the server, which the client maps."""
    UCX = "ucx"
    """As tagged messages over UCX."""

    @classmethod
    def named(cls, name: str) -> BodyWay:
        """The way of that name, known from now on. For names of this process, not for those of a
        peer. ConfigError when it cannot be one."""
        try:
            return cls(name)
        except ValueError:
            if not can_be_way(name):
                raise ConfigError(f"{name!r} cannot be the name of a way of bodies") from None
        way = object.__new__(cls)
        way._name_ = name.upper()
        way._value_ = name
        return _named.setdefault(name, way)

    @classmethod
    def known(cls) -> tuple[BodyWay, ...]:
        """The members, then those of plug-ins that were named so far."""
        return (*cls, *_named.values())

    @classmethod
    def _missing_(cls, value: object) -> BodyWay | None:
        return _named.get(value) if isinstance(value, str) else None

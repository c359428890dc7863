"""How the bodies of record batches come to a client: what it wishes, what became of it, and counts.

A body travels inside its message (*inline*), through shared memory of a server on the same host
(*shm*), or over UCX. What the rows are does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.transport.registry import BODIES, body_way
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Mapping


class BodyChoice(Enum):
    """What a session asks for. Every choice but INLINE falls back to it. The way of a plug-in is
    asked for by its name, and is a :class:`BodyWay`."""

    AUTO = "auto"
    """Shared memory where the server offers it and runs on the same host."""
    INLINE = "inline"
    SHM = "shm"
    UCX = "ucx"

    @classmethod
    def parse(cls, choice: BodyChoice | BodyWay | str) -> BodyChoice | BodyWay:
        """A member, a way, or the name of one; ConfigError."""
        if isinstance(choice, BodyChoice | BodyWay):
            return choice
        try:
            return cls(choice)
        except ValueError:
            way = body_way(choice) if isinstance(choice, str) else None
        if way is None:
            names = dict.fromkeys((*(member.value for member in cls), *BODIES.names()))
            known = ", ".join(map(repr, names))
            raise ConfigError(f"bodies is {choice!r}, it must be one of {known}")
        return way

    @property
    def way(self) -> BodyWay:
        """The way to try."""
        return _WAYS[self]


def way_to_try(choice: BodyChoice | BodyWay) -> BodyWay:
    """The way of a choice."""
    return choice.way if isinstance(choice, BodyChoice) else choice


_WAYS = {
    BodyChoice.AUTO: BodyWay.SHM,
    BodyChoice.INLINE: BodyWay.INLINE,
    BodyChoice.SHM: BodyWay.SHM,
    BodyChoice.UCX: BodyWay.UCX,
}


@dataclass(frozen=True, slots=True)
class BodyStatus:
    """The way the bodies of one stream may take, and why it is inline when it is."""

    way: BodyWay
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.way.value} ({self.reason})" if self.reason else self.way.value


NO_STREAM = BodyStatus(BodyWay.INLINE, "there was no stream yet")


@dataclass(frozen=True, slots=True)
class BodyCount:
    """Bodies that came one way."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStats:
    """Bodies received since the subscription began, by the way each of them came. Small ones are
    always inline."""

    inline: BodyCount = field(default_factory=BodyCount)
    shm: BodyCount = field(default_factory=BodyCount)
    ucx: BodyCount = field(default_factory=BodyCount)
    others: Mapping[str, BodyCount] = field(default_factory=dict)
    """Those of plug-ins that brought something, by the name of their way."""

    def by_way(self) -> list[tuple[str, BodyCount]]:
        """Name and count of every way."""
        return [
            *(("inline", self.inline), ("shm", self.shm), ("ucx", self.ucx)),
            *self.others.items(),
        ]


class BodyCounter:
    """Counts bodies of all streams of one subscription."""

    __slots__ = ("_inline_bytes", "_inline_count", "_outside")

    def __init__(self) -> None:
        self._inline_count = 0
        self._inline_bytes = 0
        self._outside: dict[BodyWay, tuple[int, int]] = {}

    def count_inline(self, size: int) -> None:
        """One body that came in its message; messages without rows have an empty one."""
        if size:
            self._inline_count += 1
            self._inline_bytes += size

    def count(self, way: BodyWay, size: int) -> None:
        """One body that came outside its message."""
        count, total = self._outside.get(way, (0, 0))
        self._outside[way] = (count + 1, total + size)

    def read(self) -> BodyStats:
        return BodyStats(
            inline=BodyCount(self._inline_count, self._inline_bytes),
            shm=BodyCount(*self._outside.get(BodyWay.SHM, (0, 0))),
            ucx=BodyCount(*self._outside.get(BodyWay.UCX, (0, 0))),
            others={
                way.value: BodyCount(*counted)
                for way, counted in self._outside.items()
                if way not in (BodyWay.SHM, BodyWay.UCX)
            },
        )

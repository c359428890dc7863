"""What a server does again and again: ends what has run out, and looks for users and rules that
have changed.

Each of the three is a task of its own. Files may lie on a disk that has stopped answering, and who
looks for them waits with it: sessions end meanwhile, and of two files the other one is read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from barrage.supervision import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

SESSIONS = Role("barrage-sessions", "health: sessions would never end")
USERS = Role("barrage-users", "health: who was a user stayed one")
RULES = Role("barrage-rules", "health: rules that were taken back would go on to hold")

INTERVAL_MS_MAX = 1_000
"""Longest time between two looks."""


class RunsOut(Protocol):
    """Keeps what has an end."""

    def sweep(self) -> None:
        """End what is over."""
        ...


class ReadFromFiles(Protocol):
    """Is read from files that may change."""

    async def refresh(self) -> None:
        """Look whether they have; returns when what was found holds."""
        ...


def interval_s(session_lifetime_ms: int) -> float:
    """Seconds between two looks: sessions live at most a tenth longer than they may."""
    return min(session_lifetime_ms // 10, INTERVAL_MS_MAX) / 1000


async def sweep_for_ever(keepers: Sequence[RunsOut], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        for each in keepers:
            each.sweep()


async def refresh_for_ever(read: ReadFromFiles, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await read.refresh()

"""Waiting for a server that is away: how long, how often, and who is told.

One time bounds what one call, one read or one watch waits (option ``reconnectTimeoutMs``). A wait
is logged when it begins and when it ends, and counted for the query's progress.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

PAUSE_MS_MAX = 1_000
"""Longest pause between two tries: how late a server that came back is noticed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitCounts:
    """What this process has waited for its server."""

    waits: int = 0
    """Times it was away."""
    retries: int = 0
    """Calls made again."""
    seconds: float = 0.0


class WaitMeter:
    """Counts the waits of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = WaitCounts()

    def add(self, *, waits: int = 0, retries: int = 0, seconds: float = 0.0) -> None:
        with self._lock:
            old = self._counts
            self._counts = WaitCounts(
                old.waits + waits, old.retries + retries, old.seconds + seconds
            )

    @property
    def counts(self) -> WaitCounts:
        with self._lock:
            return self._counts


wait_meter = WaitMeter()
"""Of this process."""


class Patience:
    """The tries of one call. The time runs from the first failure on."""

    def __init__(
        self, *, doing: str, limit_ms: int, pause_ms: int, tries_max: int | None = None
    ) -> None:
        self._doing = doing
        self._limit = limit_ms / 1000
        self._pause_ms = pause_ms
        self._pause_ms_max = max(PAUSE_MS_MAX, pause_ms)
        self._tries_left = tries_max
        self._since: float | None = None
        self._pause = threading.Event()

    @property
    def waited(self) -> float:
        """Seconds since the first failure."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def wait(self, reason: object) -> bool:
        """Pause before the next try; False when there is to be none."""
        left = self._limit - self.waited
        if left <= 0 or self._tries_left == 0:
            return False
        if self._tries_left is not None:
            self._tries_left -= 1
        if self._since is None:
            self._since = time.monotonic()
            wait_meter.add(waits=1)
            _log.warning(
                "%s: the server is away, trying again for %g s (option reconnectTimeoutMs): %s",
                self._doing,
                self._limit,
                reason,
            )
        pause = min(left, self._pause_ms / 1000)
        self._pause_ms = min(self._pause_ms * 2, self._pause_ms_max)
        self._pause.wait(pause)
        wait_meter.add(retries=1, seconds=pause)
        return True

    def succeeded(self) -> None:
        """The call went through."""
        if self._since is not None:
            _log.warning("%s: went on after %.1f s", self._doing, self.waited)
            self._since = None

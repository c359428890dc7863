"""How much memory all tables of one server may keep for readers that lag behind.

What is kept is what a reader would otherwise miss: row sets, never values. The bound is on bytes of
the sets themselves (:attr:`Limits.held_table_bytes_max`, :attr:`Limits.held_server_bytes_max`).
Past it a table gives way step by step (:mod:`barrage.engine.propagation.lagging`): first for
itself, then, where all tables together keep too much, the one that keeps most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barrage.limits import Limits


@dataclass(slots=True)
class HeldStats:
    """Counters of what readers that lag behind cost; written by the engine thread alone, read from
    anywhere."""

    nbytes: int = 0
    """Bytes kept for them now, on all tables."""
    resynchronised: int = 0
    """How often a reader's changes were given up: its next update is the whole table."""
    disconnected: int = 0
    """Readers that were ended because not even their row keys could be kept."""


class Holder(Protocol):
    """Keeps something for the readers of one table."""

    @property
    def held_nbytes(self) -> int:
        """Bytes kept now."""
        ...

    def shed(self) -> bool:
        """Take one step towards fewer bytes; False when there is none left to take."""
        ...


class HeldBytes:
    """The bytes of all holders, and the bounds on them."""

    def __init__(self, limits: Limits, stats: HeldStats | None = None) -> None:
        self.stats = HeldStats() if stats is None else stats
        self._table_max = limits.held_table_bytes_max
        self._server_max = limits.held_server_bytes_max
        self._holders: dict[Holder, int] = {}

    def settle(self, holder: Holder) -> None:
        """``holder`` may keep more or less than before: bring it, and all together, within their
        bounds, as far as that is possible."""
        self.note(holder)
        while holder.held_nbytes > self._table_max and holder.shed():
            self.note(holder)
        self.note(holder)
        exhausted: set[Holder] = set()
        while self.stats.nbytes > self._server_max:
            able = [each for each in self._holders if each not in exhausted]
            if not able:
                return
            largest = max(able, key=self._holders.__getitem__)
            if not largest.shed():
                exhausted.add(largest)
            self.note(largest)

    def note(self, holder: Holder) -> None:
        """``holder`` may keep less than before."""
        nbytes = holder.held_nbytes
        self.stats.nbytes += nbytes - self._holders.pop(holder, 0)
        if nbytes:
            self._holders[holder] = nbytes

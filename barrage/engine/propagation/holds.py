"""Which subscriptions of one table are held, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import KeysView

NO_ROUND = -1
"""Round of a subscription that had missed one before it was held."""


class Holds:
    """By slot: when the hold began, once that is known, and in which round of its interval."""

    def __init__(self) -> None:
        self._since_ns: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        self._unstamped: list[int] = []

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def slots(self) -> KeysView[int]:
        return self._rounds.keys()

    def begin(self, slot: int, round_: int, now_ns: int | None) -> None:
        """Hold a slot, or hold it again, which changes nothing. Without ``now_ns`` the time counts
        from the next :meth:`stamp`."""
        self._rounds.setdefault(slot, round_)
        if now_ns is None:
            self._unstamped.append(slot)
        else:
            self._since_ns.setdefault(slot, now_ns)

    def end(self, slot: int) -> None:
        self._since_ns.pop(slot, None)
        self._rounds.pop(slot, None)

    def is_behind(self, slot: int, round_: int) -> bool:
        """Whether a propagation of its interval has passed a slot by; ``round_`` is the present
        one."""
        return self._rounds.get(slot, round_) != round_

    def stamp(self, now_ns: int) -> None:
        for slot in self._unstamped:
            if slot in self._rounds:
                self._since_ns.setdefault(slot, now_ns)
        self._unstamped.clear()

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest hold began."""
        return min(self._since_ns.values(), default=None)

    def longer_than(self, stall_ns: int, now_ns: int) -> list[tuple[int, int]]:
        """The slots held for at least so long, and how long."""
        if not self._since_ns or now_ns - min(self._since_ns.values()) < stall_ns:
            return []
        held = ((slot, now_ns - since) for slot, since in self._since_ns.items())
        return [(slot, ns) for slot, ns in held if ns >= stall_ns]

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        assert self._since_ns.keys() <= self._rounds.keys()

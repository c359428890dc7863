"""Clients take turns: a queue with one line per client, of which each gives one item at a time."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Hashable

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items of many owners. However many one of them has, the next of any other comes after one of
    his. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._lines: dict[Hashable, deque[Item]] = {}
        """In the order in which their owners come next; no line is empty."""
        self._is_ended = False

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._lines.values()))

    def put(self, owner: Hashable, item: Item) -> None:
        """Add an item behind those of its owner."""
        with self._changed:
            self._lines.setdefault(owner, deque()).append(item)
            self._changed.notify()

    def take(self) -> Item | None:
        """The next item, when there is one; None once it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_ended)
            return None if self._is_ended else self._next()

    def take_now(self) -> Item | None:
        """The next item, if there is one."""
        with self._changed:
            return self._next() if self._lines else None

    def _next(self) -> Item:
        owner, line = next(iter(self._lines.items()))
        item = line.popleft()
        del self._lines[owner]
        if line:
            self._lines[owner] = line
        return item

    def discard(self, owner: Hashable, item: Item) -> bool:
        """Take an item out; whether it was there."""
        with self._changed:
            line = self._lines.get(owner)
            if line is None or item not in line:
                return False
            line.remove(item)
            if not line:
                del self._lines[owner]
            return True

    def end(self) -> list[Item]:
        """Let everybody who waits go; the items that are left."""
        with self._changed:
            self._is_ended = True
            left = [item for line in self._lines.values() for item in line]
            self._lines.clear()
            self._changed.notify_all()
        return left


def check_room(what: str, count: int, maximum: int) -> None:
    """LimitExceededError when there is no room for one more."""
    if count >= maximum:
        raise LimitExceededError(what, actual=count + 1, maximum=maximum, unit="operators")

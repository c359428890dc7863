"""Clients that take turns: owners put and take back, two threads take, another ends it. Each item
is taken once, taken back, or left to who ends it; nobody waits after the end."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

from barrage.server.runtime import turns
from barrage.server.runtime.turns import Turns
from tests.interleaving.seeded_threads import Threads, run_threads

OWNERS = 3
ITEMS = 4


def explore(seed: int) -> None:
    modules = [turns, sys.modules[__name__]]
    run_threads(lambda world: Scene(world).run(), seed, modules=modules)


class Scene:
    def __init__(self, world: Threads) -> None:
        self.world, self.random = world, world.random
        self.turns: Turns[tuple[int, int]] = Turns()
        self.gone: list[tuple[int, int]] = []

    def run(self) -> None:
        takers = [threading.Thread(target=self.take) for _ in range(2)]
        owners = [threading.Thread(target=partial(self.own, owner)) for owner in range(OWNERS)]
        for thread in (*takers, *owners):
            thread.start()
        for thread in owners:
            thread.join()
        self.gone += self.turns.end()
        for thread in takers:
            thread.join()
        expected = Counter((owner, number) for owner in range(OWNERS) for number in range(ITEMS))
        assert Counter(self.gone) == expected, Counter(self.gone) - expected
        assert not len(self.turns)

    def own(self, owner: int) -> None:
        for number in range(ITEMS):
            self.turns.put(owner, (owner, number))
            if self.random.random() < 0.3 and self.turns.discard(owner, (owner, number)):
                self.gone.append((owner, number))

    def take(self) -> None:
        while (item := self.turns.take()) is not None:
            self.gone.append(item)


# --- canaries -------------------------------------------------------------------------------------


def look_before_taking() -> AbstractContextManager[object]:
    """Whether there is an item is looked at, and then it is taken."""

    def discard(self, owner, item):
        line = self._lines.get(owner)
        if line is None or item not in line:
            return False
        with self._changed:
            if item in line:
                line.remove(item)
            if not line:
                self._lines.pop(owner, None)
            return True

    return mock.patch.object(Turns, "discard", discard)


CANARIES = (look_before_taking,)

"""The engine's command queue between callers on threads, one that gives up and one that stops: each
future resolves, what was refused has not run, and no write is done after one that was refused."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

from barrage.clock import SystemClock
from barrage.errors import BarrageError, LimitExceededError, TransportError
from barrage.limits import Limits
from barrage.server.runtime import command_queue, runtime
from barrage.server.runtime.runtime import EngineRuntime
from tests.interleaving.seeded_threads import Threads, run_threads

MODULES = [command_queue, runtime, sys.modules[__name__]]
"""This one, too: what a canary does has seams as the code has that it replaces."""

CALLERS = 3
CALLS = 6


def explore(seed: int) -> None:
    run_threads(lambda world: Scene(world).run(), seed, modules=MODULES)


class Scene:
    """Callers who submit, write and post, and an owner who ends it all meanwhile."""

    def __init__(self, world: Threads) -> None:
        self.random = world.random
        limits = Limits(command_queue_max=self.random.choice((1, 3, 1000)))
        self.runtime = EngineRuntime(limits=limits, clock=SystemClock())
        self.done: list[tuple[int, int]] = []
        self.accepted: dict[tuple[int, int], Future[int]] = {}
        self.refused: set[tuple[int, int]] = set()
        self.posted: list[tuple[int, int]] = []
        self.kinds: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        callers = [
            threading.Thread(target=self.call, args=(caller,), name=f"caller {caller}")
            for caller in range(CALLERS)
        ]
        stoppers = [threading.Thread(target=self.stop, name=f"stop {n}") for n in range(2)]
        for thread in (*callers, *stoppers):
            thread.start()
        for thread in (*callers, *stoppers):
            thread.join()
        self.check()

    def call(self, caller: int) -> None:
        for number in range(CALLS):
            call = caller, number
            kind = self.kinds[call] = self.random.choice(
                ("submit", "write", "write", "write", "post")
            )
            if kind == "post":
                self.runtime.post(partial(self.done.append, call))
                self.posted.append(call)
                continue
            try:
                if kind == "submit":
                    self.accepted[call] = self.runtime.submit(partial(self.do, call))
                else:
                    self.accepted[call] = self.runtime.write(partial(self.stage, call))
            except (TransportError, LimitExceededError):
                self.refused.add(call)

    def do(self, call: tuple[int, int]) -> int:
        self.done.append(call)
        return call[1]

    def stage(self, call: tuple[int, int]) -> tuple[()]:
        self.done.append(call)
        return ()

    def stop(self) -> None:
        if self.random.random() < 0.8:
            self.runtime.give_up_waiting()
        self.runtime.stop()

    def check(self) -> None:
        given_up = [False] * CALLERS
        for call, future in sorted(self.accepted.items()):
            # One that never resolves is found by everybody's waiting.
            error = future.exception()
            assert error is None or isinstance(error, BarrageError), error
            if error is None:
                assert call in self.done, f"{call} was answered and not done"
                is_write = self.kinds[call] == "write"
                assert not (is_write and given_up[call[0]]), f"{call} follows a refused write"
            else:
                assert call not in self.done, f"{call} was refused and done"
                given_up[call[0]] |= self.kinds[call] == "write"
        assert not self.refused & set(self.done)
        assert len(self.done) == len(set(self.done)), "a command was done twice"
        for caller in range(CALLERS):
            mine = [call for call in self.done if call[0] == caller]
            assert mine == sorted(mine), f"out of order: {mine}"


# --- canaries -------------------------------------------------------------------------------------


def go_on_after_giving_up() -> AbstractContextManager[object]:
    """What waits is refused, and what comes next is done."""

    def give_up_waiting(self) -> None:
        refusal = TransportError("the server is stopping")
        runtime._refuse_all(self._commands.take_awaited(), refusal)

    return mock.patch.object(EngineRuntime, "give_up_waiting", give_up_waiting)


CANARIES = (go_on_after_giving_up,)

"""The engine's command queue alone: callers put, one thread takes until the end, another ends
it. What was accepted is taken once, in order, or handed to who ends it; nothing is left in it. Of
notices under one key the last is done, before what its caller put after it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

from barrage.errors import BarrageError, TransportError
from barrage.server.runtime import command_queue
from barrage.server.runtime.command_queue import Command, CommandQueue
from tests.interleaving.seeded_threads import Threads, run_threads

CALLERS = 3
CALLS = 2
ENDED = TransportError("the end")


def explore(seed: int) -> None:
    modules = [command_queue, sys.modules[__name__]]
    run_threads(lambda world: Scene(world).run(), seed, modules=modules)


class Scene:
    def __init__(self, world: Threads) -> None:
        self.random = world.random
        self.queue = CommandQueue(self.random.choice((1, 2, 100)))
        self.accepted: list[Future[int]] = []
        self.done: list[tuple[int, int]] = []
        self.noted: list[tuple[int, int]] = []
        self.stale: list[tuple[int, int]] = []

    def run(self) -> None:
        works = [partial(self.call, caller) for caller in range(CALLERS)]
        taker = threading.Thread(target=self.take, name="taker")
        threads = [threading.Thread(target=work) for work in (*works, partial(self.end, taker))]
        for thread in (taker, *threads):
            thread.start()
        for thread in (taker, *threads):
            thread.join()
        assert not len(self.queue)
        for future in self.accepted:
            assert future.done(), "an accepted command was neither done nor refused"
        for caller in range(CALLERS):
            mine = [call for call in self.done if call[0] == caller]
            assert mine == sorted(set(mine)), f"twice or out of order: {mine}"
            noted = [note for note in self.noted if note[0] == caller]
            assert noted == sorted(set(noted)), f"twice or out of order: {noted}"
        assert not self.stale, "a notice was lost, and something older stands"

    def call(self, caller: int) -> None:
        for number in range(CALLS):
            for note in (2 * number, 2 * number + 1):
                run = partial(self.noted.append, (caller, note))
                self.queue.put(Command(run, None, key=f"caller {caller}"))
            future: Future[int] = Future()
            command = Command(partial(self.do, (caller, number)), future)
            try:
                self.queue.put(command)
            except BarrageError:
                continue
            self.accepted.append(future)

    def do(self, call: tuple[int, int]) -> None:
        caller, number = call
        self.done.append(call)
        if not any(note[0] == caller and note[1] > 2 * number for note in self.noted):
            self.stale.append(call)

    def take(self) -> None:
        while True:
            self.queue.wait(None)
            while (command := self.queue.take()) is not None:
                command.run()
                if command.future is not None:
                    command.future.set_result(0)
                self.queue.finished()
            if self.queue.end_if_empty(ENDED):
                return

    def end(self, taker: threading.Thread) -> None:
        self.queue.begin_end()
        taker.join()
        for future in self.queue.end(ENDED):
            future.set_exception(ENDED)


# --- canaries -------------------------------------------------------------------------------------


def look_before_taking_the_lock() -> AbstractContextManager[object]:
    """As it was: the queue is looked at, and then put to, and between the two it has ended."""

    def put(self: CommandQueue, command: Command) -> None:
        if command.future is not None:
            self._check()
        with self._changed:
            self._waiting.append(command)
            self._changed.notify()

    return mock.patch.object(CommandQueue, "put", put)


def replace_what_is_in_hand() -> AbstractContextManager[object]:
    """A notice takes the place of one that the engine has begun."""

    def take(self: CommandQueue) -> Command | None:
        with self._changed:
            if not self._waiting:
                return None
            command = self.in_hand = self._waiting.popleft()
            return command

    def finished(self: CommandQueue) -> None:
        with self._changed:
            if self.in_hand is not None and self.in_hand.key is not None:
                del self._by_key[self.in_hand.key]
            self.in_hand = None

    return mock.patch.multiple(CommandQueue, take=take, finished=finished)


CANARIES = (look_before_taking_the_lock, replace_what_is_in_hand)

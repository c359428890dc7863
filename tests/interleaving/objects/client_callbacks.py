"""The thread of a table's callbacks: the session's loop posts, callers register and take back, and
two of them close it. No callback runs after a close has returned, and no thread is left."""

from __future__ import annotations

import queue
import sys
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from barrage.client.synchronous import callbacks
from barrage.client.synchronous.callbacks import CallbackThreads, close_all
from barrage.supervision import start_thread
from tests.interleaving.whole import Whole, run_whole

POSTS = 4


def explore(seed: int) -> None:
    modules = [callbacks, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


class Source:
    """What a table is for its callbacks."""

    name = "t"

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def on_state(self, callback):
        self.listeners.append(callback)
        return lambda: None

    on_error = on_state

    def note_callback_error(self, error: BaseException) -> None:
        raise error


class Updates:
    """An iterator of updates, as ``table.updates()`` gives it: one, and then the end."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.queue.put(1)

    def __iter__(self):
        return iter(self.queue.get, None)

    def close(self) -> None:
        self.queue.put(None)


class Scene:
    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.source = Source()
        self.thread = CallbackThreads(self.source)  # type: ignore[arg-type]
        self.told: list[object] = []
        self.closed: list[int] = []
        self.thread.on_state(self.called)

    def run(self) -> None:
        works = [self.post, self.register, self.close, self.close]
        self.whole.together(*works[: self.random.choice((3, 4))])
        # Whoever is left waiting is found by everybody's waiting.
        assert len(self.told) <= 2 * POSTS

    def called(self, value: object) -> None:
        assert not self.closed, "a callback ran after the close"
        self.told.append(value)

    def post(self) -> None:
        for number in range(self.random.choice((1, POSTS))):
            self.whole.pause()
            for listener in self.source.listeners[:1]:
                listener(number)

    def register(self) -> None:
        undo = self.thread.on_update(lambda update: self.called(update), Updates)
        self.whole.pause()
        if self.random.random() < 0.5:
            undo()

    def close(self) -> None:
        self.whole.pause()
        close_all([self.thread])
        self.closed.append(1)


# --- canaries -------------------------------------------------------------------------------------


def begin_after_the_end() -> AbstractContextManager[object]:
    """As it was: whether it is closed is not looked at, or was before."""

    def on_update(self, callback, follow):
        iterator = follow()
        self._iterators.append(iterator)
        work = partial(self._run_updates, iterator, callback)
        self._followers.append(
            start_thread(callbacks.FOLLOWER, work, on_death=self._table.note_callback_error)
        )
        return iterator.close

    return mock.patch.object(CallbackThreads, "on_update", on_update)


CANARIES = (begin_after_the_end,)

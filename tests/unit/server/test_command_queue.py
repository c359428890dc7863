"""Finalizers put bookkeeping wherever Python runs them: also in the middle of the queue itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from barrage.errors import TransportError
from barrage.server.command_queue import STOPPED, Command, CommandQueue

HANG_SECONDS = 60


class Interrupting:
    """A command at which a finalizer runs whenever somebody looks at who waits for it."""

    def __init__(self, queue: CommandQueue, future: Future[Any] | None) -> None:
        self.run = lambda: None
        self._queue, self._future = queue, future
        self.interrupted = 0

    @property
    def future(self) -> Future[Any] | None:
        if self.interrupted < 3:
            self.interrupted += 1
            self._queue.put(Command(lambda: None, None))
        return self._future


def done(work: Callable[[], Any]) -> Any:
    """What ``work`` answers, on a thread that may hang."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert answers, "it waits for itself"
    return answers[0]


def drained(queue: CommandQueue) -> list[Any]:
    return [command for command in iter(queue.take, None) if isinstance(command, Command)]


@pytest.mark.parametrize("future", [None, Future()], ids=["bookkeeping", "awaited"])
def test_a_finalizer_may_run_while_a_command_is_put(future: Future[Any] | None) -> None:
    queue = CommandQueue(10)
    command: Any = Interrupting(queue, future)
    done(lambda: (queue.put(command), queue.put(command)))
    assert len(queue) == 2 + command.interrupted
    assert len(drained(queue)) == command.interrupted


def test_a_finalizer_may_run_while_the_awaited_are_taken_out() -> None:
    queue, future = CommandQueue(10), Future[Any]()
    command: Any = Interrupting(queue, future)
    command.interrupted = 3
    kept = Command(lambda: None, None)
    queue.put(kept)
    queue.put(command)
    command.interrupted = 1
    assert done(queue.take_awaited) == [future]
    assert drained(queue)[0] is kept
    assert len(queue) == 0


def test_a_finalizer_may_run_while_the_queue_ends() -> None:
    queue, future = CommandQueue(10), Future[Any]()
    command: Any = Interrupting(queue, future)
    command.interrupted = 3
    queue.put(command)
    command.interrupted = 1
    assert future in done(lambda: queue.end(TransportError(STOPPED)))
    assert len(queue) == 0

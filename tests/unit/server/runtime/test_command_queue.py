"""Finalizers put bookkeeping wherever Python runs them: also in the middle of the queue itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from barrage.errors import TransportError
from barrage.server.runtime.command_queue import STOPPED, Command, CommandQueue

HANG_SECONDS = 180


class Interrupting:
    """A command at which a finalizer runs whenever somebody looks at who waits for it."""

    def __init__(self, queue: CommandQueue, future: Future[Any] | None) -> None:
        self.run = lambda: None
        self.key = None
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


def noted(queue: CommandQueue, notes: list[str]) -> list[str]:
    """What the waiting commands note, in order."""
    notes.clear()
    for command in drained(queue):
        command.run()
    return list(notes)


def test_of_notices_under_one_key_the_last_is_done_in_the_place_of_the_first() -> None:
    queue, notes = CommandQueue(10), list[str]()

    def put(note: str, key: str | None) -> None:
        queue.put(Command(partial(notes.append, note), None, key=key))

    for note, key in (("a1", "a"), ("b1", "b"), ("plain", None), ("a2", "a"), ("plain", None)):
        put(note, key)
    assert len(queue) == 4
    assert noted(queue, notes) == ["a2", "b1", "plain", "plain"]
    put("a3", "a")
    assert queue.take() is not None
    put("a4", "a")
    assert noted(queue, notes) == ["a4"], "what is in the engine's hand is not replaced"


def test_a_notice_of_many_costs_the_queue_one_place() -> None:
    queue = CommandQueue(1)
    for _ in range(1000):
        queue.put(Command(lambda: None, None, key="k"))
    assert len(queue) == 1
    queue.end(TransportError(STOPPED))
    queue.put(Command(lambda: None, None, key="k"))
    assert len(queue) == 0

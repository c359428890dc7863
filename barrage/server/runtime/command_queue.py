"""What waits for the engine thread: commands from anywhere, in order, and the end of it.

Whether there is room, whether the engine still takes commands, and putting one there are one step
under one lock; so are giving up and ending. A command is therefore always in one of three places:
refused to its caller, in the queue, or in the engine's hand, and whoever ends the engine finds it.

Bookkeeping is put by finalizers, too, and Python may run these wherever something is allocated:
also on a thread that holds the lock. So it may be taken twice, and nothing here minds a command
that comes in between.
"""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from barrage.errors import LimitExceededError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import Future

    from barrage.errors import BarrageError

STOPPED: Final = "the server has stopped"


class CommandOutcome(Enum):
    """When the future of a command gets what it waits for."""

    DONE = "done"
    """At once: the command's result."""
    COMMITTED = "committed"
    """When a cycle has committed what the command staged, and that is safe."""
    KEPT = "kept"
    """When recording is safe up to the ticket the command answered with."""


class Command:
    """A function to run on the engine thread and who waits for it."""

    __slots__ = ("future", "key", "on_failure", "outcome", "run", "seen_as")

    def __init__(
        self,
        run: Callable[[], Any],
        future: Future[Any] | None,
        *,
        outcome: CommandOutcome = CommandOutcome.DONE,
        on_failure: Callable[[BarrageError], object] | None = None,
        key: Hashable = None,
        seen_as: object = None,
    ) -> None:
        """``on_failure``: told on the engine thread when ``run`` fails and nobody waits for it.
        ``key``: of bookkeeping that takes the place of what waits under the same one. ``seen_as``:
        what an observer knows the write by."""
        self.run = run
        self.future = future
        self.outcome = outcome
        self.on_failure = on_failure
        self.key = key
        self.seen_as = seen_as


class CommandQueue:
    """A queue with one reader. ``limit`` bounds what somebody waits for; bookkeeping, which nobody
    waits for, is never refused while there is an engine to do it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Command] = deque()
        self._by_key: dict[Hashable, Command] = {}
        """Of what waits, that which has a key."""
        self._changed = threading.Condition(threading.RLock())
        self._is_woken = False
        self._is_ending = False
        self._end: BarrageError | None = None
        self.in_hand: Command | None = None
        """What the engine has taken and not finished."""

    def __len__(self) -> int:
        return len(self._waiting)

    # --- any thread ---

    def put(self, command: Command) -> None:
        """Queue a command. LimitExceededError when there is no room for one somebody waits for;
        for such a one, TransportError or what the engine died of when it takes no more."""
        with self._changed:
            if command.future is not None:
                self._check()
            elif self._end is not None:
                return
            if command.key is not None and self._replaces(command):
                return
            self._waiting.append(command)
            self._changed.notify()

    def _replaces(self, command: Command) -> bool:
        """Whether the command has taken the place of one that waits."""
        waiting = self._by_key.setdefault(command.key, command)
        waiting.run = command.run
        return waiting is not command

    def _check(self) -> None:
        if self._end is not None:
            raise self._end
        if self._is_ending:
            raise TransportError(STOPPED)
        count = len(self._waiting)
        if count >= self._limit:
            raise LimitExceededError(
                "engine command queue", actual=count + 1, maximum=self._limit, unit="commands"
            )

    def wake(self) -> None:
        """Have the engine look at what is due, without a command."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def begin_end(self) -> None:
        """From here on only bookkeeping is taken; what waits is still done."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    @property
    def is_ending(self) -> bool:
        """Whether the engine is to end when nothing waits any more."""
        return self._is_ending

    def take_awaited(self) -> list[Future[Any]]:
        """Take out what somebody waits for and has not begun; the order of the rest stays."""
        futures = []
        with self._changed:
            for _ in range(len(self._waiting)):
                command = self._waiting.popleft()
                if command.future is None:
                    self._waiting.append(command)
                else:
                    futures.append(command.future)
        return futures

    def end(self, reason: BarrageError) -> list[Future[Any]]:
        """Take nothing any more, for ``reason``; who waits for what will not be done. The first
        reason counts."""
        with self._changed:
            self._end = self._end or reason
            left, self._waiting = self._waiting, deque()
            self._by_key.clear()
            in_hand, self.in_hand = self.in_hand, None
        return [c.future for c in (in_hand, *left) if c is not None and c.future is not None]

    # --- the engine thread ---

    def end_if_empty(self, reason: BarrageError) -> bool:
        """End, if that has begun and nothing waits any more."""
        with self._changed:
            if not self._is_ending or self._waiting:
                return False
            self._end = self._end or reason
            return True

    def wait(self, timeout_ns: int | None) -> None:
        """Until there is a command or a reason to look, or the time has passed; None is never."""
        with self._changed:
            if timeout_ns is None or timeout_ns > 0:
                timeout_s = None if timeout_ns is None else timeout_ns / 1e9
                self._changed.wait_for(self._has_reason, timeout_s)
            self._is_woken = False

    def _has_reason(self) -> bool:
        return bool(self._waiting) or self._is_woken or self._is_ending

    def take(self) -> Command | None:
        """The next command, which is in the engine's hand until :meth:`finished`; None when there
        is none."""
        with self._changed:
            if not self._waiting:
                return None
            command = self.in_hand = self._waiting.popleft()
            if command.key is not None:
                del self._by_key[command.key]
            return command

    def finished(self) -> None:
        """The command in hand is done, or its future is kept elsewhere. Nothing refers to it any
        more: its future may hold the last reference to a table."""
        self.in_hand = None

"""Writes that are committed but not kept yet: who waits until a journal has them on disk.

A cycle makes changes visible at once; whoever wrote them is told when the journals of the tables
they touched have been synced past them. Belongs to the engine thread.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any, Protocol

from barrage.clock import SystemClock
from barrage.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from barrage.clock import Clock
    from barrage.engine import CycleResult, Table
    from barrage.errors import BarrageError


class Recorder(Protocol):
    """What keeps the changes of every cycle; all of it is called on the engine thread."""

    @property
    def has_pending(self) -> bool:
        """Whether a cycle is wanted although no table has changes."""
        ...

    def record(self, result: CycleResult, wall_ns: int) -> None:
        """Keep what a cycle changed. Does not wait for a disk."""
        ...

    def ticket_of(self, tables: Iterable[Table]) -> int:
        """What has to be synced before everything recorded of these tables is safe; 0 when nothing
        has to."""
        ...

    def refusal_of(self, tables: Iterable[Table]) -> BarrageError | None:
        """Why one of these tables cannot be recorded at all; None when all are."""
        ...

    @property
    def synced_ticket(self) -> int:
        """How far recording is safe."""
        ...

    @property
    def failure(self) -> BarrageError | None:
        """Why nothing more will become safe; None while all is well."""
        ...


class NoRecorder:
    """Keeps nothing, so every write is as safe as it gets when it is committed."""

    has_pending = False
    synced_ticket = 0
    failure = None

    def record(self, result: CycleResult, wall_ns: int) -> None:
        """Nothing is kept."""

    def ticket_of(self, tables: Iterable[Table]) -> int:
        return 0

    def refusal_of(self, tables: Iterable[Table]) -> None:
        """Nothing is refused."""


class DurableWrites:
    """The futures of committed writes, by what has to be synced first."""

    def __init__(
        self, recorder: Recorder, clock: Clock | None = None, commits: Histogram | None = None
    ) -> None:
        """``commits`` counts how long those waited that had to."""
        self._recorder = recorder
        self._clock = SystemClock() if clock is None else clock
        self._commits = Histogram() if commits is None else commits
        self._waiting: list[tuple[int, int, Future[Any], Any, tuple[Table, ...], int]] = []
        self._serial = itertools.count()
        self.committed_ns = 0
        """When the last cycle ended, by the monotonic clock."""

    def __len__(self) -> int:
        return len(self._waiting)

    def resolve(self, future: Future[Any], value: Any, tables: Iterable[Table]) -> None:
        """Give ``value`` to a future once everything recorded of ``tables`` is safe; the error
        instead when it never will be."""
        touched = tuple(tables)
        self.resolve_at(future, value, self._recorder.ticket_of(touched), tables=touched)

    def resolve_at(
        self, future: Future[Any], value: Any, ticket: int, *, tables: tuple[Table, ...] = ()
    ) -> None:
        """Give ``value`` to a future once recording is safe up to ``ticket``; the error instead
        when it never will be, or the recorder has refused one of ``tables``."""
        if ticket <= self._recorder.synced_ticket:
            self._resolve(future, value, tables)
        elif (failure := self._recorder.failure) is not None:
            future.set_exception(failure)
        else:
            entry = (ticket, next(self._serial), future, value, tables, self.committed_ns)
            heapq.heappush(self._waiting, entry)

    def _resolve(self, future: Future[Any], value: Any, tables: tuple[Table, ...]) -> None:
        refusal = self._recorder.refusal_of(tables)
        if refusal is None:
            future.set_result(value)
        else:
            future.set_exception(refusal)

    def settle(self) -> None:
        """Recording has been synced further, or has failed."""
        synced = self._recorder.synced_ticket
        now_ns = self._clock.monotonic_ns() if self._waiting else 0
        while self._waiting and self._waiting[0][0] <= synced:
            _, _, future, value, tables, since_ns = heapq.heappop(self._waiting)
            self._commits.observe(now_ns - since_ns)
            self._resolve(future, value, tables)
        failure = self._recorder.failure
        if failure is not None:
            self.refuse(failure)

    def refuse(self, error: BarrageError) -> None:
        """Nothing that still waits will become safe."""
        waiting, self._waiting = self._waiting, []
        for entry in sorted(waiting, key=lambda entry: entry[:2]):
            entry[2].set_exception(error)

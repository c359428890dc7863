"""Who watches single cycles and updates go by: nobody, as a rule.

What is always counted is in :mod:`barrage.server.runtime.measures`. An *observer* is told of every
cycle, propagation and delivery, and of each update as streams write it. Without one that costs a
comparison in each of these places.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine import CycleResult, Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSeen:
    """One cycle."""

    step: int
    begun_ns: int
    """Like all times here but ``wall_ns`` by the monotonic clock."""
    ended_ns: int
    wall_ns: int
    """When its changes were committed, by the wall clock: updates bear it."""
    tables: tuple[Table, ...]
    """Those it changed."""
    writes: tuple[object, ...]
    """What :meth:`Observer.write_begins` has said of the writes it committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOrigin:
    """Where an encoded update comes from, and how long encoding took."""

    step: int
    source_time_ns: int | None
    """When the newest of its changes was committed, by the wall clock; None for what does not
    tick."""
    is_snapshot: bool
    encode_begun_ns: int
    encode_ended_ns: int


class Observer(Protocol):
    """Told of what happens, on the thread on which it does, and must not take long."""

    def write_begins(self) -> object | None:
        """Any thread, in the call that writes: what the write is to be known by."""
        ...

    def cycle_ended(self, cycle: CycleSeen) -> None:
        """The engine thread."""
        ...

    def propagated(self, table: Table, begun_ns: int, ended_ns: int) -> None:
        """The engine thread: what the subscribers of a table are told was worked out."""
        ...

    def delivered(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        """The event loop has an update for these streams."""
        ...

    def written(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        """The event loop: the transports of these streams have taken the update."""
        ...


class Observation:
    """Holds the observers of one server; ``observer`` is None while nobody watches."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self.observer: Observer | None = None
        self.writes: list[object] = []
        """What the writes that the next cycle commits are known by. The engine thread's."""

    def cycle_ended(
        self, result: CycleResult, step: int, *, begun_ns: int, ended_ns: int, wall_ns: int
    ) -> None:
        """The engine thread has run a cycle."""
        observer = self.observer
        if observer is None and not self.writes:
            return
        writes, self.writes = tuple(self.writes), []
        if observer is None:
            return
        observer.cycle_ended(
            CycleSeen(
                step=step,
                begun_ns=begun_ns,
                ended_ns=ended_ns,
                wall_ns=wall_ns,
                tables=tuple(result.updates),
                writes=writes,
            )
        )

    def add(self, observer: Observer) -> None:
        """From now on it is told. Idempotent."""
        self._set((*(each for each in self._observers if each is not observer), observer))

    def remove(self, observer: Observer) -> None:
        """It is told no more. Idempotent."""
        self._set(tuple(each for each in self._observers if each is not observer))

    def _set(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self.observer = _Contained(self, observers) if observers else None


class _Contained:
    """Tells the observers. One that raises is told no more, and what is observed goes on. At most
    one of them knows writes by something."""

    def __init__(self, observation: Observation, observers: tuple[Observer, ...]) -> None:
        self._observation = observation
        self._observers = observers

    def _tell(self, tell: Callable[[Observer], object | None]) -> object | None:
        answer = None
        for each in self._observers:
            try:
                answer = tell(each) or answer
            except Exception:
                log.exception("an observer has failed and is told no more")
                self._observation.remove(each)
        return answer

    def write_begins(self) -> object | None:
        return self._tell(lambda each: each.write_begins())

    def cycle_ended(self, cycle: CycleSeen) -> None:
        self._tell(lambda each: each.cycle_ended(cycle))

    def propagated(self, table: Table, begun_ns: int, ended_ns: int) -> None:
        self._tell(lambda each: each.propagated(table, begun_ns, ended_ns))

    def delivered(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        self._tell(lambda each: each.delivered(origin, stream_ids))

    def written(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        self._tell(lambda each: each.written(origin, stream_ids))

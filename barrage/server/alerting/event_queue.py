"""Events that wait for their receiver: so many at most, of which the oldest are dropped first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.server.alerting.firing_keys import AlertEvent


class EventQueue:
    """The events of one alert. What was dropped is counted until a receiver has been told."""

    def __init__(self, *, events_max: int, bytes_max: int) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._events: deque[AlertEvent] = deque()
        self.nbytes = 0
        self.untold_dropped = 0
        self.dropped_in_all = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Iterable[AlertEvent]) -> None:
        """Have events wait, behind all others."""
        for event in events:
            self._events.append(event)
            self.nbytes += len(event.text)
        self._trim()

    def take(self, *, count_max: int, bytes_max: int) -> list[AlertEvent]:
        """The oldest events, one at least if there is one."""
        taken: list[AlertEvent] = []
        nbytes = 0
        while self._events and len(taken) < count_max:
            nbytes += len(self._events[0].text)
            if taken and nbytes > bytes_max:
                break
            taken.append(self._events.popleft())
            self.nbytes -= len(taken[-1].text)
        return taken

    def put_back(self, events: Sequence[AlertEvent]) -> None:
        """What was taken could not be told: it is the oldest again."""
        self._events.extendleft(reversed(events))
        self.nbytes += sum(len(event.text) for event in events)
        self._trim()

    def dropped(self, count: int) -> None:
        """So many events are told to nobody any more."""
        self.untold_dropped += count
        self.dropped_in_all += count

    def told_dropped(self, count: int) -> None:
        """A receiver knows of so many that were dropped."""
        self.untold_dropped -= count

    def _trim(self) -> None:
        while len(self._events) > self._events_max or (
            self.nbytes > self._bytes_max and len(self._events) > 1
        ):
            self.nbytes -= len(self._events.popleft().text)
            self.dropped(1)

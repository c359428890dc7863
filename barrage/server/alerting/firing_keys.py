"""Which keys of one alert fire, and what is told of that: edges come in, events go out.

No clock and no loop: what is due is a matter of the time that is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from barrage.limits import NANOS_PER_MS
from barrage.server.alerting.iso_time import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from barrage.server.alerting.alert import Alert

    JsonCells: TypeAlias = dict[str, Any]


_NULL = b"null"

DUE_MAX = 1_000
"""Keys that are looked at in one turn of the event loop: some milliseconds."""

ENDED_MAX = 1_000
"""Keys that have ended and are not forgotten."""


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """Something a receiver is told, as it is written in messages."""

    text: bytes


@dataclass(slots=True)
class _FiringKey:
    """One key that fulfils the condition."""

    key: bytes
    row: bytes
    """In JSON, both."""
    since_ns: int
    due_ns: int
    is_initial: bool
    id: str | None = None
    """Of the event that told it; None while none has."""
    held_bytes: int = 0
    """What is kept of its cells to be told later."""


class FiringKeys:
    """The keys of one alert that fulfil its condition, by the numbers of the tap."""

    def __init__(
        self, alert: Alert, ids: Iterator[str], *, event_bytes_max: int, held_bytes_max: int
    ) -> None:
        """``ids`` gives each event one of its own. ``held_bytes_max`` bounds the cells of keys that
        are to be told of later: the row is left out for which there is no room."""
        self._alert = alert
        self._ids = ids
        self._event_bytes_max = event_bytes_max
        self._for_ns = alert.for_ms * NANOS_PER_MS
        self._keys: dict[int, _FiringKey] = {}
        self._waiting: deque[tuple[int, int]] = deque()
        """When keys will have fulfilled it for long enough, in that order, and their numbers."""
        self._held_bytes_max = held_bytes_max
        self.held_bytes = 0
        """Of the cells that are kept."""
        self.firing_count = 0

    @property
    def pending_count(self) -> int:
        """Keys that fulfil the condition and have not done so for long enough."""
        return sum(1 for _, number in self._waiting if number in self._keys)

    @property
    def next_due_ns(self) -> int | None:
        """When a key may come to fire without anything happening."""
        return self._waiting[0][0] if self._waiting else None

    def begin(
        self,
        numbers: Sequence[int],
        rows: Sequence[tuple[JsonCells | None, JsonCells | None]],
        *,
        at_ns: int,
        wall_ns: int,
        is_initial: bool,
    ) -> list[AlertEvent]:
        """Keys have come to fulfil the condition; ``rows`` are their key cells and what is told of
        the row, None where that is too long."""
        events = []
        for number, (key, row) in zip(numbers, rows, strict=True):
            due_ns = at_ns + self._for_ns
            known = _FiringKey(_NULL, _NULL, wall_ns, due_ns, is_initial)
            self._keys[number] = known
            if is_initial and not self._alert.initial:
                continue
            known.key, known.row = _text(key), _text(row)
            if self._for_ns:
                self._hold(known)
                self._forget_ended()
                self._waiting.append((due_ns, number))
            else:
                events.append(self._fire(known, wall_ns))
                self._hold(known)
        return events

    def _hold(self, known: _FiringKey) -> None:
        """Keep what is told of a key later, as far as there is room."""
        room = self._held_bytes_max - self.held_bytes
        is_told_later = self._alert.resolved or known.id is None
        if not is_told_later or len(known.key) + len(known.row) > room:
            known.row = _NULL
        if not is_told_later or len(known.key) > room:
            known.key = _NULL
        self.held_bytes -= known.held_bytes
        known.held_bytes = 0 if known.key is _NULL else len(known.key) + len(known.row)
        self.held_bytes += known.held_bytes

    def end(
        self, numbers: Sequence[int], *, at_ns: int, wall_ns: int, reason: str | None = None
    ) -> list[AlertEvent]:
        """Keys do not fulfil it any more. Those that did for long enough and were not told of, as
        nobody had looked, are told of now."""
        events = []
        for number in numbers:
            known = self._keys.pop(number, None)
            if known is not None:
                self.held_bytes -= known.held_bytes
            if known is None or (known.is_initial and not self._alert.initial):
                continue
            if known.id is None:
                if at_ns < known.due_ns:
                    continue
                events.append(self._fire(known, wall_ns - (at_ns - known.due_ns)))
            self.firing_count -= 1
            if self._alert.resolved:
                events.append(self._resolve(known, wall_ns, reason))
        return events

    def end_all(self, *, at_ns: int, wall_ns: int, reason: str) -> list[AlertEvent]:
        """Nothing is known of any row any more."""
        events = self.end(list(self._keys), at_ns=at_ns, wall_ns=wall_ns, reason=reason)
        self._waiting.clear()
        return events

    def due(self, *, now_ns: int, wall_ns: int) -> list[AlertEvent]:
        """Those that have fulfilled the condition for long enough, :data:`DUE_MAX` of them."""
        events: list[AlertEvent] = []
        while self._waiting and self._waiting[0][0] <= now_ns and len(events) < DUE_MAX:
            _, number = self._waiting.popleft()
            known = self._keys.get(number)
            if known is not None and known.id is None:
                events.append(self._fire(known, wall_ns))
                self._hold(known)
        return events

    def _forget_ended(self) -> None:
        """Keys that come and go within the time they would have to hold must not gather."""
        if len(self._waiting) > 2 * len(self._keys) + ENDED_MAX:
            self._waiting = deque(each for each in self._waiting if each[1] in self._keys)

    def overflow(self, further_count: int, wall_ns: int) -> AlertEvent:
        """There are more keys than are told apart."""
        told = {"further_keys": further_count, "at": iso_time(wall_ns)}
        return AlertEvent(_text({"id": next(self._ids), "status": "overflow", **told}))

    def _fire(self, known: _FiringKey, wall_ns: int) -> AlertEvent:
        known.id = next(self._ids)
        self.firing_count += 1
        head = {"id": known.id, "status": "firing"}
        return self._event(head, known, {"at": iso_time(wall_ns), "initial": known.is_initial})

    def _resolve(self, known: _FiringKey, wall_ns: int, reason: str | None) -> AlertEvent:
        head = {"id": next(self._ids), "status": "resolved", "firing_id": known.id}
        tail = {"at": iso_time(wall_ns), **({} if reason is None else {"reason": reason})}
        return self._event(head, known, tail)

    def _event(self, head: dict[str, Any], known: _FiringKey, tail: dict[str, Any]) -> AlertEvent:
        tail = {"since": iso_time(known.since_ns), **tail}
        key = msgspec.Raw(known.key)
        text = _text({**head, "key": key, "row": msgspec.Raw(known.row), **tail})
        if len(text) > self._event_bytes_max:
            text = _text({**head, "key": key, "row": None, **tail})
        if len(text) > self._event_bytes_max:
            text = _text({**head, "key": None, "row": None, **tail})
        return AlertEvent(text)


def _text(told: dict[str, Any] | None) -> bytes:
    return msgspec.json.encode(told)

"""A virtual connection: two ordered pipes with delay, a window, clogs and cuts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from barrage.errors import BarrageError
from barrage.limits import NANOS_PER_MS
from tests.sim.options import Faults


@dataclass(slots=True)
class End:
    """Nothing follows. ``error`` None is a half-close from the client, status OK from the
    server."""

    error: BarrageError | None = None


@dataclass(slots=True)
class Pipe:
    """One direction. Items arrive in order; at most ``window`` are under way at a time."""

    random: Random
    delay_ms_max: int
    window: int
    clogged_until_ns: int = 0
    _items: deque[tuple[int, bytes | End]] = field(default_factory=deque)
    _last_ns: int = 0

    @property
    def has_room(self) -> bool:
        return len(self._items) < self.window

    @property
    def is_empty(self) -> bool:
        return not self._items

    def send(self, item: bytes | End, now_ns: int) -> None:
        delay_ns = self.random.randint(0, self.delay_ms_max * NANOS_PER_MS)
        self._last_ns = max(self._last_ns, now_ns + delay_ns)
        self._items.append((self._last_ns, item))

    def receive(self, now_ns: int) -> bytes | End | None:
        """The next item that has arrived."""
        if not self._items or now_ns < max(self._items[0][0], self.clogged_until_ns):
            return None
        return self._items.popleft()[1]


class Link:
    """The connection of one stream."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self.up = Pipe(random, faults.delay_ms_max, window=64)
        self.down = Pipe(random, faults.delay_ms_max, window=faults.window_frames)
        self.is_cut = False

    def clog(self, until_ns: int) -> None:
        """Nothing gets through before ``until_ns``."""
        self.up.clogged_until_ns = self.down.clogged_until_ns = until_ns

    def cut(self) -> None:
        """Everything under way is lost; both ends notice on their next look."""
        self.is_cut = True

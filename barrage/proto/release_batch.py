"""What a client has done with and the server does not know yet.

It is told in batches, for a message costs more than a body in shared memory. No clock: who drives
this waits :data:`WAIT_NS` at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.wire.dissociated.ranges import encode_addresses
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame

if TYPE_CHECKING:
    from barrage.wire.dissociated.lending import Window

NUMBERS_SOON = 16
"""So many numbers are told at once; fewer when the window has fewer."""

WAIT_NS = 20_000_000
"""How long fewer of them wait for others: a part of the time a server waits for credit."""


class ReleaseBatch:
    """Numbers of one stream that wait to be told: addresses, or numbers of messages."""

    __slots__ = ("_byte_count", "_bytes_soon", "_numbers", "_numbers_soon")

    def __init__(self, window: Window) -> None:
        self._bytes_soon = window.bytes // 2
        self._numbers_soon = min(NUMBERS_SOON, max(window.count // 2, 1))
        self._numbers: list[int] = []
        self._byte_count = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, size: int) -> None:
        """One more body, of ``size`` bytes."""
        self._numbers.append(number)
        self._byte_count += size

    @property
    def is_urgent(self) -> bool:
        """Whether they are not to wait for others: half of the window, or a worthwhile number."""
        return len(self._numbers) >= self._numbers_soon or self._byte_count >= self._bytes_soon

    def take(self) -> bytes:
        """The message that tells all of them. There must be some."""
        numbers, self._numbers, self._byte_count = self._numbers, [], 0
        return encode_flight_data(FlightFrame(released=encode_addresses(numbers)))

    def clear(self) -> None:
        """Nobody is told."""
        self._numbers.clear()
        self._byte_count = 0

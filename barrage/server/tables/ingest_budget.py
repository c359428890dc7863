"""How many bytes of rows may wait for the engine before a writer that does not wait has to."""

from __future__ import annotations

import threading


class IngestBudget:
    """Bytes handed to the engine and not committed yet. May be used from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_pending = 0
        self._has_room = threading.Condition()

    @property
    def bytes_pending(self) -> int:
        """Bytes that wait to be committed."""
        return self._bytes_pending

    def take(self, byte_count: int) -> None:
        """Block until ``byte_count`` fits, or nothing else is pending: one batch may be larger than
        the budget."""
        with self._has_room:
            while self._bytes_pending and self._bytes_pending + byte_count > self._bytes_max:
                self._has_room.wait()
            self._bytes_pending += byte_count

    def give_back(self, byte_count: int) -> None:
        """The engine has committed or refused ``byte_count`` taken before."""
        with self._has_room:
            self._bytes_pending -= byte_count
            self._has_room.notify_all()

"""Whether the disk has room for more, and the reserve for when it has none.

A file of ``reserve_bytes`` takes up what a full disk would lack for finishing what has been
accepted. Nothing more is accepted while it is gone, nor without as much again: the one is for what
is staged already, the other for what must not fail meanwhile.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from barrage.errors import JournalFullError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.journal.disk.storage import Storage

logger = logging.getLogger(__name__)

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
RESERVE_FILE: Final = "reserve"


def full_error(name: str) -> JournalFullError:
    """What is told while there is no room in the storage of that name."""
    return JournalFullError(
        f"{name} has no room for more history; writes are refused until there is, reading goes on"
    )


class StorageRoom:
    """Room in one storage. Used by one thread at a time; ``is_full`` is read by any."""

    def __init__(self, storage: Storage, reserve_bytes: int) -> None:
        self._storage = storage
        self._reserve_bytes = reserve_bytes
        self._has_reserve = False
        self.is_full = False

    def find_reserve(self) -> None:
        """See whether the last run has left one."""
        try:
            self._has_reserve = self._storage.size(RESERVE_FILE) == self._reserve_bytes > 0
        except FileNotFoundError:
            self._has_reserve = False

    def with_reserve(
        self, work: Callable[[], object], before_again: Callable[[], object] | None = None
    ) -> None:
        """Do ``work``, and if there is no room for it use the reserve up and do it again. What it
        raises then, or without a reserve, is raised."""
        try:
            work()
        except OSError as error:
            if error.errno not in NO_ROOM or not self._has_reserve:
                raise
            logger.warning(
                "%s is full: writes are refused, the reserve is used up", self._storage.name
            )
            self._storage.remove(RESERVE_FILE)
            self._has_reserve = False
            self.is_full = True
            if before_again is not None:
                before_again()
            work()

    def look(self) -> None:
        """Set the reserve aside when it is not; OSError for anything but a lack of room."""
        if self._reserve_bytes == 0:
            self.is_full = self._storage.free_bytes() == 0
            return
        self.find_reserve()
        if not self._has_reserve:
            try:
                self._storage.allocate(RESERVE_FILE, self._reserve_bytes)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.is_full = True
                return
            self._has_reserve = True
        self.is_full = self._storage.free_bytes() < self._reserve_bytes

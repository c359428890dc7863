"""Checkpoints and retention of the tables that were written to, one after the other.

A table whose upkeep fails is as good as before, only its history grows; it is tried again, ever
more rarely, and others are looked after meanwhile.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.clock import Clock
    from barrage.journal.stores.table_journal import TableJournal

logger = logging.getLogger(__name__)

RETRY_NS_MIN: Final = 1_000_000_000
"""How long after a failure a table is looked after again; twice as long after each further one."""

RETRY_NS_MAX: Final = 64 * RETRY_NS_MIN


@dataclass(slots=True)
class _Trouble:
    count: int
    again_ns: int
    reason: str


class Upkeep:
    """What is to be looked after. ``touch`` is the writer's, all else is the keeper's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._touched: dict[TableJournal, None] = {}
        self._troubled: dict[TableJournal, _Trouble] = {}
        self._lock = threading.Lock()

    def touch(self, journals: Iterable[TableJournal]) -> None:
        """These have been written to."""
        with self._lock:
            self._touched.update(dict.fromkeys(journals))

    def trouble(self, journal: TableJournal) -> tuple[int, str | None]:
        """How often in a row upkeep of a journal has failed, and of what the last time. Any
        thread."""
        trouble = self._troubled.get(journal)
        return (0, None) if trouble is None else (trouble.count, trouble.reason)

    def run(self) -> None:
        """Look after what was touched and what is due again."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            touched, self._touched = self._touched, {}
        for journal in touched | dict.fromkeys(self._troubled):
            trouble = self._troubled.get(journal)
            if journal.is_dropped:
                self._troubled.pop(journal, None)
                continue
            if trouble is not None and trouble.again_ns > now_ns:
                continue
            try:
                journal.maintain()
            except Exception as error:
                self._note(journal, error, now_ns)
            else:
                self._troubled.pop(journal, None)

    def _note(self, journal: TableJournal, error: Exception, now_ns: int) -> None:
        count = self.trouble(journal)[0] + 1
        pause_ns = min(RETRY_NS_MIN << min(count - 1, 16), RETRY_NS_MAX)
        self._troubled[journal] = _Trouble(count, now_ns + pause_ns, _told(error))
        logger.warning(
            "upkeep of journal %r failed %d times in a row, trying again in %d s",
            journal.identity.name,
            count,
            pause_ns // 1_000_000_000,
            exc_info=error,
        )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

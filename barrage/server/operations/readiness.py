"""Whether a server lives, and whether it should get clients: two questions.

It *lives* while a restart would change nothing for the better. It is *ready* while it takes new
calls and durable writes: a full disk makes it unready, and only room on the disk ready again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import JournalFullError

if TYPE_CHECKING:
    from barrage.errors import BarrageError
    from barrage.server.journaling.journal_service import JournalService

DRAINING = "the server is shutting down"


class Readiness:
    """Of one server. Read and told on the event loop."""

    def __init__(self, journals: JournalService) -> None:
        self._journals = journals
        self._failure: BarrageError | None = None
        self.is_draining = False

    def fail(self, error: BarrageError) -> None:
        """Something that everybody depends on has died. The first reason counts."""
        self._failure = self._failure or error

    def ailment(self) -> str | None:
        """Why only a restart helps; None while it lives."""
        if self._failure is not None:
            return str(self._failure)
        refusal = self._journals.refusal
        return None if refusal is None or isinstance(refusal, JournalFullError) else str(refusal)

    def unready(self) -> str | None:
        """Why it should get no clients; None while it is ready."""
        ailment = self.ailment()
        if ailment is not None:
            return ailment
        if self.is_draining:
            return DRAINING
        refusal = self._journals.refusal
        return None if refusal is None else str(refusal)

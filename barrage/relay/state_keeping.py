"""Keeps the states of a relay's tables in its directory: now and then, and once more at its end.

A state is taken from the table's history, which any thread may read, so neither the engine nor the
event loop waits for it. Writing whole states takes time and disk: between two rounds passes
``seconds`` (less after the start), and at least twenty times as long as the last round took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from barrage.errors import BarrageError, NoJournalError, TableNotFoundError
from barrage.model.cursor import Cursor
from barrage.relay.kept_states import KeptTable
from barrage.relay.told import form_served
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.clock import Clock
    from barrage.relay.kept_states import KeptStates
    from barrage.relay.listing import Listing
    from barrage.relay.relay_follower import RelayFollower
    from barrage.server.journaling.journal_service import JournalService

log = logging.getLogger(__name__)

KEEP_SECONDS: Final = 30.0
SOONER: Final = 32
"""How many times as soon the first round comes: a relay that has just begun has most to lose."""

SHARE_MAX: Final = 0.05
"""Of the time that may be spent on writing states."""


class StateKeeping:
    """Runs on the event loop; one task calls :meth:`run`."""

    def __init__(
        self,
        states: KeptStates,
        followers: Callable[[], Iterable[RelayFollower]],
        *,
        journals: JournalService,
        clock: Clock,
        seconds: float = KEEP_SECONDS,
    ) -> None:
        self._states = states
        self._followers = followers
        self._journals = journals
        self._clock = clock
        self._seconds = seconds
        self._trouble: str | None = None
        self._ending = asyncio.Event()

    async def run(self, listing: Callable[[], Listing | None]) -> None:
        """Keep states until :meth:`end`, and then once more. ``listing`` answers what the upstream
        server has now, None while it is away. Not to be cancelled: a state that is being written is
        written to its end."""
        took_ns, pause_seconds = 0, self._seconds / SOONER
        is_last = False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(pause_seconds, took_ns / 1e9 / SHARE_MAX)):
                    await self._ending.wait()
            # Asked before the round: what comes while one is under way is for another one.
            is_last = self._ending.is_set()
            began_ns = self._clock.monotonic_ns()
            await self._save_all(listing())
            took_ns = self._clock.monotonic_ns() - began_ns
            pause_seconds = min(2 * pause_seconds, self._seconds)

    def end(self) -> None:
        """Let :meth:`run` keep what there is now and return."""
        self._ending.set()

    async def _save_all(self, listing: Listing | None) -> None:
        """Keep the state of every table that has come on since. A disk that does not take them is
        logged: the relay serves on, and only its next start is slower."""
        for follower in list(self._followers()):
            try:
                await self._save(follower, listing)
            except (OSError, BarrageError) as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log.warning("table %s: its state could not be kept: %s", follower.name, error)
            else:
                self._trouble = None

    async def _save(self, follower: RelayFollower, listing: Listing | None) -> None:
        table = follower.table
        if table is None:
            if follower.kept_step is not None and _is_gone(follower.name, listing):
                await in_thread(self._states.forget, follower.name)
                follower.note_kept(None)
            return
        try:
            journal = self._journals.journal_named(follower.name)
        except (NoJournalError, TableNotFoundError):
            return  # Nobody could go on from it.
        now = Cursor(journal.epoch, journal.latest_version)
        is_kept = (follower.kept_epoch, follower.kept_step) == (now.epoch, now.version)
        if table.is_blink or is_kept:
            return
        state = await in_thread(journal.state_at, now.version)
        kept = KeptTable(name=follower.name, form=form_served(table), epoch=now.epoch, state=state)
        await in_thread(self._states.save, kept)
        follower.note_kept(now)


def _is_gone(name: str, listing: Listing | None) -> bool:
    return listing is not None and name not in listing.tables

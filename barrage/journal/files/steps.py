"""Step numbers across restarts: ``DIR/steps.json``.

Subscribers may see a cycle some milliseconds before it is on the disk. So that a step they saw and
a crash took away is never given to other content, numbers are set aside on disk before they are
used, by whatever cycle, and after a crash the graph goes on behind all of them. What lies between
is remembered as a gap: versions there are unknown. A clean end leaves none.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from barrage.errors import JournalCorruptError
from barrage.journal.disk.room import NO_ROOM
from barrage.journal.records.identity import decode_facts, encode_facts

if TYPE_CHECKING:
    from barrage.journal.disk.room import StorageRoom
    from barrage.journal.disk.storage import Storage

logger = logging.getLogger(__name__)

STEPS_FILE: Final = "steps.json"
_GAPS_MAX: Final = 1000
"""Gaps remembered; past it the two oldest become one, which only makes more versions unknown."""


@dataclass(frozen=True, slots=True)
class StepGap:
    """Steps a crash may have taken away: those between ``known_upto`` and ``next_step``."""

    known_upto: int
    next_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is known of step numbers. ``reserved``: none from here on was ever used."""

    first_step: int
    """The graph of this run continues after this step."""
    reserved: int
    is_clean: bool
    gaps: tuple[StepGap, ...] = ()

    def encode(self) -> bytes:
        """JSON with a CRC."""
        gaps = [[gap.known_upto, gap.next_step] for gap in self.gaps]
        return encode_facts(
            {
                "first_step": self.first_step,
                "reserved": self.reserved,
                "is_clean": self.is_clean,
                "gaps": json.dumps(gaps),
            }
        )

    @classmethod
    def read(cls, storage: Storage) -> Steps | None:
        """What the last run left; None when there was none. JournalCorruptError."""
        try:
            content = storage.read(STEPS_FILE).to_pybytes()
        except FileNotFoundError:
            return None
        facts = decode_facts(content, path=STEPS_FILE)
        try:
            return cls(
                first_step=int(str(facts["first_step"])),
                reserved=int(str(facts["reserved"])),
                is_clean=facts["is_clean"] is True,
                gaps=tuple(StepGap(*pair) for pair in json.loads(str(facts["gaps"]))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorruptError(STEPS_FILE, offset=0, reason=str(error)) from error

    def write(self, storage: Storage) -> None:
        """Return when it is on the disk."""
        storage.replace(STEPS_FILE, self.encode())

    def are_short(self, committed_step: int, reserved_steps: int) -> bool:
        """Whether so many have been used that more are to be set aside."""
        return committed_step + reserved_steps // 2 >= self.reserved

    def set_aside(self, storage: Storage, room: StorageRoom, upto: int) -> Steps:
        """Set aside those up to ``upto``, on the disk when this returns; these when there is no
        room for it, of which ``room`` is told. OSError."""
        steps = replace(self, reserved=upto)
        try:
            room.with_reserve(lambda: steps.write(storage))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            room.is_full = True
            return self
        return steps

    def end_cleanly(self, storage: Storage, committed_step: int) -> None:
        """The run is over, and everything of it on the disk: none after ``committed_step`` was
        used."""
        try:
            replace(self, reserved=committed_step, is_clean=True).write(storage)
        except OSError as error:
            logger.warning("the journal ends as after a crash: %s", error)

    def with_gap(self, gap: StepGap) -> Steps:
        """One more gap, newer than all others."""
        gaps = (*self.gaps, gap)
        if len(gaps) > _GAPS_MAX:
            gaps = (StepGap(gaps[0].known_upto, gaps[1].next_step), *gaps[2:])
        return replace(self, gaps=gaps)


def next_run(
    before: Steps | None, *, recovered_step: int, frontier: int, reserved_steps: int
) -> Steps:
    """The step numbers of a new run, after what the last one left and what its records say.

    ``recovered_step`` is the newest step in any table, ``frontier`` the one up to which all tables
    are known to be complete.
    """
    if before is None or before.is_clean:
        first = max(recovered_step, before.reserved if before is not None else 0)
        gaps = before.gaps if before is not None else ()
        return Steps(first_step=first, reserved=first + reserved_steps, is_clean=False, gaps=gaps)
    first = max(before.reserved, recovered_step)
    known = max(frontier, before.first_step)
    run = Steps(first_step=first, reserved=first + reserved_steps, is_clean=False, gaps=before.gaps)
    # Versions after ``known`` and up to ``first`` are unknown; ``first`` itself is where the graph
    # stands after the restart, and names the recovered state.
    return run.with_gap(StepGap(known, first)) if known < first - 1 else run

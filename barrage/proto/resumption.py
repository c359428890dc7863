"""Resuming a subscription: what a client asks for and what it is told, as gRPC metadata.

The request carries the cursor of the state the client holds and how it wants to get what it missed;
the answer's initial metadata carries the table's epoch and the outcome. Neither is part of the
Barrage messages, so peers that know nothing of it see nothing of it (docs/journal.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, CursorError
from barrage.model.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Mapping

CURSOR_HEADER = "x-barrage-cursor"
"""Request: the state the client holds, ``<epoch>:<version>``."""

RESUME_HEADER = "x-barrage-resume"
"""Request: a :class:`ResumeMode`; coalesced when it is missing."""

EPOCH_HEADER = "x-barrage-epoch"
"""Answer: the epoch of the table's history, for every table that has one."""

RESUMED_HEADER = "x-barrage-resumed"
"""Answer to a cursor: an :class:`Outcome`."""

UPDATES_HEADER = "x-barrage-updates"
"""Request: how updates are to be cut; only :data:`UPDATES_EACH` says something."""

UPDATES_EACH = "each-step"
"""One for every step, at once, whatever interval is asked for; merged only for who does not take
them. For relays, which keep the history."""

REASON_LENGTH_MAX = 300
"""Longest reason in characters; it travels in a header."""

STEPS_MAX = 2**31 - 1

_OUTCOME = re.compile(
    r"(live)|replayed ([0-9]{1,10})(?: in ([0-9]{1,10}) updates)?|resnapshot(?: (.*))?"
)
_EPOCH = re.compile(r"[0-9a-f]{16}\Z")


class ResumeMode(Enum):
    """How somebody who was away is told what happened."""

    COALESCED = "coalesced"
    """As one update."""
    STEPS = "steps"
    """As the updates of before, one per step."""
    OFF = "off"
    """Not at all: a new snapshot. Never sent."""

    @classmethod
    def parse(cls, text: ResumeMode | str) -> ResumeMode:
        """ConfigError when there is no such mode."""
        if isinstance(text, ResumeMode):
            return text
        for mode in cls:
            if mode.value == text:
                return mode
        known = ", ".join(mode.value for mode in cls)
        raise ConfigError(f"resume is {text!r}, it must be one of {known}")


class OutcomeKind(Enum):
    """What became of the wish to resume."""

    LIVE = "live"
    """Nothing was missed."""
    REPLAYED = "replayed"
    """What was missed follows."""
    RESNAPSHOT = "resnapshot"
    """A snapshot follows; the reason is told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a cursor."""

    kind: OutcomeKind
    steps: int = 0
    """Steps that changed the table since the cursor."""
    updates: int = 1
    """Updates that tell what was missed."""
    reason: str = ""

    @classmethod
    def live(cls) -> Outcome:
        return cls(OutcomeKind.LIVE)

    @classmethod
    def replayed(cls, steps: int, updates: int = 1) -> Outcome:
        return cls(OutcomeKind.REPLAYED, steps=steps, updates=updates)

    @classmethod
    def resnapshot(cls, reason: str) -> Outcome:
        return cls(OutcomeKind.RESNAPSHOT, reason=reason)

    @property
    def is_resumed(self) -> bool:
        """Whether the client's rows stay and updates follow."""
        return self.kind is not OutcomeKind.RESNAPSHOT

    def __str__(self) -> str:
        """For people."""
        if self.kind is OutcomeKind.LIVE:
            return "live"
        if self.kind is OutcomeKind.REPLAYED:
            return f"replayed {self.steps} {'step' if self.steps == 1 else 'steps'}"
        return f"resnapshot ({self.reason})"

    def header(self) -> str:
        """The value of the answer's header: printable ASCII."""
        if self.kind is OutcomeKind.LIVE:
            return "live"
        if self.kind is OutcomeKind.REPLAYED:
            many = f" in {self.updates} updates" if self.updates != 1 else ""
            return f"replayed {self.steps}{many}"
        reason = " ".join(self.reason.split()).encode("ascii", "backslashreplace").decode()
        return f"resnapshot {reason[:REASON_LENGTH_MAX]}".rstrip()


def parse_outcome(text: str | None) -> Outcome:
    """The outcome a header tells; none, or one that cannot be read, is a snapshot."""
    if text is None:
        return Outcome.resnapshot("the server knows nothing of cursors")
    match = _OUTCOME.fullmatch(text)
    if match is None:
        return Outcome.resnapshot("the server's answer to the cursor cannot be read")
    if match[1]:
        return Outcome.live()
    if match[2]:
        updates = min(max(int(match[3] or 1), 1), STEPS_MAX)
        return Outcome.replayed(min(int(match[2]), STEPS_MAX), updates)
    return Outcome.resnapshot(match[4] or "no reason was given")


def parse_epoch(text: str | None) -> str | None:
    """The epoch a header tells; None when there is none or it is not one."""
    return text if text is not None and _EPOCH.match(text) else None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The wish to resume, as a server reads it."""

    cursor: Cursor
    mode: ResumeMode

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> ResumeRequest | None:
        """What a call's headers ask for; None when they ask for nothing. CursorError or ConfigError
        when they cannot be read."""
        text = headers.get(CURSOR_HEADER)
        if text is None:
            return None
        mode = ResumeMode.parse(headers.get(RESUME_HEADER, ResumeMode.COALESCED.value))
        if mode is ResumeMode.OFF:
            raise CursorError("a cursor was sent by a client that does not want to resume")
        return cls(Cursor.parse(text), mode)

    def headers(self) -> dict[str, str]:
        """The headers that say it."""
        return {CURSOR_HEADER: str(self.cursor), RESUME_HEADER: self.mode.value}

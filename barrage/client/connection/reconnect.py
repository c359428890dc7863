"""When to try again after a lost connection."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from barrage.errors import (
    ASK_AGAIN,
    BarrageError,
    ConnectionLostError,
    SlowConsumerError,
    StatusCode,
    TableFailedError,
    TableNotFoundError,
)


@dataclass(slots=True)
class Backoff:
    """Delays that double up to a maximum, each drawn between half of it and all of it.

    The jitter keeps a thousand clients of a restarted server from coming back in the same
    millisecond; the lower half is kept so that a client never hammers a server that is down.
    """

    first_seconds: float = 0.1
    seconds_max: float = 10.0
    factor: float = 2.0
    source: random.Random = field(default_factory=random.Random)
    attempt: int = 0

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self.first_seconds * self.factor ** min(self.attempt, 32)
        self.attempt += 1
        return min(ceiling, self.seconds_max) * self.source.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After a success."""
        self.attempt = 0


ENDED_MAX = 3
"""So often a table that was read once and had been ended is asked for again."""


def was_ended(error: BarrageError) -> bool:
    """Whether the server has ended a derived table because a cycle would have taken too long for
    it, and makes it again for who asks."""
    return error.answered is not None and error.answered[0] is StatusCode.ABORTED


def had_been_ended(error: BarrageError) -> bool:
    """Whether a ticket stands for a derived table that the server had ended before: it does not
    make it again, but whoever made the ticket can."""
    return isinstance(error, TableFailedError) and ASK_AGAIN in str(error)


def is_worth_retrying(error: Exception, *, was_live: bool) -> bool:
    """Whether a new attempt may succeed. A table that existed may be missing while its server
    restarts."""
    if isinstance(error, ConnectionLostError | SlowConsumerError):
        return True
    return was_live and isinstance(error, TableNotFoundError)

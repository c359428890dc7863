"""Results at one step: rows that stay what they are until their time is up.

A result belongs to the caller it was made for. It is a list of *parts*, ranges of rows in the order
of the table, each with a ticket. The bytes of all of them are bounded, for one caller and for all.
Rows that are being read when the time is up are read to their end, and count until then.

Tickets are ``f/<result>/<part>``.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, StatusCode, TicketError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.identity.caller import Caller, Owner
    from barrage.wire.updates.update_codec import UpdateEncoder

RESULT_ROUTE = b"f/"
"""What tickets of results begin with."""


class ResultNotFoundError(TicketError):
    """There is no such result: its time is up, or it never was, or it is another caller's."""

    status_code = StatusCode.NOT_FOUND

    def __init__(self, result_id: str) -> None:
        super().__init__(
            f"result {result_id[:40]!r} is not here: its time was up, or it is not yours; "
            "ask for it again"
        )


class ResultCancelledError(TicketError):
    """The result was cancelled."""

    status_code = StatusCode.CANCELLED

    def __init__(self, result_id: str) -> None:
        super().__init__(f"result {result_id!r} was cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultShape:
    """What all parts of a result have in common."""

    encoder: UpdateEncoder[Frame]
    step: int
    epoch: str | None
    row_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPart:
    """Rows ``start`` up to ``stop``; ``updates`` is none where there are no rows to tell."""

    start: int
    stop: int
    updates: tuple[FullUpdate, ...]
    byte_count: int


@dataclass(slots=True, eq=False)
class PinnedResult:
    """One result. Changed by :class:`PinnedResults` alone."""

    id: str
    caller: Caller
    lifetime_ns: int
    born_ns: int
    """Wall clock, as is the next one."""
    expires_ns: int
    shape: ResultShape | None = None
    """Known once the table is held."""
    parts: list[ResultPart] = field(default_factory=list)
    byte_count: int = 0
    reader_count: int = 0
    waiter_count: int = 0
    """Calls that wait for its rows: its time does not run out meanwhile."""
    is_known: bool = True
    """Whether its tickets lead to it."""
    is_wanted: bool = True
    """Whether its rows are kept, even if nobody reads them now."""

    def ticket(self, index: int) -> bytes:
        """That of one part."""
        return RESULT_ROUTE + f"{self.id}/{index}".encode()


def is_result_ticket(ticket: bytes) -> bool:
    return ticket.startswith(RESULT_ROUTE)


def place_of(ticket: bytes) -> tuple[str, int]:
    """Result and part of a ticket; TicketError."""
    result_id, _, index = ticket[len(RESULT_ROUTE) :].partition(b"/")
    if not (index.isdigit() and len(index) <= 9 and result_id.isalnum() and len(result_id) <= 64):
        raise TicketError("Could not resolve ticket: a result's ticket is f/<result>/<part>")
    return result_id.decode("ascii", "replace"), int(index)


class PinnedResults:
    """All results of one server. On the event loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._results: dict[str, PinnedResult] = {}
        self._by_owner: dict[Owner, int] = {}
        self._bytes_by_owner: dict[Owner, int] = {}
        self.byte_count = 0

    @property
    def count(self) -> int:
        """Results that are kept."""
        return len(self._results)

    def is_full(self, caller: Caller) -> bool:
        """Whether there is no room for another result of this caller."""
        own = self._by_owner.get(caller.owner, 0)
        limits = self._limits
        return own >= limits.results_per_caller_max or self.count >= limits.results_max

    def open(self, caller: Caller, lifetime_ns: int | None = None) -> PinnedResult:
        """A result without rows, to be filled. LimitExceededError."""
        own = self._by_owner.get(caller.owner, 0)
        _check("number of results", len(self._results), self._limits.results_max)
        _check("number of results of one caller", own, self._limits.results_per_caller_max)
        now = self._clock.wall_ns()
        lifetime = self._limits.result_lifetime_ns if lifetime_ns is None else lifetime_ns
        result = PinnedResult(
            id=secrets.token_hex(16),
            caller=caller,
            lifetime_ns=lifetime,
            born_ns=now,
            expires_ns=now + lifetime,
        )
        self._results[result.id] = result
        self._by_owner[caller.owner] = own + 1
        return result

    def add(self, result: PinnedResult, part: ResultPart) -> None:
        """Rows that are there now. LimitExceededError, ResultNotFoundError when nobody wants it any
        more."""
        if not result.is_wanted:
            raise ResultNotFoundError(result.id)
        owner, limits = result.caller.owner, self._limits
        own = self._bytes_by_owner.get(owner, 0) + part.byte_count
        everybody = self.byte_count + part.byte_count
        most = limits.result_bytes_per_caller_max
        _check("size of the results of one caller", own - 1, most, unit="bytes")
        _check("size of all results", everybody - 1, limits.result_bytes_max, unit="bytes")
        self._bytes_by_owner[owner], self.byte_count = own, everybody
        result.byte_count += part.byte_count
        result.parts.append(part)

    def find(self, result_id: str, caller: Caller) -> PinnedResult:
        """A result of this caller whose time is not up; ResultNotFoundError."""
        result = self._results.get(result_id)
        if result is None or not result.caller.is_like(caller):
            raise ResultNotFoundError(result_id)
        if self._has_run_out(result):
            self.drop(result)
            raise ResultNotFoundError(result_id)
        return result

    def _has_run_out(self, result: PinnedResult) -> bool:
        return not result.waiter_count and self._clock.wall_ns() >= result.expires_ns

    @contextmanager
    def awaited(self, result: PinnedResult) -> Iterator[None]:
        """Its time does not run out while the block lasts; if it would have, it begins anew."""
        result.waiter_count += 1
        try:
            yield
        finally:
            result.waiter_count -= 1
            if self._has_run_out(result):
                self.renew(result)

    def renew(self, result: PinnedResult) -> None:
        """Its time begins anew, up to the greatest age."""
        oldest = result.born_ns + self._limits.result_age_ns_max
        wanted = self._clock.wall_ns() + result.lifetime_ns
        result.expires_ns = max(result.expires_ns, min(wanted, oldest))

    @contextmanager
    def reading(self, ticket: bytes, caller: Caller) -> Iterator[tuple[ResultShape, ResultPart]]:
        """The part of a ticket, which counts as kept for as long as the block lasts. TicketError,
        ResultNotFoundError."""
        result_id, index = place_of(ticket)
        result = self.find(result_id, caller)
        if not result.is_wanted:
            raise ResultCancelledError(result_id)
        if result.shape is None or index >= len(result.parts):
            raise ResultNotFoundError(f"{result_id}/{index}")
        result.reader_count += 1
        try:
            yield result.shape, result.parts[index]
        finally:
            result.reader_count -= 1
            self._free(result)

    def drop(self, result: PinnedResult) -> None:
        """Nobody else gets it. Idempotent."""
        if result.is_known:
            result.is_known = False
            del self._results[result.id]
            _less(self._by_owner, result.caller.owner, 1)
        self.clear(result)

    def clear(self, result: PinnedResult) -> None:
        """Keep its name, and no rows. Idempotent."""
        result.is_wanted = False
        self._free(result)

    def sweep(self) -> None:
        """Drop what has run out."""
        for result in [each for each in self._results.values() if self._has_run_out(each)]:
            self.drop(result)

    def drop_all(self, is_meant: Callable[[Caller], bool]) -> None:
        """Drop those of some callers."""
        for result in list(self._results.values()):
            if is_meant(result.caller):
                self.drop(result)

    def _free(self, result: PinnedResult) -> None:
        """Let the rows go, once nobody wants or reads them."""
        if result.is_wanted or result.reader_count:
            return
        self.byte_count -= result.byte_count
        _less(self._bytes_by_owner, result.caller.owner, result.byte_count)
        result.byte_count = 0
        result.parts.clear()


def _less(counts: dict[Owner, int], owner: Owner, count: int) -> None:
    left = counts.get(owner, 0) - count
    if left > 0:
        counts[owner] = left
    else:
        counts.pop(owner, None)


def _check(what: str, there: int, maximum: int, *, unit: str = "results") -> None:
    """Whether there is room for one more."""
    if there >= maximum:
        raise LimitExceededError(what, actual=there + 1, maximum=maximum, unit=unit)

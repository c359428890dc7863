"""Back-pressure of bodies outside their stream: how many may be out and not given back.

The window of one stream counts bodies and their bytes. When it is full the sender waits a little
for credit; when none comes it goes on inline until some does. A receiver that keeps a body for too
long makes the stream inline for good. No clock: the time comes in.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from barrage.errors import LocalProtocolError
from barrage.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.limits import Limits


class Admission(Enum):
    """What to do with the next body."""

    NOW = "now"
    """Send it outside the stream."""
    WAIT = "wait"
    """Ask again after credit has come, or at ``wait_until_ns``."""
    INLINE = "inline"
    """Send it in its message."""


class WindowState(Enum):
    """Where the window of a stream stands."""

    OPEN = "open"
    WAITING = "waiting"
    """Full, and the time in which credit may come is not over."""
    STARVED = "starved"
    """Full for longer than that: bodies go inline until credit comes."""
    ABANDONED = "abandoned"
    """Bodies go inline for good."""


class WindowInput(Enum):
    """What can happen to a window."""

    FULL = "a body does not fit"
    CREDIT = "bodies were given back"
    TIMEOUT = "no credit came in time"
    ABANDON = "the way is lost or bodies are kept too long"


_S, _I = WindowState, WindowInput

TRANSITIONS: dict[tuple[WindowState, WindowInput], WindowState] = {
    (_S.OPEN, _I.FULL): _S.WAITING,
    (_S.OPEN, _I.CREDIT): _S.OPEN,
    (_S.OPEN, _I.ABANDON): _S.ABANDONED,
    (_S.WAITING, _I.CREDIT): _S.OPEN,
    (_S.WAITING, _I.TIMEOUT): _S.STARVED,
    (_S.WAITING, _I.ABANDON): _S.ABANDONED,
    (_S.STARVED, _I.CREDIT): _S.OPEN,
    (_S.STARVED, _I.ABANDON): _S.ABANDONED,
    (_S.ABANDONED, _I.CREDIT): _S.ABANDONED,
    (_S.ABANDONED, _I.ABANDON): _S.ABANDONED,
}
"""Every legal step."""


class _Out:
    """A body that is out: how large, since when, and how many times (one place in shared memory
    may be told of twice)."""

    __slots__ = ("byte_count", "since_ns", "times")

    def __init__(self, byte_count: int, since_ns: int) -> None:
        self.byte_count = byte_count
        self.since_ns = since_ns
        self.times = 1


class BodyWindow:
    """The bodies of one stream that are out, by id: address in shared memory, or sequence."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._state = WindowState.OPEN
        self._out: dict[int, _Out] = {}
        self._bytes = 0
        self._count = 0
        self._wait_until_ns: int | None = None

    @property
    def state(self) -> WindowState:
        return self._state

    @property
    def pending_bytes(self) -> int:
        """Bytes that are out."""
        return self._bytes

    @property
    def pending_count(self) -> int:
        """Bodies that are out."""
        return self._count

    @property
    def oldest_ns(self) -> int | None:
        """Since when the oldest of them is; None when none is."""
        return next((out.since_ns for out in self._out.values()), None)

    def is_overdue(self, now_ns: int) -> bool:
        """Whether a body that is out is kept for longer than it may be."""
        oldest_ns = self.oldest_ns
        return oldest_ns is not None and now_ns - oldest_ns > self._limits.body_lease_ns_max

    @property
    def wait_until_ns(self) -> int | None:
        """When to stop waiting for credit; None unless WAITING."""
        return self._wait_until_ns

    def admit(self, byte_count: int, now_ns: int) -> Admission:
        """What to do with a body of ``byte_count`` bytes. Small ones and such that are larger than
        the window always go inline."""
        self._check_age(now_ns)
        limits = self._limits
        if self._state in (WindowState.STARVED, WindowState.ABANDONED):
            return Admission.INLINE
        if not limits.body_inline_bytes_max < byte_count <= limits.body_window_bytes:
            return Admission.INLINE
        if self._has_room(byte_count):
            return Admission.NOW
        if self._state is WindowState.OPEN:
            self._step(WindowInput.FULL)
            self._wait_until_ns = now_ns + limits.body_wait_ns_max
        if self._wait_until_ns is not None and now_ns >= self._wait_until_ns:
            self._step(WindowInput.TIMEOUT)
        return Admission.WAIT if self._state is WindowState.WAITING else Admission.INLINE

    def sent(self, body_id: int, byte_count: int, now_ns: int) -> None:
        """A body that was admitted is out. LocalProtocolError when it does not fit."""
        if self._state is WindowState.ABANDONED or not self._has_room(byte_count):
            raise LocalProtocolError(f"body {body_id} was sent without being admitted")
        out = self._out.get(body_id)
        if out is None:
            self._out[body_id] = _Out(byte_count, now_ns)
        else:
            if out.byte_count != byte_count:
                raise LocalProtocolError(f"body {body_id} is out with another length")
            out.times += 1
        self._bytes += byte_count
        self._count += 1

    def released(self, ids: Iterable[int], now_ns: int) -> int:
        """The receiver is done with these. Returns how many were out; others are ignored."""
        known = 0
        for body_id in ids:
            out = self._out.get(body_id)
            if out is None:
                continue
            known += 1
            self._bytes -= out.byte_count
            self._count -= 1
            out.times -= 1
            if not out.times:
                del self._out[body_id]
        if known:
            self._step(WindowInput.CREDIT)
        self._check_age(now_ns)
        return known

    def abandon(self) -> None:
        """The way is lost: inline for good. What is out stays out until it is given back."""
        self._step(WindowInput.ABANDON)

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        outs = self._out.values()
        assert self._bytes == sum(out.byte_count * out.times for out in outs)
        assert self._count == sum(out.times for out in outs)
        assert self._bytes <= self._limits.body_window_bytes
        assert self._count <= self._limits.body_window_count
        assert (self._wait_until_ns is not None) == (self._state is WindowState.WAITING)

    def _has_room(self, byte_count: int) -> bool:
        return (
            self._count < self._limits.body_window_count
            and self._bytes + byte_count <= self._limits.body_window_bytes
        )

    def _check_age(self, now_ns: int) -> None:
        if self.is_overdue(now_ns):
            self._step(WindowInput.ABANDON)

    def _step(self, stimulus: WindowInput) -> None:
        self._state = TRANSITIONS[self._state, stimulus]
        if self._state is not WindowState.WAITING:
            self._wait_until_ns = None

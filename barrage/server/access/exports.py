"""The exports of one session: tables under numbers the client chose, as promises.

Source of the rules: deephaven-clients.md section 2.5. A client may use a number before the call
that produces its table has finished, or has even arrived; who wants the table waits, for a bounded
time, and fails with the producer's error when that fails. Releasing a number lets go of the table
and of nothing that was made from it. Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    StatusCode,
    TicketError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.limits import Limits
    from barrage.server.tables.table_lease import TableLease

EXPORT_ID_MAX = 2**31 - 1
"""Export ids are signed 32-bit numbers; 0 is none, negative ones are the server's."""

RELEASED_REMEMBERED = 10_000
"""Released ids of a session that may be released again."""

FAILED_REMEMBERED = 1_000
"""Failed exports of a session that still say why; clients rarely release those."""

PRODUCER_WAITS = 12
"""A producer that is at work may take this many times as long as one that has not come yet. Two
exports made from each other would wait for ever otherwise."""


class ExportState(Enum):
    """Where an export stands."""

    AWAITED = auto()
    """Somebody waits for it, the call that produces it has not come."""
    PENDING = auto()
    """Its producer is at work."""
    READY = auto()
    FAILED = auto()
    RELEASED = auto()


class ExportInput(Enum):
    """Everything that can happen to an export."""

    DEFINE = auto()
    FULFIL = auto()
    FAIL = auto()
    RELEASE = auto()


_S = ExportState
_I = ExportInput

TRANSITIONS: dict[tuple[ExportState, ExportInput], ExportState] = {
    (_S.AWAITED, _I.DEFINE): _S.PENDING,
    (_S.AWAITED, _I.RELEASE): _S.RELEASED,
    (_S.PENDING, _I.FULFIL): _S.READY,
    (_S.PENDING, _I.FAIL): _S.FAILED,
    (_S.PENDING, _I.RELEASE): _S.RELEASED,
    (_S.READY, _I.FAIL): _S.FAILED,
    (_S.READY, _I.RELEASE): _S.RELEASED,
    (_S.FAILED, _I.FAIL): _S.FAILED,
    (_S.FAILED, _I.RELEASE): _S.RELEASED,
    (_S.RELEASED, _I.FULFIL): _S.RELEASED,
    (_S.RELEASED, _I.FAIL): _S.RELEASED,
    (_S.RELEASED, _I.RELEASE): _S.RELEASED,
}
"""Declared transitions. A producer may finish after its export was released, so that is harmless;
one whose answer cannot be sent fails an export that was ready."""


class ExportExistsError(RemoteProtocolError):
    """The client has used this export id for something else."""


class ReleaseError(BarrageError):
    """An export to be released was never defined."""

    status_code = StatusCode.UNAVAILABLE


class Export:
    """One promise. Invariant: a lease exactly while READY, an error exactly while FAILED."""

    def __init__(self, table: ExportTable, export_id: int, limits: Limits) -> None:
        self.export_id = export_id
        self._table = table
        self._limits = limits
        self._state = ExportState.AWAITED
        self._lease: TableLease | None = None
        self._error: BarrageError | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._release_listeners: list[Callable[[], None]] = []

    @property
    def state(self) -> ExportState:
        return self._state

    @property
    def lease(self) -> TableLease | None:
        """The table, if it is there."""
        return self._lease

    @property
    def error(self) -> BarrageError | None:
        """Why there will be no table, if it has failed."""
        return self._error

    def fulfil(self, lease: TableLease) -> None:
        """The producer is done."""
        if self._step(_I.FULFIL) is _S.READY:
            self._lease = lease
            self._changed()

    def fail(self, error: BarrageError) -> None:
        """The producer has failed; everybody who wants the table fails with the same error."""
        before = self._state
        if self._step(_I.FAIL) is _S.FAILED and before is not _S.FAILED:
            self._lease = None
            self._error = error
            self._changed()
            self._table._note_failed(self)

    def on_release(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once when the export is released, at once if it has been."""
        if self._state is _S.RELEASED:
            listener()
        else:
            self._release_listeners.append(listener)

    async def table_lease(self) -> TableLease:
        """The table, when it is there.

        Raises the producer's error, and TicketError when the export is released meanwhile, when
        nobody defines it within ``export_wait_ns_max``, or when its producer takes too long.
        """
        wait_s = self._limits.export_wait_ns_max / 1e9
        if self._state is _S.AWAITED:
            try:
                await self._wait(wait_s, _S.AWAITED)
            finally:
                if self._state is _S.AWAITED:
                    self._table._forget_awaited(self)
            if self._state is _S.AWAITED:
                raise TicketError(f"export {self.export_id} was not defined within {wait_s:.0f} s")
        if self._state is _S.PENDING:
            await self._wait(wait_s * PRODUCER_WAITS, _S.PENDING)
        if self._lease is not None:
            return self._lease
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._state is _S.RELEASED:
            if self._table.close_reason is not None:
                raise self._table.close_reason.with_traceback(None)
            raise TicketError(f"export {self.export_id} was released")
        raise TicketError(f"export {self.export_id} was not finished in time")

    async def _wait(self, seconds: float, state: ExportState) -> None:
        """Until the state is another one than ``state``, or until the time is up."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._state is state:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._waiters.discard(waiter)

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def _define(self) -> None:
        self._step(_I.DEFINE)
        self._wake()

    def _release(self) -> None:
        if self._state is _S.RELEASED:
            return
        self._step(_I.RELEASE)
        self._lease = self._error = None
        listeners, self._release_listeners = self._release_listeners, []
        for listener in listeners:
            listener()
        self._changed()

    def _step(self, stimulus: ExportInput) -> ExportState:
        following = TRANSITIONS.get((self._state, stimulus))
        if following is None:
            raise LocalProtocolError(
                f"export {self.export_id} is {self._state.name}, it cannot take {stimulus.name}"
            )
        self._state = following
        return following

    def _changed(self) -> None:
        self._wake()
        self._table._tell(self)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class ExportTable:
    """All exports of one session."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._exports: dict[int, Export] = {}
        self._released: dict[int, None] = {}
        self._failed: deque[Export] = deque()
        self._listeners: dict[object, Callable[[Export], None]] = {}
        self._is_closed = False
        self._close_reason: BarrageError | None = None

    def __iter__(self) -> Iterator[Export]:
        """The exports that exist now, oldest first."""
        return iter(list(self._exports.values()))

    def __len__(self) -> int:
        return len(self._exports)

    @property
    def close_reason(self) -> BarrageError | None:
        """Why everything was released, if it was."""
        return self._close_reason

    def define(self, export_id: int) -> Export:
        """The export its producer is about to make; must be fulfilled or failed.

        ExportExistsError when the id is in use, RemoteProtocolError when it cannot be one,
        LimitExceededError.
        """
        export = self._exports.get(export_id)
        if export is not None and export.state is not _S.AWAITED:
            raise ExportExistsError(f"export {export_id} is in use; release it or use another id")
        if export is None:
            export = self._add(export_id)
        self._released.pop(export_id, None)
        export._define()
        return export

    def find(self, export_id: int) -> Export:
        """The export of that id, which may still be to come. TicketError when it was released or
        is one of the server's that does not exist; LimitExceededError."""
        export = self._exports.get(export_id)
        if export is not None:
            return export
        if export_id in self._released:
            raise TicketError(f"export {export_id} was released")
        if export_id < 0:
            raise TicketError(f"export {export_id} does not exist")
        return self._add(export_id)

    def release(self, export_id: int) -> None:
        """Let go of an export; again is as good as once. ReleaseError when nobody has ever defined
        it."""
        export = self._exports.get(export_id)
        if export is None and export_id in self._released:
            return
        if export is None or export.state is _S.AWAITED:
            raise ReleaseError(f"export {export_id} is not defined")
        del self._exports[export_id]
        self._released[export_id] = None
        if len(self._released) > RELEASED_REMEMBERED:
            del self._released[next(iter(self._released))]
        export._release()

    def close(self, reason: BarrageError | None = None) -> None:
        """Release everything, for good. Who waits for an export fails with ``reason``."""
        self._is_closed = True
        self._close_reason = reason
        exports, self._exports = self._exports, {}
        for export in exports.values():
            export._release()
        self._listeners.clear()
        self._failed.clear()

    def on_change(self, callback: Callable[[Export], None]) -> Callable[[], None]:
        """Call ``callback`` with each export that becomes ready, fails or is released; the function
        returned ends that. It must not raise."""
        key = object()
        self._listeners[key] = callback

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    def _add(self, export_id: int) -> Export:
        if not -EXPORT_ID_MAX <= export_id <= EXPORT_ID_MAX or export_id == 0:
            raise RemoteProtocolError(f"{export_id} is not an export id")
        if self._is_closed:
            raise self._close_reason or TicketError("the session is closed")
        if len(self._exports) >= self._limits.session_exports_max:
            raise LimitExceededError(
                "number of exports of the session",
                actual=len(self._exports) + 1,
                maximum=self._limits.session_exports_max,
                unit="exports",
            )
        export = self._exports[export_id] = Export(self, export_id, self._limits)
        return export

    # --- called by the exports ---

    def _tell(self, export: Export) -> None:
        for listener in list(self._listeners.values()):
            listener(export)

    def _forget_awaited(self, export: Export) -> None:
        """Nobody defined it in time; the next who asks for it waits anew."""
        if not export.has_waiters and self._exports.get(export.export_id) is export:
            del self._exports[export.export_id]

    def _note_failed(self, export: Export) -> None:
        """Keep the latest failures; the oldest ones go, as if they had been released."""
        self._failed.append(export)
        if len(self._failed) > FAILED_REMEMBERED:
            oldest = self._failed.popleft()
            if self._exports.get(oldest.export_id) is oldest:
                self.release(oldest.export_id)

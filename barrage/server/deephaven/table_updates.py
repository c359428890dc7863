"""TableService/ExportedTableUpdates: the sizes of a session's tables as they change.

Source: deephaven-clients.md section 4.4, and trials against a real server: one message per ready
export at the start, then one whenever a size has changed, at most once per interval; releases are
not told, a failure once, and the stream ends with OK when the session does.

Sizes are looked at, not recorded: a look costs one number per ticking export, an export that
changes a thousand times between two looks costs no more, and nothing runs while nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from barrage.errors import TransportError
from barrage.server.access.call_guard import SessionUse, open_headers
from barrage.server.access.exports import ExportState
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.session_end import until_session_ends
from barrage.server.tables.tickets import export_ticket
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.server.access.exports import Export, ExportTable
    from barrage.server.access.session_store import ClientSession
    from barrage.server.tables.table_lease import TableLease
    from barrage.transport.base import CallContext


LOOK_INTERVAL_S = 0.5
"""Time between two looks at the sizes."""

FIRST_LOOK_S = 0.02
"""How long exports that have just come wait for others, so that a batch is one look."""


class TableUpdates:
    """The behavior."""

    def methods(self) -> dict[str, MethodEntry]:
        """One method of TableService; the others are not here."""
        entry = MethodEntry("server_stream", self.exported_table_updates, SessionUse.REQUIRED)
        return {"ExportedTableUpdates": entry}

    async def exported_table_updates(
        self, request: bytes, context: CallContext, session: ClientSession
    ) -> None:
        """Tell sizes until the session ends."""
        MESSAGES.decode("ExportedTableUpdatesRequest", request)
        await open_headers(context, session)
        ended = await until_session_ends(session, _tell(ExportSizes(session.exports), context))
        if isinstance(ended, TransportError):
            raise ended


async def _tell(sizes: ExportSizes, context: CallContext) -> None:
    with sizes:
        while True:
            for message in sizes.news(is_full=await sizes.wait()):
                await context.write(message)


class ExportSizes:
    """What one client has been told. As a context manager it follows exports that come and go.

    Invariant: ``_ticking`` and ``_told`` have no released export.
    """

    def __init__(self, exports: ExportTable) -> None:
        self._exports = exports
        self._told: dict[int, int] = {}
        self._fresh: dict[int, Export] = {}
        self._ticking: dict[int, Export] = {}
        self._has_fresh = asyncio.Event()
        self._next_look_s = 0.0

    def __enter__(self) -> ExportSizes:
        self._end = self._exports.on_change(self._take)
        for export in self._exports:
            self._take(export)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _take(self, export: Export) -> None:
        if export.state is ExportState.READY:
            self._fresh[export.export_id] = export
            self._has_fresh.set()
        elif export.state is not ExportState.PENDING:
            self._forget(export.export_id)

    def _forget(self, export_id: int) -> None:
        for known in (self._told, self._fresh, self._ticking):
            known.pop(export_id, None)

    async def wait(self) -> bool:
        """Until it is time for another look: True for one at all exports, False for an earlier one
        at those that have just come."""
        loop = asyncio.get_running_loop()
        left_s = self._next_look_s - loop.time()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._has_fresh.wait()
                    await asyncio.sleep(FIRST_LOOK_S)
                    return False
        self._next_look_s = loop.time() + LOOK_INTERVAL_S
        return True

    def news(self, *, is_full: bool) -> Iterator[bytes]:
        """Messages for what has changed since the last look. Exports may come and go while the
        caller is busy with one of them."""
        looked_at = {**self._ticking, **self._fresh} if is_full else self._fresh
        self._fresh = {}
        self._has_fresh.clear()
        for export in looked_at.values():
            # A lease that is gone means released or failed meanwhile, and forgotten.
            if export.lease is not None:
                yield from self._look_at(export, export.lease)

    def _look_at(self, export: Export, lease: TableLease) -> Iterator[bytes]:
        export_id, failure, size = export.export_id, lease.table.failure, lease.table.size
        if failure is not None:
            self._forget(export_id)
            yield _message(export_id, size=size, update_failure_message=str(failure))
            return
        if not lease.table.is_static:
            self._ticking[export_id] = export
        if self._told.get(export_id) != size:
            self._told[export_id] = size
            yield _message(export_id, size=size)


def _message(export_id: int, **fields: Any) -> bytes:
    ticket = MESSAGES.new("Ticket", ticket=export_ticket(export_id))
    return MESSAGES.encode("ExportedTableUpdateMessage", export_id=ticket, **fields)

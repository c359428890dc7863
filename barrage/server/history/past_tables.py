"""Tables as they were: what a query with ``at`` begins with.

The rows of a version are read on the journal's worker threads, once for all who ask for it at the
same time, and become a table that never changes. The last few are kept, as who plays a history goes
back and forth, unless their bytes are needed; what somebody shows stays, and is shared by whoever
asks for it. The bytes of all that is there are bounded, for one caller and for all. As all history
they are for callers that see the whole of a table: a rule says nothing about values that a row had
once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from barrage.errors import LimitExceededError
from barrage.model.cursor import Cursor
from barrage.server.access.method_table import Action
from barrage.server.history.journal_access import refusals_for_peers
from barrage.server.identity.current_call import current_caller, note_table
from barrage.server.settings.declared import Number
from barrage.server.settings.json_fields import Epoch, Fields
from barrage.server.tables.static_tables import static_table
from barrage.server.tables.table_lease import TableLease
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.server.history.journal_access import JournalAccess
    from barrage.server.history.journal_reading import JournalReaders
    from barrage.server.identity.caller import Owner
    from barrage.server.tables.table_service import TableService

Place: TypeAlias = tuple[str, Cursor]
"""The name of a table and a version of it."""

VERSIONS = "barrage.versions"
VERSIONS_MAX = 2_000
"""Versions told at once."""

KEPT_MAX = 4
"""Past tables kept although nobody looks at them now."""


class TooMuchPastError(LimitExceededError):
    """There is no room for one more past state beside those that are shown."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}: show fewer versions at a time, or tables as they are now, and "
            "ask again"
        )


@dataclass(slots=True, eq=False, kw_only=True)
class _State:
    """A past table that is there, and counts until nobody has it any more."""

    byte_count: int
    table: weakref.ref[SourceTable] | None = None
    """To be asked on the engine thread."""
    owners: set[Owner] = field(default_factory=set)
    """Who has asked for it."""


class PastTables:
    """Those of one server. Runs on the event loop."""

    def __init__(
        self,
        tables: TableService,
        access: JournalAccess,
        readers: JournalReaders,
        *,
        limits: Limits,
    ) -> None:
        self._tables = tables
        self._access = access
        self._readers = readers
        self._limits = limits
        self._coming: dict[Place, asyncio.Task[TableLease]] = {}
        self._kept: OrderedDict[Place, TableLease] = OrderedDict()
        self._states: dict[Place, _State] = {}
        self._owner_bytes: dict[Owner, int] = {}
        self.byte_count = 0
        """Of all that are there."""

    @property
    def actions(self) -> Mapping[str, Action]:
        return {
            VERSIONS: Action(
                'The versions a table can be seen at. Body: JSON {"table", "epoch", "count"}. '
                'Result: JSON {"epoch", "earliest", "version", "versions": [[version, '
                'timestamp_us], ...]}, at most "count" and 2,000 of them, evenly spread.',
                self._versions,
            )
        }

    async def table(self, place: Place) -> TableLease:
        """The table of that name as it was, for a caller that may read all of it.
        TableNotFoundError, PermissionDeniedError, JournalRefusedError,
        LimitExceededError, TooMuchPastError."""
        name, cursor = place
        journal = self._access.journal(name, cursor.epoch)
        version = await self._access.settle(journal, cursor.version)
        place = name, Cursor(journal.epoch, version)
        lease = await self._there(place)
        if lease is None:
            lease = await self._came_to_be(journal, place)
        await self._charge(place)
        return lease

    async def _there(self, place: Place) -> TableLease | None:
        """A state that is kept, or that somebody shows."""
        kept = self._kept.get(place)
        if kept is not None:
            self._kept.move_to_end(place)
            return kept
        state = self._states.get(place)
        if state is None:
            return None
        return await asyncio.wrap_future(self._tables.run(partial(self._again, state)))

    def _again(self, state: _State) -> TableLease | None:
        """Engine thread."""
        table = None if state.table is None else state.table()
        return None if table is None else TableLease(self._tables, table)

    async def _came_to_be(self, journal: TableJournal, place: Place) -> TableLease:
        coming = self._coming.get(place)
        if coming is None:
            if len(self._coming) >= self._limits.past_tables_max:
                raise LimitExceededError(
                    "number of past tables under way",
                    actual=len(self._coming) + 1,
                    maximum=self._limits.past_tables_max,
                    unit="tables",
                )
            coming = start_awaited(self._made(journal, place))
            self._coming[place] = coming
            coming.add_done_callback(lambda done: self._came(place, done))
        return await asyncio.shield(coming)

    async def _made(self, journal: TableJournal, place: Place) -> TableLease:
        with refusals_for_peers():
            rows = await self._readers.run(partial(self._rows, journal, place[1].version))
        state = await self._reserved(rows.nbytes)
        try:
            source = await static_table(self._tables, rows)
        except BaseException:
            self._gone(place, state)
            raise
        state.table = weakref.ref(source)
        self._states[place] = state
        gone = partial(self._gone, place, state)
        weakref.finalize(source, _tell, asyncio.get_running_loop(), gone).atexit = False
        return TableLease(self._tables, source)

    def _rows(self, journal: TableJournal, version: int) -> pa.Table:
        """On a worker thread."""
        rows = journal.state_at(version).rows
        most = self._limits.past_table_bytes_max
        if rows.nbytes > most:
            raise LimitExceededError("past table", actual=rows.nbytes, maximum=most, unit="bytes")
        return rows

    def _came(self, place: Place, done: asyncio.Task[TableLease]) -> None:
        del self._coming[place]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[place] = done.result()
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    # --- bytes ------------------------------------------------------------------------------------

    async def _reserved(self, size: int) -> _State:
        """Bytes for a state that is about to be there. TooMuchPastError."""
        most = self._limits.past_bytes_max
        await self._make_room(lambda: self.byte_count + size > most)
        _check("size of all past tables", self.byte_count + size, most)
        self.byte_count += size
        return _State(byte_count=size)

    async def _charge(self, place: Place) -> None:
        """A state is the caller's, too, from now on. TooMuchPastError."""
        state, owner = self._states.get(place), current_caller().owner
        if state is None or owner in state.owners:
            return
        most, size = self._limits.past_bytes_per_caller_max, state.byte_count
        await self._make_room(lambda: self._owner_bytes.get(owner, 0) + size > most)
        own = self._owner_bytes.get(owner, 0) + size
        _check("size of the past tables of one caller", own, most)
        state.owners.add(owner)
        self._owner_bytes[owner] = own

    async def _make_room(self, is_full: Callable[[], bool]) -> None:
        """Let go what nobody shows, what was asked for longest ago first."""
        while is_full() and self._kept:
            self._kept.popitem(last=False)
            # A table goes on the engine thread, and says so before it does anything else.
            await asyncio.wrap_future(self._tables.run(_nothing))

    def _gone(self, place: Place, state: _State) -> None:
        self.byte_count -= state.byte_count
        for owner in state.owners:
            self._owner_bytes[owner] -= state.byte_count
            if not self._owner_bytes[owner]:
                del self._owner_bytes[owner]
        if self._states.get(place) is state:
            del self._states[place]

    def forget(self) -> None:
        """The server ends: keep nothing any more."""
        for task in self._coming.values():
            task.cancel()
        self._kept.clear()

    async def _versions(self, body: bytes) -> bytes:
        fields = Fields.parse(body, "action body", bytes_max=self._limits.journal_request_bytes_max)
        name, epoch = fields.get("table", str), fields.get("epoch", Epoch, None)
        most = min(fields.get("count", Number, VERSIONS_MAX), VERSIONS_MAX)
        fields.finish()
        note_table(name)
        journal = self._access.journal(name, epoch)
        told = await self._readers.run(partial(_spread_versions, journal, most))
        return msgspec.json.encode(told)


def _check(what: str, actual: int, maximum: int) -> None:
    if actual > maximum:
        raise TooMuchPastError(what, actual=actual, maximum=maximum, unit="bytes")


def _nothing() -> None:
    """Engine thread."""


def _tell(loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
    """On whatever thread a table goes. The loop may have ended with the server."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(gone)


def _spread_versions(journal: TableJournal, most: int) -> dict[str, object]:
    """On a worker thread."""
    earliest, latest = journal.earliest_version, journal.durable_version
    with refusals_for_peers():
        index = journal.index(earliest, latest)
    last, parts = len(index) - 1, max(1, min(most, len(index)) - 1)
    chosen = sorted({last - part * last // parts for part in range(parts + 1) if last >= 0})
    chosen = chosen[max(0, len(chosen) - most) :]
    versions = [[int(index.steps[i]), int(index.wall_ns[i]) // 1000] for i in chosen]
    return {
        "epoch": journal.epoch,
        "earliest": earliest,
        "version": latest,
        "versions": versions,
    }

"""What an author of a sink writes, and the loop that follows a table for it.

A table's journal says what changed since a cursor. A sink is given the changes up to a cursor, and
says when it is asked where it stands. One that keeps the cursor together with what it writes gets
everything exactly once; for others it is kept in a file after each write, so that what was written
last may come again after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.client.tables.history import FEED_COLUMNS, ChangeOptions
from barrage.connector.state_file import StateFile
from barrage.errors import ConnectionLostError, HistoryLostError
from barrage.model.cursor import Cursor
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from barrage.client.connection.address import Auth
    from barrage.client.tables.history import JournalFacts, TableHistory
    from barrage.transport.base import TLS

logger = logging.getLogger(__name__)

SINK_ROWS = 65_536
"""Changed rows after which a batch ends, at the next whole version."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """What happened to a table, in order."""

    cursor: str
    """Where the table stands after it. Keep it with the rows, and all comes exactly once."""
    changes: pa.Table
    """``_change_type`` (``insert``, ``update_postimage``, ``delete``), ``_commit_version``,
    ``_row_id``, then the table's columns."""
    key: tuple[str, ...]
    """Of the table."""
    is_first: bool = False
    """Whether it is all that is in the table, for a sink that had nothing."""

    @property
    def rows(self) -> pa.Table:
        """The table's columns of the changes alone."""
        names = [name for name in self.changes.column_names if name not in FEED_COLUMNS]
        return self.changes.select(names)

    def last_of_each_row(self) -> tuple[pa.Table, pa.Table]:
        """Rows to be there and rows to be gone: of each row of the table, the last change."""
        numbered = self.changes.append_column("", pa.array(range(len(self.changes)), pa.int64()))
        by = list(self.key) or ["_row_id"]
        last = numbered.group_by(by, use_threads=False).aggregate([("", "max")])["_max"]
        numbers = last.combine_chunks()
        ordered = self.changes.take(numbers.take(pc.array_sort_indices(numbers)))
        is_gone = pc.equal(ordered["_change_type"], "delete")
        names = [name for name in ordered.column_names if name not in FEED_COLUMNS]
        rows = ordered.select(names)
        return rows.filter(pc.invert(is_gone)), rows.filter(is_gone)


class Sink(ABC):
    """A destination of one table's changes."""

    @abstractmethod
    async def write(self, batch: SinkBatch) -> None:
        """Write, and return when it is safe."""
        ...

    async def position(self) -> str | None:
        """The cursor of the last batch the destination has; None for a sink that does not keep it
        itself, and has nothing or does not know."""
        return None

    @property
    def keeps_position(self) -> bool:
        """Whether :meth:`position` is what counts; else a file is."""
        return False


class SyncSink(Sink):
    """The same for code that blocks: it is run on a thread."""

    @abstractmethod
    def write_blocking(self, batch: SinkBatch) -> None:
        """See :meth:`Sink.write`."""
        ...

    def position_blocking(self) -> str | None:
        """See :meth:`Sink.position`."""
        return None

    async def write(self, batch: SinkBatch) -> None:
        """See :meth:`Sink.write`."""
        await in_thread(self.write_blocking, batch)

    async def position(self) -> str | None:
        """See :meth:`Sink.position`."""
        return await in_thread(self.position_blocking)


class SinkFollower:
    """Follows ``table`` at a server for a sink."""

    def __init__(
        self,
        sink: Sink,
        address: str,
        table: str,
        *,
        name: str | None = None,
        state_folder: Path | None = None,
        auth: Auth = None,
        tls: TLS | None = None,
        backoff: Backoff | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """``name``: under which the position is kept in ``state_folder``, where the sink does not
        keep it itself."""
        self._sink = sink
        self._address = address
        self._table = table
        self._state = StateFile(name or f"sink-{table}", state_folder)
        self._auth = auth
        self._tls = tls
        self._backoff = backoff or Backoff(seconds_max=2.0)
        self._poll_seconds = poll_seconds
        self.rows_written = 0
        """Changed rows."""
        self.cursor: Cursor | None = None
        """Up to which the sink has the table."""

    async def run(self, *, until: Callable[[SinkFollower], bool] | None = None) -> None:
        """Follow for ever, or until ``until`` says so whenever the sink has what there is.
        HistoryLostError when the journal has not what comes after the sink's position."""
        self.cursor = await self._known()
        while True:
            try:
                async with aconnect(self._address, auth=self._auth, tls=self._tls) as session:
                    self._backoff.reset()
                    await self._follow(session.table(self._table).history(), until)
                    return
            except ConnectionLostError as error:
                logger.info("the server at %s: %s", self._address, error)
            await asyncio.sleep(self._backoff.next_delay())

    def run_blocking(self, *, until: Callable[[SinkFollower], bool] | None = None) -> None:
        """The same for programs without an event loop."""
        asyncio.run(self.run(until=until))

    async def _known(self) -> Cursor | None:
        if self._sink.keeps_position:
            text = await self._sink.position()
        else:
            text = await in_thread(self._state.load)
        return None if text is None else Cursor.parse(text)

    async def _follow(
        self, history: TableHistory, until: Callable[[SinkFollower], bool] | None
    ) -> None:
        while True:
            facts = await history.facts()
            if self.cursor is None:
                await self._write_all(history, facts)
            elif self.cursor.epoch != facts.epoch:
                raise HistoryLostError(
                    self._table, asked=str(self.cursor), reason="the table has begun anew since"
                )
            elif self.cursor.version < facts.version:
                async for changes, version in self._changes(history, facts):
                    await self._write(changes, Cursor(facts.epoch, version), facts.key)
                if self.cursor.version < facts.version:
                    await self._write(None, Cursor(facts.epoch, facts.version), facts.key)
            if until is not None and until(self):
                return
            await asyncio.sleep(self._poll_seconds)

    async def _write_all(self, history: TableHistory, facts: JournalFacts) -> None:
        cursor = Cursor(facts.epoch, facts.version)
        rows = await history.as_of(cursor, ChangeOptions())
        count = len(rows)
        changes = pa.table(
            {
                "_change_type": pa.repeat("insert", count),
                "_commit_version": pa.repeat(pa.scalar(facts.version, pa.int64()), count),
                "_row_id": pa.array(range(count), pa.int64()),
                **{name: rows[name] for name in rows.column_names},
            }
        )
        await self._write(changes, cursor, facts.key, is_first=True)

    async def _write(
        self,
        changes: pa.Table | None,
        cursor: Cursor,
        key: tuple[str, ...],
        *,
        is_first: bool = False,
    ) -> None:
        if changes is not None:
            batch = SinkBatch(cursor=str(cursor), changes=changes, key=key, is_first=is_first)
            await self._sink.write(batch)
            self.rows_written += len(changes)
        if not self._sink.keeps_position:
            await in_thread(self._state.save, str(cursor))
        self.cursor = cursor

    async def _changes(
        self, history: TableHistory, facts: JournalFacts
    ) -> AsyncIterator[tuple[pa.Table, int]]:
        """What is new, in pieces of whole versions, each with its last version."""
        assert self.cursor is not None
        waiting: list[pa.RecordBatch] = []
        count = 0
        async with history.changes(self.cursor, facts.version, ChangeOptions()) as read:
            async for batch in read.batches():
                if not batch.num_rows:
                    continue
                versions = batch.column("_commit_version")
                if count >= SINK_ROWS and waiting:
                    last = waiting[-1].column("_commit_version")[-1].as_py()
                    over = pc.index(pc.equal(versions, last), False).as_py()
                    cut = batch.num_rows if over < 0 else over
                    if over >= 0:
                        yield _joined([*waiting, batch.slice(0, cut)]), last
                        waiting, count = [], 0
                        batch = batch.slice(cut)
                waiting.append(batch)
                count += batch.num_rows
        if waiting:
            yield _joined(waiting), waiting[-1].column("_commit_version")[-1].as_py()


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches([each for each in batches if each.num_rows])

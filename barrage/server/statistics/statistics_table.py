"""A table in which the server tells about itself: made when there is something to tell, ticked when
something is different, read-only, without a journal."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING

from barrage.errors import TableExistsError
from barrage.server.runtime.measures import ABOUT_SERVERS
from barrage.server.tables.table_service import Change, TableRecipe, source_of

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.errors import BarrageError
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)


class StatisticsTable:
    """Shows rows under a name. Runs on the event loop, for one caller at a time."""

    def __init__(self, tables: TableService, name: str, *, key: tuple[str, ...]) -> None:
        self._tables = tables
        self._name = name
        self._key = key
        self._table: SourceTable | None = None
        self._shown: pa.Table | None = None
        self._is_taken = False

    @property
    def is_made(self) -> bool:
        """Whether there was something to tell before."""
        return self._table is not None or self._is_taken

    async def show(self, rows: pa.Table) -> None:
        """Have the table tell this; nothing when somebody else has its name."""
        if not self.is_made:
            self._table = await self._made(rows.schema)
        if self._table is None or (self._shown is not None and self._shown.equals(rows)):
            return
        change = Change(self._table, "stage_replace", (rows,))
        await asyncio.wrap_future(self._tables.change([change]))
        # Not before: a change that was refused is made again.
        self._shown = rows

    async def _made(self, schema: pa.Schema) -> SourceTable | None:
        recipe = TableRecipe.checked(
            self._name, schema, key=self._key, is_read_only=True, journal="none"
        )
        try:
            publication = await asyncio.wrap_future(self._tables.create(recipe, None))
        except TableExistsError:
            log.warning("table %r exists; the server's statistics are not published", self._name)
            self._is_taken = True
            return None
        table = source_of(publication.table, self._name)
        ABOUT_SERVERS.add(table)
        return table

    def fail(self, error: BarrageError) -> None:
        """Nothing keeps the table any more: whoever follows it is told."""
        if self._table is not None:
            self._tables.fail(weakref.ref(self._table), error)

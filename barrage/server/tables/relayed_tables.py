"""Tables whose changes another server tells: published, told of, replaced and taken back.

Each method may be called from any thread and gives a future that the engine thread resolves. A
relayed table is an ordinary source of this server's engine: views, queries and resumptions know
nothing of it. Peers may only read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from barrage.engine.resume.relayed import RelayedTable
from barrage.errors import TableExistsError
from barrage.server.journaling.journal_service import NONE
from barrage.server.runtime.catalog import Publication
from barrage.server.tables.table_service import kind_of
from barrage.server.tables.tickets import check_table_name
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.engine.resume.relayed import RelayedForm, ToldUpdate
    from barrage.engine.tables.table import Table
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.rowset import RowSet
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.tables.table_service import TableService


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedState:
    """A whole state of another server's table."""

    form: RelayedForm
    keys: RowSet
    rows: pa.Table
    """In key order."""
    step: int
    epoch: str | None
    """Of its history; None where that server keeps none."""


class RelayedTables:
    """Those of one server."""

    def __init__(
        self, runtime: EngineRuntime, catalog: Catalog, *, tables: TableService, limits: Limits
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._tables = tables
        self._limits = limits
        self._prepared: dict[RelayedTable, Publication] = {}
        """Tables that nobody can read yet. Belongs to the engine thread."""

    def prepare(
        self, name: str, state: RelayedState, *, ended: Callable[[], BarrageError]
    ) -> Future[RelayedTable]:
        """A table of this state, for which the name stands once it is shown. The relayed table it
        stood for before fails with what ``ended`` makes. TableExistsError for a name of somebody
        else; SchemaError and EngineError for a state that cannot be served."""
        check_table_name(name)
        return self._runtime.submit(partial(self._prepare, name, state, ended))

    def show(self, table: RelayedTable) -> Future[None]:
        """Let the name of a prepared table stand for it; TableFailedError when it has failed."""
        return self._runtime.submit(partial(self._show, table))

    def publish(
        self, name: str, state: RelayedState, *, ended: Callable[[], BarrageError]
    ) -> Future[RelayedTable]:
        """Prepare a table and show it, in one turn."""
        check_table_name(name)
        return self._runtime.submit(partial(self._publish, name, state, ended))

    def tell(self, table: RelayedTable, told: ToldUpdate) -> Future[int]:
        """Have an update committed by a cycle of its own; the number that wait for theirs then.
        TableFailedError when the table has failed, which an update that does not fit brings
        about."""
        return self._runtime.submit(partial(_tell, table, told))

    def waiting(self, table: RelayedTable) -> Future[int]:
        """The number of updates that wait for their cycle; TableFailedError."""
        return self._runtime.submit(partial(_waiting, table))

    def withdraw(self, name: str, table: RelayedTable, error: BarrageError) -> Future[None]:
        """Take a name back, unless it stands for another table; what depends on the table ends
        with ``error``. A table that was only prepared is forgotten."""
        return self._runtime.submit(partial(self._withdraw, name, table, error))

    def forget(self, name: str, table: RelayedTable, error: BarrageError) -> None:
        """The same, soon, and never refused."""
        self._runtime.post(partial(self._withdraw, name, table, error))

    # --- engine thread ---

    def _publish(
        self, name: str, state: RelayedState, ended: Callable[[], BarrageError]
    ) -> RelayedTable:
        table = self._prepare(name, state, ended)
        self._show(table)
        return table

    def _show(self, table: RelayedTable) -> None:
        table.check_alive()
        publication = self._prepared.pop(table)
        self._tables.journals.begin(publication, NONE)
        self._catalog.put(publication)

    def _prepare(
        self, name: str, state: RelayedState, ended: Callable[[], BarrageError]
    ) -> RelayedTable:
        self._catalog.check_usable(name)
        before = self._catalog.find(name)
        if before is not None and not isinstance(before.table, RelayedTable):
            raise TableExistsError(name)
        wire_schema(state.form.schema, self._limits)
        table = RelayedTable(self._runtime.graph, state.form, state, step=state.step)
        if before is not None:
            self._withdraw(name, before.table, ended())
        publication = Publication(name=name, table=table, kind=kind_of(table), is_read_only=True)
        journals = self._tables.journals
        if state.epoch is None:
            journals.decline(table)
        else:
            journals.follow(publication, state.epoch)
        self._prepared[table] = publication
        return table

    def _withdraw(self, name: str, table: Table, error: BarrageError) -> None:
        publication = self._prepared.pop(table, None) if isinstance(table, RelayedTable) else None
        if publication is None:
            publication = self._catalog.find(name)
            if publication is None or publication.table is not table:
                return
            self._catalog.remove(name)
        self._tables.journals.end(publication)
        self._tables.fail_now(publication.table, error)


def _tell(table: RelayedTable, told: ToldUpdate) -> int:
    table.stage_told(told)
    return table.told_count


def _waiting(table: RelayedTable) -> int:
    table.check_alive()
    return table.told_count

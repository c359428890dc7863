"""What can be done with tables, for every front door: the Python API, DoPut, actions.

Each method may be called from any thread, checks what it can there, and gives a future that the
engine thread resolves at a cycle boundary. The private methods run on the engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
)
from barrage.engine.operators.restrict import RestrictTable
from barrage.engine.resume.relayed import RelayedTable
from barrage.engine.tables.source import BlankTable, SourceTable, StoredRows
from barrage.errors import (
    BarrageError,
    EngineError,
    PermissionDeniedError,
    SchemaError,
    UnsupportedError,
)
from barrage.server.journaling.journal_service import JournalService
from barrage.server.runtime.catalog import Publication
from barrage.server.runtime.query_dispatcher import QueryDispatcher
from barrage.server.runtime.snapshot_work import ReadingWork
from barrage.server.settings.config import JOURNAL_CLASSES
from barrage.server.tables.identity import ServerIdentity
from barrage.server.tables.ingest_budget import IngestBudget
from barrage.server.tables.query_tables import QueryTables, TableDroppedError
from barrage.server.tables.tickets import check_table_name
from barrage.server.tables.write_room import WriteRoom
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.journaling.producer_positions import ProducerEpoch, ProducerPosition
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.tables.write_room import WriteChain

Result = TypeVar("Result")

KINDS = ("static", "append_only", "keyed", "list", "ring", "blink")
INPUT_KINDS = ("append_only", "keyed", "blink")
"""Kinds of tables Deephaven clients can make to write to."""

VIEW = "view"
"""The kind of a derived table."""

UNPUBLISHED = "(unpublished)"
"""The name in the recipe of a table without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecipe:
    """How to make a source table; checked when made, so that a wrong one never reaches the
    engine."""

    name: str
    schema: pa.Schema
    kind: str
    key: tuple[str, ...] = ()
    capacity: int | None = None
    is_read_only: bool = False
    journal: str | None = None
    """One of :data:`~barrage.server.settings.config.JOURNAL_CLASSES`; None for the server's
    default."""

    @classmethod
    def checked(
        cls,
        name: str,
        schema: pa.Schema,
        *,
        key: str | Sequence[str] | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        is_read_only: bool = False,
        journal: str | None = None,
    ) -> TableRecipe:
        """The recipe for these wishes; the kind follows from key and capacity when it is not
        given."""
        columns = (key,) if isinstance(key, str) else tuple(key or ())
        chosen = kind or ("keyed" if columns else "ring" if capacity is not None else "append_only")
        check_table_name(name)
        if chosen not in KINDS:
            raise SchemaError(f"kind {chosen!r} is not one of {', '.join(KINDS)}")
        if (chosen == "keyed") != bool(columns):
            wrong = (
                "a keyed table needs key columns" if not columns else f"a {chosen} table has no key"
            )
            raise SchemaError(wrong)
        if (chosen == "ring") != (capacity is not None):
            raise SchemaError(
                "a ring needs a capacity"
                if capacity is None
                else f"a {chosen} table has no capacity"
            )
        if capacity is not None and (isinstance(capacity, bool) or capacity < 1):
            raise SchemaError(f"capacity is {capacity!r}, it must be 1 or more")
        if journal is not None and journal not in JOURNAL_CLASSES:
            raise SchemaError(f"journal {journal!r} is not one of {', '.join(JOURNAL_CLASSES)}")
        for column in columns:
            if column not in schema.names:
                raise SchemaError(f"key column {column!r} is not in the schema")
        return cls(
            name=name,
            schema=schema,
            kind=chosen,
            key=columns,
            capacity=capacity,
            is_read_only=is_read_only,
            journal=journal,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One staged change: the name of a ``stage_...`` method of the table, and its arguments."""

    table: SourceTable
    operation: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is told about a published table."""

    name: str
    schema: pa.Schema
    kind: str
    key: tuple[str, ...]
    is_ticking: bool
    row_count: int
    step: int
    epoch: str | None = None
    """Of its history; None where it has none, or nobody has looked."""
    is_writable: bool = False


class TableService:
    """Creates, changes, derives, publishes and drops tables."""

    def __init__(
        self,
        runtime: EngineRuntime,
        catalog: Catalog,
        *,
        limits: Limits,
        journals: JournalService | None = None,
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._limits = limits
        self.journals = JournalService(limits=limits) if journals is None else journals
        """The journals of the tables."""
        self.queries = QueryDispatcher(runtime, limits)
        self.query_tables = QueryTables()
        self.identity = ServerIdentity()
        self.journals.on_refused = self._withdraw
        self.journals.on_ended = self.fail_now
        self._budget = IngestBudget(limits.ingest_bytes_pending_max)
        self.write_room = WriteRoom(limits.ingest_rows_pending_max)

    def create(self, recipe: TableRecipe, data: pa.Table | None) -> Future[Publication]:
        """Make and publish a source table holding ``data``; resolves when that is committed. Rows
        of a static table are stored on the thread that calls, which may take long.

        Errors: TableExistsError, SchemaError, RowError; nothing is published then.
        """
        held = data if data is None or recipe.kind != "static" else StoredRows(data, self._limits)
        return self.commit(partial(self._create, recipe, held))

    def commit(
        self, stage: Callable[[], tuple[tuple[Table, ...], Callable[[int], Result]]]
    ) -> Future[Result]:
        """Do several things in one cycle, or nothing: ``stage`` runs on the engine thread, where it
        may call :meth:`create_now` and :meth:`stage_now`, and returns the tables it changed and a
        function. The future gets what this makes of the step that committed the changes, once they
        are as safe as their journals make them."""
        return self._runtime.write_returning(stage)

    def create_input(
        self, kind: str, schema: pa.Schema, key: Sequence[str] = ()
    ) -> Future[SourceTable]:
        """Make an empty table nobody has published, to be written by whoever holds it: ``kind`` is
        ``append_only``, ``keyed`` (with ``key`` columns) or ``blink``. SchemaError."""
        if kind not in INPUT_KINDS:
            raise SchemaError(
                f"kind {kind!r} of an input table is not one of {', '.join(INPUT_KINDS)}"
            )
        recipe = TableRecipe.checked(UNPUBLISHED, schema, key=key, kind=kind)
        return self._runtime.submit(partial(self._make_unpublished, recipe, None))

    def create_static(self, rows: pa.Table) -> Future[SourceTable]:
        """Make a table nobody has published, of ``rows`` and as they are for good. SchemaError."""
        recipe = TableRecipe.checked(UNPUBLISHED, rows.schema, kind="static")
        made = partial(self._make_unpublished, recipe, StoredRows(rows, self._limits))
        return self._runtime.submit(made)

    def create_blank(self, size: int) -> Future[Table]:
        """Make a table of ``size`` rows without columns, which nobody has published."""
        return self._runtime.submit(lambda: BlankTable(self._runtime.graph, size))

    def publish(
        self, name: str, table: Table, *, is_read_only: bool = False
    ) -> Future[Publication]:
        """Publish a table under a name. TableExistsError."""
        check_table_name(name)
        return self._runtime.submit(partial(self._publish, name, table, is_read_only))

    def bind(
        self, name: str, table: Table, *, is_read_only: bool = False, is_of_peer: bool = False
    ) -> Future[Publication]:
        """Publish a table under a name, whatever the name stood for before. Who subscribes to the
        table of before keeps that one. ``is_of_peer``: it must be rows of a peer, which no other
        name stands for and which follow from no other table; NotOfPeerError."""
        check_table_name(name)

        def bind() -> Publication:
            is_own = isinstance(table, SourceTable) and not self._catalog.is_published(table)
            if is_of_peer and not is_own:
                raise NotOfPeerError(name)
            return self._bind(name, table, is_read_only)

        return self._runtime.submit(bind)

    def drop(self, name: str) -> Future[None]:
        """Take a table out of the catalog and end its subscriptions; TableNotFoundError."""
        return self._runtime.submit_kept(partial(self._drop, name))

    def look_up(self, name: str) -> Future[Publication]:
        """The publication of that name; TableNotFoundError."""
        return self._runtime.submit(partial(self._catalog.live, name))

    def absence(self, name: str) -> BarrageError | None:
        """Why a name that stands for no table may soon; None for others. Any thread."""
        return self._catalog.absence(name)

    def facts(self, name: str) -> Future[TableFacts]:
        """What is known about one table; TableNotFoundError."""
        return self._runtime.submit(lambda: self._facts(self._catalog.get(name)))

    def all_facts(self) -> Future[list[TableFacts]]:
        """What is known about every published table, by name."""
        return self._runtime.submit(lambda: [self._facts(p) for p in self._catalog])

    def listing(self) -> Future[Mapping[str, int]]:
        """Every published name, with a number that is another one once the name stands for another
        table."""
        return self._runtime.submit(self._catalog.listing)

    def on_catalog_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on the engine thread after every change of the published names; the
        function returned ends that."""
        ends: list[Callable[[], None]] = []
        self._runtime.post(lambda: ends.append(self._catalog.on_change(listener)))
        return lambda: self._runtime.post(lambda: ends.pop()())

    def change(
        self,
        changes: Sequence[Change],
        producer: ProducerPosition | None = None,
        *,
        chain: WriteChain | None = None,
        on_applied: Callable[[], object] | None = None,
    ) -> Future[int]:
        """Apply changes in order, all of them or none; resolves to the step that committed them,
        once they are as safe as their journals make them. ``on_applied`` is called on the engine
        thread when they are committed, and must not fail. Tables that have had this position of the
        producer get nothing. Errors: those of the rows, JournalFullError, JournalFailedError.
        """
        stage = partial(self._stage_chained, tuple(changes), producer, chain)
        if on_applied is None:
            return self._runtime.write(stage)
        return self._runtime.write_returning(lambda: (stage(), partial(_step_told, on_applied)))

    def change_soon(self, change: Change, producer: ProducerPosition | None = None) -> Future[int]:
        """Like :meth:`change`, for a caller that does not wait: blocks while much is pending."""
        self._budget.take(byte_count := _byte_count(change))
        try:
            future = self.change([change], producer)
        except BarrageError:
            self._budget.give_back(byte_count)
            raise
        future.add_done_callback(lambda _: self._budget.give_back(byte_count))
        return future

    def position(self, table: SourceTable, producer: str) -> Future[int | None]:
        """The last sequence number of a producer that a table has, once it is as safe as the
        table's journal makes it; None when it has none."""

        def look() -> tuple[tuple[Table, ...], Callable[[int], int | None]]:
            positions = self.journals.positions
            positions.mend(table, producer)
            return (table,), lambda _: positions.committed(table, producer)

        return self._runtime.write_returning(look)

    def begin_producer(
        self, table: SourceTable, producer: str, epoch: int | None
    ) -> Future[tuple[int | None, ProducerEpoch]]:
        """A call begins to write for a producer: what :meth:`position` says, and the epoch to write
        under. Whoever wrote for it before is fenced. ``epoch`` is that of a writer which goes on;
        ProducerFencedError when another one has begun since."""

        def begin() -> tuple[tuple[Table, ...], Callable[[int], tuple[int | None, ProducerEpoch]]]:
            positions = self.journals.positions
            wall_ns = self._runtime.clock.wall_ns()
            begun = positions.begin(table, producer, epoch=epoch, wall_ns=wall_ns)
            positions.mend(table, producer)
            return (table,), lambda _: (positions.committed(table, producer), begun)

        return self._runtime.write_returning(begin)

    def derive(self, make: Callable[[], Result], owner: Hashable = None) -> Future[Result]:
        """Apply operators, beside the engine thread where that is much work, and return what
        ``make`` does, which may be begun several times. ``owner`` stands for the client.
        SchemaError, ExpressionError, RowError; LimitExceededError for too much work."""
        return self.queries.run(make, owner)

    def run(self, work: Callable[[], Result]) -> Future[Result]:
        """Do ``work`` on the engine thread between cycles; the future gets what it returns."""
        return self._runtime.submit(work)

    def graph_step(self) -> Future[int]:
        """The step of the last cycle, all of which the journals have been handed."""
        return self._runtime.submit(lambda: self._runtime.graph.step)

    def read(self, table: Table) -> pa.Table:
        """The whole table as it stands. Waits for the engine thread and then does the work, on the
        thread that calls it: neither the engine's nor that of a loop."""
        work = ReadingWork()
        try:
            self._runtime.submit(partial(work.begin, table, self._limits)).result()
            return work.read()
        finally:
            self.forget(work.pinned)

    def release(self, table: Table) -> None:
        """Let go of a reference to ``table`` on the engine thread, where freeing it is safe."""
        self.forget([table])

    def forget(self, references: list[Table]) -> None:
        """Empty a list of references on the engine thread, where freeing tables is safe."""
        self._runtime.post(partial(_forget, references))

    def fail(self, reference: Callable[[], Table | None], error: BarrageError) -> None:
        """What keeps a table going has died: it fails, and so does what is derived from it."""
        self._runtime.post(lambda: self.fail_now(reference(), error))

    # --- engine thread ---

    def fail_now(self, table: Table | None, error: BarrageError) -> None:
        """On the engine thread: what :meth:`fail` does."""
        failing = [] if table is None else [(table, error)]
        while failing:
            failed, reason = failing.pop()
            if failed.failure is None:
                told = failed.fail(reason)
                self._runtime.fail_subscribers(failed, told)
                failing += [(child, told) for child in failed.live_children()]

    def _create(
        self, recipe: TableRecipe, data: pa.Table | StoredRows | None
    ) -> tuple[tuple[Table, ...], Callable[[int], Publication]]:
        publication = self.create_now(recipe, data)
        return (publication.table,), lambda _: publication

    def create_now(self, recipe: TableRecipe, data: pa.Table | StoredRows | None) -> Publication:
        """On the engine thread: what :meth:`create` does, to be committed by the next cycle."""
        self._catalog.check_free(recipe.name)
        # A table nobody could subscribe to is refused now, not when its first reader comes.
        wire_schema(recipe.schema, self._limits)
        journal_class = self.journals.class_for(recipe.journal)
        table = self._make(recipe, data)
        rows = None if isinstance(data, StoredRows) else data
        if rows is not None and len(rows):
            (table.stage_upsert if recipe.kind == "keyed" else table.stage_add)(rows)
        publication = Publication(
            name=recipe.name, table=table, kind=recipe.kind, is_read_only=recipe.is_read_only
        )
        if journal_class == "none":
            self.journals.decline(table)
        self.journals.begin(publication, journal_class, staged=rows)
        self._catalog.add(publication)
        return publication

    def _make_unpublished(self, recipe: TableRecipe, stored: StoredRows | None) -> SourceTable:
        wire_schema(recipe.schema, self._limits)
        return self._make(recipe, stored)

    def _make(self, recipe: TableRecipe, data: pa.Table | StoredRows | None) -> SourceTable:
        graph, schema = self._runtime.graph, recipe.schema
        if recipe.kind == "static":
            return StaticTable(graph, schema.empty_table() if data is None else data)
        if recipe.kind == "keyed":
            return KeyedTable(graph, schema, key=recipe.key)
        if recipe.kind == "ring":
            assert recipe.capacity is not None
            return RingTable(graph, schema, capacity=recipe.capacity)
        plain = {"append_only": AppendOnlyTable, "list": ListTable, "blink": BlinkTable}
        return plain[recipe.kind](graph, schema)

    def _publish(self, name: str, table: Table, is_read_only: bool) -> Publication:
        self._catalog.check_free(name)
        return self._bind(name, table, is_read_only)

    def _bind(self, name: str, table: Table, is_read_only: bool) -> Publication:
        self._catalog.check_usable(name)
        table.check_alive()
        wire_schema(table.schema, self._limits)
        publication = Publication(
            name=name, table=table, kind=kind_of(table), is_read_only=is_read_only
        )
        before = self._catalog.find(name)
        if before is None or before.table is not table:
            journal_class = self.journals.class_for(None)
            if before is not None:
                self.journals.check_room(journal_class)
                self._end_journal(before)
            self.journals.begin(publication, journal_class)
        self._catalog.put(publication)
        return publication

    def _drop(self, name: str) -> tuple[int, None]:
        check_ours(self._catalog.get(name))
        publication = self._catalog.remove(name)
        self._end_journal(publication)
        if not self._catalog.is_published(publication.table):
            error = TableDroppedError(name)
            self._runtime.fail_subscribers(publication.table, error)
            for child in publication.table.live_children():
                # Its readers know it by the name of the table, and not that it is derived.
                if isinstance(child, RestrictTable):
                    self._runtime.fail_subscribers(child, error)
            for table in self.query_tables.naming(name):
                if not self._catalog.is_published(table):
                    self._runtime.fail_subscribers(table, error)
        return self.journals.ended_ticket, None

    def _withdraw(self, name: str, error: BarrageError) -> None:
        """A table that was published before the disk refused its journal is taken back."""
        publication = self._catalog.find(name)
        if publication is None:
            return
        self._catalog.remove(name)
        self.journals.end(publication)
        self.fail_now(publication.table, error)

    def _end_journal(self, publication: Publication) -> None:
        """A name stops standing for its table. The journal goes with the name it has; a table with
        another name begins a new one under that."""
        journal_class = self.journals.end(publication)
        if journal_class is None:
            return
        for other in self._catalog:
            if other.table is publication.table and other.name != publication.name:
                self.journals.begin(other, journal_class)
                return

    def _facts(self, publication: Publication) -> TableFacts:
        table = publication.table
        return TableFacts(
            name=publication.name,
            schema=table.schema,
            kind=publication.kind,
            key=tuple(table.key_columns),
            is_ticking=not table.is_static,
            row_count=table.size,
            step=table.present_step,
        )

    def _stage_chained(
        self,
        changes: tuple[Change, ...],
        producer: ProducerPosition | None,
        chain: WriteChain | None,
    ) -> tuple[Table, ...]:
        if chain is None:
            return self.stage_now(changes, producer)
        if chain.is_broken:
            raise EngineError("a write before this one was refused")
        try:
            return self.stage_now(changes, producer)
        except BaseException:
            chain.is_broken = True
            raise

    def stage_now(
        self, changes: Sequence[Change], producer: ProducerPosition | None = None
    ) -> tuple[Table, ...]:
        """On the engine thread: what :meth:`change` does, to be committed by the next cycle. The
        tables of the changes, those of resends included. On an error what was staged before it is
        taken back."""
        marks: dict[SourceTable, int] = {}
        positions = self.journals.positions
        tables = tuple(dict.fromkeys(change.table for change in changes))
        if producer is not None:
            positions.check_epoch(tables, producer)
        taken = {
            table
            for table in tables
            if producer is None or not positions.is_resend(table, producer)
        }
        counted = self.journals.check_writable(
            taken,
            producer,
            rows_bytes=lambda: sum(map(_byte_count, (c for c in changes if c.table in taken))),
        )
        try:
            for change in changes:
                if change.table in taken:
                    marks.setdefault(change.table, change.table.staged_mark())
                    getattr(change.table, change.operation)(*change.arguments)
                    self.journals.check_record(change.table, change.arguments)
        except Exception:
            for table, mark in marks.items():
                table.rollback(mark)
            self.journals.take_back(counted, marks)
            raise
        if producer is not None:
            for table in marks:
                positions.stage(table, producer)
        return tables


def _step_told(on_applied: Callable[[], object], step: int) -> int:
    on_applied()
    return step


def _byte_count(change: Change) -> int:
    """Bytes of the rows a change brings."""
    return sum(getattr(argument, "nbytes", 0) for argument in change.arguments)


def kind_of(table: Table) -> str:
    """What kind of table it is, in the words of :data:`KINDS`; :data:`VIEW` for a derived one."""
    return table.kind.replace("-", "_") if isinstance(table, SourceTable) else VIEW


class NotOfPeerError(PermissionDeniedError):
    """A name would show what rules show somebody now, also when they do so no more."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"name {name!r} cannot be given to a table that shows others: where there are rules, "
            "only rows of your own can be given one, or by those who may do everything"
        )


class ReadOnlyTableError(PermissionDeniedError):
    """A peer wants to write a table that was published for reading only."""


def _forget(references: list[Table]) -> None:
    references.clear()


def source_of(table: Table, name: str) -> SourceTable:
    """``table`` as one that can be written; UnsupportedError for a derived one."""
    if not isinstance(table, SourceTable):
        raise UnsupportedError(f"table {name!r} is derived from another one and cannot be written")
    return table


def check_ours(publication: Publication) -> None:
    """UnsupportedError for a table that another server owns."""
    if isinstance(publication.table, RelayedTable):
        raise UnsupportedError(
            f"table {publication.name!r} is relayed from another server, which owns it: it cannot "
            "be written here in this way; write to that server"
        )


def source_for_peers(publication: Publication) -> SourceTable:
    """The published table as one a peer may write; UnsupportedError for a derived or a relayed one,
    ReadOnlyTableError for one that was published for reading only."""
    source = source_of(publication.table, publication.name)
    check_ours(publication)
    if publication.is_read_only:
        raise ReadOnlyTableError(f"table {publication.name!r} is published for reading only")
    return source

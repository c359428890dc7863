"""Committing a staged batch: its winning parts become one cycle of one table, once.

The number of the batch is committed with the rows, in the same cycle and the same journal record,
as the position of a producer (:mod:`barrage.server.journaling.producer_positions`). So a commit
that is asked for again, after whatever crash, does nothing. A writer the table does not know, with
a batch that is not its first, means that the table has lost what the writer relies on: that is
refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.tables.coercion import normalised_schema
from barrage.engine.tables.keyed import check_key_columns
from barrage.errors import SchemaError, SequenceError, TableNotFoundError
from barrage.server.ingest.staged_rows import (
    FEED_COLUMNS,
    ROW_ID,
    StagedWrite,
    TargetShape,
    bytes_in,
    staged_write,
)
from barrage.server.ingest.staging import StagedLostError
from barrage.server.journaling.producer_positions import ProducerPosition
from barrage.server.tables.table_service import TableRecipe, kind_of, source_for_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.ingest.staging import BatchName, StagedPart, StagingArea
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService

ATTEMPTS_MAX = 3
"""How often a commit looks at its table again when it was made or replaced meanwhile."""


class UnknownWriterError(SequenceError):
    """The table does not know a writer that says it has written before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What a commit asks for."""

    name: BatchName
    staged: tuple[tuple[int, int], ...]
    """Partition and attempt of the parts that count."""
    mode: str
    key: tuple[str, ...] = ()
    is_created: bool = False
    """Whether a table that does not exist is made."""
    schema: pa.Schema | None = None
    """Columns of a table to make; without it, those of the rows."""
    merge_schema: bool = False
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The step that committed the batch, or a later one; the rows it had."""

    version: int
    is_duplicate: bool
    row_count: int


class _TargetChangedError(Exception):
    """The name stands for another table than when the rows were made to fit."""


class StageCommitter:
    """Commits batches. Runs on the event loop; rows are made to fit in ``pool``."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        staging: StagingArea,
        *,
        pool: ThreadPoolExecutor,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._tables = tables
        self._catalog = catalog
        self._staging = staging
        self._pool = pool

    async def commit(self, request: CommitRequest) -> Committed:
        """Apply a batch; the future resolves when that is as safe as the table's journal.

        Errors: StagedLostError, UnknownWriterError, TableNotFoundError, ReadOnlyTableError,
        UnsupportedError, SchemaError, RowError, LimitExceededError, the journal's. Nothing is
        applied then, and the parts stay staged.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                committed = await self._attempt(request)
            except _TargetChangedError:
                continue
            except StagedLostError:
                # A commit of the same batch may have taken the parts a moment ago.
                target = await self._target(request.name.table)
                if target is None or not await self._is_known(target, request):
                    raise
                committed = await self._duplicate(target, request)
            self._staging.forget_upto(request.name)
            return committed
        raise SequenceError(f"table {request.name.table!r} is being replaced; commit again")

    async def _attempt(self, request: CommitRequest) -> Committed:
        target = await self._target(request.name.table)
        if target is not None and await self._is_known(target, request):
            return await self._duplicate(target, request)
        parts = self._staging.find(request.name, request.staged)
        recipe = None if target is not None else _recipe(request, parts, self._limits)
        shape = _shape(request, target, recipe)
        write = await self._shaped(request, parts, shape)
        work = _Application(
            self._tables,
            self._catalog,
            request=request,
            target=target,
            recipe=recipe,
            write=write,
        )
        return await asyncio.wrap_future(self._tables.commit(work.stage))

    async def _shaped(
        self, request: CommitRequest, parts: Sequence[StagedPart], shape: TargetShape
    ) -> StagedWrite:
        """The rows as the table takes them. LimitExceededError before any is cast, when that would
        be more than may be staged."""
        loop = asyncio.get_running_loop()
        measure = partial(_measured, shape, parts, request.mode)
        rows, size = await loop.run_in_executor(self._pool, measure)
        write = partial(staged_write, rows, shape, request.mode, merge_schema=request.merge_schema)
        with self._staging.grown(parts, size):
            return await loop.run_in_executor(self._pool, write)

    async def _target(self, name: str) -> SourceTable | None:
        """The table as one that can be written; None when there is none."""
        try:
            return source_for_peers(await asyncio.wrap_future(self._tables.look_up(name)))
        except TableNotFoundError:
            return None

    async def _is_known(self, target: SourceTable, request: CommitRequest) -> bool:
        name = request.name
        last = await asyncio.wrap_future(self._tables.position(target, name.writer))
        return last is not None and name.batch <= last

    async def _duplicate(self, target: SourceTable, request: CommitRequest) -> Committed:
        version = await asyncio.wrap_future(self._tables.run(lambda: target.graph.step))
        journal = self._tables.journals.journal_of(target)
        if journal is not None:
            version = journal.durable_version
        return Committed(version=version, is_duplicate=True, row_count=0)


class _Application:
    """One cycle's worth of work on the engine thread."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        request: CommitRequest,
        target: SourceTable | None,
        recipe: TableRecipe | None,
        write: StagedWrite,
    ) -> None:
        self._tables = tables
        self._catalog = catalog
        self._request = request
        self._target = target
        self._recipe = recipe
        self._write = write

    def stage(self) -> tuple[tuple[Table, ...], Callable[[int], Committed]]:
        """Engine thread: check once more, then stage everything for the next cycle."""
        name = self._request.name
        found = self._catalog.find(name.table)
        table = None if found is None else source_for_peers(found)
        if table is not self._target:
            raise _TargetChangedError
        positions = self._tables.journals.positions
        last = None if table is None else positions.last(table, name.writer)
        if last is not None and name.batch <= last:
            assert table is not None
            return (table,), lambda step: Committed(version=step, is_duplicate=True, row_count=0)
        if last is None and name.batch > 0 and self._request.fail_on_data_loss:
            raise UnknownWriterError(
                f"unknown-writer: table {name.table!r} does not know writer {name.writer!r}, which "
                f"commits batch {name.batch}: the table was made anew or has lost its state since "
                "batch 0; start with a new writer, or with fail_on_data_loss false"
            )
        table = self._created() if table is None else self._staged(table)
        rows = self._write.row_count
        return (table,), lambda step: Committed(version=step, is_duplicate=False, row_count=rows)

    def _created(self) -> SourceTable:
        """The table made and filled by the same cycle; not made when its rows are refused."""
        assert self._recipe is not None
        publication = self._tables.create_now(self._recipe, None)
        try:
            return self._staged(source_for_peers(publication))
        except BaseException:
            self._tables.drop(publication.name)
            raise

    def _staged(self, table: SourceTable) -> SourceTable:
        name = self._request.name
        position = ProducerPosition(name.writer, name.batch)
        self._tables.stage_now(self._write.changes(table), position)
        return table


def _shape(
    request: CommitRequest, target: SourceTable | None, recipe: TableRecipe | None
) -> TargetShape:
    """What the rows have to fit: the table there is, or the one that will be made."""
    name = request.name.table
    if target is None:
        assert recipe is not None
        return TargetShape(name=name, kind=recipe.kind, schema=recipe.schema, key=recipe.key)
    key = tuple(target.key_columns)
    if request.key and request.key != key:
        has = f"the key {', '.join(key)}" if key else "no key"
        raise SchemaError(f"table {name!r} has {has}, not {', '.join(request.key)}")
    return TargetShape(name=name, kind=kind_of(target), schema=target.schema, key=key)


def _measured(
    shape: TargetShape, parts: Sequence[StagedPart], mode: str
) -> tuple[list[pa.Table], int]:
    """The rows of each part, and what all take in their table."""
    rows = [part.rows() for part in parts]
    return rows, bytes_in(shape, rows, mode)


def _recipe(request: CommitRequest, parts: Sequence[StagedPart], limits: Limits) -> TableRecipe:
    """How to make the table of a batch that has none. A change feed without key columns goes by its
    row ids; content that is replaced as a whole and has no key is a list."""
    name = request.name.table
    if not request.is_created:
        raise TableNotFoundError(name)
    schema = request.schema
    if schema is None:
        if not parts or parts[0].schema is None:
            raise SchemaError(f"table {name!r} does not exist; creating it takes its schema")
        schema = parts[0].schema
    key, kind = request.key, None
    if request.mode == "upsert" and not key:
        raise SchemaError(f"table {name!r} does not exist; creating it takes 'key'")
    if request.mode == "changes":
        schema, key = _feed_table(schema, key)
    if request.mode == "replace" and not key:
        kind = "list"
    # As the table will have it: rows are made to fit before there is one.
    recipe = TableRecipe.checked(name, normalised_schema(schema, limits), key=key, kind=kind)
    if recipe.key:
        check_key_columns(recipe.schema, recipe.key)
    return recipe


def _feed_table(schema: pa.Schema, key: tuple[str, ...]) -> tuple[pa.Schema, tuple[str, ...]]:
    """Columns and key of a table made for a change feed."""
    fields = [field for field in schema if field.name not in FEED_COLUMNS or field.name in key]
    if key:
        return pa.schema(fields), key
    return pa.schema([pa.field(ROW_ID, pa.int64()), *fields]), (ROW_ID,)

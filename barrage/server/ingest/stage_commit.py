"""Committing a staged batch: its winning parts come into one table, once.

The number of the batch is committed with the rows, or the last of them, in the same cycle and the
same journal record, as the position of a producer
(:mod:`barrage.server.journaling.producer_positions`). So a commit that is asked for again, after
whatever crash, does nothing, or what the first has left. A writer the table does not know, with a
batch that is not its first, means that the table has lost what the writer relies on: that is
refused.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.tables.coercion import normalised_schema
from barrage.engine.tables.keyed import check_key_columns
from barrage.errors import SchemaError, SequenceError, TableNotFoundError
from barrage.server.ingest.commit_portions import CommitAttempt, CommitOvertakenError
from barrage.server.ingest.staged_rows import (
    FEED_COLUMNS,
    ROW_ID,
    TargetShape,
    bytes_in,
    staged_write,
)
from barrage.server.tables.table_service import TableRecipe, kind_of, source_for_peers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from barrage.engine.tables.source import SourceTable
    from barrage.limits import Limits
    from barrage.server.ingest.staging import BatchName, StagedPart, StagingArea
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService

ATTEMPTS_MAX = 3
"""How often a commit looks at its table again when it was made or replaced meanwhile."""


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


@dataclass(slots=True)
class _Turn:
    """Commits of one writer to one table."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    commit_count: int = 0
    """Under way or waiting."""


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
        self._turns: dict[tuple[str, str], _Turn] = {}
        """By table and writer, as long as one commits or waits to."""

    async def commit(self, request: CommitRequest) -> Committed:
        """Apply a batch, of a writer one after the other; resolves when that is as safe as the
        table's journal.

        Errors: StagedLostError, UnknownWriterError, TableNotFoundError, ReadOnlyTableError,
        UnsupportedError, SchemaError, RowError, LimitExceededError, the journal's. The parts stay
        staged then, and nothing is applied but the first portions of a large batch.
        """
        name = request.name
        async with self._turn(name):
            for _ in range(ATTEMPTS_MAX):
                try:
                    committed = await self._attempt(request)
                except CommitOvertakenError:
                    continue
                self._staging.forget_upto(name)
                return committed
        raise SequenceError(f"table {name.table!r} is being replaced; commit again")

    @asynccontextmanager
    async def _turn(self, name: BatchName) -> AsyncIterator[None]:
        """Be the only commit of a writer to a table: two of one batch would mix their rows."""
        place = name.table, name.writer
        turn = self._turns.setdefault(place, _Turn())
        turn.commit_count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.commit_count -= 1
            if not turn.commit_count:
                del self._turns[place]

    async def _attempt(self, request: CommitRequest) -> Committed:
        target = await self._target(request.name.table)
        if target is not None and await self._is_known(target, request):
            return await self._duplicate(target)
        parts = self._staging.find(request.name, request.staged)
        recipe = None if target is not None else _recipe(request, parts, self._limits)
        shape = _shape(request, target, recipe)
        attempt = CommitAttempt(
            self._tables,
            self._catalog,
            name=request.name,
            is_loss_refused=request.fail_on_data_loss,
            target=target,
            recipe=recipe,
            pool=self._pool,
        )
        loop = asyncio.get_running_loop()
        measure = partial(_measured, shape, parts, request.mode)
        rows, size = await loop.run_in_executor(self._pool, measure)
        fit = partial(staged_write, rows, shape, request.mode, merge_schema=request.merge_schema)
        # LimitExceededError before any rows are cast, when that would be more than may be staged.
        with self._staging.grown(parts, size):
            write = await loop.run_in_executor(self._pool, fit)
            rows_max = self._limits.whole_batch_rows_max
            step = await attempt.apply(write, whole_rows_max=rows_max)
        row_count = sum(part.row_count for part in parts)
        return Committed(version=step, is_duplicate=False, row_count=row_count)

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

    async def _duplicate(self, target: SourceTable) -> Committed:
        version = await asyncio.wrap_future(self._tables.run(lambda: target.graph.step))
        journal = self._tables.journals.journal_of(target)
        if journal is not None:
            version = journal.durable_version
        return Committed(version=version, is_duplicate=True, row_count=0)


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

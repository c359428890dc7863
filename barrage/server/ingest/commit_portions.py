"""A staged batch comes into its table: in one step, or in portions where everybody else would wait
too long for it.

The number of the batch comes with the last portion. What an attempt that did not get so far has
left is rows without a number: when the batch is committed again they are put under the same keys
once more, which changes nothing, and all that is missing follows. So only a table with a key takes
portions; the others take all rows at once, which costs them no copy (a list looks through all it
has for any write).

A replacement puts its rows first. Which others go is then worked out beside the engine, from the
keys as they stand, and these are removed as the last portions. Rows with other keys that somebody
writes meanwhile stay, like those that are written after a replacement.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from barrage.errors import EngineError, SequenceError
from barrage.server.ingest.pinned_keys import PinnedKeys
from barrage.server.ingest.portions import handed_over
from barrage.server.ingest.staged_rows import StagedWrite
from barrage.server.journaling.producer_positions import ProducerPosition
from barrage.server.tables.table_service import source_for_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.server.ingest.staging import BatchName
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableRecipe, TableService
    from barrage.server.tables.write_room import TakenRoom


class UnknownWriterError(SequenceError):
    """The table does not know a writer that says it has written before."""


class CommitOvertakenError(Exception):
    """What an attempt goes by is not so any more: the name stands for another table, or the batch
    has been committed."""


class CommitAttempt:
    """One attempt to apply a batch. Used on the event loop; what is said of the table and of the
    portions that were staged belongs to the engine thread."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        name: BatchName,
        is_loss_refused: bool,
        target: SourceTable | None,
        recipe: TableRecipe | None,
        pool: ThreadPoolExecutor,
    ) -> None:
        """``recipe`` makes the table when there is no ``target``; ``is_loss_refused``: it has to
        know the writer of a batch that is not the first."""
        self._tables = tables
        self._catalog = catalog
        self._name = name
        self._is_loss_refused = is_loss_refused
        self._recipe = recipe
        self._pool = pool
        self._passed_count = 0
        self._table = target
        self._staged_count = 0

    async def apply(self, write: StagedWrite, *, whole_rows_max: int) -> int:
        """Apply a write, in portions when it has a key and its rows count for more than that. The
        step of the last portion, once all are as safe as the table's journal.

        Errors: CommitOvertakenError, UnknownWriterError, ReadOnlyTableError, UnsupportedError,
        EngineError, LimitExceededError, the journal's. Portions before may have been applied then.
        """
        if not write.key or write.weight * self._weight_below <= whole_rows_max:
            return await self._passed((write,), is_end=True)
        loop = asyncio.get_running_loop()
        divided = partial(write.portions, self._weight_below)
        portions = await loop.run_in_executor(self._pool, divided)
        if write.is_replacement:
            await self._passed(portions, is_end=False)
            keys = await asyncio.wrap_future(self._tables.run(self._pinned_keys))
            removals = partial(_removals, keys, write, self._weight_below)
            portions = await loop.run_in_executor(self._pool, removals)
        return await self._passed(portions, is_end=True)

    @property
    def _weight_below(self) -> int:
        return 1 if self._table is None else self._table.weight_below

    async def _passed(self, portions: Sequence[StagedWrite], *, is_end: bool) -> int:
        """Pass portions to the engine as there is room for them, with the last of all the number of
        the batch; the step of the last one, once all are safe. None is staged after an error, or
        when the caller was cancelled."""
        passed: list[asyncio.Future[int]] = []
        try:
            for portion in portions:
                taken = await self._tables.write_room.take(portion.weight * self._weight_below)
                is_last = is_end and portion is portions[-1]
                stage = partial(self._stage, self._passed_count, portion, taken, is_last=is_last)
                self._passed_count += 1
                passed.append(handed_over(partial(self._tables.commit, stage), taken))
            return (await asyncio.gather(*passed))[-1]
        except BaseException:
            for future in passed:
                future.cancel()
            raise

    # --- engine thread ---

    def _stage(
        self, number: int, portion: StagedWrite, taken: TakenRoom, *, is_last: bool
    ) -> tuple[tuple[Table, ...], Callable[[int], int]]:
        """Check once more, then stage a portion for the next cycle."""
        self._check()
        if number != self._staged_count:
            raise EngineError("a portion before this one was refused")
        self._table = self._staged(portion, is_last=is_last)
        self._staged_count += 1
        return (self._table,), partial(_step_of_applied, taken)

    def _check(self) -> None:
        name = self._name
        found = self._catalog.find(name.table)
        table = None if found is None else source_for_peers(found)
        positions = self._tables.journals.positions
        last = None if table is None else positions.last(table, name.writer)
        if table is not self._table or (last is not None and name.batch <= last):
            raise CommitOvertakenError
        if last is None and name.batch > 0 and self._is_loss_refused:
            raise UnknownWriterError(
                f"unknown-writer: table {name.table!r} does not know writer {name.writer!r}, which "
                f"commits batch {name.batch}: the table was made anew or has lost its state since "
                "batch 0; start with a new writer, or with fail_on_data_loss false"
            )

    def _staged(self, portion: StagedWrite, *, is_last: bool) -> SourceTable:
        name = self._name
        position = ProducerPosition(name.writer, name.batch) if is_last else None
        if self._table is not None:
            self._tables.stage_now(portion.changes(self._table), position)
            return self._table
        # Made and filled by the same cycle; not made when the rows are refused.
        assert self._recipe is not None
        publication = self._tables.create_now(self._recipe, None)
        try:
            table = source_for_peers(publication)
            self._tables.stage_now(portion.changes(table), position)
        except BaseException:
            self._tables.drop(publication.name)
            raise
        return table

    def _pinned_keys(self) -> PinnedKeys:
        assert self._table is not None
        return PinnedKeys(self._table)


def _step_of_applied(taken: TakenRoom, step: int) -> int:
    taken.applied()
    return step


def _removals(keys: PinnedKeys, write: StagedWrite, weight_below: int) -> list[StagedWrite]:
    """What removes the keys that a replacement does not have, at least one portion."""
    ((_, rows),) = write.steps
    going = keys.absent_from(rows)
    return StagedWrite.of(write.key, ("stage_remove", going)).portions(weight_below)

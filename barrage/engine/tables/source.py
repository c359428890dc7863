"""Sources: tables written from outside. Writes are staged, checked completely, and committed by the
next cycle.

Staging is all or nothing: a batch that breaks a rule raises SchemaError or RowError and leaves
nothing behind. ``staged_mark`` and ``rollback`` let a caller take back what it staged since a point
in time, as long as no cycle has committed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import pyarrow as pa

from barrage.engine.tables.coercion import coerce_rows, normalised_schema
from barrage.engine.tables.moved_rows import union_of
from barrage.engine.tables.recording import CellRecorder, RecordedCells
from barrage.engine.tables.slots import SlotStorage
from barrage.engine.tables.table import DerivedTable, LeafTable, TableTraits
from barrage.errors import EngineError, UnsupportedError
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph, Table
    from barrage.limits import Limits
    from barrage.rowset.arrays import Int64Array


Rows: TypeAlias = pa.Table | pa.RecordBatch
"""What a caller may stage."""

JOINED_ROWS_MAX = 1 << 16
"""Batches of fewer rows than this on average are joined before they are stored."""

StagedT = TypeVar("StagedT")


class SourceTable(LeafTable):
    """A table that is written from outside. The base refuses every kind of write."""

    kind = "source"

    def __init__(self, graph: Graph, schema: pa.Schema, traits: TableTraits) -> None:
        super().__init__(graph, normalised_schema(schema, graph.limits), traits)
        self.storage = SlotStorage(self.schema)
        self._recorder: CellRecorder | None = None
        self._change: TableChange | None = None
        graph.add_source(self)

    def _pin(self, known: dict[int, Table]) -> None:
        self.storage = self.storage.pinned()

    @property
    def overwritten_nbytes(self) -> int:
        return self.storage.overwritten_nbytes

    @property
    def pinning_nbytes(self) -> int:
        """Bytes of cells that pinning copies now."""
        return self.storage.pinning_nbytes

    def start_recording(self) -> None:
        """From the next cycle on keep what each one changed, with the cells of before, for
        :meth:`take_change`."""
        if self._recorder is None:
            self._recorder = CellRecorder(len(self.schema))

    def take_change(self) -> TableChange | None:
        """What the last cycle changed; None when it changed nothing, or was not recorded, or when
        it was taken already. A cycle nobody asked about is forgotten by the next."""
        change, self._change = self._change, None
        return change

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        """Be, right after being made, a table of these rows in key order under these keys.

        EngineError when no table of this kind has such keys.
        """
        raise self._refusal("restoring rows")

    def _record(self, update: TableUpdate, cells: RecordedCells) -> None:
        """Keep what this cycle did, unless it did nothing."""
        if update.is_empty:
            return
        self._change = TableChange(
            update=update,
            removed=cells.removed,
            modified_keys_post=union_of(update.modified_keys_post),
            before=cells.before,
            after=cells.after,
            added=cells.added,
        )

    def touched_keys(self, mark: int = 0) -> RowSet:
        """Present rows that the writes staged after ``mark`` may remove or overwrite; never fewer
        than they do."""
        return self.row_keys

    def staged_mark(self) -> int:
        """A point in the sequence of staged writes, for ``rollback``."""
        return 0

    def rollback(self, mark: int) -> None:
        """Take back everything staged after ``mark`` that no cycle has committed yet."""

    def stage_add(self, rows: Rows) -> None:
        """Add rows at the end."""
        raise self._refusal("adding rows")

    def stage_upsert(self, rows: Rows) -> None:
        """Replace the rows with these keys and add those whose key is new."""
        raise self._refusal("upserting rows")

    def stage_remove(self, keys: Rows) -> None:
        """Remove the rows with these keys; keys that do not exist are ignored."""
        raise self._refusal("removing rows by key")

    def stage_insert(self, position: int, rows: Rows) -> None:
        """Insert rows before the row at ``position``."""
        raise self._refusal("inserting rows at a position")

    def stage_delete(self, start: int, stop: int) -> None:
        """Delete the rows at positions ``start..stop-1``."""
        raise self._refusal("deleting rows by position")

    def stage_replace(self, rows: Rows) -> None:
        """Make these rows the whole content."""
        raise self._refusal("replacing the content")

    def _refusal(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{what} is not possible in {_article(self.kind)} table")

    def _coerced(self, rows: Rows) -> pa.Table:
        self.check_alive()
        return coerce_rows(self.schema, rows)

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.storage.read(keys, columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.storage.take(keys, columns)

    def _update(
        self,
        step: int,
        *,
        removed: RowSet | None = None,
        shifts: RowSetShiftData | None = None,
        added: RowSet | None = None,
        modified: tuple[RowSet, ...] | None = None,
    ) -> TableUpdate:
        empty = RowSet.empty()
        return TableUpdate(
            first_step=step,
            last_step=step,
            removed_keys_pre=empty if removed is None else removed,
            shifts=RowSetShiftData.empty() if shifts is None else shifts,
            added_keys_post=empty if added is None else added,
            modified_keys_post=(empty,) * len(self.schema) if modified is None else modified,
        )


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


class StagedTable(SourceTable, Generic[StagedT]):
    """A source with a list of staged writes of one type."""

    def __init__(self, graph: Graph, schema: pa.Schema, traits: TableTraits) -> None:
        super().__init__(graph, schema, traits)
        self._staged: list[StagedT] = []
        self._committed_count = 0

    @property
    def has_pending(self) -> bool:
        return bool(self._staged) and self._failure is None

    def staged_mark(self) -> int:
        return self._committed_count + len(self._staged)

    def rollback(self, mark: int) -> None:
        if not 0 <= mark <= self.staged_mark():
            raise EngineError(f"mark {mark} was never handed out")
        del self._staged[max(0, mark - self._committed_count) :]

    def _staged_after(self, mark: int) -> list[StagedT]:
        return self._staged[max(0, mark - self._committed_count) :]

    def _take_staged(self) -> list[StagedT]:
        self._change = None
        if self._recorder is not None:
            self._recorder.clear()
        staged, self._staged = self._staged, []
        self._committed_count += len(staged)
        return staged

    def _added_only(self, update: TableUpdate) -> RecordedCells:
        """The cells of a cycle that modified nothing and whose removed rows are not recorded."""
        columns = range(len(self.schema))
        none = self.storage.read(RowSet.empty(), columns)
        added = self.read_cells(update.added_keys_post, columns)
        return RecordedCells(removed=none, before=none, after=none, added=added)


def is_dense(keys: RowSet) -> bool:
    """Whether the keys are 0 to size-1."""
    return keys.is_empty or (keys.is_contiguous and keys.first == 0)


def check_keys(kind: str, keys: RowSet, rows: pa.Table, *, is_possible: bool) -> None:
    """EngineError unless a table of that kind can have ``rows`` under ``keys``."""
    if len(keys) != len(rows):
        raise EngineError(f"{len(keys)} row keys but {len(rows)} rows")
    if not is_possible:
        shown = f"{keys.first} to {keys.last}" if len(keys) else "none"
        raise EngineError(
            f"{_article(kind)} table cannot have these {len(keys)} row keys ({shown})"
        )


def joined(batches: list[pa.Table]) -> list[pa.Table]:
    """Small batches of one cycle as one contiguous batch: one copy here instead of several
    merges."""
    rows = sum(len(batch) for batch in batches)
    if len(batches) < 2 or rows >= len(batches) * JOINED_ROWS_MAX:
        return batches
    return [pa.concat_tables(batches).combine_chunks()]


class StoredRows:
    """Rows as a static table keeps them. Any thread may make them: every value of their
    dictionaries is looked at, a second for a million of them."""

    def __init__(self, rows: Rows, limits: Limits) -> None:
        """SchemaError, RowError."""
        self.schema = normalised_schema(rows.schema, limits)
        self.storage = SlotStorage(self.schema)
        table = coerce_rows(self.schema, rows)
        self.storage.append(table)
        self.keys = RowSet.of_span(0, len(table))
        # Whoever reads the first cells of a dictionary puts its values together.
        encoded = [i for i, each in enumerate(self.schema) if pa.types.is_dictionary(each.type)]
        self.storage.read(self.keys, encoded)


class StaticTable(SourceTable):
    """A table that never changes."""

    kind = "static"

    def __init__(self, graph: Graph, rows: Rows | StoredRows) -> None:
        stored = rows if isinstance(rows, StoredRows) else StoredRows(rows, graph.limits)
        super().__init__(graph, stored.schema, TableTraits(is_static=True, is_flat=True))
        self.storage = stored.storage
        self._row_keys = stored.keys


class AddedTable(StagedTable[pa.Table]):
    """Rows come at the end and no other way. Restored, they have the keys 0..n-1."""

    def touched_keys(self, mark: int = 0) -> RowSet:
        return RowSet.empty()

    def stage_add(self, rows: Rows) -> None:
        table = self._coerced(rows)
        if len(table):
            self._staged.append(table)

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        check_keys(self.kind, keys, rows, is_possible=is_dense(keys))
        self.storage.append(self._coerced(rows))
        self._row_keys = keys


class AppendOnlyTable(AddedTable):
    """Rows are only ever added at the end: key, slot and position of a row are the same number."""

    kind = "append-only"

    def __init__(self, graph: Graph, schema: pa.Schema) -> None:
        super().__init__(graph, schema, TableTraits(is_append_only=True, is_flat=True))

    def commit(self, step: int) -> TableUpdate:
        start = self.size
        stop = start
        for rows in joined(self._take_staged()):
            self.storage.append(rows)
            stop += len(rows)
        self._row_keys = RowSet.of_span(0, stop)
        update = self._update(step, added=RowSet.of_span(start, stop))
        if self._recorder is not None:
            self._record(update, self._added_only(update))
        return update


class BlankTable(SourceTable):
    """A static table of ``size`` rows and no columns. Costs the same for any size."""

    kind = "static"

    def __init__(self, graph: Graph, size: int) -> None:
        super().__init__(graph, pa.schema([]), TableTraits(is_static=True, is_flat=True))
        self._row_keys = RowSet.of_span(0, size)


def sources_of(*tables: Table) -> list[SourceTable]:
    """The sources tables are computed from, each once, in the order they were made."""
    return [each for each in _ancestry(tables) if isinstance(each, SourceTable)]


def operators_of(*tables: Table) -> list[DerivedTable]:
    """The operators between tables and their sources, themselves included, parents first."""
    return [each for each in _ancestry(tables) if isinstance(each, DerivedTable)]


def copied_nbytes(tables: Iterable[Table]) -> int:
    """Bytes of cells that pinning the tables copies now."""
    return sum(source.pinning_nbytes for source in sources_of(*tables))


def _ancestry(tables: Sequence[Table]) -> list[Table]:
    """Tables and all that they are computed from, each once; parents stand before children, because
    they were made before them."""
    found = {table.serial: table for table in tables}
    waiting = list(found.values())
    while waiting:
        each = waiting.pop()
        if isinstance(each, DerivedTable):
            fresh = [parent for parent in each.parents if parent.serial not in found]
            found.update((parent.serial, parent) for parent in fresh)
            waiting.extend(fresh)
    return [found[serial] for serial in sorted(found)]

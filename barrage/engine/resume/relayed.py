"""A source whose changes are told by another server: row keys, cells and steps are that server's.

A :class:`RelayedTable` begins with a whole state and takes :class:`ToldUpdate`, each of which one
cycle commits: nothing is merged, so the history recorded here has the versions of the other one.
Its updates bear *steps of its own* (``timeline``) instead of the graph's, and what is derived from
it alone bears the same.

An update is believed only as far as it fits the rows there are; EngineError fails the table.

Cost of a cycle: as a :class:`~barrage.engine.resume.replay.ReplayTable`, O(rows) in numpy where
rows are removed or inserted in the middle, and the rows changed elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from barrage.engine.resume.replay import ReplayTable
from barrage.engine.tables.moved_rows import closing_shifts, union_of
from barrage.engine.tables.recording import RecordedCells
from barrage.errors import EngineError
from barrage.model.coalesce import coalesce
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.resume.replay import SourceState
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph, TableTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedForm:
    """What a relayed table is, besides its rows."""

    schema: pa.Schema
    traits: TableTraits
    kind: str
    """In the words of the server that tells its changes, with hyphens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldUpdate:
    """One update as the other server told it. ``added`` are the cells of ``added_keys_post``, and
    ``modified[c]`` those of column c in the rows modified there, each in key order."""

    update: TableUpdate
    added: Sequence[Cells]
    modified: Sequence[Cells]
    is_by_position: bool = False
    """Whether the rows of before are called 0 to n-1, as after a resumption."""


class RelayedTable(ReplayTable):
    """The rows of ``state`` at ``step``, then what the updates told make of them."""

    def __init__(self, graph: Graph, form: RelayedForm, state: SourceState, *, step: int) -> None:
        """EngineError when the keys and rows of ``state`` do not fit each other."""
        super().__init__(graph, form, state, changed_step=step)
        self.timeline = self.serial
        self._told: list[ToldUpdate] = []
        self._renamed: TableUpdate | None = None
        """Only calls rows by other keys, at the step the table is at: told with the next one."""
        self._told_count = 0

    # --- staging ---

    @property
    def has_pending(self) -> bool:
        return bool(self._told) and self._failure is None

    @property
    def told_count(self) -> int:
        """Updates that no cycle has committed yet."""
        return len(self._told)

    def staged_mark(self) -> int:
        return self._told_count + len(self._told)

    def rollback(self, mark: int) -> None:
        if not 0 <= mark <= self.staged_mark():
            raise EngineError(f"mark {mark} was never handed out")
        del self._told[max(0, mark - self._told_count) :]

    def stage_told(self, told: ToldUpdate) -> None:
        """Let a cycle of its own commit this update; SchemaError or RowError when the cells are of
        no type of the columns, EngineError when their number is wrong."""
        self.check_alive()
        check_lengths(told, len(self.schema))
        typed = replace(told, added=self._typed(told.added), modified=self._typed(told.modified))
        self._told.append(typed)

    # --- a cycle ---

    def commit(self, step: int) -> TableUpdate:
        """Apply the oldest update told. Its steps are told on; ``step``, the graph's, is not."""
        self._change = None
        if not self._told:
            return self._update(self.changed_step)
        told = self._told.pop(0)
        self._told_count += 1
        update = told.update
        if told.is_by_position:
            update = by_keys(update, self._row_keys)
            self._renamed = None
        elif self._renamed is not None:
            update = coalesce(self._renamed, update)
        if update.last_step <= self.changed_step:
            return self._renamed_only(update)
        update = replace(update, first_step=told.update.first_step)
        self._renamed = None
        modified = union_of(update.modified_keys_post)
        self._check_fits(update, modified)
        columns = range(len(self.schema))
        is_recorded = self._recorder is not None
        gone = RowSet.empty() if self.is_blink else update.removed_keys_pre
        if is_recorded:
            removed = self.read_cells(gone, columns)
            before = self.read_cells(update.shifts.unapply(modified), columns)
        self._apply_update(update, told.added)
        self._write(update.modified_keys_post, told.modified)
        self._pack()
        if is_recorded:
            cells = RecordedCells(
                removed=removed,
                before=before,
                after=self.read_cells(modified, columns),
                added=self.read_cells(update.added_keys_post, columns),
            )
            self._record(update, cells)
        return update

    def _renamed_only(self, update: TableUpdate) -> TableUpdate:
        """What is told at the step the table is at may name its rows anew, and nothing else."""
        only = TableUpdate.nothing(step=update.last_step, column_count=len(self.schema))
        only = replace(only, shifts=update.shifts)
        if replace(update, first_step=update.last_step) != only:
            raise EngineError(f"step {update.last_step} was told after {self.changed_step}")
        self._renamed = None if update.shifts.is_empty else only
        return self._update(self.changed_step)

    def _write(self, modified: Sequence[RowSet], cells: Sequence[Cells]) -> None:
        for column, keys, values in zip(self.storage.columns, modified, cells, strict=True):
            if not keys.is_empty:
                column.write(self._slots[self._row_keys.positions_of(keys).to_numpy()], values)

    def _check_fits(self, update: TableUpdate, modified: RowSet) -> None:
        if not (update.removed_keys_pre - self._row_keys).is_empty:
            raise EngineError("rows are removed that are not there")
        kept_post = update.shifts.apply(self._row_keys - update.removed_keys_pre)
        if not (modified - kept_post).is_empty:
            raise EngineError("rows are modified that are not there")


def check_lengths(told: ToldUpdate, column_count: int) -> None:
    """EngineError unless an update has a cell for every row and column it names."""
    update = told.update
    counts = {len(update.modified_keys_post), len(told.added), len(told.modified)}
    if counts != {column_count}:
        raise EngineError(f"an update is of {sorted(counts)} columns, the table has {column_count}")
    for index in range(column_count):
        wanted = len(update.added_keys_post), len(update.modified_keys_post[index])
        given = len(told.added[index]), len(told.modified[index])
        if wanted != given:
            raise EngineError(f"column {index} has {given} cells for {wanted} rows")


def by_keys(update: TableUpdate, keys: RowSet) -> TableUpdate:
    """``update``, which calls the rows of before 0 to n-1, for a table that has them under
    ``keys``. EngineError when it names rows that are not there.

    Example: keys 3, 5, 9; row 1 is removed and row 2 is called 7 from now on. Then 5 is removed, 3
    moves to 0 and 9 to 7.
    """
    places = RowSet.of_span(0, len(keys))
    removed = update.removed_keys_pre
    if not (removed - places).is_empty:
        raise EngineError("rows are removed that are not there")
    kept = places - removed
    kept_post = update.shifts.apply(kept)
    if len(kept_post) != len(kept):
        raise EngineError("rows are moved onto each other")
    return replace(
        update,
        removed_keys_pre=keys.keys_at(removed),
        shifts=closing_shifts(keys.keys_at(kept), kept_post),
    )

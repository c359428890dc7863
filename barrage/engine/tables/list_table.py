"""A table edited by position: insert, delete and overwrite anywhere.

Row key == position, so an insertion or deletion shifts everything behind it. Cells stay where they
were written (slots); ``_order`` says which slot stands at each position. Edits of one cycle are
applied to a copy of the order, and the update is read off the difference of the two orders: O(rows)
per changed cycle, vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.tables.moved_rows import moves_to_shifts, union_of
from barrage.engine.tables.same_rows import same_rows
from barrage.engine.tables.source import Rows, StagedTable, check_keys, is_dense
from barrage.engine.tables.table import TableTraits
from barrage.errors import RowError
from barrage.model.storage import cells_differ
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph
    from barrage.model.update import TableUpdate
    from barrage.rowset.arrays import Int64Array

FREE_SLOTS_MIN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """Positions ``start..stop-1`` are replaced by ``rows``; with ``is_overwrite`` in place, with
    ``keeps_equal`` without those that are the same."""

    start: int
    stop: int
    rows: pa.Table | None
    is_overwrite: bool
    size_before: int
    keeps_equal: bool = False


class ListTable(StagedTable[_Edit]):
    """Rows at positions 0..size-1."""

    kind = "list"

    def __init__(self, graph: Graph, schema: pa.Schema) -> None:
        super().__init__(graph, schema, TableTraits(is_flat=True))
        self._order: Int64Array = np.empty(0, dtype=np.int64)
        self._slots_used = 0

    @property
    def staged_size(self) -> int:
        """Rows there will be once everything staged is committed; staged positions refer to it."""
        if not self._staged:
            return self.size
        last = self._staged[-1]
        added = 0 if last.rows is None or last.is_overwrite else len(last.rows)
        removed = 0 if last.is_overwrite else last.stop - last.start
        return last.size_before + added - removed

    def stage_add(self, rows: Rows) -> None:
        self.stage_insert(self.staged_size, rows)

    def stage_insert(self, position: int, rows: Rows) -> None:
        table = self._coerced(rows)
        self._check_span(position, position)
        if len(table):
            self._stage(position, position, table)

    def stage_delete(self, start: int, stop: int) -> None:
        self.check_alive()
        self._check_span(start, stop)
        if stop > start:
            self._stage(start, stop, None)

    def stage_overwrite(self, position: int, rows: Rows) -> None:
        """Replace the cells of the rows from ``position`` on; they keep their keys."""
        table = self._coerced(rows)
        self._check_span(position, position + len(table))
        if len(table):
            self._stage(position, position + len(table), table, is_overwrite=True)

    def stage_replace(self, rows: Rows) -> None:
        """Replace the whole content. Rows that are equal and in order stay what they are."""
        table, size = self._coerced(rows), self.staged_size
        self._staged.append(
            _Edit(
                start=0,
                stop=size,
                rows=table,
                is_overwrite=False,
                size_before=size,
                keeps_equal=True,
            )
        )

    def _stage(
        self, start: int, stop: int, rows: pa.Table | None, *, is_overwrite: bool = False
    ) -> None:
        size = self.staged_size
        self._staged.append(
            _Edit(start=start, stop=stop, rows=rows, is_overwrite=is_overwrite, size_before=size)
        )

    def _check_span(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.staged_size:
            raise RowError(
                f"positions {start} to {stop} are outside the table of {self.staged_size} rows"
            )

    def touched_keys(self, mark: int = 0) -> RowSet:
        asked = self._staged_after(mark)
        if any(edit.keeps_equal for edit in asked):
            return self.row_keys
        order, touched = np.arange(self.size, dtype=np.int64), []
        for place, edit in enumerate(self._staged, start=len(asked) - len(self._staged)):
            if place >= 0:
                touched.append(order[edit.start : edit.stop])
            if not edit.is_overwrite:
                fresh = np.full(0 if edit.rows is None else len(edit.rows), -1, dtype=np.int64)
                order = np.concatenate((order[: edit.start], fresh, order[edit.stop :]))
        found = np.concatenate(touched) if touched else order[:0]
        return RowSet.from_keys(found[found >= 0])

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        check_keys(self.kind, keys, rows, is_possible=is_dense(keys))
        self._order = self._append(self._coerced(rows))
        self._row_keys = keys

    def commit(self, step: int) -> TableUpdate:
        first_new = self._slots_used
        modified: list[list[Int64Array]] = [[] for _ in self.schema]
        order = self._order
        for edit in self._take_staged():
            if edit.is_overwrite and edit.rows is not None:
                self._overwrite(order[edit.start : edit.stop], edit.rows, modified)
                continue
            if edit.keeps_equal and edit.rows is not None:
                order = self._replaced(order, edit.rows)
                continue
            fresh = self._append(edit.rows)
            order = np.concatenate((order[: edit.start], fresh, order[edit.stop :]))
        update = self._difference(step, order, first_new=first_new, modified=modified)
        if self._recorder is not None:
            cells = self._recorder.cells(
                self.storage,
                removed=self._order[update.removed_keys_pre.to_numpy()],
                modified=order[union_of(update.modified_keys_post).to_numpy()],
                added=order[update.added_keys_post.to_numpy()],
            )
            self._record(update, cells)
        self._order = order
        self._row_keys = RowSet.of_span(0, len(order))
        if self._slots_used > 2 * len(order) + FREE_SLOTS_MIN:
            # Slots are private, so this compaction shows in no update.
            self.storage.compact(order)
            self._order = np.arange(len(order), dtype=np.int64)
            self._slots_used = len(order)
        return update

    def _replaced(self, order: Int64Array, rows: pa.Table) -> Int64Array:
        """The order of the slots once ``rows`` are the content: equal rows keep theirs."""
        if not len(order) or not len(rows) or not len(self.schema):
            return self._append(rows)
        old = self.storage.take(order, range(len(self.schema)))
        new = [column.combine_chunks() for column in rows.columns]
        was, now = same_rows(old, new)
        is_fresh = np.ones(len(rows), dtype=np.bool_)
        is_fresh[now] = False
        replaced = np.empty(len(rows), dtype=np.int64)
        replaced[now] = order[was]
        replaced[is_fresh] = self._append(
            rows if is_fresh.all() else rows.take(pa.array(np.flatnonzero(is_fresh)))
        )
        return replaced

    def _append(self, rows: pa.Table | None) -> Int64Array:
        start = self._slots_used
        if rows is not None:
            self.storage.append(rows)
            self._slots_used += len(rows)
        return np.arange(start, self._slots_used, dtype=np.int64)

    def _overwrite(
        self, slots: Int64Array, rows: pa.Table, modified: list[list[Int64Array]]
    ) -> None:
        for index, store in enumerate(self.storage.columns):
            values = rows.column(index).combine_chunks()
            was = store.take(slots)
            changed = np.flatnonzero(cells_differ(was, values))
            if len(changed):
                if self._recorder is not None:
                    self._recorder.overwritten(index, slots[changed], was.take(pa.array(changed)))
                store.write(slots[changed], values.take(pa.array(changed)))
                modified[index].append(slots[changed])

    def _difference(
        self, step: int, order: Int64Array, *, first_new: int, modified: list[list[Int64Array]]
    ) -> TableUpdate:
        position = np.full(self._slots_used, -1, dtype=np.int64)
        position[order] = np.arange(len(order), dtype=np.int64)
        now = position[self._order]
        was = np.arange(len(self._order), dtype=np.int64)
        kept = now >= 0
        return self._update(
            step,
            removed=RowSet.from_sorted_keys(was[~kept]),
            shifts=moves_to_shifts(was[kept], now[kept]),
            added=RowSet.from_sorted_keys(np.flatnonzero(order >= first_new)),
            modified=tuple(_positions_of(parts, position, first_new) for parts in modified),
        )

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if keys.is_contiguous and not keys.is_empty:
            return self.storage.read_slots(self._order[keys.first : keys.last + 1], columns)
        return self.storage.take(self._order[keys.to_numpy()], columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.storage.take(self._order[keys], columns)


def _positions_of(parts: list[Int64Array], position: Int64Array, first_new: int) -> RowSet:
    """Positions after the cycle of overwritten slots that existed before it and still do."""
    if not parts:
        return RowSet.empty()
    slots = np.concatenate(parts)
    found = position[slots[slots < first_new]]
    return RowSet.from_keys(found[found >= 0])

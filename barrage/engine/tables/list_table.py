"""A table edited by position: insert, delete and overwrite anywhere.

Row key == position, so an insertion or deletion shifts everything behind it. Cells stay where they
were written (slots); ``_order`` says which slot stands at each position. What the edits of one
cycle make of the rows is kept as runs of rows that follow each other (:class:`_Runs`), so a cycle
costs what its edits touch, besides one copy of the order (eight bytes a row) unless rows only come
at the end.

Slots of rows that are gone are free. Of a small table they are given back at once, and of one with
a dictionary of which most is in no row; of a larger one the rows of the oldest slots move to new
ones, a few in each cycle or as many as keep up with those that come, and the slots before the
oldest row are forgotten. Slots are private, so that shows in no update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.engine.tables.moved_rows import runs_to_shifts, union_of
from barrage.engine.tables.same_rows import Content, same_rows
from barrage.engine.tables.slots import SlotStorage, cells_at, rows_at
from barrage.engine.tables.source import Rows, StagedTable, check_keys, is_dense
from barrage.engine.tables.table import TableTraits
from barrage.errors import RowError
from barrage.model.storage import cells_differ
from barrage.model.storage.row_weight import row_weight
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph
    from barrage.model.update import TableUpdate
    from barrage.rowset.arrays import Int64Array

FREE_SLOTS_MIN = 4096

COMPARED_ROWS_MAX = 1 << 17
"""Of a replacement so many rows are compared with those that are there, at either end and between,
counted as :func:`~barrage.model.storage.row_weight.row_weight` counts those of tables with a
key."""

COMPACTED_CELLS_MAX = 1 << 20
"""Tables of so many cells, or fewer, give free slots back at once."""

MOVED_CELLS = 1 << 18
"""Cells of the oldest rows of larger tables that move in one cycle, at most, unless those of twice
as many rows as come in it are more."""

SLICED_ROWS_MIN = 64
"""Runs of so many rows or more on average are copied one by one."""


BLOCK_RUNS_MAX = 512
"""Runs that are copied for an edit, about: of fewer the calls cost more than the copying."""

Runs: TypeAlias = "tuple[Int64Array, Int64Array]"
"""The first numbers of runs of rows, and how many rows each has."""


class _Runs:
    """The rows of a list while it is edited, as runs of numbers that follow each other.

    A row that was there has its position of before as its number; those that come have the numbers
    from ``base``, how many were there, on. Those that were there keep their order.

    Runs are kept in blocks, of which an edit makes those anew that it touches: it costs little more
    where there are many. Where two blocks meet one run may go on as another.
    """

    __slots__ = ("_blocks", "_ends", "base")

    def __init__(self, base: int) -> None:
        self.base = base
        self._blocks: list[Runs] = [_run(0, base)]
        self._ends = np.array([base], dtype=np.int64)
        """How many rows there are up to the end of each block."""

    @property
    def size(self) -> int:
        """Rows there are now."""
        return int(self._ends[-1])

    def _around(self, start: int, stop: int) -> tuple[slice, int, Runs]:
        """The blocks with these positions, at least one, how many rows are before them, and their
        runs."""
        last = len(self._blocks) - 1
        low = min(int(np.searchsorted(self._ends, start, side="right")), last)
        high = max(min(int(np.searchsorted(self._ends, stop, side="left")), last), low)
        found = self._blocks[low] if low == high else _together(self._blocks[low : high + 1])
        return slice(low, high + 1), int(self._ends[low - 1]) if low else 0, found

    def within(self, start: int, stop: int) -> Runs:
        """The first numbers of the runs of these positions, and how many rows each has."""
        _, before, runs = self._around(start, stop)
        return _cut(runs, start - before, stop - before)

    def numbers(self, start: int, stop: int) -> Int64Array:
        """The rows at these positions."""
        return _spelled_out(*self.within(start, stop))

    def splice(self, start: int, stop: int, runs: Runs) -> None:
        """Put ``runs`` in the place of the rows at these positions."""
        blocks, before, found = self._around(start, stop)
        end = int(self._ends[blocks.stop - 1])
        parts = (_cut(found, 0, start - before), runs, _cut(found, stop - before, end - before))
        made = _divided(_joined(_together(parts), self.base))
        self._blocks[blocks] = made
        ends = before + np.cumsum([counts.sum() for _, counts in made], dtype=np.int64)
        behind = self._ends[blocks.stop :] + (ends[-1] - end)
        self._ends = np.concatenate((self._ends[: blocks.start], ends, behind))

    def whole(self) -> Runs:
        """All runs, none of which goes on as the next one."""
        found = _joined(_together(self._blocks), self.base)
        self._blocks, self._ends = [found], self._ends[-1:]
        return found

    @property
    def is_appended_to(self) -> bool:
        """Whether all rows that were there have stayed where they were, and all that have come
        stand behind them."""
        size, (firsts, counts) = self.size, self.whole()
        if size < self.base or (self.base and counts[0] != self.base):
            return False
        expected = [0] * (self.base > 0) + [self.base] * (size > self.base)
        return firsts.tolist() == expected if len(firsts) <= 2 else False

    def kept(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Rows that were there and still are: first and last position of before of each run, and
        its first position now."""
        firsts, counts = self.whole()
        is_old = firsts < self.base
        now = (np.cumsum(counts) - counts)[is_old]
        firsts, counts = firsts[is_old], counts[is_old]
        return firsts, firsts + counts - 1, now

    def added(self) -> RowSet:
        """Positions of the rows that came."""
        firsts, counts = self.whole()
        is_new = firsts >= self.base
        ends, counts = np.cumsum(counts)[is_new], counts[is_new]
        return RowSet.from_ranges(ends - counts, ends - 1)

    def slots(self, order: Int64Array, first_new: int, out: Int64Array) -> None:
        """Write the slots of all rows to ``out``: those that were there have those of ``order``,
        those that came the ones from ``first_new`` on."""
        firsts, counts = self.whole()
        if self.size < SLICED_ROWS_MIN * len(firsts):
            out[:] = self.slots_of(_spelled_out(firsts, counts), order, first_new)
            return
        place = 0
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            if first < self.base:
                out[place : place + count] = order[first : first + count]
            else:
                slot = first - self.base + first_new
                out[place : place + count] = np.arange(slot, slot + count)
            place += count

    def slots_of(self, numbers: Int64Array, order: Int64Array, first_new: int) -> Int64Array:
        """The slots of rows with these numbers."""
        slots = numbers - self.base + first_new
        is_old = numbers < self.base
        slots[is_old] = order[numbers[is_old]]
        return slots


def _spelled_out(firsts: Int64Array, counts: Int64Array) -> Int64Array:
    """The numbers of runs, one by one."""
    offsets = firsts - (np.cumsum(counts) - counts)
    return np.repeat(offsets, counts) + np.arange(int(counts.sum()), dtype=np.int64)


def _run(first: int, count: int) -> Runs:
    """One run, or none."""
    there = min(count, 1)
    return np.full(there, first, dtype=np.int64), np.full(there, count, dtype=np.int64)


def _runs_in(numbers: Int64Array, base: int) -> Runs:
    """Numbers as runs; none of them goes on at ``base``."""
    return _joined((numbers, np.ones(len(numbers), dtype=np.int64)), base)


def _joined(runs: Runs, base: int) -> Runs:
    """The same with one for those that go on as the next one; none goes on at ``base``."""
    firsts, counts = runs
    begins = np.ones(len(firsts), dtype=np.bool_)
    begins[1:] = (firsts[1:] != firsts[:-1] + counts[:-1]) | (firsts[1:] == base)
    if begins.all():
        return runs
    starts = np.flatnonzero(begins)
    return firsts[starts], np.add.reduceat(counts, starts)


def _together(parts: Sequence[Runs]) -> Runs:
    """Runs one after the other."""
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _divided(runs: Runs) -> list[Runs]:
    """Runs in blocks, at least one."""
    firsts, counts = runs
    if len(firsts) <= BLOCK_RUNS_MAX:
        return [runs]
    step = BLOCK_RUNS_MAX // 2
    return [
        (firsts[start : start + step], counts[start : start + step])
        for start in range(0, len(firsts), step)
    ]


def _cut(runs: Runs, start: int, stop: int) -> Runs:
    """The part of runs that has these rows of theirs."""
    firsts, counts = runs
    if start >= stop:
        return firsts[:0], counts[:0]
    ends = np.cumsum(counts)
    low = int(np.searchsorted(ends, start, side="right"))
    high = int(np.searchsorted(ends, stop, side="left"))
    skipped = start - int(ends[low] - counts[low])
    beyond = int(ends[high]) - stop
    firsts, counts = firsts[low : high + 1].copy(), counts[low : high + 1].copy()
    firsts[0] += skipped
    counts[0] -= skipped
    counts[-1] -= beyond
    return firsts, counts


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
        self._spare: Int64Array = self._order
        """The array that ``_order`` is the front of. What has been part of an order is never
        written again: somebody may have pinned it."""
        self._spare_used = 0
        self._slots_used = 0
        self._forgotten = 0
        """Slots below hold nothing any more."""
        self._is_overwritten = False
        """Whether cells have been overwritten in place; then slots are only given back at once."""
        self._gone: tuple[Cells, ...] | None = None
        """The rows of before this cycle, recorded when nothing of them is kept."""

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
        """Replace the whole content. Rows that are equal and in order stay what they are, in so far
        as they are compared (``COMPARED_ROWS_MAX``)."""
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
        if not asked:
            return RowSet.empty()
        if any(edit.keeps_equal for edit in self._staged):
            return self.row_keys
        runs, touched = _Runs(self.size), [_run(0, 0)]
        came = self.size
        for place, edit in enumerate(self._staged, start=len(asked) - len(self._staged)):
            if place >= 0:
                touched.append(runs.within(edit.start, edit.stop))
            if not edit.is_overwrite:
                count = 0 if edit.rows is None else len(edit.rows)
                runs.splice(edit.start, edit.stop, _run(came, count))
                came += count
        firsts, counts = _together(touched)
        was_there = np.flatnonzero(firsts < runs.base)
        ascending = was_there[np.argsort(firsts[was_there])]
        firsts, counts = firsts[ascending], counts[ascending]
        return RowSet.from_overlapping(firsts, firsts + counts - 1)

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        check_keys(self.kind, keys, rows, is_possible=is_dense(keys))
        self._append(self._coerced(rows))
        self._order = self._spare = np.arange(self._slots_used, dtype=np.int64)
        self._spare_used = len(self._order)
        self._row_keys = keys

    def commit(self, step: int) -> TableUpdate:
        staged = self._take_staged()
        if self._forgotten and any(edit.is_overwrite for edit in staged):
            self._compact()
        self._gone = None
        cycle = _Cycle(_Runs(len(self._order)), self._slots_used, [[] for _ in self.schema])
        for edit in staged:
            if edit.rows is not None and edit.is_overwrite:
                self._overwrite(cycle, edit, edit.rows)
            elif edit.rows is not None and edit.keeps_equal:
                self._replace(cycle, edit.rows)
            else:
                self._splice(cycle, edit.rows, start=edit.start, stop=edit.stop)
        update = self._difference(step, cycle)
        order = self._edited(cycle)
        if self._recorder is not None:
            cells = self._recorder.cells(
                self.storage,
                removed=self._order[update.removed_keys_pre.to_numpy()]
                if self._gone is None
                else order[:0],
                modified=order[union_of(update.modified_keys_post).to_numpy()],
                added=order[update.added_keys_post.to_numpy()],
            )
            self._record(
                update, cells if self._gone is None else replace(cells, removed=self._gone)
            )
        self._gone = None
        self._order = order
        self._row_keys = RowSet.of_span(0, len(order))
        self._give_back(self._slots_used - cycle.first_new)
        return update

    def _splice(self, cycle: _Cycle, rows: pa.Table | None, *, start: int, stop: int) -> None:
        """Put ``rows`` in the place of those at these positions."""
        number = cycle.number_of(self._slots_used)
        self._append(rows)
        cycle.runs.splice(start, stop, _run(number, 0 if rows is None else len(rows)))

    def _replace(self, cycle: _Cycle, rows: pa.Table) -> None:
        """Make ``rows`` the content: equal rows stay."""
        runs = cycle.runs
        weight = row_weight(rows, has_key=True)
        old, new = Content(size=runs.size, read=partial(self._read, cycle)), _content_of(rows)
        if not len(self.schema):
            old = replace(old, size=0)
        same = same_rows(old, new, rows_max=COMPARED_ROWS_MAX // weight)
        if same.is_none:
            self._start_over(cycle)
            self._splice(cycle, rows, start=0, stop=runs.size)
            return
        middle = rows.slice(same.head, len(rows) - same.head - same.tail)
        start, stop = same.head, runs.size - same.tail
        if not len(same.was):
            self._splice(cycle, middle, start=start, stop=stop)
            return
        numbers = np.empty(len(middle), dtype=np.int64)
        numbers[same.now] = runs.numbers(start, stop)[same.was]
        is_fresh = np.ones(len(middle), dtype=np.bool_)
        is_fresh[same.now] = False
        fresh = np.flatnonzero(is_fresh)
        first = cycle.number_of(self._slots_used)
        numbers[fresh] = np.arange(first, first + len(fresh))
        if len(fresh):
            self._append(rows_at(middle, fresh))
        runs.splice(start, stop, _runs_in(numbers, runs.base))

    def _read(self, cycle: _Cycle, start: int, stop: int) -> list[pa.Array]:
        """The rows at these positions in the middle of a cycle."""
        numbers = cycle.runs.numbers(start, stop)
        cells = self.storage.read_slots(cycle.runs.slots_of(numbers, self._order, cycle.first_new))
        return [
            each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in cells
        ]

    def _start_over(self, cycle: _Cycle) -> None:
        """No row that is there stays: begin with columns that are new, so that nothing of the old
        ones is left, neither cells nor what their dictionaries have."""
        if self._recorder is not None:
            if self._gone is None:
                nothing = self._order[:0]
                self._gone = self._recorder.cells(
                    self.storage, removed=self._order, modified=nothing, added=nothing
                ).removed
            self._recorder.clear()
        self.storage = SlotStorage(self.schema)
        self._slots_used = self._forgotten = cycle.first_new = 0
        self._is_overwritten = False
        for parts in cycle.modified:
            parts.clear()

    def _append(self, rows: pa.Table | None) -> None:
        if rows is not None:
            self.storage.append(rows)
            self._slots_used += len(rows)

    def _overwrite(self, cycle: _Cycle, edit: _Edit, rows: pa.Table) -> None:
        self._is_overwritten = True
        numbers = cycle.runs.numbers(edit.start, edit.stop)
        slots = cycle.runs.slots_of(numbers, self._order, cycle.first_new)
        for index, store in enumerate(self.storage.columns):
            values = rows.column(index).combine_chunks()
            was = store.take(slots)
            changed = np.flatnonzero(cells_differ(was, values))
            if len(changed):
                if self._recorder is not None:
                    self._recorder.overwritten(index, slots[changed], cells_at(was, changed))
                store.write(slots[changed], cells_at(values, changed))
                cycle.modified[index].append(numbers[changed])

    def _difference(self, step: int, cycle: _Cycle) -> TableUpdate:
        kept = cycle.runs.kept()
        firsts, lasts, now = kept
        return self._update(
            step,
            removed=RowSet.of_span(0, len(self._order)) - RowSet.from_ranges(firsts, lasts),
            shifts=runs_to_shifts(firsts, lasts, now=now),
            added=cycle.runs.added(),
            modified=tuple(_positions_of(parts, kept) for parts in cycle.modified),
        )

    def _edited(self, cycle: _Cycle) -> Int64Array:
        """The slots at each position after the cycle."""
        runs, start = cycle.runs, len(self._order)
        size = runs.size
        if runs.is_appended_to and self._spare_used == start and size <= len(self._spare):
            self._spare[start:size] = np.arange(
                cycle.first_new, cycle.first_new + size - start, dtype=np.int64
            )
        else:
            self._spare = np.empty(size + size // 8 + FREE_SLOTS_MIN, dtype=np.int64)
            runs.slots(self._order, cycle.first_new, self._spare[:size])
        self._spare_used = size
        return self._spare[:size]

    # --- slots of rows that are gone ---

    def _give_back(self, came: int) -> None:
        """Free the memory of slots without rows when they are more than those with rows, in a cycle
        that handed out so many."""
        if self._has_few_free():
            return
        columns = max(1, len(self.schema))
        size = len(self._order)
        is_small = size * columns <= COMPACTED_CELLS_MAX
        # What no cell has any more only goes out of a dictionary when that is made anew.
        if is_small or self._is_overwritten or self.storage.is_mostly_unused(size):
            self._compact()
            return
        self._forget_before(int(self._order.min()))
        if not self._has_few_free():
            # At the pace of those that come, what is moved would never catch up with them.
            self._move_oldest(max(1, MOVED_CELLS // columns, 2 * came))

    def _has_few_free(self) -> bool:
        size = len(self._order)
        return self._slots_used - self._forgotten <= 2 * size + FREE_SLOTS_MIN

    def _compact(self) -> None:
        """Have no slots but those of the rows."""
        size = len(self._order)
        self.storage.compact(self._order)
        self._order = self._spare = np.arange(size, dtype=np.int64)
        self._spare_used = self._slots_used = size
        self._forgotten = 0

    def _move_oldest(self, count: int) -> None:
        """Give the rows of the ``count`` oldest slots new ones."""
        upto = min(self._forgotten + count, self._slots_used)
        places = np.flatnonzero(self._order < upto)
        cells = self.storage.take(self._order[places], range(len(self.schema)))
        order = self._order.copy()
        order[places] = np.arange(self._slots_used, self._slots_used + len(places))
        for column, values in zip(self.storage.columns, cells, strict=True):
            column.append(values)
        self._slots_used += len(places)
        self._order = self._spare = order
        self._spare_used = len(order)
        self._forget_before(upto)

    def _forget_before(self, slot: int) -> None:
        self.storage.forget_before(slot)
        self._forgotten = slot

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if keys.is_contiguous and not keys.is_empty:
            return self.storage.read_slots(self._order[keys.first : keys.last + 1], columns)
        return self.storage.take(self._order[keys.to_numpy()], columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.storage.take(self._order[keys], columns)


@dataclass(slots=True)
class _Cycle:
    """What the edits of a cycle have come to."""

    runs: _Runs
    first_new: int
    """The slot of the first row that came."""
    modified: list[list[Int64Array]]
    """Per column the numbers of rows that were overwritten."""

    def number_of(self, slot: int) -> int:
        """The number of the row that comes next, at this slot."""
        return self.runs.base + slot - self.first_new


def _content_of(rows: pa.Table) -> Content:
    def read(start: int, stop: int) -> list[pa.Array]:
        return [column.combine_chunks() for column in rows.slice(start, stop - start).columns]

    return Content(size=len(rows), read=read)


def _positions_of(
    parts: list[Int64Array], kept: tuple[Int64Array, Int64Array, Int64Array]
) -> RowSet:
    """Where overwritten rows are after the cycle that were there before it and still are."""
    firsts, lasts, now = kept
    if not parts or not len(firsts):
        return RowSet.empty()
    numbers = np.concatenate(parts)
    runs = np.searchsorted(firsts, numbers, side="right") - 1
    is_kept = (runs >= 0) & (numbers <= lasts[runs])
    runs, numbers = runs[is_kept], numbers[is_kept]
    return RowSet.from_keys(numbers - firsts[runs] + now[runs])

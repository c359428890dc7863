"""All rows with running values of their groups: cumulative sums and moving averages.

Which functions there are: :mod:`barrage.engine.running`. State: the group of every row
(:mod:`barrage.engine.grouping`), the last row of every group, and the values shown, which are kept
by row (:mod:`barrage.engine.row_memory`).

A cycle computes the rows from the first change of each group on: of a group that got rows at its
end only these, continued from what its last row shows; of a group that lost rows all. For groups
that are not just continued one pass over the group numbers of all rows (a few milliseconds per
million) finds their rows. Groups that did not change are not looked at, and only cells that show
another value are told.

The groups of a blink table are those of its current cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine import work
from barrage.engine.grouping import RowGroups, extended, in_groups
from barrage.engine.keyed import check_key_columns
from barrage.engine.operator_plan import derived
from barrage.engine.row_memory import RowMemory
from barrage.engine.running import parse_running, running_values
from barrage.engine.table import DerivedTable
from barrage.model.storage import cells_differ
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.grouping import GroupChange
    from barrage.engine.hashing import Int64Array
    from barrage.engine.running import Running
    from barrage.engine.table import Cells, Table
    from barrage.rowset import RowSetShiftData

NO_ROW = -1


class UpdateByTable(DerivedTable):
    """The parent's columns, then one per running value, under the parent's keys.

    EngineError, also in later cycles: a sum of whole numbers does not fit int64.
    """

    def __init__(
        self,
        parent: Table,
        by: tuple[str, ...],
        running: tuple[Running, ...],
        fields: Sequence[pa.Field],
    ) -> None:
        schema = pa.schema([*parent.schema, *fields], metadata=parent.schema.metadata)
        super().__init__(parent, schema, parent.traits)
        self._by = by
        self._running = running
        self._inputs = [parent.schema.get_field_index(each.column) for each in running]
        self._groups = RowGroups(parent, check_key_columns(parent.schema, by) if by else ())
        self._group_count = 0
        self._last_row: Int64Array = np.empty(0, dtype=np.int64)
        self._values = RowMemory([field.type for field in fields])
        for rows, groups in self._groups.enter_all():
            self._last_row = extended(self._last_row, self._groups.count, NO_ROW)
            self._show(rows, groups, self._last_row[groups], RowSet.from_sorted_keys(rows))
        self._group_count = self._groups.count
        self._row_keys = parent.row_keys

    @property
    def order_is_reproducible(self) -> bool:
        """The last digit of a float may depend on where values were continued."""
        types = self.schema.types[-len(self._running) :]
        return super().order_is_reproducible and (
            self.is_static or all(map(pa.types.is_integer, types))
        )

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        fields = list(self.schema)[-len(self._running) :]
        return UpdateByTable(parents[0], self._by, self._running, fields)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._groups.parent = parents[0]

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._values = self._values.pinned()

    def advance(self, update: TableUpdate) -> TableUpdate:
        self._row_keys = self.parent.row_keys
        self._values.remove(update.removed_keys_pre.to_numpy())
        self._values.shift(update.shifts)
        change = self._groups.advance(update)
        self._last_row = extended(self._last_row, self._groups.count, NO_ROW)
        self._last_row = _shifted(self._last_row, update.shifts)
        self._last_row[change.emptied] = NO_ROW
        rows, groups, before = self._affected(update, change)
        modified = self._show(rows, groups, before, update.added_keys_post)
        self._renumber(change)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=update.removed_keys_pre,
            shifts=update.shifts,
            added_keys_post=update.added_keys_post,
            modified_keys_post=(*update.modified_keys_post, *modified),
        )

    def _affected(
        self, update: TableUpdate, change: GroupChange
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Rows to compute and the group of each; per row the row from which its group goes on."""
        lost = np.union1d(change.removed_groups, change.moved_from)
        lost = np.setdiff1d(lost, change.emptied, assume_unique=True)
        rows, groups = self._changed(update, change)
        first = np.full(self._groups.count, np.iinfo(np.int64).max)
        np.minimum.at(first, groups, rows)
        touched = np.unique(groups)
        inside = touched[first[touched] <= self._last_row[touched]]
        deep = np.union1d(inside, lost)
        before = self._last_row[groups]
        if len(deep) == 0:
            return rows, groups, before
        others = ~np.isin(groups, deep)
        rows, groups, before = rows[others], groups[others], before[others]
        first[lost] = NO_ROW
        found, found_groups = self._groups.rows_in(deep)
        is_late = found >= first[found_groups]
        previous = np.full(self._groups.count, NO_ROW)
        np.maximum.at(previous, found_groups[~is_late], found[~is_late])
        found, found_groups = found[is_late], found_groups[is_late]
        return (
            np.concatenate((rows, found)),
            np.concatenate((groups, found_groups)),
            np.concatenate((before, previous[found_groups])),
        )

    def _changed(self, update: TableUpdate, change: GroupChange) -> tuple[Int64Array, Int64Array]:
        """Rows that entered a group, or whose cells changed, and their groups."""
        rows, groups = (
            [change.moved_rows, change.added_rows],
            [change.moved_to, change.added_groups],
        )
        keys = RowSet.empty()
        for column in set(self._inputs):
            keys = keys | RowSet.from_sorted_keys(in_groups(update, change, column))
        if not keys.is_empty:
            rows.append(keys.to_numpy())
            groups.append(self._groups.groups_of(rows[-1]))
        return np.concatenate(rows), np.concatenate(groups)

    def _show(
        self, rows: Int64Array, groups: Int64Array, before: Int64Array, added: RowSet
    ) -> list[RowSet]:
        """Compute the values of rows, each group's from the row ``before`` on; per value the rows
        that are not ``added`` and show another one."""
        if len(rows) == 0:
            return [RowSet.empty() for _ in self._running]
        order = np.argsort(rows, kind="stable")
        ascending, groups, before = rows[order], groups[order], before[order]
        order = _in_order_of(groups)
        rows, groups, before = ascending[order], groups[order], before[order]
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        lengths = np.diff(starts, append=len(groups))
        results = self._computed(rows, lengths, before[starts])
        self._last_row[groups[starts]] = rows[starts + lengths - 1]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        is_new = added.contains_many(ascending)
        new, old = pa.array(places[is_new]), pa.array(places[~is_new])
        self._values.add(ascending[is_new], [values.take(new) for values in results])
        return self._rewritten(ascending[~is_new], [values.take(old) for values in results])

    def _computed(
        self, rows: Int64Array, lengths: Int64Array, before: Int64Array
    ) -> list[pa.Array]:
        has_state = before != NO_ROW
        known = self._values.take(before[has_state])
        places = pa.array(np.cumsum(has_state) - 1, mask=~has_state)
        columns = sorted(set(self._inputs))
        cells = dict(zip(columns, self.parent.take_cells(rows, columns), strict=True))
        return [
            running_values(each, cells[column], lengths, states.take(places))
            for each, column, states in zip(self._running, self._inputs, known, strict=True)
        ]

    def _rewritten(self, rows: Int64Array, results: Sequence[pa.Array]) -> list[RowSet]:
        """Keep the new values of rows there were before; per value the rows that changed."""
        if len(rows) == 0:
            return [RowSet.empty() for _ in results]
        shown = self._values.take(rows)
        differing = [cells_differ(a, b) for a, b in zip(shown, results, strict=True)]
        self._values.write(rows, results)
        return [RowSet.from_sorted_keys(rows[each]) for each in differing]

    def _renumber(self, change: GroupChange) -> None:
        self._group_count += self._groups.count - change.first_new - len(change.emptied)
        if self._groups.is_crowded(self._group_count):
            numbers = np.arange(self._groups.count, dtype=np.int64)
            live = numbers[self._groups.sizes(numbers) > 0]
            self._groups.renumber(RowSet.from_sorted_keys(live))
            self._last_row = self._last_row[live]

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        count = len(self.parent.schema)
        own = [index - count for index in columns if index >= count]
        read = self.parent.read_cells(keys, [index for index in columns if index < count])
        return (*read, *self._own(keys.to_numpy(), own))

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        count = len(self.parent.schema)
        own = [index - count for index in columns if index >= count]
        read = self.parent.take_cells(keys, [index for index in columns if index < count])
        return (*read, *self._own(keys, own))

    def _own(self, keys: Int64Array, own: Sequence[int]) -> list[pa.Array]:
        """Columns of running values; they come after all columns of the parent."""
        values = self._values.take(keys) if own else ()
        return [values[index] for index in own]


def _in_order_of(groups: Int64Array) -> Int64Array:
    """The places of rows, group by group. Small numbers are sorted in one pass."""
    is_small = int(groups.max()) < 1 << 16
    return np.argsort(groups.astype(np.uint16) if is_small else groups, kind="stable")


def _shifted(rows: Int64Array, shifts: RowSetShiftData) -> Int64Array:
    """Rows after the shifts; groups without a row keep that mark."""
    if shifts.is_empty:
        return rows
    return np.where(rows == NO_ROW, NO_ROW, shifts.apply_keys(np.maximum(rows, 0)))


def update_by(table: Table, /, *by: str, **formulas: str) -> Table:
    """All rows and columns, and running values within each combination of values in ``by`` (none:
    within the whole table), in row order: ``total="cum_sum(price)"``,
    ``smooth="ema_tick(price, 10)"``."""
    running, fields = parse_running(table.schema, formulas)
    return derived(
        (table,),
        ("update_by", by, running),
        lambda parent: UpdateByTable(parent, by, running, fields),
        per_row=work.of_keys(len(by)) + work.of_running(len(running)),
    )

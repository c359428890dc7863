"""All rows with running values of their groups: cumulative sums and moving averages.

Which functions there are: :mod:`barrage.engine.aggregation.running`. State: the group of every row
(:mod:`barrage.engine.aggregation.grouping`), the last row of every group, and the values shown,
which are kept by row (:mod:`barrage.engine.tables.row_memory`).

A cycle computes the rows from the first change of each group on, a change being a row that entered
or left it or has other cells. Of a group that just got rows at its end these are continued from
what its last row shows. Of others one pass over the group numbers of all rows (a few milliseconds
per million) finds the rows. They are computed up to the last change and some further; where the
last of these shows what it showed (a change of an average has faded, changes of a sum have
cancelled out) the rest of the group stays as it is, else it is computed in growing pieces. So a
change costs the rows up to where it fades, and for a sum all behind it: a few vector operations,
which clients are charged for in every cycle (:data:`~barrage.engine.tables.work.BEHIND`). Groups
that did not change are not looked at, and only cells that show another value are told.

The groups of a blink table are those of its current cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.grouping import RowGroups, in_groups
from barrage.engine.aggregation.running import has_settled, parse_running, running_values
from barrage.engine.keys.ascending import distinct, in_order, spans
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.keyed import check_key_columns
from barrage.engine.tables.row_memory import RowMemory
from barrage.engine.tables.table import DerivedTable
from barrage.model.storage.growth import lengthened
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.aggregation.grouping import GroupChange
    from barrage.engine.aggregation.running import Running
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array
    from barrage.rowset import RowSetShiftData

NO_ROW = -1

NEVER = np.iinfo(np.int64).max
"""Comes after all rows."""

AHEAD = 4096
"""Rows computed beyond the last change of a group before they are compared with what was shown."""

FURTHER = 16
"""Each piece after them is so many times as long as the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Rows to be computed, those of one group after another. One entry per group but for
    ``rows``."""

    rows: Int64Array
    groups: Int64Array
    lengths: Int64Array
    before: Int64Array
    """The row from which the group is continued, or that there is none."""
    due: Int64Array
    """How many of its rows are computed in any case: those up to the last change."""


class UpdateByTable(DerivedTable):
    """The parent's columns, then one per running value, under the parent's keys.

    EngineError, also in later cycles: a sum of whole numbers does not fit int64.
    """

    def __init__(
        self,
        parent: Table,
        by: tuple[str, ...],
        running: tuple[Running, ...],
        *,
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
            self._last_row = lengthened(self._last_row, self._groups.count, NO_ROW)
            self._show(self._continued(rows, groups), RowSet.from_sorted_keys(rows))
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
        return UpdateByTable(parents[0], self._by, self._running, fields=fields)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._groups.parent = parents[0]

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._values = self._values.pinned()

    def advance(self, update: TableUpdate) -> TableUpdate:
        behind = self._behind_removed(update)
        self._row_keys = self.parent.row_keys
        self._values.remove(update.removed_keys_pre.to_numpy())
        self._values.shift(update.shifts)
        change = self._groups.advance(update)
        self._last_row = lengthened(self._last_row, self._groups.count, NO_ROW)
        self._last_row = _shifted(self._last_row, update.shifts)
        self._last_row[change.emptied] = NO_ROW
        modified = self._show(self._affected(update, change, behind), update.added_keys_post)
        self._pack(change)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=update.removed_keys_pre,
            shifts=update.shifts,
            added_keys_post=update.added_keys_post,
            modified_keys_post=(*update.modified_keys_post, *modified),
        )

    def _behind_removed(self, update: TableUpdate) -> Int64Array:
        """For each removed row the next one that stayed, by the key it has now; NEVER where there
        is none."""
        removed = update.removed_keys_pre
        behind = np.full(len(removed), NEVER, dtype=np.int64)
        stayed = self.parent.row_keys - update.added_keys_post
        if removed.is_empty or stayed.is_empty:
            return behind
        places = (self._row_keys - removed).rank_many(removed.to_numpy())
        is_inside = places < len(stayed)
        behind[is_inside] = stayed.select_many(places[is_inside])
        return behind

    def _affected(self, update: TableUpdate, change: GroupChange, behind: Int64Array) -> _Runs:
        """The rows that may show other values."""
        rows, groups = self._changed(update, change)
        lost = np.concatenate((change.removed_groups, change.moved_from))
        lost_at = np.concatenate((behind[: len(change.removed_groups)], change.moved_rows))
        has_rows = self._groups.sizes(lost) > 0
        lost, lost_at = lost[has_rows], lost_at[has_rows]
        known = distinct(np.concatenate((groups, lost)))
        places, lost_places = np.searchsorted(known, groups), np.searchsorted(known, lost)
        first = np.full(len(known), NEVER)
        np.minimum.at(first, places, rows)
        is_deep = first <= self._last_row[known]
        is_deep[lost_places] = True
        if not is_deep.any():
            return self._continued(rows, groups)
        np.minimum.at(first, lost_places, lost_at)
        last = np.full(len(known), NO_ROW)
        np.maximum.at(last, places, rows)
        np.maximum.at(last, lost_places, np.where(lost_at == NEVER, NO_ROW, lost_at))
        at_end = ~is_deep[places]
        return _joined(
            self._recomputed(known[is_deep], first[is_deep], last[is_deep]),
            self._continued(rows[at_end], groups[at_end]),
        )

    def _continued(self, rows: Int64Array, groups: Int64Array) -> _Runs:
        """Rows behind all others of their groups."""
        rows, groups, lengths = _by_group(rows, groups)
        before = self._last_row[groups]
        self._last_row[groups] = rows[np.cumsum(lengths) - 1]
        return _Runs(rows=rows, groups=groups, lengths=lengths, before=before, due=lengths)

    def _recomputed(self, deep: Int64Array, first: Int64Array, last: Int64Array) -> _Runs:
        """The rows of some groups, which have some, from the first change on; ``first`` and
        ``last`` are the changes of each."""
        self.spend(work.LOOKED_THROUGH * int(self._groups.sizes(deep).sum()))
        rows, groups, lengths = _by_group(*self._groups.rows_in(deep))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        self._last_row[groups] = rows[ends - 1]
        is_late = rows >= np.repeat(first, lengths)
        late = np.add.reduceat(is_late, starts, dtype=np.int64)
        is_due = is_late & (rows <= np.repeat(last, lengths))
        goes_on = late < lengths
        before = np.where(goes_on, rows[np.where(goes_on, ends - late - 1, 0)], NO_ROW)
        due = np.add.reduceat(is_due, starts, dtype=np.int64)
        some = late > 0
        return _Runs(
            rows=rows if is_late.all() else rows[is_late],
            groups=groups[some],
            lengths=late[some],
            before=before[some],
            due=due[some],
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

    def _show(self, runs: _Runs, added: RowSet) -> list[RowSet]:
        """Compute the values of the runs as far as they may differ from those shown; per value the
        rows that are not ``added`` and show another one."""
        told: list[list[Int64Array]] = [[] for _ in self._running]
        starts = np.cumsum(runs.lengths) - runs.lengths
        left, sizes = runs.lengths, runs.due + AHEAD
        values: Sequence[int] = range(len(self._running))
        states = self._states(runs.before)
        while len(starts):
            sizes = np.minimum(sizes, left)
            rows = runs.rows
            self.spend(work.BEHIND * len(values) * int(sizes.sum()))
            if int(sizes.sum()) < len(rows):
                rows = rows[spans(starts, sizes)]
            # Cells are read and kept in the order in which they lie.
            rows_by_key, places = in_order(rows)
            results = self._computed(rows_by_key, places, sizes, states=states, values=values)
            starts, left = starts + sizes, left - sizes
            goes_on = left > 0
            ends = (np.cumsum(sizes) - 1)[goes_on]
            shown = self._values.take(rows[ends], values)
            by_key = results if places is None else _taken(results, _inverse(places))
            kept = self._keep(rows_by_key, by_key, values, added=added)
            for value, changed in zip(values, kept, strict=True):
                told[value].append(changed)
            if not len(ends):
                break
            now = [cells.take(pa.array(ends)) for cells in results]
            is_open = [
                ~has_settled(self._running[value], before, after)
                for value, before, after in zip(values, shown, now, strict=True)
            ]
            goes_on[goes_on] = np.logical_or.reduce(is_open)
            further = np.flatnonzero(np.logical_or.reduce(is_open))
            open_values = [at for at, each in enumerate(is_open) if each.any()]
            states = [now[at].take(pa.array(further)) for at in open_values]
            values = [values[at] for at in open_values]
            starts, left, sizes = starts[goes_on], left[goes_on], sizes[goes_on] * FURTHER
            added = RowSet.empty()  # They were among the rows that were due.
        return [_row_set(parts) for parts in told]

    def _states(self, before: Int64Array) -> list[pa.Array]:
        """What rows show, null for no row."""
        has_state = before != NO_ROW
        where = pa.array(np.cumsum(has_state) - 1, mask=~has_state)
        return [shown.take(where) for shown in self._values.take(before[has_state])]

    def _computed(
        self,
        rows: Int64Array,
        places: Int64Array | None,
        lengths: Int64Array,
        *,
        states: Sequence[pa.Array],
        values: Sequence[int],
    ) -> list[pa.Array]:
        """The values of rows, of one group after another; ``places`` says where these are among the
        ascending ``rows``, if elsewhere."""
        columns = sorted({self._inputs[value] for value in values})
        read: Sequence[pa.Array] = self.parent.take_cells(rows, columns)
        if places is not None:
            read = _taken(read, places)
        cells = dict(zip(columns, read, strict=True))
        return [
            running_values(self._running[value], cells[self._inputs[value]], lengths, states=before)
            for value, before in zip(values, states, strict=True)
        ]

    def _keep(
        self, rows: Int64Array, results: Sequence[pa.Array], values: Sequence[int], *, added: RowSet
    ) -> list[Int64Array]:
        """Keep what rows, ascending, show now; per value those that showed something else."""
        if not added.is_empty:
            is_new = added.contains_many(rows)
            new, old = np.flatnonzero(is_new), np.flatnonzero(~is_new)
            self._values.add(rows[new], _taken(results, new))
            rows, results = rows[old], _taken(results, old)
        if len(rows) == 0:
            return [rows for _ in values]
        changed = []
        for value, shown, now in zip(values, self._values.take(rows, values), results, strict=True):
            differs = np.flatnonzero(~has_settled(self._running[value], shown, now))
            changed.append(rows[differs])
            if len(differs) < len(rows):
                now = now.take(pa.array(differs))
            self._values.write(changed[-1], [now], [value])
        return changed

    def _pack(self, change: GroupChange) -> None:
        self._group_count += self._groups.count - change.first_new - len(change.emptied)
        moves = self._groups.pack(self._group_count)
        if moves is not None:
            moves.apply(self._last_row, NO_ROW)

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


def _by_group(rows: Int64Array, groups: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Rows of one group after another, in row order; the groups, and how many rows each has."""
    if len(rows) == 0:
        return rows, groups, groups
    if not bool(np.all(rows[1:] > rows[:-1])):
        order = np.argsort(rows)
        rows, groups = rows[order], groups[order]
    if not bool(np.all(groups[1:] >= groups[:-1])):
        # Small numbers are sorted in one pass.
        is_small = int(groups.max()) < 1 << 16
        order = np.argsort(groups.astype(np.uint16) if is_small else groups, kind="stable")
        rows, groups = rows[order], groups[order]
    starts = np.concatenate(([0], np.flatnonzero(groups[1:] != groups[:-1]) + 1))
    return rows, groups[starts], np.diff(starts, append=len(rows))


def _joined(left: _Runs, right: _Runs) -> _Runs:
    if len(right.rows) == 0:
        return left
    return _Runs(
        rows=np.concatenate((left.rows, right.rows)),
        groups=np.concatenate((left.groups, right.groups)),
        lengths=np.concatenate((left.lengths, right.lengths)),
        before=np.concatenate((left.before, right.before)),
        due=np.concatenate((left.due, right.due)),
    )


def _taken(columns: Sequence[pa.Array], places: Int64Array) -> list[pa.Array]:
    picks = pa.array(places)
    return [cells.take(picks) for cells in columns]


def _inverse(places: Int64Array) -> Int64Array:
    """Which entry is at each place."""
    entries = np.empty(len(places), dtype=np.int64)
    entries[places] = np.arange(len(places))
    return entries


def _row_set(parts: Sequence[Int64Array]) -> RowSet:
    """Distinct rows in any order."""
    return RowSet.from_sorted_keys(in_order(np.concatenate(parts))[0]) if parts else RowSet.empty()


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
        lambda parent: UpdateByTable(parent, by, running, fields=fields),
        price=work.of_running(len(by), len(running), is_appended=table.is_append_only),
    )

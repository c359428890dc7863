"""What ``head_by`` and ``tail_by`` share: some rows from one end of every group, in row order.

State: the group of every row (:mod:`barrage.engine.aggregation.grouping`) and the rows shown of
every group (:mod:`barrage.engine.aggregation.row_runs`). A cycle looks at the groups that rows left
or entered: what each shows now is chosen from what it showed and what entered. Only a group that
lost a row it showed, and has others it does not show, needs all of its rows: then one pass over the
group numbers of all rows (a few milliseconds per million) finds those of all such groups together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.aggregation.grouping import RowGroups
from barrage.engine.aggregation.row_runs import RowRuns
from barrage.engine.keys.ascending import distinct, is_among
from barrage.engine.operators.subset import SubsetTable
from barrage.engine.planning.operator_plan import check_count, derived
from barrage.engine.tables import work
from barrage.engine.tables.keyed import check_key_columns
from barrage.engine.tables.moved_rows import merged_keys
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.aggregation.grouping import GroupChange
    from barrage.engine.tables.table import DerivedTable, Table
    from barrage.model.storage.hashing import Int64Array
    from barrage.model.update import TableUpdate


class GroupEndsTable(SubsetTable):
    """The first or last ``count`` rows of each group, under the parent's keys. No key columns make
    one group of all rows. SchemaError when a column cannot be compared."""

    is_summary = True

    def __init__(
        self, parent: Table, count: int, by: tuple[str, ...], *, is_from_end: bool
    ) -> None:
        traits = parent.traits.changed(is_flat=False)
        if is_from_end:
            traits = traits.changed(is_append_only=False)
        super().__init__(parent, parent.schema, traits)
        self.is_from_end = is_from_end
        self.count = count
        self.by = by
        self._groups = RowGroups(parent, check_key_columns(parent.schema, by) if by else ())
        self._shown = RowRuns()
        self._group_count = 0
        for rows, groups in self._groups.enter_all():
            self._shown.reach(self._groups.count)
            self._choose(distinct(groups), rows, groups)
        self._group_count = self._groups.count
        rows, _ = self._shown.rows_of(np.arange(self._groups.count, dtype=np.int64))
        self._row_keys = RowSet.from_keys(rows)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return GroupEndsTable(parents[0], self.count, self.by, is_from_end=self.is_from_end)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._groups.parent = parents[0]

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        change = self._groups.advance(update)
        self._shown.reach(self._groups.count)
        bereft_pre = self._drop(change.removed_rows_pre, change.removed_groups)
        self._shown.shift(update.shifts)
        moved_out, moved_from = self._drop(change.moved_rows, change.moved_from), change.moved_from
        bereft = merged_keys(bereft_pre, moved_out)
        rows = np.concatenate((change.moved_rows, change.added_rows))
        groups = np.concatenate((change.moved_to, change.added_groups))
        touched = distinct(np.concatenate((bereft, groups)))
        before, _ = self._shown.rows_of(touched)
        # A row that moved between groups was shown by the one it left, if by any.
        before = np.concatenate((before, change.moved_rows[is_among(moved_from, moved_out)]))
        old = RowSet.from_keys(before) & survivors
        rows, groups = self._with_hidden(bereft, rows, groups)
        self._choose(touched, rows, groups)
        now, _ = self._shown.rows_of(touched)
        new = RowSet.from_keys(now)
        self._pack(change)
        return old - new, new - survivors

    def _drop(self, rows: Int64Array, groups: Int64Array) -> Int64Array:
        """Forget rows that left their groups; the groups that showed some of them."""
        touched = distinct(groups[: len(rows)])
        shown, owners = self._shown.rows_of(touched)
        is_gone = is_among(shown, rows)
        if not is_gone.any():
            return touched[:0]
        bereft: Int64Array = distinct(owners[is_gone])
        counts = self._shown.counts(bereft) - np.bincount(
            np.searchsorted(bereft, owners[is_gone]), minlength=len(bereft)
        )
        self._shown.put(bereft, counts, shown[is_among(owners, bereft) & ~is_gone])
        return bereft

    def _with_hidden(
        self, bereft: Int64Array, rows: Int64Array, groups: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The entering rows, and all rows of groups that lost some and may show others."""
        entering = np.bincount(
            np.searchsorted(bereft, groups[is_among(groups, bereft)]), minlength=len(bereft)
        )
        known = self._shown.counts(bereft) + entering
        short = bereft[known < self._groups.sizes(bereft)]
        if len(short) == 0 or self.count == 0:
            return rows, groups
        self.spend(work.LOOKED_THROUGH * int(self._groups.sizes(short).sum()))
        found, found_groups = self._groups.rows_in(short)
        self._shown.put(short, np.zeros_like(short), found[:0])
        others = ~is_among(groups, short)
        return np.concatenate((rows[others], found)), np.concatenate((groups[others], found_groups))

    def _choose(self, touched: Int64Array, rows: Int64Array, groups: Int64Array) -> None:
        """Show the first or last rows of those that groups show already and those that enter."""
        shown, owners = self._shown.rows_of(touched)
        rows, groups = np.concatenate((shown, rows)), np.concatenate((owners, groups))
        order = np.lexsort((rows, groups))
        rows, groups = rows[order], groups[order]
        starts = np.searchsorted(groups, touched)
        sizes = np.searchsorted(groups, touched, side="right") - starts
        rank = np.arange(len(rows)) - np.repeat(starts, sizes)
        if self.is_from_end:
            rank = np.repeat(sizes, sizes) - 1 - rank
        self._shown.put(touched, np.minimum(sizes, self.count), rows[rank < self.count])

    def _pack(self, change: GroupChange) -> None:
        self._group_count += self._groups.count - change.first_new - len(change.emptied)
        moves = self._groups.pack(self._group_count)
        if moves is not None:
            self._shown.move(moves)


def ends_of_groups(
    table: Table, name: str, count: int, *, by: tuple[str, ...], is_from_end: bool
) -> Table:
    """The operator of that name: rows from the beginning or the end of every group."""
    check_count(count)
    return derived(
        (table,),
        (name, count, by),
        lambda parent: GroupEndsTable(parent, count, by, is_from_end=is_from_end),
        price=work.of_group_ends(len(by)),
    )

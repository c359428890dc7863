"""One row per combination of key values, with aggregations of the rows that have it.

Row key == number of the group (:mod:`barrage.engine.aggregation.grouping`). The result's cells are
stored, one per group and aggregation. A cycle brings the states up to date with the rows that
changed, computes the results of the groups these are in, and tells the cells that differ from the
stored ones.

Cost of a cycle: vector operations over the changed rows and their groups. In addition one pass over
the group numbers of all rows, a few milliseconds per million, when a first, last, least or greatest
row went away or an imprecise floating sum is added up anew. Memory: a number per row, and a copy of
the columns that are added up, both only if the parent does more than append.

A blink table is aggregated cycle by cycle: the result shows the rows of the current one, and
nothing after a cycle without rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.aggregation import parse_aggregations, result_fields
from barrage.engine.aggregation.aggregation_states import AggregationStates
from barrage.engine.aggregation.grouping import RowGroups, in_groups
from barrage.engine.keys.ascending import distinct, is_among
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.keyed import check_key_columns
from barrage.engine.tables.table import DerivedTable
from barrage.errors import SchemaError
from barrage.model.storage import ColumnStore, cells_differ
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.aggregation.aggregation import Aggregation
    from barrage.engine.aggregation.grouping import GroupChange
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array


class AggByTable(DerivedTable):
    """The key columns, then one column per aggregation. No key columns make one row of a parent
    that has rows.

    SchemaError and ExpressionError say which column or function does not fit. EngineError, also in
    later cycles: a sum of whole numbers does not fit int64.
    """

    is_summary = True

    def __init__(
        self, parent: Table, by: tuple[str, ...], aggregations: tuple[Aggregation, ...]
    ) -> None:
        if not by and not aggregations:
            raise SchemaError("without key columns at least one aggregation is needed")
        key_indices = check_key_columns(parent.schema, by) if by else ()
        fields = [parent.schema.field(index) for index in key_indices]
        fields += result_fields(parent.schema, by, aggregations)
        traits = parent.traits.changed(
            is_append_only=False, is_blink=False, is_flat=parent.is_static, key_columns=by
        )
        super().__init__(parent, pa.schema(fields), traits)
        self._aggregations = aggregations
        self._key_count = len(by)
        self._groups = RowGroups(parent, key_indices)
        self._states = AggregationStates(parent, self._groups, aggregations)
        self._stores = [ColumnStore(field.type) for field in fields[len(by) :]]
        for rows, groups in self._groups.enter_all():
            self._states.enter(rows, groups)
        everything = np.arange(self._groups.count, dtype=np.int64)
        for store, cells in zip(self._stores, self._states.results(everything), strict=True):
            store.append(cells)
        self._row_keys = RowSet.of_span(0, self._groups.count)

    @property
    def order_is_reproducible(self) -> bool:
        """Groups stand in order of first appearance, and a floating sum may depend in its last bit
        on what was added when."""
        return super().order_is_reproducible and self.is_static

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return AggByTable(parents[0], self.key_columns, self._aggregations)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._states.stand_upon(parents[0])

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._groups = self._groups.pinned()
        self._stores = [store.pinned() for store in self._stores]

    def advance(self, update: TableUpdate) -> TableUpdate:
        change = self._groups.advance(update)
        self._states.advance(update, change, self._shown, spend=self.spend)
        removed = RowSet.from_sorted_keys(change.emptied)
        added = RowSet.of_span(change.first_new, self._groups.count)
        kept = self._row_keys - removed
        modified = self._write(self._touched(update, change), change.first_new)
        self._row_keys = live = kept | added
        shifts = RowSetShiftData.empty()
        moves = self._groups.pack(len(live))
        if moves is not None:
            shifts = moves.shifts_of(kept)
            self._row_keys, added, *modified = moves.of_sets([live, added, *modified])
            self._states.move(moves)
            moves.move_cells(self._stores)
        nothing = RowSet.empty()
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=removed,
            shifts=shifts,
            added_keys_post=added,
            modified_keys_post=(*[nothing] * self._key_count, *modified),
        )

    def _shown(self, index: int, groups: Int64Array) -> pa.Array:
        """What the groups showed for an aggregation before this cycle."""
        return self._stores[index].take(groups)

    def _touched(self, update: TableUpdate, change: GroupChange) -> Int64Array:
        """Groups whose results may be others now, ascending, without the emptied ones."""
        touched = [
            change.removed_groups,
            change.moved_from,
            change.moved_to,
            change.added_groups,
        ]
        for column in self._states.columns:
            rows = in_groups(update, change, column)
            if len(rows):
                touched.append(self._groups.groups_of(rows))
        found = distinct(np.concatenate(touched))
        return found[~is_among(found, change.emptied)]

    def _write(self, touched: Int64Array, first_new: int) -> list[RowSet]:
        """Store the results of touched groups; per aggregation the old ones that changed."""
        old_count = int(np.searchsorted(touched, first_new))
        old = touched[:old_count]
        modified: list[RowSet] = []
        results = self._states.results(touched)
        for store, cells in zip(self._stores, results, strict=True):
            changed = np.flatnonzero(cells_differ(store.take(old), cells.slice(0, old_count)))
            store.write(old[changed], cells.take(pa.array(changed)))
            store.append(cells.slice(old_count))
            keys = RowSet.from_sorted_keys(old[changed])
            # Equal sets that are one object spare the readers of the update much work.
            modified.append(modified[-1] if modified and modified[-1] == keys else keys)
        return modified

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.take_cells(keys.to_numpy(), columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        is_key_wanted = any(column < self._key_count for column in columns)
        key_cells = self._groups.key_cells(keys) if is_key_wanted else []
        return tuple(
            key_cells[column]
            if column < self._key_count
            else self._stores[column - self._key_count].take(keys)
            for column in columns
        )


def agg_by(table: Table, /, *by: str, **aggregations: str) -> Table:
    """One row per combination of values in ``by``: these columns, then the aggregations.

    An aggregation is ``name="function(column)"``, such as ``total="sum(price)"`` or
    ``n="count()"``.
    """
    return aggregated(table, by, parse_aggregations(table.schema, by, aggregations))


def aggregated(table: Table, by: Sequence[str], aggregations: Sequence[Aggregation]) -> Table:
    """``agg_by`` with aggregations that are parsed already."""
    names, parsed = tuple(by), tuple(aggregations)
    return derived(
        (table,),
        ("agg_by", names, parsed),
        lambda parent: AggByTable(parent, names, parsed),
        price=work.of_aggregations(len(names), len(parsed)),
    )

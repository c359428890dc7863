"""Rows for which a condition is true. Only added rows and rows modified in a column of the
condition are evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow.compute as pc

from barrage.engine.expressions.expression import bind_condition
from barrage.engine.operators.subset import SubsetTable
from barrage.engine.planning.operator_plan import derived, prepared
from barrage.engine.tables import work
from barrage.engine.tables.cells import EVALUATED_ROWS, single_chunks
from barrage.engine.tables.moved_rows import union_of
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import pyarrow as pa

    from barrage.engine.expressions.expression import Expression
    from barrage.engine.tables.table import DerivedTable, Table
    from barrage.model.update import TableUpdate


class RowCondition(Protocol):
    """What selects rows: :class:`~barrage.engine.expressions.expression.BoundExpression` mostly."""

    @property
    def columns(self) -> tuple[int, ...]:
        """The parent's columns it reads, ascending."""

    @property
    def identity(self) -> Hashable:
        """Equal for conditions that mean the same."""

    @property
    def row_operations(self) -> int:
        """What it costs, for every row."""

    def evaluate(self, cells: Sequence[pa.Array], row_count: int) -> pa.Array:
        """True, false or null per row."""


class WhereTable(SubsetTable):
    """A filter; a condition that is null does not select."""

    def __init__(self, parent: Table, condition: RowCondition) -> None:
        super().__init__(parent, parent.schema, parent.traits.changed(is_flat=False))
        self.condition = condition
        self._row_keys = self._passing(parent.row_keys)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return WhereTable(parents[0], self.condition)

    def _passing(self, keys: RowSet) -> RowSet:
        """The keys whose rows satisfy the condition now, a bounded number of rows at a time."""
        passing = []
        for start in range(0, len(keys), EVALUATED_ROWS):
            part = keys.slice(start, start + EVALUATED_ROWS)
            cells = single_chunks(self.parent.read_cells(part, self.condition.columns))
            truth = pc.fill_null(self.condition.evaluate(cells, len(part)), False)
            mask = truth.to_numpy(zero_copy_only=False)
            passing.append(part.to_numpy()[mask])
        if not passing:
            return RowSet.empty()
        return RowSet.from_sorted_keys(np.concatenate(passing))

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        modified = union_of(update.modified_keys_post[c] for c in self.condition.columns)
        passing = self._passing(update.added_keys_post | modified)
        return (survivors & modified) - passing, passing - survivors


def where(table: Table, condition: str | Expression) -> Table:
    """The rows for which the condition is true (not false, not null)."""
    schema = table.schema
    bound = prepared(
        table,
        *("where", condition, getattr(condition, "scope", "")),
        prepare=lambda: bind_condition(condition, schema),
    )
    return derived(
        (table,),
        ("where", bound.identity),
        lambda parent: WhereTable(parent, bound),
        price=work.of_terms(bound.row_operations),
    )

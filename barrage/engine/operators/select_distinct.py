"""Each combination of cells once, in the order in which they first appeared: groups without
aggregations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.agg_by import AggByTable
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work

if TYPE_CHECKING:
    from barrage.engine.tables.table import DerivedTable, Table


class SelectDistinctTable(AggByTable):
    """The combinations of ``columns`` that occur in the parent; a combination that disappears and
    comes back appears anew. SchemaError when a column cannot be compared."""

    def __init__(self, parent: Table, columns: tuple[str, ...]) -> None:
        super().__init__(parent, columns, ())

    @property
    def order_is_reproducible(self) -> bool:
        """The order of first appearance follows from the present rows where none was removed."""
        parent = self.parent
        return parent.order_is_reproducible and (parent.is_append_only or parent.is_static)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return SelectDistinctTable(parents[0], self.key_columns)


def select_distinct(table: Table, *columns: str) -> Table:
    """Each combination of values in ``columns`` (none: all columns) once, in order of first
    appearance."""
    names = tuple(columns) or tuple(table.schema.names)
    return derived(
        (table,),
        ("select_distinct", names),
        lambda parent: SelectDistinctTable(parent, names),
        price=work.of_groups(len(names)),
    )

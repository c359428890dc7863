"""Each combination of cells once, in the order in which they first appeared: groups without
aggregations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.agg_by import AggByTable

if TYPE_CHECKING:
    from barrage.engine.table import Table


class SelectDistinctTable(AggByTable):
    """The combinations of ``columns`` that occur in the parent; a combination that disappears and
    comes back appears anew. SchemaError when a column cannot be compared."""

    def __init__(self, parent: Table, columns: tuple[str, ...]) -> None:
        super().__init__(parent, columns, ())

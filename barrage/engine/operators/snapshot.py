"""A static table of another table's rows as they are at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.tables.source import StaticTable

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table


def snapshot(table: Table) -> Table:
    """A static table of the rows of ``table`` now; a static table is its own snapshot.

    Nothing is derived: the copy does not keep ``table`` alive. Cells that never change are shared,
    the others are copied once.
    """
    table.check_alive()
    return table if table.is_static else StaticTable(table.graph, table.to_arrow())

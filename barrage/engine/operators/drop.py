"""All columns but some: a selection of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.select import index_of, select

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table


def drop(table: Table, *columns: str) -> Table:
    """All columns but these; SchemaError when one does not exist."""
    for name in columns:
        index_of(table.schema, name)
    gone = set(columns)
    return select(table, *(name for name in table.schema.names if name not in gone))

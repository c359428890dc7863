"""What ends when a table is dropped: its own readers, and those of queries that name it.

Tables that a program derived live on, as it holds them; a query is text, and who reads it knows of
no table but those it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from barrage.errors import TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.engine.tables.table import Table


class TableDroppedError(TableNotFoundError):
    """Ends the subscriptions of a table that was dropped."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (f"table {name!r} was dropped",)


class QueryTables:
    """The tables that queries have made and somebody holds. On the engine thread."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Table, frozenset[str]] = WeakKeyDictionary()

    def note(self, table: Table, names: Iterable[str]) -> None:
        """A query that names these tables has made ``table``. Several queries may make one."""
        self._names[table] = self._names.get(table, frozenset()).union(names)

    def naming(self, name: str) -> list[Table]:
        """Those that queries with that name have made."""
        return [table for table, names in list(self._names.items()) if name in names]

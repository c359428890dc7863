"""A reference to an engine table that may be held, passed on and dropped outside the engine thread.

A table is freed with its last reference, and freeing one changes what the engine thread may be
walking over. So nobody else holds a table: they hold a lease, and when the last holder drops it the
table goes on the engine thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.errors import BarrageError
    from barrage.server.tables.table_service import TableService


class TableLease:
    """Keeps ``table`` alive. Immutable; shared by whoever needs the table."""

    __slots__ = ("__weakref__", "_held", "_is_input", "_tables", "name")

    def __init__(
        self,
        tables: TableService,
        table: Table,
        *,
        name: str | None = None,
        input_target: SourceTable | None = None,
    ) -> None:
        """``name``: what the table is published as, or None. ``input_target``: the table rows may
        be written to through this lease, which is ``table`` itself or nothing."""
        self.name = name
        self._tables = tables
        self._held: list[Table] = [table]
        self._is_input = input_target is not None
        if input_target is not None:
            self._held.append(input_target)

    def __del__(self) -> None:
        """The list is what the two threads share: no frame here refers to the table itself."""
        held = getattr(self, "_held", None)
        if held is not None:
            self._tables.forget(held)

    @property
    def table(self) -> Table:
        """The table, for use on the engine thread. Elsewhere only what never changes may be read
        (schema, traits), and no reference may be kept."""
        return self._held[0]

    @property
    def schema(self) -> pa.Schema:
        """The table's own Arrow schema."""
        return self._held[0].schema

    @property
    def is_static(self) -> bool:
        """Whether the rows never change; any thread."""
        return self._held[0].is_static

    @property
    def failure(self) -> BarrageError | None:
        """Why the table has failed, if it has so far; any thread."""
        return self._held[0].failure

    @property
    def input_target(self) -> SourceTable | None:
        """The table rows may be written to through this lease; None when it is for reading."""
        return self._held[1] if self._is_input else None  # type: ignore[return-value]


TableSource: TypeAlias = "TableLease | Callable[[], TableLease]"
"""A table, or what gives it on the engine thread: a name means whatever it stands for when it is
used."""

"""What notebooks make of a live table, asynchronous or not: its rows as HTML, and what it takes to
show the table that it follows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from barrage.client.notebook.first_rows import ROWS_SHOWN, FirstRows
from barrage.client.notebook.showing import HEIGHT, Showing, height_of, shown_of
from barrage.errors import BarrageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    import pyarrow as pa

    from barrage.client.connection.table_sources import TableSource

    class LiveRows(Protocol):
        """A live table."""

        @property
        def name(self) -> str:
            """Of the table that it follows."""
            ...

        @property
        def table_size(self) -> int:
            """Rows of that table."""
            ...

        def to_arrow(self) -> pa.Table:
            """The rows now."""
            ...


def rows_of(table: LiveRows) -> FirstRows:
    """The first rows it has; BarrageError before its first state."""
    rows = table.to_arrow().slice(0, ROWS_SHOWN)
    return FirstRows(name=table.name, rows=rows, total=table.table_size)


def html_of(table: LiveRows) -> str | None:
    """The same as HTML; None, for its text to be displayed, before its first state."""
    try:
        return rows_of(table)._repr_html_()
    except BarrageError:
        return None


async def showing_of(
    table: LiveRows, source: TableSource, columns: Sequence[str] | None, *, height: int = HEIGHT
) -> Showing:
    """What it takes to show the table it follows, of these columns. On the loop of the session."""
    return Showing(
        rows=rows_of(table),
        shown=await shown_of(source, columns),
        connection=source.connection,
        loop=asyncio.get_running_loop(),
        height=height_of(height),
    )

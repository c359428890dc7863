"""Tables of rows that stay as they are, made on the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from barrage.server.runtime.aside import in_turn

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.server.tables.table_service import TableService


async def static_table(tables: TableService, rows: pa.Table) -> SourceTable:
    """A table of ``rows`` that nobody has published. They are stored beside the loop, in turn.
    SchemaError."""
    made = await in_turn(partial(tables.create_static, rows))
    return await asyncio.wrap_future(made)

"""Sending rows to a server as a table of their own: DoPut into a new export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.arrow_input import to_arrow_table, without_dictionaries
from barrage.client.put import PutProgress, send_table
from barrage.errors import RequestRefusedError, SchemaError, StatusCode
from barrage.transport.flight_messages import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.client.deephaven.calls import DeephavenCalls, ExportedTable


async def upload_table(
    calls: DeephavenCalls,
    data: Any,
    *,
    label: str,
    on_progress: Callable[[PutProgress], None] | None = None,
) -> ExportedTable:
    """The export that now holds ``data``; SchemaError when the server cannot hold a column."""
    table = plain_columns(to_arrow_table(data))
    ticket, generation = calls.new_ticket(), calls.generation
    path = ("export", str(int.from_bytes(ticket[1:], "little")))
    calls.connection.check_open()
    try:
        await send_table(
            calls.connection.channel.put(table=label),
            table,
            Descriptor(path=path).encode(),
            # A server that answers only to batches would never answer (deephaven-clients.md
            # section 8).
            sends_empty=True,
        )
        exported = await calls.describe(ticket, label, None)
    except BaseException as error:
        calls.release_ticket_soon(ticket, generation)
        if isinstance(error, RequestRefusedError) and error.code is StatusCode.INVALID_ARGUMENT:
            types = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
            raise SchemaError(f"the server does not take these columns ({types}): {error}") from (
                error
            )
        raise
    if on_progress is not None:
        on_progress(PutProgress(rows=table.num_rows, total=table.num_rows))
    return exported


def plain_columns(table: pa.Table) -> pa.Table:
    """Columns in the types servers read, named as they can be there."""
    names = table.column_names
    if len(set(names)) != len(names):
        raise SchemaError(f"a column name occurs twice in {', '.join(names)}")
    return without_dictionaries(table)

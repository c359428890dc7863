"""Sending rows to a server as a table of their own: DoPut into a new export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.writing.arrow_input import to_arrow_table, without_dictionaries
from barrage.client.writing.put import PutProgress, send_table
from barrage.errors import BarrageError, RequestRefusedError, SchemaError, StatusCode
from barrage.transport.flight_messages import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.client.connection.export_calls import DeephavenCalls, ExportedTable

RESERVED_NAMES = frozenset({"i", "ii", "k"})
"""Words with a meaning of their own in the expressions of a Deephaven server, which therefore
refuses them as keys (tried with 42.7)."""


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
    try:
        await send_table(
            calls.open_put(label),
            table,
            Descriptor(path=path).encode(),
            # A server that answers only to batches would never answer (deephaven-clients.md
            # section 8).
            sends_empty=True,
        )
        exported = await calls.describe(ticket, label, None)
    except RequestRefusedError as error:
        calls.release_ticket_soon(ticket, generation)
        raise refused_columns(table.schema, error) from error
    except BaseException:
        calls.release_ticket_soon(ticket, generation)
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


def refused_columns(schema: pa.Schema, error: RequestRefusedError) -> BarrageError:
    """What a refusal of a new table means: with INVALID_ARGUMENT, its columns do not suit the
    server, which tells why only in its log."""
    if error.code is not StatusCode.INVALID_ARGUMENT:
        return error
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    reserved = sorted(RESERVED_NAMES.intersection(schema.names))
    hint = f"; {' and '.join(reserved)} cannot be the name of a key there" if reserved else ""
    return SchemaError(f"the server refused a table of columns {columns} ({error}){hint}")

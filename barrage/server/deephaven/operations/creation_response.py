"""ExportedTableCreationResponse: what a client is told of a table that was made for it.

Source: deephaven-clients.md section 2.6. The schema is the one every stream of the table starts
with, in the form of an encapsulated Arrow message, never list-wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barrage.server.presentation.presentation import lease_of, lease_schema
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from barrage.errors import BarrageError
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.tables.table_lease import TableLease


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTable:
    """What is told of a table; ``size`` is its number of rows when it was looked at."""

    schema_header: bytes
    is_static: bool
    size: int


def look_at(lease: TableLease, types: SessionTypes) -> CreatedTable:
    """Engine thread: what a session with these types is told. TableFailedError."""
    table = lease_of(lease).table
    schema = lease_schema(lease, types)
    return CreatedTable(
        schema_header=schema.serialize().to_pybytes(), is_static=table.is_static, size=table.size
    )


def ticket_reference(ticket: bytes) -> Any:
    """A TableReference that holds a ticket."""
    return MESSAGES.new("TableReference", ticket=MESSAGES.new("Ticket", ticket=ticket))


def offset_reference(offset: int) -> Any:
    """A TableReference to an operation of the same batch."""
    return MESSAGES.new("TableReference", batch_offset=offset)


def creation_response(reference: Any, created: CreatedTable) -> bytes:
    """The answer for a table that was made. ``reference`` is what the client asked for."""
    return MESSAGES.encode(
        "ExportedTableCreationResponse",
        result_id=reference,
        success=True,
        schema_header=created.schema_header,
        is_static=created.is_static,
        size=created.size,
    )


def failure_response(reference: Any, error: BarrageError) -> bytes:
    """The answer of a batch for a table that could not be made; a single call has its status."""
    return MESSAGES.encode(
        "ExportedTableCreationResponse",
        result_id=reference,
        success=False,
        error_info=f"{error.status_code.name}: {error}",
    )

"""How a table is shown to whom: a session of a Deephaven client sees types and metadata such a
client understands, everybody else sees the table as it is.

Everything here runs on the engine thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import CycleTooLongError, TableFailedError
from barrage.server.presentation.deephaven_schema import (
    announced_schema,
    deephaven_schema,
    deephaven_view,
    view_schema,
)
from barrage.server.tables.table_lease import TableLease
from barrage.wire.wire_schema import ATTRIBUTE, ATTRIBUTE_TYPE

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.tables.table_lease import TableSource


def lease_of(source: TableSource) -> TableLease:
    """The table of a source. TableFailedError when it has failed."""
    lease = source if isinstance(source, TableLease) else source()
    failure = lease.table.failure
    if isinstance(failure, CycleTooLongError):
        raise failure.anew()
    if failure is not None:
        raise TableFailedError(f"Table is already failed: {failure}")
    return lease


def shown_table(lease: TableLease, types: SessionTypes | None) -> Table:
    """The table as it is shown to a session with these types, or to a caller without one (None).

    RowError when a value has no form in the type shown.
    """
    return lease.table if types is None else deephaven_view(lease.table, types)


def shown_schema(lease: TableLease, view: Table, types: SessionTypes | None) -> pa.Schema:
    """The schema announced with ``view``, which is the result of :func:`shown_table`."""
    if types is None:
        return wire_schema(view)
    return deephaven_schema(
        view,
        is_input=lease.input_target is not None,
        key_columns=lease.table.key_columns,
    )


def lease_schema(lease: TableLease, types: SessionTypes | None) -> pa.Schema:
    """The schema a caller is told of a table it does not read yet. Unlike :func:`shown_table` it
    looks at no values."""
    table = lease.table
    if types is None:
        return table.schema
    return announced_schema(
        view_schema(table.schema, types),
        is_blink=table.is_blink,
        input_keys=None if lease.input_target is None else table.key_columns,
    )


def wire_schema(table: Table) -> pa.Schema:
    """The schema to announce for ``table``."""
    schema = table.schema
    if not table.is_blink:
        return schema
    metadata = {
        **(schema.metadata or {}),
        ATTRIBUTE + b"BlinkTable": b"true",
        ATTRIBUTE_TYPE + b"BlinkTable": b"java.lang.Boolean",
    }
    return schema.with_metadata(metadata)

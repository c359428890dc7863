"""Input tables: tables on the server that clients add rows to and delete rows from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.client.connection.export_calls import ticket_message
from barrage.client.deephaven.java_types import schema_with_java_types
from barrage.client.deephaven.upload import refused_columns, upload_table
from barrage.client.writing.arrow_input import to_arrow_table
from barrage.errors import ConfigError, RequestRefusedError, RowError, SchemaError, UnsupportedError
from barrage.transport.deephaven_messages import INPUT_TABLE_SERVICE, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.connection.export_calls import DeephavenCalls, ExportedTable

KINDS = ("append_only", "keyed", "blink")


async def create_input_table(
    calls: DeephavenCalls,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    kind: str | None = None,
    label: str,
) -> ExportedTable:
    """An empty input table. ``kind`` is "keyed" when there is a key, else "append_only"."""
    if not isinstance(schema, pa.Schema):
        raise SchemaError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
    kind = kind or ("keyed" if key else "append_only")
    if kind not in KINDS:
        raise ConfigError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    if (kind == "keyed") is not bool(key):
        raise ConfigError(
            f"a table of kind {kind!r} {'needs a' if kind == 'keyed' else 'has no'} key"
        )
    for name in key:
        if name not in schema.names:
            raise SchemaError(f"key {name!r} is no column; there are {', '.join(schema.names)}")
    request = MESSAGES.new(
        "CreateInputTableRequest",
        schema=schema_with_java_types(schema).serialize().to_pybytes(),
        kind=_kind(kind, key),
    )
    try:
        return await calls.make("CreateInputTable", request, label=label)
    except RequestRefusedError as error:
        raise refused_columns(schema, error) from error


def _kind(kind: str, key: Sequence[str]) -> Any:
    outer = "CreateInputTableRequest.InputTableKind"
    if kind == "keyed":
        keyed = MESSAGES.new(f"{outer}.InMemoryKeyBacked", key_columns=key)
        return MESSAGES.new(outer, in_memory_key_backed=keyed)
    if kind == "blink":
        return MESSAGES.new(outer, blink=MESSAGES.new(f"{outer}.Blink"))
    return MESSAGES.new(outer, in_memory_append_only=MESSAGES.new(f"{outer}.InMemoryAppendOnly"))


async def add_rows(calls: DeephavenCalls, target: ExportedTable, rows: Any, *, label: str) -> int:
    """Add rows, or replace those with the same key; how many were sent."""
    table = fit_rows(to_arrow_table(rows), target.schema, names=target.schema.names)
    return await _send(calls, target, table, verb="Add", label=label)


async def delete_rows(
    calls: DeephavenCalls, target: ExportedTable, rows: Any, *, key: Sequence[str], label: str
) -> int:
    """Delete the rows with these keys; how many were sent. UnsupportedError without a key."""
    if not key:
        raise UnsupportedError(f"rows are only added to {label!r}: it has no key to delete them by")
    table = fit_rows(to_arrow_table(rows), target.schema, names=key, ignores_more=True)
    return await _send(calls, target, table, verb="Delete", label=label)


_SENDING = {
    "Add": ("AddTableToInputTable", "table_to_add"),
    "Delete": ("DeleteTableFromInputTable", "table_to_remove"),
}
"""Method and field of its request."""


async def _send(
    calls: DeephavenCalls, target: ExportedTable, table: pa.Table, *, verb: str, label: str
) -> int:
    """Upload rows and name them in one request; how many were sent."""
    method, field = _SENDING[verb]
    uploaded = await upload_table(calls, table, label=label)
    tickets = {"input_table": target.ticket, field: uploaded.ticket}
    request = MESSAGES.new(
        f"{verb}TableRequest", **{name: ticket_message(each) for name, each in tickets.items()}
    )
    try:
        await calls.unary(
            INPUT_TABLE_SERVICE, method, request, answer=f"{verb}TableResponse", table=label
        )
    finally:
        calls.release_soon(uploaded)
    return int(table.num_rows)


def fit_rows(
    table: pa.Table, schema: pa.Schema, *, names: Sequence[str], ignores_more: bool = False
) -> pa.Table:
    """``table`` with the columns ``names`` in the types of ``schema``. SchemaError names a column
    that is missing, unknown or of a type that does not fit, RowError one with a value that does
    not."""
    given = table.column_names
    missing = [name for name in names if given.count(name) != 1]
    if missing:
        raise SchemaError(f"the rows lack column {missing[0]!r}; they have {', '.join(given)}")
    more = [name for name in given if name not in names]
    if more and not ignores_more:
        raise SchemaError(f"the table has no column {more[0]!r}; it has {', '.join(names)}")
    columns = []
    for name in names:
        kind = schema.field(name).type
        try:
            columns.append(table.column(name).cast(kind))
        except pa.ArrowInvalid as error:
            raise RowError(str(error), column=name) from error
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(
                f"column {name!r} is {table.schema.field(name).type}, it must be {kind}"
            ) from error
    return pa.table(columns, names=list(names))

"""Schemas that Deephaven clients send: of tables they upload and of input tables they make.

The Arrow types decide what is stored; they keep more than Deephaven's types do (widths, units,
zones), and tables are shown in Deephaven's types anyway. What the metadata under ``deephaven:``
says (deephaven-clients.md section 2.7) describes the table the schema came from, not the new one,
so it is taken off; other metadata stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.model.schema_message import read_schema_message
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.limits import Limits

PREFIX = b"deephaven:"
"""What every metadata key of Deephaven's starts with."""

_T = pa.types

_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    _T.is_null,
    _T.is_boolean,
    _T.is_integer,
    _T.is_floating,
    _T.is_decimal,
    _T.is_string,
    _T.is_large_string,
    _T.is_string_view,
    _T.is_binary,
    _T.is_large_binary,
    _T.is_binary_view,
    _T.is_fixed_size_binary,
    _T.is_date,
    _T.is_time,
    _T.is_timestamp,
    _T.is_duration,
    _T.is_interval,
    _T.is_map,
    _T.is_union,
)
_LISTS: tuple[Callable[[pa.DataType], bool], ...] = (
    _T.is_list,
    _T.is_large_list,
    _T.is_fixed_size_list,
    _T.is_list_view,
    _T.is_large_list_view,
)
SUPPORTED = (
    "null, bool, integers, floats, decimals, strings, binaries, dates, times, timestamps, "
    "durations, intervals, maps, unions, dictionaries, and lists of these"
)


def read_schema(message: bytes, limits: Limits) -> pa.Schema:
    """The schema in an encapsulated IPC message of a client, as it is stored.

    RemoteProtocolError for bytes that are none, SchemaError for a type no table can have.
    """
    try:
        schema = read_schema_message(message)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"not a valid Arrow schema message: {error}") from error
    return stored_schema(schema, limits)


def stored_schema(schema: pa.Schema, limits: Limits) -> pa.Schema:
    """A client's schema without Deephaven's metadata; SchemaError for a type no table can have."""
    wire_schema(schema, limits)
    for field in schema:
        if not _is_supported(field.type):
            raise SchemaError(
                f"column {field.name!r} is {field.type}; supported types are {SUPPORTED}"
            )
    fields = [
        pa.field(field.name, field.type, field.nullable, _without_deephaven(field.metadata))
        for field in schema
    ]
    return pa.schema(fields, metadata=_without_deephaven(schema.metadata))


def _is_supported(kind: pa.DataType) -> bool:
    """Bounded: ``wire_schema`` has checked how deep the type is."""
    while any(is_list(kind) for is_list in _LISTS):
        kind = kind.value_type
    if _T.is_dictionary(kind) or _T.is_run_end_encoded(kind):
        kind = kind.value_type
    return any(is_plain(kind) for is_plain in _PLAIN)


def _without_deephaven(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    kept = {k: v for k, v in (metadata or {}).items() if not k.startswith(PREFIX)}
    return kept or None

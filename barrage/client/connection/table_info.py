"""What servers say about their tables, in one form: :class:`TableInfo`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.json_text import read_json
from barrage.model.schema_message import read_schema_message
from barrage.transport import flight_messages

_IS_KEY = b"deephaven:inputtable.isKey"
_IS_INPUT = (b"deephaven:unsent.attribute.InputTable", b"deephaven:attribute.InputTable")
_KINDS = (
    (b"deephaven:attribute.BlinkTable", "blink"),
    (b"deephaven:attribute.AppendOnly", "append_only"),
    (b"deephaven:attribute.AddOnly", "append_only"),
)
"""Attributes of a Deephaven table that say how it changes (deephaven-clients.md section 2.7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What a server says about one of its tables."""

    name: str
    schema: pa.Schema
    total_records: int | None
    """Rows when asked; None when the server does not say."""
    kind: str | None = None
    """``append_only``, ``keyed``, ``ring``, ``blink``, ``list``, ``static`` or ``view``; None when
    the server does not say."""
    key: tuple[str, ...] = ()
    is_ticking: bool | None = None
    step: int | None = None


def info_of_flight(answer: bytes, name: str | None = None) -> TableInfo:
    """A FlightInfo message of any server; RemoteProtocolError when it cannot be read."""
    info = flight_messages.FlightInfo.decode(answer)
    try:
        facts = read_json(info.metadata) if info.metadata else {}
    except ValueError as error:
        raise RemoteProtocolError(f"flight info cannot be read: {error}") from error
    schema = schema_of_message(info.schema_message)
    name = name or (info.descriptor.path[-1] if info.descriptor.path else "")
    total = info.total_records if info.total_records >= 0 else None
    if not isinstance(facts, dict) or not facts:
        return info_of_schema(name, schema, total_records=total, is_ticking=None)
    return TableInfo(
        name=name,
        schema=schema,
        total_records=total,
        kind=facts.get("kind"),
        key=tuple(facts.get("key") or ()),
        is_ticking=facts.get("is_ticking"),
        step=facts.get("step"),
    )


def info_of_schema(
    name: str, schema: pa.Schema, *, total_records: int | None, is_ticking: bool | None
) -> TableInfo:
    """What can be read from the metadata of a Deephaven table's schema."""
    attributes = schema.metadata or {}
    key = key_columns(schema)
    kind = "keyed" if key else None
    if kind is None:
        kind = next((kind for mark, kind in _KINDS if attributes.get(mark) == b"true"), None)
    if kind is None and is_ticking is False:
        kind = "static"
    return TableInfo(
        name=name,
        schema=schema,
        total_records=total_records,
        kind=kind,
        key=key,
        is_ticking=is_ticking,
    )


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Key columns of an input table, by its schema."""
    return tuple(
        field.name for field in schema if (field.metadata or {}).get(_IS_KEY, b"") == b"true"
    )


def is_input_table(schema: pa.Schema) -> bool:
    """Whether rows can be written to the table, by its schema."""
    return any(mark in (schema.metadata or {}) for mark in _IS_INPUT)


def schema_of_message(message: bytes) -> pa.Schema:
    """An encapsulated schema message; no bytes are a table without columns."""
    if not message:
        return pa.schema([])
    try:
        return read_schema_message(message)
    except (ValueError, pa.ArrowException) as error:
        raise RemoteProtocolError(f"a schema cannot be read: {error}") from error

"""What a Deephaven session sees of a table: converted columns and the metadata its clients act on.

Sources: deephaven-clients.md sections 2.7 and 3.6, barrage-wire.md section 12.3.

* Column names travel as they are, also those that are no Java identifiers: renaming them here would
  make names in filters and formulas, which are checked against the table itself, mean nothing. The
  Java client, the only one that minds, renames them on its side.
* ``AppendOnly``, ``AddOnly``, ``IsFlat`` and ``SortedColumns`` are never announced, not even when a
  table was uploaded with them: what an operation does to a promise is not tracked, and the Java
  client refuses reverse viewports of append-only tables. ``BlinkTable`` says what the table is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa

from barrage.engine.operators.convert import ColumnConversion, convert
from barrage.server.presentation.deephaven_types import shown_type
from barrage.transport.deephaven_messages import MESSAGES
from barrage.wire.wire_schema import (
    ATTRIBUTE,
    ATTRIBUTE_TYPE,
    COMPONENT_TYPE,
    FIELD_TYPE,
    INPUT_COLUMN,
    TABLE_METADATA,
    UNSENT_ATTRIBUTE,
    with_deephaven_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table
    from barrage.server.presentation.deephaven_types import SessionTypes, ShownType

_PROMISES = frozenset(
    {b"AppendOnly", b"AddOnly", b"IsFlat", b"BlinkTable", b"SortedColumns", b"InputTable"}
)
_ATTRIBUTE_PREFIXES = (ATTRIBUTE, ATTRIBUTE_TYPE, UNSENT_ATTRIBUTE)


_view_schemas: WeakKeyDictionary[Table, dict[SessionTypes, pa.Schema]] = WeakKeyDictionary()
"""What was worked out for a table before: a thousand clients that join ask for it a thousand
times."""


def deephaven_view(table: Table, session_types: SessionTypes) -> Table:
    """``table`` with every column in a type that clients of the family read; ``table`` itself when
    all of them are. Runs on the engine thread.

    Raises RowError when a value has no form in the new type (a time outside of 64 bits of
    nanoseconds); a later value of that kind fails the view, not the table.
    """
    known = _view_schemas.setdefault(table, {})
    schema = known.get(session_types)
    if schema is None:
        schema = view_schema(table.schema, session_types)
        if schema.equals(table.schema, check_metadata=True):
            schema = table.schema
        known[session_types] = schema
    if schema is table.schema:
        return table
    shown = [shown_type(field.type, session_types) for field in table.schema]
    conversions = {
        index: ColumnConversion(apply=to.apply, may_fail=to.may_fail)
        for index, to in enumerate(shown)
        if to.apply is not None
    }
    return convert(table, schema, ("deephaven_view", session_types), conversions=conversions)


def view_schema(schema: pa.Schema, session_types: SessionTypes) -> pa.Schema:
    """The schema that the :func:`deephaven_view` of a table with ``schema`` has."""
    fields = [_shown_field(field, shown_type(field.type, session_types)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _shown_field(field: pa.Field, shown: ShownType) -> pa.Field:
    """The field in its new type. A class name it already carries stays only while its type does."""
    metadata = dict(field.metadata or {})
    if field.type != shown.data_type:
        metadata.pop(FIELD_TYPE, None)
        metadata.pop(COMPONENT_TYPE, None)
    if shown.java is not None and FIELD_TYPE not in metadata:
        metadata[FIELD_TYPE] = shown.java.encode()
        component = _component(shown.java)
        if component is not None:
            metadata[COMPONENT_TYPE] = component.encode()
    return field.with_type(shown.data_type).with_metadata(metadata or None)


def _component(java: str) -> str | None:
    if java.endswith("[]"):
        return java[:-2]
    return "byte" if java == "io.deephaven.vector.ByteVector" else None


def deephaven_schema(
    table: Table, *, is_input: bool = False, key_columns: Sequence[str] | None = None
) -> pa.Schema:
    """The schema announced for ``table`` (a result of :func:`deephaven_view`) in a session.

    ``is_input``: rows can be added through the session; ``key_columns`` (default: the table's) are
    then marked as keys and the others as values.
    """
    keys = tuple(table.key_columns if key_columns is None else key_columns)
    return announced_schema(
        table.schema, is_blink=table.is_blink, input_keys=keys if is_input else None
    )


def announced_schema(
    schema: pa.Schema, *, is_blink: bool, input_keys: Sequence[str] | None
) -> pa.Schema:
    """:func:`deephaven_schema` of a view with this schema; ``input_keys`` are the key columns of an
    input table, None for any other."""
    return with_deephaven_metadata(
        _without_promises(schema),
        is_blink=is_blink,
        key_columns=tuple(input_keys or ()),
        input_metadata=None if input_keys is None else _input_metadata(schema.names, input_keys),
    )


def _without_promises(schema: pa.Schema) -> pa.Schema:
    metadata = {
        key: text
        for key, text in (schema.metadata or {}).items()
        if key != TABLE_METADATA and not _is_promise(key)
    }
    fields = [field.with_metadata(_without_input_marks(field)) for field in schema]
    return pa.schema(fields, metadata=metadata or None)


def _is_promise(key: bytes) -> bool:
    return any(
        key.startswith(prefix) and key.removeprefix(prefix) in _PROMISES
        for prefix in _ATTRIBUTE_PREFIXES
    )


def _without_input_marks(field: pa.Field) -> dict[bytes, bytes] | None:
    entries = (field.metadata or {}).items()
    return {key: text for key, text in entries if not key.startswith(INPUT_COLUMN)} or None


def _input_metadata(names: Sequence[str], keys: Sequence[str]) -> bytes:
    """The DeephavenTableMetadata message of an input table."""
    message = MESSAGES.new("DeephavenTableMetadata")
    kinds = MESSAGES.new("InputTableColumnInfo").Kind
    for name in names:
        info = message.input_table_metadata.column_info[name]
        info.kind = kinds.Value("KIND_KEY" if name in keys else "KIND_VALUE")
    return bytes(message.SerializeToString(deterministic=True))

"""A table described in JSON: what a page wants to know before it shows one."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from barrage.server.tables.table_service import TableFacts

DESCRIPTION = b"description"
"""In the metadata of a schema or a field: what it is, for people."""


def described(facts: TableFacts) -> dict[str, Any]:
    """Everything that is told about a table."""
    schema = facts.schema
    return {
        "name": facts.name,
        "kind": facts.kind,
        "key": list(facts.key),
        "is_ticking": facts.is_ticking,
        "rows": facts.row_count,
        "step": facts.step,
        "is_writable": facts.is_writable,
        "description": description_of(schema.metadata),
        "columns": [_column(field) for field in schema],
        "schema": base64.b64encode(schema.serialize()).decode(),
    }


def _column(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": str(field.type),
        "is_nullable": field.nullable,
        "description": description_of(field.metadata),
    }


def description_of(metadata: Mapping[bytes, bytes] | None) -> str:
    """What a table or a column says of itself in the metadata of its schema; empty for nothing."""
    text = (metadata or {}).get(DESCRIPTION, b"")
    return text.decode(errors="replace")

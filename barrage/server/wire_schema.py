"""The schema a table shows on the wire: its own, with the attributes stock clients act on.

``BlinkTable`` makes a receiver replace its rows instead of gathering them (barrage-wire.md section
12.3 and trap 35). ``AppendOnly`` is not announced: the Java client refuses a reverse viewport on
such a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.table import Table

_ATTRIBUTE = "deephaven:attribute."
_ATTRIBUTE_TYPE = "deephaven:attribute_type."
_BOOLEAN = "java.lang.Boolean"


def wire_schema(table: Table) -> pa.Schema:
    """The schema to announce for ``table``."""
    schema = table.schema
    if not table.is_blink:
        return schema
    metadata = {
        **(schema.metadata or {}),
        f"{_ATTRIBUTE}BlinkTable".encode(): b"true",
        f"{_ATTRIBUTE_TYPE}BlinkTable".encode(): _BOOLEAN.encode(),
    }
    return schema.with_metadata(metadata)

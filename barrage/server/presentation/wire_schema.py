"""The schema a table shows on the wire: its own, with the attributes stock clients act on.

``BlinkTable`` makes a receiver replace its rows instead of gathering them (barrage-wire.md section
12.3 and trap 35). ``AppendOnly`` is not announced: the Java client refuses a reverse viewport on
such a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.wire.wire_schema import ATTRIBUTE, ATTRIBUTE_TYPE

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.table import Table


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

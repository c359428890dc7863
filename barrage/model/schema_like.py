"""The schema of a new table as users may write it; server and client take the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from barrage.errors import SchemaError

_ZONED_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), ?(?:tz=)?([\w/+:-]+)\]")
"""Arrow has no alias for these; written as it prints them."""

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, Any]"
"""A schema, or a mapping from column name to Arrow type or alias (``"int64"``)."""


def schema_of(schema: SchemaLike) -> pa.Schema:
    """``schema`` itself, or one made of a mapping from column name to Arrow type or alias
    (``"int64"``)."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping):
        raise SchemaError(
            "a schema is a pyarrow.Schema or a mapping from name to type, "
            f"not {type(schema).__name__}"
        )
    return pa.schema([pa.field(name, _type_of(name, kind)) for name, kind in schema.items()])


def _type_of(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str) and (zoned := _ZONED_TIMESTAMP.fullmatch(kind)):
        return pa.timestamp(zoned[1], zoned[2])
    try:
        return pa.type_for_alias(kind)
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaError(
            f"column {name!r}: {kind!r} is not an Arrow type or the alias of one"
        ) from error

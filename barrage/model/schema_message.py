"""Schemas of peers that Arrow reads: what has to be checked before anybody believes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def read_schema_message(message: bytes | memoryview) -> pa.Schema:
    """The schema in an encapsulated IPC message.

    Arrow takes names that are not UTF-8 and fails only when somebody asks for them, so all of them
    are asked for here; and it takes unions without members (:func:`is_memberless`). Errors:
    ValueError, pa.ArrowException, OSError.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    for field in every_field(schema):
        _ = field.name, getattr(field.type, "tz", None)
        if is_memberless(field.type):
            raise ValueError(f"column {field.name!r} has a union without members")
    return schema


def every_field(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """The fields, then those nested in them, level by level."""
    level = list(fields)
    while level:
        yield from level
        types = [field.type for field in level]
        plain = [t.value_type if pa.types.is_dictionary(t) else t for t in types]
        level = [t.field(i) for t in plain for i in range(t.num_fields)]


def is_memberless(kind: pa.DataType) -> bool:
    """Whether this is a union of nothing. It can have no value, and Arrow ends the process when it
    is asked for an array of it, even for one without rows."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_union(plain)) and plain.num_fields == 0

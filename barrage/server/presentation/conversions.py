"""Columns a session sees as text because its clients know no better, and who does not want that.

Source: ``column_conversion_mode`` of the 2020 draft (barrage-wire.md section 2.2). In 1.0.0 it is
retired and ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from barrage.errors import RemoteProtocolError, SchemaError, UnsupportedError
from barrage.server.presentation.deephaven_types import shown_type

if TYPE_CHECKING:
    from barrage.server.presentation.deephaven_types import SessionTypes

STRINGIFY: Final = 1
JAVA_SERIALIZATION: Final = 2
THROW_ERROR: Final = 3

_T = pa.types


def check_conversions(schema: pa.Schema, types: SessionTypes, mode: int) -> None:
    """Refuse what a mode does not let a session be shown: SchemaError names the column that would
    become text. UnsupportedError where it would have to be a Java object, RemoteProtocolError for a
    mode nobody knows."""
    if mode not in (STRINGIFY, JAVA_SERIALIZATION, THROW_ERROR):
        raise RemoteProtocolError(
            f"column_conversion_mode is {mode}; there are 1 (Stringify), 2 (JavaSerialization) and "
            "3 (ThrowError)"
        )
    if mode == STRINGIFY:
        return
    for field in schema:
        if not is_made_text(field.type, types):
            continue
        what = f"column {field.name!r} of type {field.type} has no form of its own for this client"
        if mode == JAVA_SERIALIZATION:
            raise UnsupportedError(f"{what}, and this server serializes no Java objects")
        raise SchemaError(f"{what}; with column_conversion_mode 1 it comes as text")


def is_made_text(kind: pa.DataType, types: SessionTypes) -> bool:
    """Whether a column of a type that is no text is shown as text."""
    return _is_text(_innermost(shown_type(kind, types).data_type)) and not _is_text(
        _innermost(kind)
    )


def _innermost(kind: pa.DataType) -> pa.DataType:
    """What lists and encodings are made of."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif hasattr(kind, "value_type") and not _T.is_map(kind):
            kind = kind.value_type
        else:
            return kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(_T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind))

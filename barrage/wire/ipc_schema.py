"""Arrow IPC schema messages: header bytes to a schema and back.

Source: Arrow columnar format specification (Schema.fbs field numbers) and barrage-wire.md sections
3.3, 8.5 and 12. Writing is left to pyarrow; reading is done here, because dictionary ids do not
show in a pyarrow schema, because Deephaven sends a type pyarrow lacks (year-month intervals), and
because every count and depth has to be checked first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.flatbuf import FlatTable, root_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.limits import Limits

HEADER_SCHEMA = 1
_IPC_PREFIX_BYTES = 8
_VERSION_MIN = 3  # V4

_ITEMS_MAX = 100_000
"""Fields and metadata entries believed in one schema message; each costs work, and a flatbuffer may
refer to the same bytes any number of times."""

_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSchema:
    """A schema as it came: ``dictionary_ids`` in depth-first order, one tuple per column."""

    schema: pa.Schema
    dictionary_ids: tuple[tuple[int, ...], ...]


def encode_schema(schema: pa.Schema, columns_as_list: bool = False) -> bytes:
    """The bare header of a schema message. Dictionary ids count up from 0 in column order."""
    sent = list_wrapped(schema) if columns_as_list else schema
    encapsulated: bytes = sent.serialize().to_pybytes()
    return encapsulated[_IPC_PREFIX_BYTES:]


def list_wrapped(schema: pa.Schema) -> pa.Schema:
    """Every column inside a list that is never null; name and metadata stand on both (8.5)."""
    fields = [
        pa.field(field.name, pa.list_(field), nullable=False, metadata=field.metadata)
        for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


def list_unwrapped(schema: pa.Schema) -> pa.Schema:
    """What :func:`list_wrapped` wrapped. Raises RemoteProtocolError for any other schema."""
    fields = []
    for field in schema:
        if not pa.types.is_list(field.type):
            raise RemoteProtocolError(
                f"column {field.name!r} is {field.type}, but lists around columns were asked for"
            )
        fields.append(field.type.value_field.with_name(field.name))
    return pa.schema(fields, metadata=schema.metadata)


def encapsulate_schema(schema: pa.Schema) -> bytes:
    """The schema as FlightInfo and GetSchema carry it: with the IPC prefix (trap 21)."""
    content: bytes = schema.serialize().to_pybytes()
    return content


def decode_schema(header: bytes, limits: Limits = DEFAULT_LIMITS) -> pa.Schema:
    """The schema in a bare header; raises RemoteProtocolError when it is malformed."""
    return read_schema(header, limits).schema


def read_schema(header: bytes, limits: Limits = DEFAULT_LIMITS) -> ReceivedSchema:
    """The schema in a bare header, with its dictionary ids."""
    message = root_table(header)
    if message.int16(4) < _VERSION_MIN:
        raise RemoteProtocolError(f"Arrow metadata version {message.int16(4) + 1} is too old")
    table = message.table(8)
    if message.uint8(6) != HEADER_SCHEMA or table is None:
        raise RemoteProtocolError("Arrow message is not a schema")
    if table.int16(4):
        raise RemoteProtocolError("big-endian columns are not supported")
    reader = _SchemaReader(limits)
    fields = table.tables(6, count_max=limits.columns_max) or []
    columns: list[pa.Field] = []
    ids: list[tuple[int, ...]] = []
    for field in fields:
        reader.dictionary_ids = []
        columns.append(reader.field(field, 1))
        ids.append(tuple(reader.dictionary_ids))
    metadata = reader.metadata(table, 8)
    return ReceivedSchema(schema=pa.schema(columns, metadata=metadata), dictionary_ids=tuple(ids))


class _SchemaReader:
    """Reads fields; counts everything it reads against one budget per message."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._items_left = _ITEMS_MAX
        self.dictionary_ids: list[int] = []

    def _spend(self, count: int) -> None:
        self._items_left -= count
        if self._items_left < 0:
            raise RemoteProtocolError(f"schema has over {_ITEMS_MAX} fields and metadata entries")

    def metadata(self, table: FlatTable, slot: int) -> dict[bytes, bytes] | None:
        entries = table.tables(slot, count_max=_ITEMS_MAX)
        if not entries:
            return None
        self._spend(len(entries))
        return {entry.byte_vector(4) or b"": entry.byte_vector(6) or b"" for entry in entries}

    def field(self, table: FlatTable, depth: int) -> pa.Field:
        """One field with its children; ``depth`` bounds the recursion."""
        self._spend(1)
        if depth > self._limits.nesting_depth_max:
            raise RemoteProtocolError(
                f"schema nests deeper than {self._limits.nesting_depth_max} levels"
            )
        name = table.string(4) or ""
        encoding = table.table(12)
        if encoding is not None:
            self.dictionary_ids.append(encoding.int64(4))
        children = [
            self.field(child, depth + 1)
            for child in table.tables(14, count_max=self._limits.columns_max) or ()
        ]
        type_id = table.uint8(8)
        read = _TYPES.get(type_id)
        if read is None:
            raise RemoteProtocolError(
                f"column {name!r} has Arrow type number {type_id}, unsupported"
            )
        parameters = table.table(10)
        if parameters is None:
            raise RemoteProtocolError(f"column {name!r} has no type")
        metadata = self.metadata(table, 16)
        try:
            kind = read(parameters, children)
            if encoding is not None:
                index = encoding.table(6)
                index_type = pa.int32() if index is None else _integer(index, [])
                kind = pa.dictionary(index_type, kind, ordered=encoding.boolean(8))
            return pa.field(name, kind, nullable=table.boolean(6), metadata=metadata)
        except (pa.ArrowException, ValueError, TypeError, KeyError, IndexError) as error:
            raise RemoteProtocolError(f"column {name!r} has a malformed type: {error}") from error


def _only(children: list[pa.Field]) -> pa.Field:
    if len(children) != 1:
        raise ValueError(f"{len(children)} children instead of 1")
    return children[0]


def _integer(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    prefix = "int" if table.boolean(6) else "uint"
    width = table.int32(4)
    if width not in (8, 16, 32, 64):
        raise ValueError(f"integers of {width} bits")
    return pa.type_for_alias(f"{prefix}{width}")


def _floating(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    return (pa.float16(), pa.float32(), pa.float64())[_checked(table.int16(4), 3)]


def _checked(choice: int, count: int) -> int:
    if not 0 <= choice < count:
        raise ValueError(f"enum value {choice}")
    return choice


def _unit(table: FlatTable, slot: int, default: int) -> str:
    return _UNITS[_checked(table.int16(slot, default), len(_UNITS))]


def _decimal(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    make = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
    return make[table.int32(8, 128)](table.int32(4), table.int32(6))


def _date(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    return (pa.date32(), pa.date64())[_checked(table.int16(4, 1), 2)]


def _time(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    unit = _unit(table, 4, 1)
    return pa.time32(unit) if table.int32(6, 32) == 32 else pa.time64(unit)


def _timestamp(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    return pa.timestamp(_unit(table, 4, 0), tz=table.string(6))


def _interval(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    """Year-month intervals have no pyarrow type: they are handed out as int32 months."""
    unit = table.int16(4)
    if unit == 0:
        return pa.int32()
    if unit == 2:
        return pa.month_day_nano_interval()
    raise ValueError("day-time intervals are not supported")


def _fixed_binary(table: FlatTable, _children: list[pa.Field]) -> pa.DataType:
    width = table.int32(4)
    if not 0 <= width < 2**24:
        raise ValueError(f"{width} bytes wide")
    return pa.binary(width)


def _fixed_list(table: FlatTable, children: list[pa.Field]) -> pa.DataType:
    size = table.int32(4)
    if not 0 <= size < 2**24:
        raise ValueError(f"lists of {size}")
    return pa.list_(_only(children), size)


def _map(table: FlatTable, children: list[pa.Field]) -> pa.DataType:
    entries = _only(children).type
    if not pa.types.is_struct(entries) or entries.num_fields != 2:
        raise ValueError("map without a key and a value")
    key = entries.field(0).with_nullable(False)
    return pa.map_(key, entries.field(1), keys_sorted=table.boolean(4))


def _union(table: FlatTable, children: list[pa.Field]) -> pa.DataType:
    span = table.vector(6, 4)
    codes = list(range(len(children))) if span is None else table.int32s(span)
    # Arrow ends the process when it is asked for an array of a union of nothing.
    if (
        not children
        or len(set(codes)) != len(children)
        or any(not 0 <= code < 128 for code in codes)
    ):
        raise ValueError(f"union of {len(children)} members with type ids {codes[:8]}")
    return pa.union(
        children, mode=("sparse", "dense")[_checked(table.int16(4), 2)], type_codes=codes
    )


def _run_end(_table: FlatTable, children: list[pa.Field]) -> pa.DataType:
    if len(children) != 2:
        raise ValueError(f"{len(children)} children instead of 2")
    return pa.run_end_encoded(children[0].type, children[1].type)


def _always(kind: pa.DataType) -> Callable[[FlatTable, list[pa.Field]], pa.DataType]:
    return lambda _table, _children: kind


_TYPES: dict[int, Callable[[FlatTable, list[pa.Field]], pa.DataType]] = {
    1: _always(pa.null()),
    2: _integer,
    3: _floating,
    4: _always(pa.binary()),
    5: _always(pa.string()),
    6: _always(pa.bool_()),
    7: _decimal,
    8: _date,
    9: _time,
    10: _timestamp,
    11: _interval,
    12: lambda _table, children: pa.list_(_only(children)),
    13: lambda _table, children: pa.struct(children),
    14: _union,
    15: _fixed_binary,
    16: _fixed_list,
    17: _map,
    18: lambda table, _children: pa.duration(_unit(table, 4, 1)),
    19: _always(pa.large_binary()),
    20: _always(pa.large_string()),
    21: lambda _table, children: pa.large_list(_only(children)),
    22: _run_end,
    25: lambda _table, children: pa.list_view(_only(children)),
    26: lambda _table, children: pa.large_list_view(_only(children)),
}
"""Type numbers of the specification's type union; views of text and bytes (23, 24) are missing
because their variadic buffers have no place in a Barrage batch."""

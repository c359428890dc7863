"""Decoders that make a row of each payload on its own: Avro, Protobuf, a function, and none.

Avro's library comes with the extra ``connectors``. What is made becomes Arrow columns in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from barrage.errors import ConfigError
from barrage.wire.payloads.decoding import PayloadError, one_each, row_sizes, short

if TYPE_CHECKING:
    from barrage.wire.payloads.decoding import Int64Array, PayloadSizes

PayloadFunction: TypeAlias = Callable[[bytes], "Mapping[str, Any] | Iterable[Mapping[str, Any]]"]
"""A row, or several, of a payload; any exception says that it cannot be decoded."""


class RawPayloads:
    """The payload itself is the column."""

    turn_messages = 8192

    def __init__(self, schema: pa.Schema) -> None:
        if len(schema) != 1 or schema.field(0).type not in (pa.binary(), pa.large_binary()):
            raise ConfigError("format raw wants one binary column for the payload")
        self.schema = schema

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        return row_sizes(self.schema, payloads)

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        return {}

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        column = payloads.cast(self.schema.field(0).type)
        return pa.table([column], schema=self.schema), one_each(len(payloads))


class FunctionDecoder:
    """A function of bytes; see :data:`PayloadFunction`."""

    turn_messages = 1024

    def __init__(self, schema: pa.Schema, function: PayloadFunction, *, what: str) -> None:
        self.schema = schema
        self._function = function
        self._what = what

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`. How many rows a function
        makes only it knows; one is taken for granted."""
        return row_sizes(self.schema, payloads)

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        found = {}
        for at, payload in enumerate(payloads.to_pylist()):
            try:
                self._rows_of(payload)
            except PayloadError as error:
                found[at] = str(error)
        return found

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        rows: list[Mapping[str, Any]] = []
        counts: list[int] = []
        for payload in payloads.to_pylist():
            before = len(rows)
            rows += self._rows_of(payload)
            counts.append(len(rows) - before)
        try:
            table = pa.Table.from_pylist(rows, schema=self.schema)
            table.validate(full=True)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError) as error:
            raise PayloadError(f"the payload is not {self._what} of this table: {error}") from None
        return table, np.repeat(one_each(len(counts)), counts)

    def _rows_of(self, payload: bytes) -> list[Mapping[str, Any]]:
        try:
            found = self._function(payload)
            return [found] if isinstance(found, Mapping) else list(found)
        except Exception as error:
            reason = short(f"{type(error).__name__}: {error}")
            raise PayloadError(f"the payload is not {self._what}: {reason}") from None


# --- Avro -----------------------------------------------------------------------------------------

_AVRO_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_AVRO_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}
REGISTRY_HEAD_BYTES = 5
"""Before the record, where a schema registry names the schema: a zero and its number."""


def avro_columns(schema: Mapping[str, Any]) -> pa.Schema:
    """The columns of a record schema; ConfigError for what no column can have. Each item of an
    array takes a byte at least, so no payload stands for more items than it has bytes."""
    if schema.get("type") != "record":
        raise ConfigError("the Avro schema of a source must be a record")
    return pa.schema([(f["name"], _avro_type(f["type"], f["name"])) for f in schema["fields"]])


def _avro_type(declared: Any, name: str) -> pa.DataType:
    if isinstance(declared, list):
        others = [each for each in declared if each != "null"]
        if len(others) == 1:
            return _avro_type(others[0], name)
    elif isinstance(declared, str):
        if declared in _AVRO_PLAIN:
            return _AVRO_PLAIN[declared]
    elif isinstance(declared, Mapping):
        logical, kind = declared.get("logicalType"), declared.get("type")
        if logical in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[logical]
        if logical == "decimal" and kind == "bytes":
            return pa.decimal128(declared["precision"], declared.get("scale", 0))
        if kind == "enum":
            return pa.string()
        if kind == "array":
            return pa.list_(_avro_type(declared["items"], name))
        if logical is None:
            return _avro_type(kind, name)
    raise ConfigError(f"field {name!r} of the Avro schema has no column type here: {declared}")


def avro_decoder(
    schema: pa.Schema, avro: Mapping[str, Any], *, has_registry_head: bool
) -> FunctionDecoder:
    """Records of one schema, without a container; ConfigError without the library."""
    try:
        import fastavro
        import fastavro.schema
    except ImportError:
        raise ConfigError("Avro needs a library: pip install 'barrage[connectors]'") from None
    avro_columns(avro)
    parsed = fastavro.schema.parse_schema(dict(avro))
    skipped = REGISTRY_HEAD_BYTES if has_registry_head else 0
    read = fastavro.schemaless_reader

    def row(payload: bytes) -> Mapping[str, Any]:
        if skipped and (len(payload) < skipped or payload[0]):
            raise ValueError("the head of a schema registry is missing")
        stream = BytesIO(payload)
        stream.seek(skipped)
        record: Any = read(stream, parsed, None)
        if stream.tell() != len(payload):
            raise ValueError(f"{len(payload) - stream.tell()} bytes are left over")
        found: Mapping[str, Any] = record
        return found

    return FunctionDecoder(schema, row, what="Avro")


# --- Protobuf -------------------------------------------------------------------------------------

_TIMESTAMP = "google.protobuf.Timestamp"


def protobuf_class(descriptor_set: bytes, message: str) -> Any:
    """The class of a message in a serialized FileDescriptorSet; ConfigError."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
        pool = descriptor_pool.DescriptorPool()
        if all(each.name != timestamp_pb2.DESCRIPTOR.name for each in files):
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        for each in files:
            pool.Add(each)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except Exception as error:
        raise ConfigError(f"message {message!r} of the Protobuf descriptors: {error}") from None


def _protobuf_type(field: Any) -> pa.DataType:
    plain = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.uint32(),
        field.CPPTYPE_UINT64: pa.uint64(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        found = pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    elif field.cpp_type == field.CPPTYPE_MESSAGE and field.message_type.full_name == _TIMESTAMP:
        found = pa.timestamp("ns", "UTC")
    elif field.cpp_type in plain:
        found = plain[field.cpp_type]
    else:
        raise ConfigError(f"field {field.name!r} of the Protobuf message has no column type here")
    return pa.list_(found) if field.is_repeated else found


def protobuf_columns(made: Any) -> pa.Schema:
    """The columns of a message class; ConfigError for what no column can have."""
    return pa.schema([(f.name, _protobuf_type(f)) for f in made.DESCRIPTOR.fields])


def protobuf_decoder(schema: pa.Schema, made: Any) -> FunctionDecoder:
    """One message in a payload. A field that has presence and is not there is null."""
    known = made.DESCRIPTOR.fields_by_name
    fields = [known[name] for name in schema.names if name in known]
    for each in fields:
        _protobuf_type(each)

    def row(payload: bytes) -> Mapping[str, Any]:
        message = made.FromString(payload)
        return {
            each.name: _value(each, getattr(message, each.name))
            for each in fields
            if not each.has_presence or message.HasField(each.name)
        }

    return FunctionDecoder(schema, row, what="Protobuf")


def _value(field: Any, value: Any) -> Any:
    if field.is_repeated:
        return [_one_value(field, each) for each in value]
    return _one_value(field, value)


def _one_value(field: Any, value: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return value.ToNanoseconds()
    return value

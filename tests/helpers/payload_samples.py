"""Payloads in the formats a source may send."""

from __future__ import annotations

import datetime
import io
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2

from barrage.wire.payloads.record_decoders import protobuf_class

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "ok", "type": "boolean"},
    ],
}
_AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=datetime.UTC)
AVRO_RECORDS: list[dict[str, Any]] = [
    {"id": 1, "who": None, "tags": [], "side": "BUY", "at": _AT, "ok": True},
    {"id": -(2**63), "who": "x", "tags": ["a", "b"], "side": "SELL", "at": _AT, "ok": False},
]


def avro_payload(record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(AVRO)), record)
    return out.getvalue()


def _descriptors() -> bytes:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    side = file.enum_type.add(name="Side")
    side.value.add(name="BUY", number=0)
    side.value.add(name="SELL", number=1)
    order = file.message_type.add(name="Order")
    for number, (name, kind, label) in enumerate(
        [
            ("id", kinds.TYPE_INT64, 1),
            ("who", kinds.TYPE_STRING, 1),
            ("tags", kinds.TYPE_STRING, 3),
            ("price", kinds.TYPE_DOUBLE, 1),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label)
    order.field.add(name="side", number=5, type=kinds.TYPE_ENUM, label=1, type_name=".t.Side")
    at = ".google.protobuf.Timestamp"
    order.field.add(name="at", number=6, type=kinds.TYPE_MESSAGE, label=1, type_name=at)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


DESCRIPTORS = _descriptors()


def protobuf_payload(**fields: Any) -> bytes:
    at = fields.pop("at", None)
    message = protobuf_class(DESCRIPTORS, "t.Order")(**fields)
    if at is not None:
        message.at.FromNanoseconds(at.ToNanoseconds())
    raw: bytes = message.SerializeToString()
    return raw


def arrow_stream(rows: pa.Table, *, compression: str | None = None) -> bytes:
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, rows.schema, options=options) as writer:
        writer.write_table(rows)
    raw: bytes = out.getvalue().to_pybytes()
    return raw

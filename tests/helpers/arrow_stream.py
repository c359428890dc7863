"""Streams as Arrow's own writer and reader have them, message by message: peers that share no code
with ours."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pyarrow as pa

from barrage.transport.ucx.sender import StreamMessage

_PREFIX = struct.Struct("<Ii")


def arrow_messages(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    emit_dictionary_deltas: bool = False,
) -> list[StreamMessage]:
    """What Arrow writes for these batches, cut into bare headers and bodies."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=emit_dictionary_deltas)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    messages = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        header = message.metadata.to_pybytes()
        if message.type == "schema":
            messages.append(StreamMessage(header))
        else:
            body = message.body if message.body is not None else pa.py_buffer(b"")
            messages.append(StreamMessage(header, [body], body.size))
    return messages


def read_by_arrow(messages: Iterable[tuple[bytes, bytes]]) -> pa.Table:
    """What Arrow's reader makes of headers and bodies, in their order."""
    parts = []
    for header, body in messages:
        padded = header + bytes(-len(header) % 8)
        parts += [_PREFIX.pack(0xFFFFFFFF, len(padded)), padded, body]
    parts.append(_PREFIX.pack(0xFFFFFFFF, 0))
    return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()

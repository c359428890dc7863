"""Arrow IPC record and dictionary batch headers, written from templates and read with checks.

Source: Arrow columnar format specification and barrage-wire.md section 3.4: version V5, no prefix,
no compression, nodes and buffers as vectors of two int64. Layout of a record batch header (byte
offsets; the two vectors start at multiples of eight):

    0 root | 4 vtable | 16 Message | 36 vtable | 48 RecordBatch | 68 n, nodes | .. b, buffers
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.wire.flatbuf import FlatTable, root_table
from barrage.wire.ipc_schema import (
    HEADER_SCHEMA,
    decode_schema,
    encapsulate_schema,
    encode_schema,
    list_unwrapped,
    list_wrapped,
    read_schema,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "HEADER_DICTIONARY",
    "HEADER_RECORD",
    "HEADER_SCHEMA",
    "BatchHeader",
    "OpenMessage",
    "decode_batch_header",
    "decode_schema",
    "encapsulate_schema",
    "encode_dictionary_header",
    "encode_record_header",
    "encode_schema",
    "list_unwrapped",
    "list_wrapped",
    "open_message",
    "read_batch",
    "read_schema",
]

HEADER_DICTIONARY = 2
HEADER_RECORD = 3
_VERSION_V5 = 4
_VERSION_MIN = 3  # V4

# Message (bodyLength, version, type), then RecordBatch (length), up to the count of nodes.
_RECORD = "<I6HiIqhBx5H2xiIqII"
_BODY_BYTES_AT = 24
_RECORD_LENGTH_AT = 56
_RECORD_BUFFERS_AT = 64
_RECORD_NODES_AT = 72
# The same with a DictionaryBatch (id, isDelta) in between.
_DICTIONARY = "<I6HiIqhBx5H2xiIqB3x5H2xiIqII"
_DICTIONARY_BUFFERS_AT = 96
_DICTIONARY_NODES_AT = 104


def encode_record_header(
    length: int, nodes: Sequence[int], buffers: Sequence[int], *, body_bytes: int
) -> bytes:
    """Header of a record batch; ``nodes`` and ``buffers`` are flat pairs."""
    node_bytes = 8 * len(nodes)
    return _layout(_RECORD, len(nodes), len(buffers)).pack(
        *(16, 12, 20, 16, 18, 4, 8),
        *(12, 28, body_bytes, _VERSION_V5, HEADER_RECORD),
        *(10, 20, 8, 4, 16, 12, 16, length),
        _RECORD_NODES_AT + node_bytes + 4 - _RECORD_BUFFERS_AT,
        len(nodes) >> 1,
        *nodes,
        len(buffers) >> 1,
        *buffers,
    )


class HeaderLongs(NamedTuple):
    """A record batch header as int64s, and which of them are the length, the bytes of the body, the
    first node and the first buffer."""

    template: NDArray[np.int64]
    length: int
    body_bytes: int
    nodes: int
    buffers: int


def record_header_longs(node_longs: int, buffer_longs: int) -> HeaderLongs:
    """The header of all record batches with so many numbers for nodes and buffers; those are 0."""
    header = encode_record_header(0, (0,) * node_longs, (0,) * buffer_longs, body_bytes=0)
    nodes = _RECORD_NODES_AT >> 3
    return HeaderLongs(
        template=np.frombuffer(header, np.int64),
        length=_RECORD_LENGTH_AT >> 3,
        body_bytes=_BODY_BYTES_AT >> 3,
        nodes=nodes,
        buffers=nodes + node_longs + 1,
    )


def encode_dictionary_header(
    dictionary_id: int,
    length: int,
    *,
    nodes: Sequence[int],
    buffers: Sequence[int],
    body_bytes: int,
    is_delta: bool = False,
) -> bytes:
    """Header of a dictionary batch."""
    node_bytes = 8 * len(nodes)
    return _layout(_DICTIONARY, len(nodes), len(buffers)).pack(
        *(16, 12, 20, 16, 18, 4, 8),
        *(12, 28, body_bytes, _VERSION_V5, HEADER_DICTIONARY),
        *(10, 20, 8, 4, 16, 12, 28, dictionary_id, is_delta),
        *(10, 20, 8, 4, 16, 12, 16, length),
        _DICTIONARY_NODES_AT + node_bytes + 4 - _DICTIONARY_BUFFERS_AT,
        len(nodes) >> 1,
        *nodes,
        len(buffers) >> 1,
        *buffers,
    )


@lru_cache(maxsize=256)
def _layout(head: str, node_longs: int, buffer_longs: int) -> struct.Struct:
    """``head``, node structs, the count of buffers, buffer structs; the same for every batch of a
    table."""
    return struct.Struct(f"{head}{node_longs}q4xI{buffer_longs}q")


class BatchHeader(NamedTuple):
    """What a record or dictionary batch header says. ``nodes`` and ``buffers`` are flat pairs whose
    values are not checked yet; ``dictionary_id`` is None for record batches."""

    length: int
    nodes: tuple[int, ...]
    buffers: tuple[int, ...]
    dictionary_id: int | None
    is_delta: bool


class OpenMessage(NamedTuple):
    """An IPC message whose kind is known: one of the HEADER_ numbers, or a number to refuse."""

    kind: int
    table: FlatTable


def open_message(header: bytes) -> OpenMessage:
    """Look at a bare message header; raises RemoteProtocolError when it is malformed."""
    message = root_table(header)
    version = message.int16(4)
    if version < _VERSION_MIN:
        raise RemoteProtocolError(f"Arrow metadata version {version + 1} is too old")
    return OpenMessage(message.uint8(6), message)


def read_batch(message: OpenMessage, body_bytes: int) -> BatchHeader:
    """The record or dictionary batch header in ``message``, for a body of ``body_bytes``."""
    content = message.table.table(8)
    if content is None:
        raise RemoteProtocolError("Arrow message without header")
    said = message.table.int64(10)
    if said != body_bytes:
        raise RemoteProtocolError(f"Arrow message says {said} bytes of body, not {body_bytes}")
    if message.kind == HEADER_RECORD:
        return _record(content, None, False)
    if message.kind != HEADER_DICTIONARY:
        raise RemoteProtocolError(f"Arrow message of kind {message.kind} is no batch")
    data = content.table(6)
    if data is None:
        raise RemoteProtocolError("dictionary batch without data")
    return _record(data, content.int64(4), content.boolean(8))


def decode_batch_header(header: bytes, body_bytes: int) -> BatchHeader:
    """Read a record or dictionary batch header for a body of ``body_bytes``."""
    return read_batch(open_message(header), body_bytes)


def _record(table: FlatTable, dictionary_id: int | None, is_delta: bool) -> BatchHeader:
    if table.has(10):
        raise RemoteProtocolError("compressed record batches are not supported")
    length = table.int64(4)
    if length < 0:
        raise RemoteProtocolError(f"record batch of {length} rows")
    return BatchHeader(
        length=length,
        nodes=table.longs(6, element_longs=2) or (),
        buffers=table.longs(8, element_longs=2) or (),
        dictionary_id=dictionary_id,
        is_delta=is_delta,
    )

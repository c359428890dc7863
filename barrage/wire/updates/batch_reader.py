"""Schema, dictionary and record batch messages of one stream to columns, strictly checked.

This is not a Barrage receiver (:mod:`barrage.wire.updates.update_assembler` is); it is what that
receiver and the reader of plain Flight uploads share. Source: barrage-wire.md sections 3.3, 3.4,
8.5 and 12.4. Columns of one batch may differ in length, which is why pyarrow's own reader cannot be
used.

Cost: columns are views of the received body. A body that does not start at a multiple of eight is
copied once, since not every consumer of Arrow arrays takes unaligned ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.columns.base import BatchSource, ColumnCodec, DictionaryStore
from barrage.wire.columns.dictionaries import DictionaryCodec
from barrage.wire.columns.registry import CodecStyle, UnknownTypeError, codec_for
from barrage.wire.ipc import (
    HEADER_DICTIONARY,
    HEADER_RECORD,
    HEADER_SCHEMA,
    OpenMessage,
    open_message,
    read_batch,
)
from barrage.wire.ipc_schema import list_unwrapped, read_schema

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.wire.frame import FlightFrame
    from barrage.wire.ipc import BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReceived:
    """The schema of everything that follows; lists around columns are already taken off."""

    schema: pa.Schema


class ReceivedBatch(NamedTuple):
    """One record batch: the row count it states, and columns that may be shorter."""

    rows: int
    columns: tuple[pa.Array, ...]


class BatchReader:
    """Reads the Arrow side of a stream. ``columns_as_list`` says that the peer was asked to wrap
    columns, ``use_deephaven_nulls`` that it was asked to put nulls into values."""

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        *,
        columns_as_list: bool = False,
        use_deephaven_nulls: bool = False,
    ) -> None:
        self._limits = limits
        self._as_list = columns_as_list
        self._style = CodecStyle(use_deephaven_nulls=use_deephaven_nulls)
        self._codecs: tuple[ColumnCodec, ...] = ()
        self._names: tuple[str, ...] = ()
        self._node_count = 0
        self._buffer_count = 0
        self._dictionaries = DictionaryStore()
        self._dictionary_values: dict[int, ColumnCodec] = {}
        self.schema: pa.Schema | None = None

    def receive(self, frame: FlightFrame) -> SchemaReceived | ReceivedBatch | None:
        """Take the next message; dictionaries give None.

        Raises RemoteProtocolError for anything malformed or out of order.
        """
        if frame.header is None:
            raise RemoteProtocolError("message without Arrow header")
        message = open_message(frame.header)
        if message.kind == HEADER_SCHEMA:
            return self._take_schema(frame.header)
        if self.schema is None:
            raise RemoteProtocolError("batch before the schema")
        if message.kind == HEADER_RECORD:
            return self._take_record(message, _aligned(frame.body))
        if message.kind == HEADER_DICTIONARY:
            self._take_dictionary(message, _aligned(frame.body))
            return None
        raise RemoteProtocolError(f"Arrow message of kind {message.kind} is not supported")

    def empty_columns(self) -> tuple[pa.Array, ...]:
        """One array without rows per column."""
        return tuple(codec.empty() for codec in self._codecs)

    def _take_schema(self, header: bytes) -> SchemaReceived:
        if self.schema is not None:
            raise RemoteProtocolError("second schema on one stream")
        received = read_schema(header, self._limits)
        schema = list_unwrapped(received.schema) if self._as_list else received.schema
        codecs = []
        for field, ids in zip(schema, received.dictionary_ids, strict=True):
            try:
                codecs.append(codec_for(field.type, self._style, iter(ids)))
            except UnknownTypeError as error:
                raise RemoteProtocolError(
                    f"column {field.name!r} of type {error} is not supported"
                ) from error
        self._codecs = tuple(codecs)
        self._names = tuple(schema.names)
        lists = len(codecs) if self._as_list else 0
        self._node_count = sum(codec.node_count for codec in codecs) + lists
        self._buffer_count = sum(codec.buffer_count for codec in codecs) + 2 * lists
        self._dictionary_values = _dictionary_values(codecs)
        self.schema = schema
        return SchemaReceived(schema=schema)

    def _source(
        self, header: BatchHeader, body: pa.Buffer, node_count: int, *, buffer_count: int
    ) -> BatchSource:
        """A source over exactly the nodes and buffers that are expected."""
        if len(header.nodes) != 2 * node_count or len(header.buffers) != 2 * buffer_count:
            raise RemoteProtocolError(
                f"batch has {len(header.nodes) // 2} nodes and {len(header.buffers) // 2} buffers, "
                f"its schema {node_count} and {buffer_count}"
            )
        return BatchSource(
            header.nodes,
            header.buffers,
            body,
            dictionaries=self._dictionaries,
            repeated_rows_max=self._limits.ingest_batch_rows_max,
        )

    def _take_dictionary(self, message: OpenMessage, body: pa.Buffer) -> None:
        header = read_batch(message, body.size)
        assert header.dictionary_id is not None
        codec = self._dictionary_values.get(header.dictionary_id)
        if codec is None:
            raise RemoteProtocolError(f"no column uses dictionary {header.dictionary_id}")
        source = self._source(header, body, codec.node_count, buffer_count=codec.buffer_count)
        source.column = f"dictionary {header.dictionary_id}"
        values = codec.decode(source)
        if len(values) != header.length:
            raise source.fail(f"{len(values)} values, its header says {header.length}")
        self._dictionaries.put(header.dictionary_id, values, is_delta=header.is_delta)

    def _take_record(self, message: OpenMessage, body: pa.Buffer) -> ReceivedBatch:
        header = read_batch(message, body.size)
        source = self._source(header, body, self._node_count, buffer_count=self._buffer_count)
        columns = []
        for name, codec in zip(self._names, self._codecs, strict=True):
            source.column = name
            columns.append(_unlisted(source, codec) if self._as_list else codec.decode(source))
        if not self._as_list:
            return ReceivedBatch(header.length, tuple(columns))
        if header.length != 1:
            raise RemoteProtocolError(f"batch of lists has {header.length} rows instead of 1")
        return ReceivedBatch(max(map(len, columns), default=0), tuple(columns))


def _unlisted(source: BatchSource, codec: ColumnCodec) -> pa.Array:
    """The elements of the one list around a column (section 8.5)."""
    rows, nulls = source.node()
    if rows != 1 or nulls:
        raise source.fail(f"{rows} lists with {nulls} nulls around the column, expected one list")
    source.validity(rows, nulls)
    first, last = memoryview(source.buffer(8)).cast("B")[:8].cast("i")
    column = codec.decode(source)
    if not 0 <= first <= last <= len(column):
        raise source.fail(f"list from {first} to {last} of {len(column)} elements")
    return column if last - first == len(column) else column.slice(first, last - first)


def _dictionary_values(codecs: list[ColumnCodec]) -> dict[int, ColumnCodec]:
    """Codec of the values of every dictionary the columns refer to, at any depth."""
    values: dict[int, ColumnCodec] = {}
    pending = list(codecs)
    while pending:
        codec = pending.pop()
        if isinstance(codec, DictionaryCodec):
            known = values.setdefault(codec.dictionary_id, codec.values)
            if known.arrow_type != codec.values.arrow_type:
                raise RemoteProtocolError(f"dictionary {codec.dictionary_id} has two value types")
        pending.extend(codec.children())
    return values


def _aligned(body: bytes | memoryview | None) -> pa.Buffer:
    """The body as a buffer that starts at a multiple of eight."""
    if body is None:
        body = b""
    buffer = pa.py_buffer(body)
    return pa.py_buffer(bytes(body)) if buffer.address & 7 else buffer

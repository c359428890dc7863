"""How messages of one program become rows of one table: what is declared, and what it does.

A mapping names a table, a format, and which columns come from where. A :class:`RowMapper` does it
for a table whose schema is known: messages as columns in; rows to write, keys to delete and what
was rejected out. Nothing here knows an engine or a connection: the worker uses it beside its
tables, and connectors that write to a server by themselves use it on their side.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import ConfigError, SchemaError
from barrage.model.schema_like import SchemaLike, schema_of
from barrage.wire.payloads.arrow_decoder import ArrowStreams
from barrage.wire.payloads.decoding import decode_payloads, one_each
from barrage.wire.payloads.record_decoders import (
    FunctionDecoder,
    RawPayloads,
    avro_columns,
    avro_decoder,
    protobuf_class,
    protobuf_columns,
    protobuf_decoder,
)
from barrage.wire.payloads.text_decoders import CsvRecords, JsonLines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.limits import Limits
    from barrage.wire.payloads.decoding import DecodeTurn, PayloadDecoder
    from barrage.wire.payloads.payload_batch import PayloadBatch
    from barrage.wire.payloads.record_decoders import PayloadFunction

PayloadFormat: TypeAlias = Literal["json", "csv", "avro", "protobuf", "arrow", "python", "raw"]
BadPayload: TypeAlias = Literal["dead-letter", "skip", "error"]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]

_KEY_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())

REJECTED_SUFFIX = "__rejected"
"""Of the table that has what could not be decoded."""

REJECTED_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("message_id", pa.uint64()),
        ("event_time", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("reason", pa.string()),
    ]
)

LANDING_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("message_id", pa.uint64()),
        ("event_time", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)
"""Of tables that messages land in as they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceMapping:
    """What one program's messages are, and the table they go to. Two are the same when they are one
    object.

    ConfigError for what does not go together.
    """

    program: str
    """Programs it is for: a name, or a pattern with ``*`` and ``?``."""
    table: str = "{program}"
    """``{program}`` stands for the program's name."""
    instance: str = "*"
    """Pattern of the instances it is for."""
    streams: str = "*"
    """Pattern of the streams that are taken; others are refused."""
    format: PayloadFormat = "json"
    columns: SchemaLike | None = None
    """Of the table, when there is none; also the order of fields in CSV."""
    key: tuple[str, ...] = ()
    """Rows are upserted by these columns; without any they are appended."""
    stream_column: str | None = None
    """The column that gets the name of the stream."""
    id_column: str | None = None
    """The column that gets the message's id."""
    key_column: str | None = None
    """The column that gets the message's key, as text or bytes. When it is the table's only key, a
    message with a key and without a payload deletes that row."""
    time_column: str | None = None
    """The column that gets the message's event time."""
    time_unit: TimeUnit | None = None
    """What the event time counts, since 1970; none leaves the number as it is."""
    delete_column: str | None = None
    """A field of the payload (it need be no column of the table) that says whether the row of this
    key is to be deleted."""
    delete_value: str | int | bool = True
    """What it says then."""
    on_bad_payload: BadPayload = "dead-letter"
    ignores_unknown: bool = True
    """Of JSON: whether fields that the table does not have are left out; else they are an error."""
    delimiter: str = ","
    avro_schema: Mapping[str, Any] | None = None
    avro_registry: bool = False
    """Whether Avro records stand behind the five bytes of a schema registry."""
    protobuf_descriptors: bytes | None = None
    """A serialized FileDescriptorSet."""
    protobuf_message: str | None = None
    """The full name of the message."""
    function: PayloadFunction | None = None
    """Of format python: bytes to a row or rows."""

    def __post_init__(self) -> None:
        needs = {
            "avro": ("avro_schema", self.avro_schema),
            "protobuf": ("protobuf_descriptors and protobuf_message", self.protobuf_message),
            "python": ("function", self.function),
        }
        missing = needs.get(self.format)
        if missing is not None and missing[1] is None:
            raise ConfigError(f"format {self.format} needs {missing[0]}")
        if self.format == "protobuf" and self.protobuf_descriptors is None:
            raise ConfigError("format protobuf needs protobuf_descriptors")
        if self.delete_column is not None and not self.key:
            raise ConfigError("delete_column needs a key: rows are deleted by it")
        if (self.time_unit is not None) and self.time_column is None:
            raise ConfigError("time_unit needs time_column")
        if len(self.delimiter) != 1 or not self.delimiter.isascii():
            raise ConfigError(f"delimiter is {self.delimiter!r}, it must be one ASCII character")

    @classmethod
    def landing(cls) -> SourceMapping:
        """How messages of any program land as they are, in a table of its name with
        :data:`LANDING_SCHEMA`."""
        return cls(
            program="*",
            format="raw",
            columns=LANDING_SCHEMA,
            stream_column="stream",
            id_column="message_id",
            time_column="event_time",
            key_column="key",
        )

    def is_for(self, program: str, instance: str) -> bool:
        """Whether connections of this program and instance use it."""
        return fnmatch.fnmatchcase(program, self.program) and fnmatch.fnmatchcase(
            instance, self.instance
        )

    def takes_stream(self, name: str) -> bool:
        """Whether the stream with this name is one of it."""
        return fnmatch.fnmatchcase(name, self.streams)

    def table_of(self, program: str) -> str:
        """The name of the table for a program."""
        return self.table.replace("{program}", program)

    def new_schema(self) -> pa.Schema:
        """The schema of the table where there is none; ConfigError when nothing says it."""
        if self.columns is not None:
            return schema_of(self.columns)
        if self.avro_schema is not None:
            found = avro_columns(self.avro_schema)
        elif self.protobuf_descriptors is not None:
            found = protobuf_columns(self._protobuf_class())
        else:
            raise ConfigError(
                f"there is no table {self.table!r}, and columns say not how to make it"
            )
        found = pa.schema([f for f in found if f.name != self.delete_column])
        for name, data_type in self._message_columns().items():
            if name not in found.names:
                found = found.append(pa.field(name, data_type))
        return found

    def _message_columns(self) -> dict[str, pa.DataType]:
        """Columns that come from the message around the payload, with their usual types."""
        time = pa.int64() if self.time_unit is None else pa.timestamp(self.time_unit, "UTC")
        named = {
            self.stream_column: pa.string(),
            self.id_column: pa.uint64(),
            self.time_column: time,
            self.key_column: pa.string(),
        }
        return {name: data_type for name, data_type in named.items() if name is not None}

    def _protobuf_class(self) -> Any:
        assert self.protobuf_descriptors is not None
        assert self.protobuf_message is not None
        return protobuf_class(self.protobuf_descriptors, self.protobuf_message)

    def mapper(self, schema: pa.Schema, *, limits: Limits) -> RowMapper:
        """What maps messages to rows of a table with ``schema``. ConfigError, SchemaError."""
        own = self._message_columns()
        for name in (*own, *self.key):
            if name not in schema.names:
                raise SchemaError(f"the table has no column {name!r}, which its source names")
        if self.key_column is not None and schema.field(self.key_column).type not in _KEY_TYPES:
            raise SchemaError(f"column {self.key_column!r} of message keys must be text or binary")
        decoded = [f for f in schema if f.name not in own]
        if self.delete_column is not None and self.delete_column not in schema.names:
            kinds = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
            decoded.append(pa.field(self.delete_column, kinds[type(self.delete_value)]))
        return RowMapper(self, schema, self._decoder(pa.schema(decoded), limits))

    def _decoder(self, schema: pa.Schema, limits: Limits) -> PayloadDecoder:
        if self.format == "json":
            return JsonLines(schema, ignores_unknown=self.ignores_unknown)
        if self.format == "csv":
            declared = schema if self.columns is None else schema_of(self.columns)
            names = [name for name in declared.names if name in schema.names]
            if self.delete_column is not None and self.delete_column not in names:
                names.append(self.delete_column)
            return CsvRecords(schema, columns=tuple(names), delimiter=self.delimiter)
        if self.format == "avro":
            assert self.avro_schema is not None
            return avro_decoder(schema, self.avro_schema, has_registry_head=self.avro_registry)
        if self.format == "protobuf":
            return protobuf_decoder(schema, self._protobuf_class())
        if self.format == "arrow":
            return ArrowStreams(
                schema,
                rows_max=limits.connector_payload_rows_max,
                bytes_max=limits.connector_decoded_bytes_max,
            )
        if self.format == "python":
            assert self.function is not None
            return FunctionDecoder(schema, self.function, what="what the function takes")
        return RawPayloads(schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedRows:
    """What a batch of messages does to its table, in this order: rows are added or upserted, keys
    deleted. No key is in both, nor twice in one."""

    rows: pa.Table
    deleted: pa.Table | None
    """Key columns of rows to delete."""
    rejected: pa.Table
    """With :data:`REJECTED_SCHEMA`."""
    row_ids: pa.UInt64Array
    """Of each row, the id of its message."""
    deleted_ids: pa.UInt64Array | None = None


class RowMapper:
    """Maps messages to rows. Pure; may be used on any one thread."""

    def __init__(self, mapping: SourceMapping, schema: pa.Schema, decoder: PayloadDecoder) -> None:
        self.mapping = mapping
        self.schema = schema
        self._decoder = decoder
        only_key = mapping.key == (mapping.key_column,)
        self._deletes_by_key = only_key

    @property
    def turn_messages(self) -> int:
        """So many messages take some milliseconds, when they are short."""
        return self._decoder.turn_messages

    def map(self, batch: PayloadBatch, turn: DecodeTurn | None = None) -> MappedRows:
        """Rows, deletions, and what was rejected. TurnExceededError."""
        filled = pc.indices_nonzero(pc.binary_length(batch.payloads))
        deleted = None
        if len(filled) < len(batch):
            if self._deletes_by_key:
                is_deletion = pc.and_(
                    pc.equal(pc.binary_length(batch.payloads), 0),
                    pc.fill_null(pc.greater(pc.binary_length(batch.keys), 0), False),
                )
                deleted = pc.indices_nonzero(is_deletion)
            whole, batch = batch, batch.take(filled)
        done = decode_payloads(self._decoder, batch.payloads, turn)
        origins = pa.array(done.origins)
        rows = self._filled_in(done.rows, batch, origins)
        rejected = list(done.rejected)
        if self.mapping.key:
            rows, origins = self._without_null_keys(rows, origins, rejected)
        order: pa.Array | None = None
        marks = None
        if deleted is not None and len(deleted):
            gone = whole.take(deleted)
            order = pa.concat_arrays([filled.take(origins), deleted]).cast(pa.int64())
            marks = np.repeat([False, True], [len(rows), len(gone)])
            keys = pa.table({self.mapping.key[0]: self._key_values(gone)})
            rows = pa.concat_tables([rows, keys], promote_options="default")
            ids = pa.concat_arrays([batch.ids.take(origins), gone.ids])
        else:
            ids = batch.ids.take(origins)
        told = self._rejected(batch, rejected)
        return self._split(rows, ids, order=order, marks=marks, rejected=told)

    def rejected(self, batch: PayloadBatch, reason: str) -> MappedRows:
        """No rows: all messages are rejected."""
        told = self._rejected(batch, [(at, reason) for at in range(len(batch))])
        no_ids = pa.array([], pa.uint64())
        rows = self.schema.empty_table()
        return MappedRows(rows=rows, deleted=None, rejected=told, row_ids=no_ids)

    def _filled_in(self, rows: pa.Table, batch: PayloadBatch, origins: pa.Array) -> pa.Table:
        """The decoded columns and those of the messages, in the table's order, and the one that
        says what is deleted."""
        mapping = self.mapping
        sources = {
            mapping.stream_column: batch.streams,
            mapping.id_column: batch.ids,
            mapping.time_column: self._times(batch.event_times),
        }
        columns = {name: rows[name] for name in rows.column_names}
        # As many rows as messages may also be two of one and none of another.
        numbers = origins.to_numpy()
        is_one_each = len(numbers) == len(batch) and np.array_equal(numbers, one_each(len(batch)))
        for name, values in sources.items():
            if name is not None:
                taken = values if is_one_each else values.take(origins)
                columns[name] = taken.cast(self.schema.field(name).type, safe=False)
        if mapping.key_column is not None:
            keys = self._key_values(batch)
            columns[mapping.key_column] = keys if is_one_each else keys.take(origins)
        names = list(self.schema.names)
        if mapping.delete_column is not None and mapping.delete_column not in names:
            names.append(mapping.delete_column)
        return pa.table({name: columns[name] for name in names})

    def _times(self, times: pa.Int64Array) -> pa.Array:
        unit = self.mapping.time_unit
        if unit is None:
            return times
        absent = pc.equal(times, 0)
        return pc.if_else(absent, pa.scalar(None, pa.int64()), times).cast(
            pa.timestamp(unit, "UTC")
        )

    def _key_values(self, batch: PayloadBatch) -> pa.Array:
        """Keys of messages as the column has them; bytes that are no text become null."""
        assert self.mapping.key_column is not None
        kind = self.schema.field(self.mapping.key_column).type
        try:
            return batch.keys.cast(kind)
        except pa.ArrowInvalid:
            texts = [_text_or_none(each) for each in batch.keys.to_pylist()]
            return pa.array(texts, pa.string()).cast(kind)

    def _without_null_keys(
        self, rows: pa.Table, origins: pa.Array, rejected: list[tuple[int, str]]
    ) -> tuple[pa.Table, pa.Array]:
        """All rows of a payload go when the key of one is null."""
        nulls = np.zeros(len(rows), bool)
        for name in self.mapping.key:
            if rows[name].null_count:
                nulls |= rows[name].is_null().to_numpy()
        if not nulls.any():
            return rows, origins
        at = origins.to_numpy()
        bad = np.unique(at[nulls])
        names = ", ".join(self.mapping.key)
        rejected += [(int(each), f"a key column is null: {names}") for each in bad]
        rejected.sort()
        kept = pa.array(~np.isin(at, bad))
        return rows.filter(kept), origins.filter(kept)

    def _split(
        self,
        rows: pa.Table,
        ids: pa.Array,
        *,
        order: pa.Array | None,
        marks: np.ndarray[Any, Any] | None,
        rejected: pa.Table,
    ) -> MappedRows:
        """Rows and deletions: of each key the last one counts."""
        mapping = self.mapping
        if not mapping.key:
            return MappedRows(rows=rows, deleted=None, rejected=rejected, row_ids=ids)
        is_deleted = np.zeros(len(rows), bool) if marks is None else marks
        if mapping.delete_column is not None:
            said = pc.fill_null(pc.equal(rows[mapping.delete_column], mapping.delete_value), False)
            is_deleted = is_deleted | said.to_numpy()
            if mapping.delete_column not in self.schema.names:
                rows = rows.drop_columns([mapping.delete_column])
        last = self._last_of_each_key(rows, order)
        is_deleted = is_deleted[last]
        kept, gone = pa.array(last[~is_deleted]), pa.array(last[is_deleted])
        deleted = rows.select(list(mapping.key)).take(gone) if len(gone) else None
        return MappedRows(
            rows=rows.take(kept),
            deleted=deleted,
            rejected=rejected,
            row_ids=ids.take(kept),
            deleted_ids=ids.take(gone) if len(gone) else None,
        )

    def _last_of_each_key(self, rows: pa.Table, order: pa.Array | None) -> np.ndarray[Any, Any]:
        """Positions of the rows that count, in the order of the messages."""
        places = np.arange(len(rows)) if order is None else order.to_numpy()
        sequence = np.lexsort((np.arange(len(rows)), places))
        keys = rows.select(list(self.mapping.key)).take(pa.array(sequence))
        numbered = keys.append_column("", pa.array(np.arange(len(rows))))
        last = numbered.group_by(list(self.mapping.key), use_threads=False)
        found = last.aggregate([("", "max")])["_max"].to_numpy()
        chosen: np.ndarray[Any, Any] = sequence[np.sort(found)]
        return chosen

    def _rejected(self, batch: PayloadBatch, rejected: list[tuple[int, str]]) -> pa.Table:
        if not rejected:
            return REJECTED_SCHEMA.empty_table()
        chosen = batch.take(pa.array([each for each, _ in rejected], pa.int64()))
        reasons = pa.array([reason for _, reason in rejected], pa.string())
        return pa.table(
            [chosen.streams, chosen.ids, chosen.event_times, chosen.keys, chosen.payloads, reasons],
            schema=REJECTED_SCHEMA,
        )


def _text_or_none(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None

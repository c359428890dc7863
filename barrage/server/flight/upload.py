"""What arrives on a DoPut call: where it goes, and its record batches.

Frames hold Arrow IPC messages split into header and body; they are put together again and read by
Arrow, which knows compression, dictionaries and every type. What it reads is validated in full
before anybody touches it: offsets from a peer are not to be believed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import LimitExceededError, RemoteProtocolError, UnsupportedError
from barrage.server.config import JOURNAL_CLASSES
from barrage.server.flight.arrow_messages import check_decompressed_size, read_schema_message
from barrage.server.flight.catalog_calls import parse_json_object, string_list
from barrage.server.producer_positions import check_producer, check_sequence
from barrage.server.tickets import (
    SCOPE_ROUTE,
    check_table_name,
    table_name_of_descriptor,
    table_name_of_ticket,
)
from barrage.wire.messages import SerializationOptions
from barrage.wire.metadata import WrongMagicError, decode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.flight_messages import Descriptor
    from barrage.wire.frame import FlightFrame

MODES = ("append", "upsert", "create", "replace", "delete")
_COMMAND_FIELDS = frozenset(
    {"table", "mode", "key", "kind", "capacity", "journal", "producer", "sequence"}
)
_CONTINUATION = struct.pack("<i", -1)
_END_OF_STREAM = _CONTINUATION + struct.pack("<i", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCommand:
    """Where rows go and how: the meaning of a DoPut descriptor."""

    table: str
    mode: str | None = None
    """One of :data:`MODES`; None is upsert for a table with a key and append for others."""
    key: tuple[str, ...] = ()
    kind: str | None = None
    capacity: int | None = None
    journal: str | None = None
    """The journal of a table that is made; None for the server's default."""
    producer: str | None = None
    """Who numbers the batches, so that a batch that was sent before is known."""
    sequence: int | None = None
    """The number of the first batch; each further one has the next, unless it carries its own."""

    @classmethod
    def parse(cls, descriptor: Descriptor, limits: Limits) -> PutCommand:
        """A path or a ticket names a table; a JSON command says more. TicketError or
        RemoteProtocolError."""
        command = descriptor.command
        if command is None:
            return cls(table=check_table_name(table_name_of_descriptor(descriptor, limits)))
        if command.startswith(SCOPE_ROUTE):
            return cls(table=check_table_name(table_name_of_ticket(command, limits)))
        return cls._from_json(parse_json_object(command, "put command"))

    @classmethod
    def _from_json(cls, fields: dict[str, object]) -> PutCommand:
        unknown = sorted(fields.keys() - _COMMAND_FIELDS)
        if unknown:
            raise RemoteProtocolError(f"unknown field {unknown[0]!r} in the put command")
        mode, kind, capacity = fields.get("mode"), fields.get("kind"), fields.get("capacity")
        if mode is not None and mode not in MODES:
            raise RemoteProtocolError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        if kind is not None and not isinstance(kind, str):
            raise RemoteProtocolError("'kind' must be a text")
        if capacity is not None and (not isinstance(capacity, int) or isinstance(capacity, bool)):
            raise RemoteProtocolError("'capacity' must be a whole number")
        journal, producer, sequence = (
            fields.get(name) for name in ("journal", "producer", "sequence")
        )
        if journal is not None and journal not in JOURNAL_CLASSES:
            raise RemoteProtocolError(
                f"journal {journal!r} is not one of {', '.join(JOURNAL_CLASSES)}"
            )
        if sequence is not None and producer is None:
            raise RemoteProtocolError("'sequence' needs a 'producer'")
        return cls(
            table=check_table_name(fields.get("table")),
            mode=None if mode is None else str(mode),
            key=string_list(fields, "key"),
            kind=kind,
            capacity=capacity,
            journal=None if journal is None else str(journal),
            producer=None if producer is None else check_producer(producer),
            sequence=None if sequence is None else check_sequence(sequence),
        )


class BatchReader:
    """Turns the frames of one upload into record batches."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._schema_message = b""
        self._dictionaries: list[bytes] = []
        self._dictionary_bytes = 0

    @property
    def schema(self) -> pa.Schema | None:
        """The upload's schema, once it has come."""
        return self._schema

    def read(self, frame: FlightFrame) -> pa.RecordBatch | None:
        """The record batch in a frame; None for a schema, a dictionary or a frame without data.

        Raises RemoteProtocolError for anything that is not valid Arrow, LimitExceededError.
        """
        if frame.header is None:
            check_upload_options(frame.metadata, self._limits)
            return None
        if frame.body is not None:
            check_decompressed_size(frame.header, frame.body, self._limits)
        message_bytes = _encapsulated(frame.header, frame.body)
        try:
            message = pa.ipc.read_message(pa.py_buffer(message_bytes))
            if message.type == "schema":
                self._take_schema(message_bytes)
                return None
            if self._schema is None:
                raise RemoteProtocolError("an upload starts with its schema")
            if message.type == "dictionary":
                self._take_dictionary(message_bytes)
                return None
            return self._validated(message, message_bytes)
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise RemoteProtocolError(f"not a valid Arrow message: {error}") from error

    def _take_schema(self, message_bytes: bytes) -> None:
        if self._schema is not None:
            raise RemoteProtocolError("an upload has one schema")
        self._schema = read_schema_message(message_bytes)
        self._schema_message = message_bytes

    def _take_dictionary(self, message_bytes: bytes) -> None:
        self._dictionary_bytes += len(message_bytes)
        if self._dictionary_bytes > self._limits.ingest_bytes_pending_max:
            raise LimitExceededError(
                "dictionaries of one upload",
                actual=self._dictionary_bytes,
                maximum=self._limits.ingest_bytes_pending_max,
                unit="bytes",
            )
        self._dictionaries.append(message_bytes)

    def _validated(self, message: pa.Message, message_bytes: bytes) -> pa.RecordBatch:
        if self._dictionaries:
            stream = b"".join(
                (self._schema_message, *self._dictionaries, message_bytes, _END_OF_STREAM)
            )
            batch = pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch()
        else:
            batch = pa.ipc.read_record_batch(message, self._schema)
        if batch.num_rows > self._limits.ingest_batch_rows_max:
            raise LimitExceededError(
                "record batch",
                actual=batch.num_rows,
                maximum=self._limits.ingest_batch_rows_max,
                unit="rows",
            )
        batch.validate(full=True)
        return batch


def check_upload_options(metadata: bytes | None, limits: Limits) -> None:
    """A frame without data may announce how the upload is encoded (barrage-wire.md section 3.6).

    Only the plain encoding is understood; another one would be read as wrong values, so it is
    refused with UnsupportedError.
    """
    if not metadata:
        return
    try:
        options = decode_wrapper(metadata, WireRevision.R1_0_0, limits)
    except WrongMagicError:
        return
    if not isinstance(options, SerializationOptions):
        raise RemoteProtocolError("only serialization options may precede an upload")
    if options.options.use_deephaven_nulls or options.options.columns_as_list:
        raise UnsupportedError(
            "uploads are plain Arrow: no Deephaven nulls, no lists around columns"
        )


def _encapsulated(header: bytes, body: bytes | memoryview | None) -> bytes:
    """Header and body as one encapsulated IPC message: marker, padded length, header, body."""
    padding = -len(header) % 8
    prefix = _CONTINUATION + struct.pack("<i", len(header) + padding)
    return b"".join((prefix, header, bytes(padding), b"" if body is None else body))

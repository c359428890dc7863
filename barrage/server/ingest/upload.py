"""What arrives on a DoPut call: where it goes, and its record batches.

Frames hold Arrow IPC messages split into header and body; they are put together again and read by
Arrow, which knows compression, dictionaries and every type. What it reads is validated in full
before anybody touches it: offsets from a peer are not to be believed.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from barrage.errors import LimitExceededError, RemoteProtocolError, UnsupportedError
from barrage.model.schema_message import read_schema_message
from barrage.server.ingest.arrow_messages import check_decompressed_size
from barrage.server.journaling.producer_positions import (
    check_number_of_epoch,
    check_producer,
    check_sequence,
)
from barrage.server.settings.config import JournalClass
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.tickets import (
    SCOPE_ROUTE,
    check_table_name,
    table_name_of_descriptor,
    table_name_of_ticket,
)
from barrage.wire.columns.sentinels import nulls_for_sentinels
from barrage.wire.ipc import HEADER_DICTIONARY, HEADER_RECORD, HEADER_SCHEMA, open_message
from barrage.wire.messages import SerializationOptions
from barrage.wire.metadata import WrongMagicError, decode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.flight_messages import Descriptor
    from barrage.wire.frame import FlightFrame
    from barrage.wire.messages import SubscriptionOptions

Mode = Literal["append", "upsert", "create", "replace", "delete"]

COPIED_AT_ONCE_BYTES_MAX = 1024 * 1024
"""Longer bodies are copied without the interpreter's lock."""

_CONTINUATION = struct.pack("<i", -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCommand:
    """Where rows go and how: the meaning of a DoPut descriptor."""

    table: str
    mode: Mode | None = None
    """None is upsert for a table with a key and append for others."""
    key: tuple[str, ...] = ()
    kind: str | None = None
    capacity: int | None = None
    journal: JournalClass | None = None
    """The journal of a table that is made; None for the server's default."""
    producer: str | None = None
    """Who numbers the batches, so that a batch that was sent before is known."""
    sequence: int | None = None
    """The number of the first batch; each further one has the next, unless it carries its own."""
    epoch: int | None = None
    """That of a writer which goes on after it lost a connection; None for one that begins."""

    @classmethod
    def parse(cls, descriptor: Descriptor, limits: Limits) -> PutCommand:
        """A path or a ticket names a table; a JSON command says more. TicketError or
        RemoteProtocolError."""
        command = descriptor.command
        if command is None:
            return cls(table=check_table_name(table_name_of_descriptor(descriptor, limits)))
        if command.startswith(SCOPE_ROUTE):
            return cls(table=check_table_name(table_name_of_ticket(command, limits)))
        return cls._read(Fields.parse(command, "put command"))

    @classmethod
    def _read(cls, fields: Fields) -> PutCommand:
        producer, sequence, epoch = map(fields.value, ("producer", "sequence", "epoch"))
        read = cls(
            table=check_table_name(fields.value("table")),
            mode=fields.get("mode", Mode, None),
            key=fields.texts("key") or (),
            kind=fields.get("kind", str, None),
            capacity=fields.get("capacity", int, None),
            journal=fields.get("journal", JournalClass, None),
            producer=None if producer is None else check_producer(producer),
            sequence=None if sequence is None else check_sequence(sequence),
            epoch=None if epoch is None else check_number_of_epoch(epoch),
        )
        fields.finish()
        for name, value in (("sequence", sequence), ("epoch", epoch)):
            if value is not None and producer is None:
                raise RemoteProtocolError(f"{name!r} needs a 'producer'")
        return read


class UploadReader:
    """Turns the frames of one upload into record batches."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._schema_message: bytes | memoryview = b""
        self._dictionaries: _DictionaryStream | None = None
        self._has_deephaven_nulls = False

    @property
    def schema(self) -> pa.Schema | None:
        """The upload's schema, once it has come."""
        return self._schema

    def unpacked_bytes(self, frame: FlightFrame) -> int:
        """Bytes :meth:`read` looks at, those of a compressed body included, as it says. A record
        batch makes it read the dictionaries that have come before, and check those it has. The
        errors of its header."""
        if frame.header is None or frame.body is None:
            return 0
        told = check_decompressed_size(frame.header, frame.body, self._limits)
        weight = max(told, len(frame.body))
        if self._dictionaries is not None and _kind_of(frame.header) == HEADER_RECORD:
            weight += self._dictionaries.byte_count
        return weight

    def read(self, frame: FlightFrame) -> pa.RecordBatch | None:
        """The record batch in a frame; None for a schema, a dictionary or a frame without data.

        Raises RemoteProtocolError for anything that is not valid Arrow, LimitExceededError.
        """
        if frame.header is None:
            self._take_options(frame.metadata)
            return None
        kind = _kind_of(frame.header)
        if kind not in (HEADER_SCHEMA, HEADER_DICTIONARY, HEADER_RECORD):
            raise RemoteProtocolError(
                f"Arrow message of kind {kind}: an upload has a schema, dictionaries and record "
                "batches"
            )
        decompressed_bytes = 0
        if frame.body is not None:
            decompressed_bytes = check_decompressed_size(frame.header, frame.body, self._limits)
        message_bytes = _encapsulated(frame.header, frame.body)
        try:
            if kind == HEADER_SCHEMA:
                self._take_schema(message_bytes)
                return None
            if self._schema is None:
                raise RemoteProtocolError("an upload starts with its schema")
            if kind == HEADER_DICTIONARY:
                self._take_dictionary(frame.header, message_bytes, decompressed_bytes)
                return None
            return self._checked(self._decoded(message_bytes))
        except (pa.ArrowException, OSError, ValueError, OverflowError, StopIteration) as error:
            raise RemoteProtocolError(f"not a valid Arrow message: {error}") from error

    def _take_options(self, metadata: bytes | None) -> None:
        options = upload_options(metadata, self._limits)
        if options is None:
            return
        if self._schema is not None:
            raise RemoteProtocolError("serialization options come before the schema of an upload")
        self._has_deephaven_nulls = options.use_deephaven_nulls

    def _take_schema(self, message_bytes: bytes | memoryview) -> None:
        if self._schema is not None:
            raise RemoteProtocolError("an upload has one schema")
        self._schema = read_schema_message(message_bytes)
        self._schema_message = message_bytes

    def _take_dictionary(
        self, header: bytes, message_bytes: bytes | memoryview, decompressed: int
    ) -> None:
        if self._dictionaries is None:
            self._dictionaries = _DictionaryStream(self._schema_message, self._limits)
        self._dictionaries.add(header, message_bytes, max(decompressed, len(message_bytes)))

    def _decoded(self, message_bytes: bytes | memoryview) -> pa.RecordBatch:
        if self._dictionaries is not None:
            return self._dictionaries.read_batch(message_bytes)
        message = pa.ipc.read_message(pa.py_buffer(message_bytes))
        return pa.ipc.read_record_batch(message, self._schema)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows > self._limits.ingest_batch_rows_max:
            raise LimitExceededError(
                "record batch",
                actual=batch.num_rows,
                maximum=self._limits.ingest_batch_rows_max,
                unit="rows",
            )
        if self._has_deephaven_nulls:
            # A sentinel may lie outside of its type's range, so the values are looked at after.
            batch.validate()
            batch = nulls_for_sentinels(batch)
        batch.validate(full=True)
        return batch


class _DictionaryStream:
    """An Arrow stream reader that is fed as messages come. It keeps dictionaries between batches,
    so that each is read once however many batches use it, and knows those that replace others and
    those that add to them."""

    def __init__(self, schema_message: bytes | memoryview, limits: Limits) -> None:
        self._limits = limits
        self._messages = _MessageFile()
        self._messages.add(schema_message)
        self._reader = pa.ipc.open_stream(self._messages)
        self._held: dict[int, int] = {}
        """Bytes of each dictionary the reader has, by its id."""
        self._held_bytes = 0
        self._unread: list[tuple[int, bool, int]] = []
        """Id, whether it adds to what is there, and bytes of those the reader has not read yet."""
        self._unread_bytes = 0

    @property
    def byte_count(self) -> int:
        """Bytes of all dictionaries the next batch may need: those the reader has, which a delta
        makes it copy, and those it has not read yet."""
        return self._held_bytes + self._unread_bytes

    def add(self, header: bytes, message_bytes: bytes | memoryview, size: int) -> None:
        """Take a dictionary that will have ``size`` bytes; LimitExceededError when all of them
        together are too large."""
        dictionary = open_message(header).table.table(8)
        if dictionary is None:
            raise RemoteProtocolError("dictionary batch without data")
        total = self.byte_count + size
        if total > self._limits.ingest_bytes_pending_max:
            raise LimitExceededError(
                "dictionaries of one upload",
                actual=total,
                maximum=self._limits.ingest_bytes_pending_max,
                unit="bytes",
            )
        self._unread.append((dictionary.int64(4), dictionary.boolean(8), size))
        self._unread_bytes += size
        self._messages.add(message_bytes)

    def read_batch(self, message_bytes: bytes | memoryview) -> pa.RecordBatch:
        """The batch in a message, with the dictionaries that came before it."""
        self._messages.add(message_bytes)
        batch = self._reader.read_next_batch()
        for dictionary_id, is_delta, size in self._unread:
            before = self._held.get(dictionary_id, 0)
            self._held[dictionary_id] = before + size if is_delta else size
            self._held_bytes += self._held[dictionary_id] - before
        self._unread.clear()
        self._unread_bytes = 0
        return batch


class _MessageFile(io.RawIOBase):
    """What has come and not been read yet, as the file Arrow's reader wants. Arrow asks for the
    parts of one message after the other, and never for more than it was given."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[memoryview] = deque()

    def add(self, message_bytes: bytes | memoryview) -> None:
        self._waiting.append(memoryview(message_bytes))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._waiting:
            return b""
        first = self._waiting.popleft()
        taken, rest = (first, first[:0]) if size < 0 else (first[:size], first[size:])
        if rest:
            self._waiting.appendleft(rest)
        return taken.tobytes()


def upload_options(metadata: bytes | None, limits: Limits) -> SubscriptionOptions | None:
    """What a frame without data announces about the upload's encoding (barrage-wire.md section
    3.6); None when it announces nothing.

    Lists around columns are not understood; they would be read as other columns, so they are
    refused with UnsupportedError.
    """
    if not metadata:
        return None
    try:
        told = decode_wrapper(metadata, WireRevision.R1_0_0, limits)
    except WrongMagicError:
        return None
    if not isinstance(told, SerializationOptions):
        raise RemoteProtocolError("only serialization options may precede an upload")
    if told.options.columns_as_list:
        raise UnsupportedError("uploads have no lists around columns")
    return told.options


def _kind_of(header: bytes) -> int:
    """The kind of Arrow message a header begins."""
    try:
        return open_message(header).kind
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"not a valid Arrow message: {error}") from error


def _encapsulated(header: bytes, body: bytes | memoryview | None) -> bytes | memoryview:
    """Header and body as one encapsulated IPC message: marker, padded length, header, body."""
    padding = -len(header) % 8
    prefix = _CONTINUATION + struct.pack("<i", len(header) + padding)
    front = b"".join((prefix, header, bytes(padding)))
    if body is None or len(body) <= COPIED_AT_ONCE_BYTES_MAX:
        return front if body is None else b"".join((front, body))
    # Joining bytes would stop all other threads of the process for as long as it copies.
    joined = np.empty(len(front) + len(body), dtype=np.uint8)
    joined[: len(front)] = np.frombuffer(front, dtype=np.uint8)
    joined[len(front) :] = np.frombuffer(body, dtype=np.uint8)
    return joined.data

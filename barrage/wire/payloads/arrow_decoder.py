"""Arrow IPC in payloads: a whole stream in each (schema, batches, end)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.wire.ipc import HEADER_SCHEMA, open_message, read_batch
from barrage.wire.payloads.decoded_sizes import table_bytes
from barrage.wire.payloads.decoding import PayloadError, PayloadSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.wire.payloads.decoding import Int64Array


class ArrowStreams:
    """An IPC stream in a payload, its columns found by name and widened where that loses nothing.
    Compressed bodies are not taken, as some bytes of them can become any number of bytes, nor are
    more rows than ``rows_max`` and more bytes than ``bytes_max`` of them, of one payload or of
    those that are decoded at once: rows without columns, nulls, values of dictionaries and runs
    take no bytes of the payload."""

    turn_messages = 256

    def __init__(self, schema: pa.Schema, *, rows_max: int, bytes_max: int) -> None:
        self.schema = schema
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        rows, sizes = np.zeros(len(payloads), np.int64), np.zeros(len(payloads), np.int64)
        for at, payload in enumerate(payloads):
            # One that cannot be decoded is told of where it is.
            with contextlib.suppress(Exception):
                opened, sizes[at] = self._opened(payload.as_buffer())
                rows[at] = len(opened)
        return PayloadSizes(rows, sizes)

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        return {}

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        opened = [self._opened(payload.as_buffer()) for payload in payloads]
        counts = [len(rows) for rows, _ in opened]
        if len(opened) > 1 and (
            sum(counts) > self._rows_max or sum(size for _, size in opened) > self._bytes_max
        ):
            raise PayloadError("the payloads are too many for one time")
        tables = [self._plain(rows) for rows, _ in opened]
        origins = np.repeat(np.arange(len(tables), dtype=np.int64), counts)
        return pa.concat_tables(tables), origins

    def _opened(self, data: pa.Buffer) -> tuple[pa.Table, int]:
        """The rows as they are in the payload, and what they take as those of the table."""
        try:
            self._check(data)
            rows = pa.ipc.open_stream(data).read_all()
            rows.validate(full=True)
            for name in self.schema.names:
                if rows.column_names.count(name) > 1:
                    raise PayloadError(f"the payload has several columns {name!r}")
            size = table_bytes(rows, self.schema)
        except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
            raise PayloadError(f"the payload is not Arrow IPC of this table: {error}") from None
        if size > self._bytes_max:
            raise PayloadError(
                f"the rows of the payload take more than {self._bytes_max} bytes: {size}"
            )
        return rows, size

    def _plain(self, rows: pa.Table) -> pa.Table:
        try:
            for field in self.schema:
                if field.name not in rows.column_names:
                    rows = rows.append_column(field, pa.nulls(len(rows), field.type))
            return rows.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, ValueError, KeyError, OSError) as error:
            raise PayloadError(f"the payload is not Arrow IPC of this table: {error}") from None

    def _check(self, data: pa.Buffer) -> None:
        """PayloadError for what may not be read as a whole."""
        count = 0
        for message in pa.ipc.MessageReader.open_stream(data):
            try:
                opened = open_message(message.metadata.to_pybytes())
                if opened.kind == HEADER_SCHEMA:
                    continue
                body_bytes = 0 if message.body is None else message.body.size
                count += read_batch(opened, body_bytes).length
            except RemoteProtocolError as error:
                raise PayloadError(str(error)) from None
            if count > self._rows_max:
                raise PayloadError(f"the payload has more than {self._rows_max} rows")

"""Arrow IPC in payloads: a whole stream in each (schema, batches, end)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.wire.ipc import HEADER_SCHEMA, open_message, read_batch
from barrage.wire.payloads.decoding import PayloadError

if TYPE_CHECKING:
    from barrage.wire.payloads.decoding import Int64Array


class ArrowStreams:
    """An IPC stream in a payload, its columns found by name and widened where that loses nothing.
    Compressed bodies are not taken, as some bytes of them can become any number of bytes, nor are
    more rows of a payload than ``rows_max``, as rows without columns or of nulls take no bytes."""

    def __init__(self, schema: pa.Schema, *, rows_max: int) -> None:
        self.schema = schema
        self._rows_max = rows_max

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        tables = [self._rows(payload.as_buffer()) for payload in payloads]
        counts = [len(each) for each in tables]
        origins = np.repeat(np.arange(len(tables), dtype=np.int64), counts)
        return pa.concat_tables(tables), origins

    def _rows(self, data: pa.Buffer) -> pa.Table:
        try:
            self._check(data)
            rows = pa.ipc.open_stream(data).read_all()
            rows.validate(full=True)
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

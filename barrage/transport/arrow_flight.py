"""Large one-shot answers through Arrow's own C++ Flight client.

gRPC for Python copies every message twice and holds the interpreter lock while it does; Arrow's
client does neither, so it reads several times as fast and leaves the event loop alone. It can read
what every Flight client can: record batches whose columns are equally long. So it serves snapshots
of all columns; subscriptions and column subsets go through
:mod:`barrage.transport.over_grpc.grpc_channel`.

Blocking; the caller brings the thread. Imported on first use.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import flight

from barrage.errors import BarrageError, RemoteProtocolError, StatusCode
from barrage.transport.status import error_from_status
from barrage.transport.tls.client_tls import read_material

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from barrage.transport.base import TLS

FIRST_COMMAND = b"dphn"
"""Arrow's client must send a descriptor first; every Barrage server takes this one."""

_CODES: tuple[tuple[type[Exception], StatusCode], ...] = (
    (flight.FlightUnauthenticatedError, StatusCode.UNAUTHENTICATED),
    (flight.FlightUnauthorizedError, StatusCode.PERMISSION_DENIED),
    (flight.FlightUnavailableError, StatusCode.UNAVAILABLE),
    (flight.FlightCancelledError, StatusCode.CANCELLED),
    (flight.FlightTimedOutError, StatusCode.DEADLINE_EXCEEDED),
    (pa.ArrowKeyError, StatusCode.NOT_FOUND),
    (pa.ArrowNotImplementedError, StatusCode.UNIMPLEMENTED),
    (pa.ArrowInvalid, StatusCode.INVALID_ARGUMENT),
)

_CODES_TOLD = {
    "gRPC returned aborted error": StatusCode.ABORTED,
    "gRPC returned data loss error": StatusCode.DATA_LOSS,
    "gRPC returned precondition failed error": StatusCode.FAILED_PRECONDITION,
    "gRPC returned resource exhausted error": StatusCode.RESOURCE_EXHAUSTED,
}
"""Statuses that Arrow has no class for: the words it puts before their text tell them apart."""

_BEFORE = re.compile(r"((?:Flight|gRPC) [a-z ]+), with message: ")
_AFTER = re.compile(r"\. gRPC client debug context.*$", re.S)


class ArrowFlightClient:
    """One connection of Arrow's client, made when first needed."""

    def __init__(self, uri: str, tls: TLS | None) -> None:
        """``uri`` as Arrow writes it: ``grpc+tcp://``, ``grpc+tls://`` or ``grpc+unix://``."""
        options: dict[str, object] = {}
        if tls is not None:
            material = read_material(tls)
            options = {
                "tls_root_certs": material.ca,
                "cert_chain": material.certificate,
                "private_key": material.key,
                "override_hostname": tls.server_name,
            }
        self._client = flight.FlightClient(uri, **options)

    def exchange(
        self, metadata: bytes, *, headers: Mapping[str, str], table: str
    ) -> ArrowFlightAnswer:
        """Send one request and half-close."""
        options = flight.FlightCallOptions(
            headers=[(name.encode(), value.encode()) for name, value in headers.items()]
        )
        descriptor = flight.FlightDescriptor.for_command(FIRST_COMMAND)
        try:
            writer, reader = self._client.do_exchange(descriptor, options)
            writer.write_metadata(metadata)
            writer.done_writing()
        except (pa.ArrowException, flight.FlightError, KeyError) as error:
            raise _barrage_error(error, table) from error
        return ArrowFlightAnswer(writer, reader, table)

    def get(self, ticket: bytes, *, headers: Mapping[str, str], table: str) -> ArrowFlightAnswer:
        """The rows of a ticket."""
        options = flight.FlightCallOptions(
            headers=[(name.encode(), value.encode()) for name, value in headers.items()]
        )
        try:
            reader = self._client.do_get(flight.Ticket(ticket), options)
        except (pa.ArrowException, flight.FlightError, KeyError) as error:
            raise _barrage_error(error, table) from error
        return ArrowFlightAnswer(None, reader, table)

    def close(self) -> None:
        self._client.close()


class ArrowFlightAnswer:
    """What comes back: a schema, then record batches, some with metadata."""

    def __init__(
        self,
        writer: flight.FlightStreamWriter | None,
        reader: flight.FlightStreamReader,
        table: str,
    ) -> None:
        """Without ``writer`` nothing was to be sent but the request."""
        self._writer = writer
        self._reader = reader
        self._table = table

    def schema(self) -> pa.Schema:
        """Waits for the first message."""
        try:
            return self._reader.schema
        except (pa.ArrowException, flight.FlightError, KeyError) as error:
            raise _barrage_error(error, self._table) from error

    def batches(self) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
        """Batches with their metadata until the server completes the call."""
        try:
            while True:
                try:
                    chunk = self._reader.read_chunk()
                except StopIteration:
                    return
                metadata = chunk.app_metadata
                yield chunk.data, None if metadata is None else metadata.to_pybytes()
        except (pa.ArrowException, flight.FlightError, KeyError) as error:
            raise _barrage_error(error, self._table) from error

    def cancel(self) -> None:
        """From any thread; a blocked read fails."""
        self._reader.cancel()

    def close(self) -> None:
        """After the last batch, or after an error."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except (pa.ArrowException, flight.FlightError, KeyError):
            # The reader has told what went wrong.
            return


def _barrage_error(error: Exception, table: str) -> BarrageError:
    text = _AFTER.sub("", str(error).strip("'\""))
    if before := _BEFORE.match(text):
        text = text[before.end() :]
        if before[1] in _CODES_TOLD:
            return error_from_status(_CODES_TOLD[before[1]], text, table=table)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return error_from_status(code, text, table=table)
    return RemoteProtocolError(text)

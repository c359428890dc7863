"""Sending rows: DoPut with pipelined batches and acknowledgements."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.client.writing.arrow_input import to_arrow_table, without_dictionaries
from barrage.errors import ConfigError, RemoteProtocolError
from barrage.json_text import read_json
from barrage.model.storage.row_weight import row_weight
from barrage.transport.flight_messages import (
    Descriptor,
    decode_put_result,
)
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from barrage.transport.base import FrameStream

BATCH_BYTES_TARGET = 2 * 1024 * 1024
"""Column bytes aimed at per batch: large enough to be fast, small enough for steady
acknowledgements."""

BATCH_ROWS_MAX = 64 * 1024
"""Rows of a batch, those of many columns counted by their weight: so many a server applies in one
step."""

MODES = ("append", "upsert", "create", "replace", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class PutProgress:
    """What the server has committed so far."""

    rows: int
    total: int
    """Rows that are sent altogether."""
    step: int | None = None
    """Step of the server's update graph that made them visible."""


async def put_rows(
    stream: FrameStream,
    name: str,
    data: Any,
    *,
    key: Sequence[str] | str | None = None,
    mode: str | None = None,
    kind: str | None = None,
    capacity: int | None = None,
    journal: str | None = None,
    on_progress: Callable[[PutProgress], None] | None = None,
) -> PutProgress:
    """Send ``data`` and wait for the last acknowledgement. The stream is used up."""
    if mode is not None and mode not in MODES:
        raise ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    descriptor = put_descriptor(
        name, keys=keys, mode=mode, kind=kind, capacity=capacity, journal=journal
    )
    table = without_dictionaries(to_arrow_table(data))
    return await send_table(stream, table, descriptor, on_progress=on_progress)


async def send_table(
    stream: FrameStream,
    table: pa.Table,
    descriptor: bytes,
    *,
    on_progress: Callable[[PutProgress], None] | None = None,
    sends_empty: bool = False,
) -> PutProgress:
    """Send ``table`` to what ``descriptor`` says and wait for the last acknowledgement. With
    ``sends_empty`` there is a batch even when there are no rows."""
    acknowledged = asyncio.ensure_future(_acknowledgements(stream, table.num_rows, on_progress))
    try:
        frames = _frames(table, descriptor, sends_empty=sends_empty)
        await _send(stream, frames, acknowledged)
        return await acknowledged
    finally:
        await _end_quietly(acknowledged)
        stream.cancel()


def put_descriptor(
    name: str,
    *,
    keys: tuple[str, ...],
    mode: str | None,
    kind: str | None = None,
    capacity: int | None = None,
    journal: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int | None = None,
) -> bytes:
    """A plain path where that says everything, as any Flight client would send it; else a
    command."""
    if mode is None and not keys and kind is None and journal is None and producer is None:
        return Descriptor(path=(name,)).encode()
    command: dict[str, Any] = {"table": name, "mode": mode or ("upsert" if keys else "append")}
    if keys:
        command["key"] = list(keys)
    further = {
        "kind": kind,
        "capacity": capacity,
        "journal": journal,
        "producer": producer,
        "sequence": sequence,
        "epoch": epoch,
    }
    command |= {name: value for name, value in further.items() if value is not None}
    return Descriptor(command=json.dumps(command).encode()).encode()


async def _send(
    stream: FrameStream,
    frames: Iterator[bytes],
    acknowledged: asyncio.Future[PutProgress],
) -> None:
    """Write everything. Stops when the call failed; the acknowledgements say with what."""
    writing = asyncio.ensure_future(_write_all(stream, frames))
    try:
        await asyncio.wait(
            {writing, acknowledged},  # type: ignore[type-var]
            return_when=asyncio.FIRST_COMPLETED,
        )
        if acknowledged.done():
            acknowledged.result()
        await writing
    finally:
        await _end_quietly(writing)


async def _end_quietly(work: asyncio.Future[Any]) -> None:
    """Cancel ``work`` and wait for its end; what it failed with is said by somebody else."""
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


async def _write_all(stream: FrameStream, frames: Iterator[bytes]) -> None:
    for frame in frames:
        await stream.write(frame)
    await stream.half_close()


def _frames(table: pa.Table, descriptor: bytes, *, sends_empty: bool) -> Iterator[bytes]:
    yield schema_frame(table.schema, descriptor)
    batches = batches_of(table)
    if not batches and sends_empty:
        batches = [pa.RecordBatch.from_pylist([], schema=table.schema)]
    for batch in batches:
        header, body = split_message(batch.serialize())
        yield encode_flight_data(FlightFrame(header=header, body=body))


def schema_frame(schema: pa.Schema, descriptor: bytes) -> bytes:
    """The first frame of an upload."""
    header, _ = split_message(schema.serialize())
    return encode_flight_data(FlightFrame(descriptor=descriptor, header=header))


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """The rows in batches of a good size; none when there are no rows."""
    bytes_per_row = max(table.nbytes // max(table.num_rows, 1), 1)
    rows_max = BATCH_ROWS_MAX // row_weight(table, has_key=True)
    batch_rows = max(min(BATCH_BYTES_TARGET // bytes_per_row, rows_max), 1)
    return [batch for batch in table.to_batches(max_chunksize=batch_rows) if batch.num_rows]


def split_message(encapsulated: pa.Buffer) -> tuple[bytes, memoryview]:
    """An encapsulated IPC message as header and body."""
    message = pa.ipc.read_message(encapsulated)
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    return message.metadata.to_pybytes(), body


async def _acknowledgements(
    stream: FrameStream, total: int, on_progress: Callable[[PutProgress], None] | None
) -> PutProgress:
    progress = PutProgress(rows=0, total=total)
    while (message := await stream.read()) is not None:
        progress = _progress(decode_put_result(message), total, progress)
        if on_progress is not None:
            on_progress(progress)
    return progress


def _progress(metadata: bytes, total: int, before: PutProgress) -> PutProgress:
    """A server that acknowledges without metadata is a plain Flight server: nothing is known."""
    if not metadata:
        return before
    try:
        facts = read_json(metadata)
        return PutProgress(rows=int(facts["rows"]), total=total, step=facts.get("step"))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"an acknowledgement cannot be read: {error}") from error

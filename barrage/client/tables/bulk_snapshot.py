"""One-shot snapshots of many rows and all columns, read by Arrow's C++ client on a thread."""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.model.snapshot_parts import SnapshotParts
from barrage.rowset import RowSet
from barrage.supervision import WorkerPool
from barrage.wire.messages import SnapshotOptions, SnapshotRequest, UpdateMetadata
from barrage.wire.metadata import decode_wrapper, encode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.limits import Limits
    from barrage.model.viewport import Viewport
    from barrage.transport.arrow_flight import ArrowFlightAnswer, ArrowFlightClient

CELLS_MIN = 1 << 20
"""Below this the fixed cost of a thread and a second connection outweighs what it saves."""

CANCEL_SECONDS_MAX = 1.0
"""How long a cancelled read may take to notice."""

READERS_MAX = 4
"""Large snapshots read at the same time in one process; more wait their turn."""

_REVISION = WireRevision.R1_0_0
"""The draft is not spoken here."""


async def fetch_bulk_snapshot(
    client: ArrowFlightClient,
    *,
    table: str,
    ticket: bytes,
    viewport: Viewport | None,
    options: SnapshotOptions,
    headers: dict[str, str],
    limits: Limits,
    on_progress: Callable[[int], None] | None = None,
) -> pa.Table:
    """All columns of the rows in ``viewport``. Cancelling it cancels the call."""
    request = SnapshotRequest(
        ticket=ticket,
        viewport=None if viewport is None else viewport.positions,
        is_reverse=viewport is not None and viewport.is_reverse,
        options=options,
    )
    reading = _Reading(client, table, limits, on_progress=on_progress)
    work = asyncio.get_running_loop().run_in_executor(
        _readers(), reading.run, encode_wrapper(request, _REVISION), headers
    )
    # That a cancelled read failed is no news, whenever it ends.
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        reading.cancel()
        await asyncio.wait([work], timeout=CANCEL_SECONDS_MAX)
        raise


@cache
def _readers() -> WorkerPool:
    """The threads that read, kept for the life of the process.

    Received memory belongs to the reading thread's part of the heap. With new threads for every
    session each would take fresh memory while that of earlier answers, freed, lies idle: 400 MB
    more with every second snapshot of 400 MB (measured).
    """
    return WorkerPool(READERS_MAX, thread_name_prefix="bulk snapshot")


class _Reading:
    """One blocking read, which another thread may cancel at any moment."""

    def __init__(
        self,
        client: ArrowFlightClient,
        table: str,
        limits: Limits,
        *,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._client = client
        self._table = table
        self._limits = limits
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._answer: ArrowFlightAnswer | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._answer is not None:
                self._answer.cancel()

    def run(self, metadata: bytes, headers: dict[str, str]) -> pa.Table:
        answer = self._client.exchange(metadata, headers=headers, table=self._table)
        with self._lock:
            self._answer = answer
            if self._is_cancelled:
                answer.cancel()
        try:
            return self._read(answer)
        finally:
            answer.close()

    def _read(self, answer: ArrowFlightAnswer) -> pa.Table:
        parts = SnapshotParts(answer.schema(), None)
        collector = _Collector(parts, self._limits)
        size = 0
        for batch, metadata in answer.batches():
            collector.take(batch, metadata)
            if self._on_progress is not None:
                size += batch.nbytes
                self._on_progress(size)
        collector.finish()
        return parts.to_arrow()


class _Collector:
    """Batches into parts: each metadata block says which rows follow (barrage-wire.md section
    8.4)."""

    def __init__(self, parts: SnapshotParts, limits: Limits) -> None:
        self._parts = parts
        self._limits = limits
        self._keys = RowSet.empty()
        self._missing = 0
        self._batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch, metadata: bytes | None) -> None:
        if metadata is not None:
            self._begin(metadata)
        if batch.num_rows > self._missing:
            raise RemoteProtocolError(
                f"a batch of {batch.num_rows} rows where {self._missing} are left to come"
            )
        self._missing -= batch.num_rows
        if batch.num_rows:
            self._batches.append(batch)
        if self._missing == 0 and self._batches:
            self._flush()

    def finish(self) -> None:
        if self._missing:
            raise RemoteProtocolError(f"the snapshot ended {self._missing} rows too early")

    def _begin(self, metadata: bytes) -> None:
        self.finish()
        message = decode_wrapper(metadata, _REVISION, self._limits)
        if not isinstance(message, UpdateMetadata):
            raise RemoteProtocolError(f"metadata of type {message.message_type} is no update")
        included = message.added_rows_included
        self._keys = (message.added_rows or RowSet.empty()) if included is None else included
        self._missing = len(self._keys)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._batches)
        self._parts.add_rows(self._keys, table.columns)
        self._batches = []

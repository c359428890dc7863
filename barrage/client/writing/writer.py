"""Writing rows so that none is lost and none doubled: :class:`AsyncWriter`.

A *producer* numbers what it writes, and the table remembers the last number it has committed from
it, with the rows. So whatever was not acknowledged when a connection broke is sent again, and what
had arrived after all is recognised. Rows wait here until they are acknowledged, bounded by bytes.

One task connects, sends and reads acknowledgements. A stream has one schema; rows of another one
wait for a stream of their own, so order is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from barrage.client.connection.reconnect import Backoff
from barrage.client.updates.waiting import Changes
from barrage.client.writing.arrow_input import to_arrow_table, without_dictionaries
from barrage.client.writing.put import (
    MODES,
    batches_of,
    put_descriptor,
    schema_frame,
    split_message,
)
from barrage.errors import (
    BarrageError,
    ConfigError,
    ConnectionLostError,
    RemoteProtocolError,
    SequenceError,
    ServerFailedError,
    SubscriptionClosedError,
    TableNotFoundError,
)
from barrage.json_text import read_json
from barrage.supervision import Role, start_task
from barrage.transport.flight_messages import decode_put_result
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.connection.table_info import TableInfo
    from barrage.client.writing.arrow_input import TableLike
    from barrage.transport.base import FrameStream

WRITER = Role("barrage-writer", "the writer: what waits for room or acknowledgement")

logger = logging.getLogger(__name__)

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of rows that may wait for their acknowledgement before ``write`` waits."""

PENDING_WRITES_MAX = 4096
"""Batches that may wait for their acknowledgement before ``write`` waits."""

WRITER_MODES = tuple(mode for mode in MODES if mode != "create")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """What was asked for when the writer was opened."""

    table: str
    producer: str
    mode: str | None
    key: tuple[str, ...]
    backoff: Backoff = field(default_factory=Backoff)

    def descriptor(self, sequence: int | None, epoch: int | None) -> bytes:
        return put_descriptor(
            self.table,
            keys=self.key,
            mode=self.mode,
            producer=self.producer,
            sequence=sequence,
            epoch=epoch,
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    sequence: int
    rows: pa.RecordBatch


class WriterSession(Protocol):
    """What a writer needs of the session it belongs to."""

    async def info(self, name: str, *, timeout: float | None) -> TableInfo:
        """What the server says about a table. TableNotFoundError."""
        ...

    def open_put(self, name: str) -> FrameStream:
        """A DoPut stream. SubscriptionClosedError."""
        ...

    def forget_writer(self, writer: AsyncWriter) -> None:
        """The writer has ended."""
        ...


class AsyncWriter:
    """Writes to one table as one producer. Use it as an asynchronous context manager: leaving it
    waits until everything is committed.

    Writers of one table that run at the same time need producers of their own: the later one under
    a name fences the earlier, which then fails with ProducerFencedError.
    """

    def __init__(self, session: WriterSession, settings: WriterSettings) -> None:
        if settings.mode is not None and settings.mode not in WRITER_MODES:
            raise ConfigError(f"mode {settings.mode!r} is not one of {', '.join(WRITER_MODES)}")
        if not settings.producer or not isinstance(settings.producer, str):
            raise ConfigError(f"producer is {settings.producer!r}, it must be a name")
        self._session = session
        self._settings = settings
        self._pending: deque[_Batch] = deque()
        self._pending_bytes = 0
        self._in_flight = 0
        """Batches at the front that the present stream has been given."""
        self._unsure = 0
        """Batches at the front that an earlier stream was given."""
        self._is_open = False
        self._is_known = False
        self._is_assumed_new = False
        """There was no such table, so nobody can have written to it."""
        self._position: int | None = None
        self._epoch: int | None = None
        """Under which the server takes our rows, until another writer of the producer begins."""
        self._step: int | None = None
        self._next = 0
        self._schema: pa.Schema | None = None
        self._error: BarrageError | None = None
        self._trouble: ServerFailedError | None = None
        """Why the server cannot go on, as it said when it was asked last."""
        self._is_closing = False
        self._changes = Changes()
        self._turn = asyncio.Lock()
        """Held by the call of ``write`` that waits for room; the others wait for it in the order in
        which they came."""
        self._task: asyncio.Task[None] | None = None
        self._resends = 0

    # --- for the user ---------------------------------------------------------------------------

    @property
    def position(self) -> int | None:
        """Number of the last committed batch of this producer; None for none."""
        return self._position

    @property
    def step(self) -> int | None:
        """Step that committed the last acknowledged batch; None before the first."""
        return self._step

    @property
    def pending_count(self) -> int:
        """Batches that are not acknowledged yet."""
        return len(self._pending)

    @property
    def resends(self) -> int:
        """Batches that were sent once more."""
        return self._resends

    async def open(self) -> None:
        """Find out how far the producer has got. The session does this."""
        try:
            info = await self._session.info(self._settings.table, timeout=None)
            self._schema = info.schema
        except TableNotFoundError:
            # The first rows make the table; nobody has written to it.
            self._is_known = self._is_assumed_new = True
        name = f"barrage writer {self._settings.table}"
        self._task = start_task(WRITER, self._run(), on_death=self._fail, name=name)
        await self._changes.until(lambda: self._is_known or self._is_over)
        self._raise_if_closed()

    async def write(self, rows: TableLike, *, sequence: int | None = None) -> int:
        """Send rows; returns the number of their last batch, once there is room for them. They are
        committed when :attr:`position` has reached that number, at the latest after :meth:`flush`.

        May be called by any number of tasks: the rows of one call stay together, calls are served
        in the order in which they came, and one that is cancelled has sent all of its rows or none.

        ``sequence`` numbers them with a number of the caller's, which must grow; rows whose number
        has been committed are left out, so a source may be read again from anywhere before; without
        rows it moves the position alone. What
        the server refuses is raised by this or a later call, and ends the writer.
        """
        table = without_dictionaries(to_arrow_table(rows))
        batches = list(batches_of(table))
        if not batches and sequence is None:
            return self._next - 1
        if not batches:
            batches = [pa.RecordBatch.from_pylist([], schema=table.schema)]
        if len(batches) > 1 and (sequence is not None or self._settings.mode == "replace"):
            # One number is one batch, and every numbered batch of a replacement replaces.
            batches = table.combine_chunks().to_batches()
        async with self._turn:
            # A number is drawn when there is room for its rows, so that no two calls draw the same.
            self._raise_if_closed()
            first = self._checked(sequence)
            if sequence is not None and self._position is not None and first <= self._position:
                return first
            await self._changes.until(lambda: self._has_room() or self._trouble)
            self._raise_if_closed()
            if self._trouble is not None and not self._has_room():
                raise self._trouble
            for number, batch in enumerate(batches, first):
                self._pending.append(_Batch(number, batch))
                self._pending_bytes += batch.nbytes
            self._next = first + len(batches)
            self._changes.tell()
            return self._next - 1

    async def flush(self, timeout: float | None = None) -> int | None:
        """Until everything written before is committed; the step that committed the last of it.
        ServerFailedError when only a restart of the server helps: what is pending stays so, and is
        sent when it has been."""
        last = self._next - 1
        async with asyncio.timeout(timeout):
            await self._changes.until(
                lambda: self._is_committed(last) or self._is_over or self._trouble
            )
        self._raise_if_failed()
        if not self._is_committed(last):
            self._raise_if_closed()
            assert self._trouble is not None
            raise self._trouble
        return self._step

    def _is_committed(self, sequence: int) -> bool:
        return not self._pending or self._pending[0].sequence > sequence

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then end. Raises what the writer failed with."""
        try:
            if not self._is_closing:
                await self.flush(timeout)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """End at once; what is not acknowledged may or may not be committed. Idempotent."""
        self._is_closing = True
        self._changes.tell()
        task = self._task
        if task is not None:
            # Once more by a later call, when the one before was cancelled while it waited here.
            if not task.cancelling():
                task.cancel()
            await asyncio.wait([task])
        self._session.forget_writer(self)

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            await self.close()
        else:
            await self.abandon()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._settings.producer!r} to {self._settings.table!r}, "
            f"at {self._position}, {len(self._pending)} batches pending>"
        )

    def _checked(self, sequence: int | None) -> int:
        if sequence is None:
            return self._next
        if not isinstance(sequence, int) or not 0 <= sequence < 2**63:
            raise SequenceError(f"sequence is {sequence!r}, it must be a whole number from 0")
        if self._pending and sequence < self._next:
            raise SequenceError(f"sequence {sequence} after {self._next - 1}: numbers must grow")
        return sequence

    def _has_room(self) -> bool:
        return (
            self._is_over
            or not self._pending
            or (self._pending_bytes < PENDING_BYTES_MAX and len(self._pending) < PENDING_WRITES_MAX)
        )

    @property
    def _is_over(self) -> bool:
        """Nothing is sent any more."""
        return self._error is not None or self._is_closing

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _raise_if_closed(self) -> None:
        self._raise_if_failed()
        if self._is_closing:
            raise SubscriptionClosedError(f"the writer to {self._settings.table!r} is closed")

    # --- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = self._settings.backoff
        try:
            while True:
                try:
                    await self._serve_one_stream()
                    backoff.reset()
                except ConnectionLostError as error:
                    if not self._is_known:
                        # Whoever opens a writer is told, as whoever connects is: the server may
                        # be going away.
                        raise
                    logger.info("writer to %s: %s, trying again", self._settings.table, error)
                    self._trouble = error if isinstance(error, ServerFailedError) else None
                    self._changes.tell()
                    await asyncio.sleep(backoff.next_delay())
        except BarrageError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("writer to %s stopped", self._settings.table)
            self._fail(BarrageError(f"{type(error).__name__}: {error}"))

    def _fail(self, error: BarrageError) -> None:
        self._error = error
        self._changes.tell()

    async def _serve_one_stream(self) -> None:
        """Send what is pending and of one schema, until rows of another one come."""
        await self._changes.until(lambda: self._pending or not self._is_known)
        schema = self._pending[0].rows.schema if self._pending else self._schema
        assert schema is not None
        first = self._pending[0].sequence if self._pending else None
        self._unsure = max(self._unsure, self._in_flight)
        self._in_flight = 0
        self._is_open = False
        stream = self._session.open_put(self._settings.table)
        acknowledged = asyncio.ensure_future(self._read_acknowledgements(stream))
        try:
            await stream.write(schema_frame(schema, self._settings.descriptor(first, self._epoch)))
            sending = asyncio.ensure_future(self._send(stream, schema))
            try:
                await asyncio.wait([sending, acknowledged], return_when=asyncio.FIRST_COMPLETED)
                if not acknowledged.done():
                    await sending
                await acknowledged
            finally:
                await _end(sending)
        finally:
            await _end(acknowledged)
            stream.cancel()
        if self._pending and self._pending[0].rows.schema == schema:
            # The server completed the call early.
            raise ConnectionLostError("the server ended the stream")

    async def _send(self, stream: FrameStream, schema: pa.Schema) -> None:
        """Write batches from the first that is pending on; ends at one of another schema."""
        while True:
            await self._changes.until(self._has_unsent)
            batch = self._pending[self._in_flight]
            if batch.rows.schema != schema:
                await stream.half_close()
                return
            self._in_flight += 1
            header, body = split_message(batch.rows.serialize())
            told = json.dumps({"sequence": batch.sequence}).encode()
            await stream.write(
                encode_flight_data(FlightFrame(metadata=told, header=header, body=body))
            )

    def _has_unsent(self) -> bool:
        return self._is_open and len(self._pending) > self._in_flight

    async def _read_acknowledgements(self, stream: FrameStream) -> None:
        is_first = True
        while (message := await stream.read()) is not None:
            facts = _facts(decode_put_result(message))
            sequence = facts.get("sequence")
            if is_first and "sequence" not in facts:
                raise RemoteProtocolError("the server does not know producers")
            if is_first:
                self._epoch = facts.get("epoch", self._epoch)
            self._take(sequence, facts.get("step"), is_opening=is_first)
            self._changes.tell()
            is_first = False

    def _take(self, sequence: int | None, step: int | None, *, is_opening: bool) -> None:
        if is_opening and self._is_assumed_new:
            self._is_assumed_new = False
            if sequence is not None:
                # Nothing of ours was sent yet, and what is numbered from 0 would be left out.
                raise SequenceError(
                    f"table {self._settings.table!r} was not there when the writer was opened, and "
                    f"has now {sequence} as the last number of producer "
                    f"{self._settings.producer!r}: open another writer"
                )
        if is_opening and not self._is_known:
            self._is_known = True
            self._next = 0 if sequence is None else sequence + 1
        if step is not None:
            self._step = step
            self._settings.backoff.reset()
        if sequence is not None:
            self._committed(sequence)
        if is_opening:
            self._is_open = True
            self._trouble = None
            self._resends += self._unsure
            self._unsure = 0

    def _committed(self, sequence: int) -> None:
        self._position = sequence if self._position is None else max(self._position, sequence)
        while self._pending and self._pending[0].sequence <= sequence:
            self._pending_bytes -= self._pending.popleft().rows.nbytes
            self._in_flight = max(self._in_flight - 1, 0)
            self._unsure = max(self._unsure - 1, 0)


def _facts(metadata: bytes) -> dict[str, Any]:
    try:
        facts = read_json(metadata) if metadata else {}
    except ValueError as error:
        raise RemoteProtocolError(f"an acknowledgement cannot be read: {error}") from error
    sequence = facts.get("sequence") if isinstance(facts, dict) else False
    if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int)):
        raise RemoteProtocolError("an acknowledgement cannot be read")
    return dict(facts)


async def _end(work: asyncio.Future[Any]) -> None:
    """Cancel ``work`` and wait for its end; what it failed with is said by somebody else."""
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


def writer_settings(
    table: str,
    *,
    producer: str,
    mode: str | None,
    key: Sequence[str] | str | None,
    backoff: Backoff | None = None,
) -> WriterSettings:
    """Settings in the form the writer wants them."""
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    return WriterSettings(
        table=table, producer=producer, mode=mode, key=keys, backoff=backoff or Backoff()
    )

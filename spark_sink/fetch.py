"""What an executor does: fetch one piece of the journal and hand it to Spark as Arrow batches."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from barrage.errors import BarrageError, UnsupportedError
from barrage.supervision import Role, start_thread
from spark_sink.body_reads import body_reads
from spark_sink.connection import (
    Failure,
    ServerError,
    as_server_error,
    gave_up,
    may_pass,
    session_error,
)
from spark_sink.types import ROW_ID, cast_batch, truncate_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from barrage.client import JournalBatches
    from spark_sink.connection import ServerConnection
    from spark_sink.planning import Piece

STALL = Role("barrage-stall", "the stream it guards")

ROWS_TARGET = 64 * 1024
"""Rows gathered before they are handed to Spark: a journal sends one batch a version."""

BYTES_TARGET = 8 * 1024 * 1024

ROWS_SMALL = ROWS_TARGET // 4
"""Batches of fewer rows and bytes than these are gathered."""

BYTES_SMALL = BYTES_TARGET // 8


class StallGuard:
    """Cancels a stream that has sent nothing for too long while somebody waits for it. A deadline
    would not do: it would also count the time Spark takes to use what it has."""

    def __init__(self, stream: Any, timeout_seconds: float) -> None:
        self._stream = stream
        self._timeout = timeout_seconds
        self._waiting_since: float | None = None
        self._is_done = threading.Event()
        self.has_fired = False
        # Without it the stream might be waited for for ever.
        self._thread = start_thread(STALL, self._watch, on_death=lambda _: stream.cancel())

    def chunks(self) -> Iterator[Any]:
        """The stream's chunks."""
        try:
            while True:
                self._waiting_since = time.monotonic()
                try:
                    chunk = self._stream.read_chunk()
                except StopIteration:
                    return
                self._waiting_since = None
                yield chunk
        finally:
            self._is_done.set()
            self._stream.cancel()

    def _watch(self) -> None:
        while not self._is_done.wait(min(1.0, self._timeout / 4)):
            since = self._waiting_since
            if since is not None and time.monotonic() - since > self._timeout:
                self.has_fired = True
                self._stream.cancel()
                return


def fetch_piece(
    connection: ServerConnection,
    piece: Piece,
    target: pa.Schema,
    *,
    fails_on_data_loss: bool,
    may_share_memory: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of one piece in the form of ``target``.

    A history that began anew ends the piece quietly when losses are allowed: the next batch will
    start with a truncate row in any case. A journal that was cut raises: in one of several tasks
    it would leave half a batch and no trace of it. ``may_share_memory``: bodies may come through
    shared memory, where the server offers it; batches whose columns need no cast are then views of
    it.
    """
    if piece.truncate_at is not None:
        yield truncate_batch(target, piece.truncate_at)
        return
    assert piece.ticket is not None
    try:
        for batch in gathered(_fetched(connection, piece, may_share_memory)):
            yield cast_batch(batch, target)
    except ServerError as error:
        is_gone = error.failure is Failure.LOST and _is_epoch_gone(connection, piece)
        if fails_on_data_loss or not is_gone:
            raise


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches, small ones joined. Those that are not small stay what they
    are, for joining is copying."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.num_rows >= ROWS_SMALL or batch.nbytes >= BYTES_SMALL:
            if waiting:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
            yield batch
            # It may be memory of the server, which waits for it.
            del batch
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_TARGET or size >= BYTES_TARGET:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    (joined,) = table.to_batches()
    return joined


def ticket_bytes(ticket: dict[str, Any]) -> bytes:
    """A ticket as the server takes it."""
    return b"j/" + json.dumps(ticket, separators=(",", ":")).encode()


def _fetched(
    connection: ServerConnection, piece: Piece, may_share_memory: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a ticket. A stream that breaks is taken up where it broke: by the number of rows
    if these have an order, by their ids in a snapshot. Net changes have neither, so the task fails,
    and Spark runs it again. Only the first try may share memory."""
    assert piece.ticket is not None
    doing = f"fetching table {piece.ticket['table']!r} from {connection.where}"
    patience, progress = connection.patience(doing), _Progress(piece)
    shared = _shared(connection, piece, doing) if may_share_memory else None
    while True:
        try:
            progress.begin()
            for batch in shared or _by_get(connection, piece, doing):
                patience.succeeded()
                if (fresh := progress.fresh(batch)).num_rows:
                    yield fresh
                # It may be memory of the server, which waits for it.
                del batch, fresh
            return
        except ServerError as error:
            if not progress.may_go_on:
                raise
            # DoGet says better what the server has against the ticket.
            is_told_again = shared is not None and error.failure is not Failure.UNREACHABLE
            if not is_told_again:
                # The driver has just planned this read, so the table was there.
                if not may_pass(error, is_known=True):
                    raise
                if not patience.wait(error.reason):
                    raise gave_up(error, patience.waited, doing=doing) from error
                connection.change_server()
        shared = None


class _Progress:
    """Which rows of a piece have been handed on, over all of its streams."""

    def __init__(self, piece: Piece) -> None:
        assert piece.ticket is not None
        self._is_in_order = piece.is_in_order
        has_ids = ROW_ID in piece.ticket.get("feed_columns", (ROW_ID,))
        self._is_by_id = piece.ticket["mode"] == "snapshot" and has_ids
        self._rows = 0
        self._skip = 0
        self._ids: list[npt.NDArray[np.int64]] = []
        self._known: npt.NDArray[np.int64] | None = None

    @property
    def may_go_on(self) -> bool:
        """Whether another stream can be told from the last one's rows."""
        return self._is_in_order or self._is_by_id or not self._rows

    def begin(self) -> None:
        """A stream begins."""
        self._skip = self._rows
        self._known = np.concatenate(self._ids) if self._ids else None

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What of a stream's next batch was not handed on yet."""
        if self._is_by_id:
            return self._fresh_by_id(batch)
        fresh = batch.slice(self._skip)
        self._skip = max(0, self._skip - batch.num_rows)
        self._rows += fresh.num_rows
        return fresh

    def _fresh_by_id(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = batch.schema.get_field_index(ROW_ID)
        if index < 0:
            self._is_by_id = False
            self._rows += batch.num_rows
            return batch
        ids = batch.column(index).to_numpy()
        if self._known is not None:
            is_new = np.isin(ids, self._known, invert=True)
            batch, ids = batch.filter(pa.array(is_new)), ids[is_new]
        self._rows += len(ids)
        # Not the batch's own memory, which may be the server's.
        self._ids.append(ids.copy())
        return batch


def _shared(
    connection: ServerConnection, piece: Piece, doing: str
) -> Iterator[pa.RecordBatch] | None:
    """The rows of a ticket through shared memory; None where there is none. ServerError when it is
    iterated."""
    assert piece.ticket is not None
    try:
        read = body_reads.open(
            connection,
            ticket_bytes(piece.ticket),
            table=piece.ticket["table"],
            is_in_order=piece.is_in_order,
        )
    except (BarrageError, TimeoutError):
        return None
    return None if read is None else _by_session(read, connection, doing)


def _by_session(
    read: JournalBatches, connection: ServerConnection, doing: str
) -> Iterator[pa.RecordBatch]:
    try:
        with read:
            yield from read
    except TimeoutError:
        raise _stalled(connection, doing) from None
    except BarrageError as error:
        if isinstance(error, UnsupportedError):
            body_reads.refused(connection)
        raise session_error(error, doing=doing) from error


def _by_get(connection: ServerConnection, piece: Piece, doing: str) -> Iterator[pa.RecordBatch]:
    """The rows of a ticket as DoGet has them."""
    assert piece.ticket is not None
    ticket = flight.Ticket(ticket_bytes(piece.ticket))
    guard: StallGuard | None = None
    try:
        stream = connection.client().do_get(ticket, connection.call_options())
        guard = StallGuard(stream, connection.timeout_ms / 1000)
        for chunk in guard.chunks():
            if chunk.data is not None:
                yield chunk.data
    except GeneratorExit:
        raise
    except Exception as error:
        if guard is not None and guard.has_fired:
            raise _stalled(connection, doing) from error
        raise as_server_error(error, doing=doing) from error


def _stalled(connection: ServerConnection, doing: str) -> ServerError:
    return ServerError(
        Failure.UNREACHABLE,
        f"nothing came for {connection.timeout_ms / 1000:g} s",
        doing=doing,
        advice="raise option fetchTimeoutMs if the server is only slow",
    )


def _is_epoch_gone(connection: ServerConnection, piece: Piece) -> bool:
    assert piece.ticket is not None
    try:
        found = connection.action("journal.info", table=piece.ticket["table"])
    except ServerError as error:
        return error.failure is Failure.NOT_FOUND
    return bool(found.get("epoch") != piece.epoch)

"""The watch: one stream that tells each new version of a table, so that Spark's question for
something new, asked a hundred times a second, is answered from memory.

It lives in the driver-side reader process for as long as the query, reconnects by itself, and
keeps the consumer's lease at the server.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import flight

from barrage.supervision import Role, start_thread
from spark_sink.connection import Failure, ServerError, as_server_error

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.errors import WorkerDiedError
    from spark_sink.connection import ServerConnection

WATCH = Role("barrage-watch", "who asks for the newest version")

SILENCE_SECONDS_MAX = 20.0
"""The server tells something at least every five seconds; after this much silence the stream is
taken for dead."""

MARKS_KEPT = 4096
"""Versions whose row counts are remembered, to size batches without asking."""

PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class VersionMark:
    """A version as it was told. ``rows`` and ``bytes`` count the whole history so far."""

    epoch: str
    version: int
    rows: int
    bytes: int
    timestamp_us: int


class Marks:
    """The newest mark and some before it. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._marks: deque[VersionMark] = deque(maxlen=MARKS_KEPT)

    def add(self, mark: VersionMark) -> None:
        with self._changed:
            last = self._marks[-1] if self._marks else None
            if last is not None and last.epoch != mark.epoch:
                self._marks.clear()
            elif last is not None and last.version == mark.version:
                self._marks.pop()
            self._marks.append(mark)
            self._changed.notify_all()

    @property
    def newest(self) -> VersionMark | None:
        with self._changed:
            return self._marks[-1] if self._marks else None

    def wait_for_one(self, timeout: float) -> VersionMark | None:
        """The newest, after waiting for the first if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._marks), timeout)
            return self._marks[-1] if self._marks else None

    def at(self, epoch: str, version: int) -> VersionMark | None:
        """The mark of a version, if it is remembered."""
        mark = self.before(epoch, version)
        return mark if mark is not None and mark.version == version else None

    def before(self, epoch: str, version: int) -> VersionMark | None:
        """The last mark of a version or one before it, if any is remembered."""
        with self._changed:
            for mark in reversed(self._marks):
                if mark.epoch == epoch and mark.version <= version:
                    return mark
        return None

    def rows_between(self, epoch: str, after: int, upto: int) -> int | None:
        """History rows of (after, upto], if both ends are remembered."""
        low, high = self.at(epoch, after), self.at(epoch, upto)
        return None if low is None or high is None else high.rows - low.rows


class TableWatch:
    """The watch stream of one table. Starts with the first question."""

    def __init__(
        self, connection: ServerConnection, table: str, *, consumer: str, lease_ms: int
    ) -> None:
        self.marks = Marks()
        self._connection = connection
        self._table = table
        self._ticket = (
            b"j/"
            + json.dumps(
                {"mode": "watch", "table": table, "consumer": consumer, "lease_ms": lease_ms},
                separators=(",", ":"),
            ).encode()
        )
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._wake = threading.Event()
        self._stream: Any = None
        self._heard_at = 0.0
        self._broken_since: float | None = None
        self._failure: Exception | None = None

    def newest(self) -> VersionMark:
        """The newest version. Blocks only for the first; :class:`ServerError` when the stream
        failed for good or has been down for longer than the connection's timeout."""
        if self._thread is None:
            self._heard_at = time.monotonic()
            self._thread = start_thread(WATCH, self._run, on_death=self._died)
        mark = self.marks.newest
        if mark is None:
            mark = self._first()
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if now - self._heard_at > SILENCE_SECONDS_MAX and self._stream is not None:
            self._heard_at = now
            self._stream.cancel()
        broken = self._broken_since
        timeout_ms = self._connection.timeout_ms
        if broken is not None and now - broken > timeout_ms / 1000:
            raise self._unreachable(f"no connection for {now - broken:.0f} s")
        return mark

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        self._is_closing.set()
        self._wake.set()
        stream, thread = self._stream, self._thread
        if stream is not None:
            stream.cancel()
        if thread is not None:
            thread.join(5)

    def _first(self) -> VersionMark:
        deadline = time.monotonic() + self._connection.timeout_ms / 1000
        while time.monotonic() < deadline and self._failure is None:
            mark = self.marks.wait_for_one(0.05)
            if mark is not None:
                return mark
        if self._failure is not None:
            raise self._failure
        raise self._unreachable(f"no answer within {self._connection.timeout_ms / 1000:g} s")

    def _unreachable(self, reason: str) -> ServerError:
        return ServerError(
            Failure.UNREACHABLE,
            reason,
            doing=f"watching table {self._table!r} at {self._connection.where}",
            advice="is the server up, and option uri right? More patience: fetchTimeoutMs",
        )

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._is_closing.is_set():
            heard = self._heard_at
            try:
                self._follow()
            except Exception as error:
                if self._is_closing.is_set():
                    return
                if not self._may_recover(error):
                    return
            if self._broken_since is None:
                self._broken_since = time.monotonic()
            pause = PAUSE_SECONDS if self._heard_at > heard else min(2 * pause, PAUSE_SECONDS_MAX)
            self._connection.change_server()
            self._wake.wait(pause)

    def _died(self, error: WorkerDiedError) -> None:
        """Nobody learns of versions any more."""
        self._failure = error

    def _may_recover(self, error: Exception) -> bool:
        """Whether to connect again; else the failure is kept for whoever asks."""
        doing = f"watching table {self._table!r} at {self._connection.where}"
        try:
            found: Exception = as_server_error(error, doing=doing)
        except Exception as other:
            found = other
        if isinstance(found, ServerError):
            # The watch names no version: lost is the history of a table that was made anew under
            # its name, whose epoch the next stream tells.
            if found.failure in (Failure.UNREACHABLE, Failure.LOST):
                return True
            # A server that has just restarted may not have made its tables yet, and a table that is
            # made anew is gone for a moment.
            broken = self._broken_since
            down = 0.0 if broken is None else time.monotonic() - broken
            is_known = self.marks.newest is not None
            within = down < self._connection.timeout_ms / 1000
            if found.failure is Failure.NOT_FOUND and is_known and within:
                return True
        self._failure = found
        return False

    def _follow(self) -> None:
        connection = self._connection
        stream = connection.client().do_get(flight.Ticket(self._ticket), connection.call_options())
        self._stream = stream
        try:
            for chunk in stream:
                if self._is_closing.is_set():
                    return
                self._heard_at = time.monotonic()
                self._broken_since = None
                if chunk.data is not None and chunk.data.num_rows:
                    self.marks.add(mark_of(chunk.data))
        finally:
            self._stream = None
            stream.cancel()


def mark_of(batch: pa.RecordBatch) -> VersionMark:
    """The newest mark of a watch batch."""
    last = batch.num_rows - 1
    epoch, *numbers = (
        batch.column(batch.schema.get_field_index(name))[last].as_py()
        for name in ("epoch", "version", "rows", "bytes", "timestamp_us")
    )
    return VersionMark(str(epoch), *(int(number) for number in numbers))

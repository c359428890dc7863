"""The watch: one stream that tells each new version of a table, so that Spark's question for
something new, asked a hundred times a second, needs no call.

It lives in the driver-side reader process for as long as the query, reconnects by itself, and
keeps the consumer's lease at the server.

What was written before a question of Spark's may still be on its way then. Before it is told that
there is nothing new, the server is asked on the same stream, for half of what a call would cost,
whether it has told all it knows: ``processAllAvailable`` and ``AvailableNow`` count on that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from barrage.supervision import Role, start_thread
from spark_sink.connection import (
    UNREACHABLE_ADVICE,
    Failure,
    ServerError,
    as_server_error,
    gave_up,
)
from spark_sink.patience import wait_meter

if TYPE_CHECKING:
    from barrage.errors import WorkerDiedError
    from spark_sink.connection import ServerConnection

_log = logging.getLogger(__name__)

WATCH = Role("barrage-watch", "who asks for the newest version")

READ_HEADERS = (("x-barrage-exchange", "get"),)
"""What says that an exchange is a read of a journal."""

SILENCE_SECONDS_MAX = 20.0
"""The server tells something at least every five seconds; after this much silence the stream is
taken for dead."""

MARKS_KEPT = 4096
"""Versions whose row counts are remembered, to size batches without asking."""

ANSWER_SECONDS_MAX = 5.0
"""How long an answer is waited for. A server that takes longer is not waited for again until it has
answered."""

AWAY_SECONDS = 2.0
"""How long a stream that has broken may take to come back before nobody waits for it."""

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
            elif last is not None and last.version > mark.version:
                return
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


class Question:
    """Asks on one stream whether all is told. Thread-safe; callers take turns."""

    def __init__(self, writer: flight.FlightStreamWriter) -> None:
        self._writer = writer
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._has_ended = False

    def ask(self, timeout: float) -> bool:
        """Return once what the server knows now has been told, or after a while: ``timeout``, or at
        once when it still owes an answer. False: the stream has ended before."""
        with self._turn:
            if self._has_ended:
                return False
            if self._asked > self._answered:
                return True
            self._asked += 1
            try:
                self._writer.write_metadata(self._asked.to_bytes(8, "little"))
            except (pa.ArrowException, OSError):
                return False
            with self._changed:
                self._changed.wait_for(self._is_settled, timeout)
                return not self._has_ended

    def _is_settled(self) -> bool:
        return self._has_ended or self._answered >= self._asked

    def answered(self, answer: bytes) -> None:
        """One has come back; what was not asked is no answer."""
        number = int.from_bytes(answer, "little")
        with self._changed:
            if self._answered < number <= self._asked:
                self._answered = number
                self._changed.notify_all()

    def end(self) -> None:
        """The stream has ended: nobody waits for it any more."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        # Arrow would complain of it when the writer is let go.
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.close()


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
        self._starting = threading.Lock()
        self._question: Question | None = None
        """On the stream there is, where the server takes some."""
        self._takes_questions: bool | None = None
        """Whether that of the stream does; None while there is no stream."""
        self._heard_at = 0.0
        self._broken_since: float | None = None
        self._failure: Exception | None = None
        self._last_error: ServerError | None = None

    def newest(self) -> VersionMark:
        """The newest version. Blocks only for the first; :class:`ServerError` when the stream
        failed for good or has been down for longer than the connection's patience."""
        with self._starting:
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
        if broken is not None and now - broken > self._connection.reconnect_ms / 1000:
            last, away = self._last_error, now - broken
            if last is not None and last.failure is Failure.NOT_FOUND:
                raise gave_up(last, away, doing=self._doing)
            raise self._unreachable(f"no connection for {away:.0f} s: {self._reason}")
        return mark

    def newest_asked(self) -> VersionMark:
        """The newest version there is now, not just the newest that was told; where the server
        does not answer, or is an older one, that."""
        self.newest()
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        question = self._question_after(None, deadline)
        while question is not None and not question.ask(max(0, deadline - time.monotonic())):
            question = self._question_after(question, deadline)
        return self.newest()

    def _question_after(self, ended: Question | None, deadline: float) -> Question | None:
        """That of the stream there is, or will be in a moment, if ``ended`` is that of one that has
        broken. None: its server takes none, or is away."""
        while time.monotonic() < deadline and not self._is_closing.is_set():
            question = self._question
            if question is not None and question is not ended:
                return question
            is_away = self.away_seconds > AWAY_SECONDS
            if self._takes_questions is False or is_away or self._failure is not None:
                break
            self._is_closing.wait(0.01)
        return None

    @property
    def away_seconds(self) -> float:
        """How long there has been no connection; 0 when there is one."""
        broken = self._broken_since
        return 0.0 if broken is None else time.monotonic() - broken

    @property
    def _reason(self) -> str:
        return "the stream ended" if self._last_error is None else self._last_error.reason

    @property
    def _doing(self) -> str:
        return f"watching table {self._table!r} at {self._connection.where}"

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
        started = time.monotonic()
        connection = self._connection
        # A server that is away is waited for as long as by any call, one that is slow longer.
        while time.monotonic() - started < connection.timeout_ms / 1000:
            mark = self.marks.wait_for_one(0.05)
            if mark is not None:
                return mark
            if self._failure is not None or self.away_seconds > connection.reconnect_ms / 1000:
                break
        if self._failure is not None:
            raise self._failure
        waited = time.monotonic() - started
        raise self._unreachable(f"no answer within {waited:.0f} s: {self._reason}")

    def _unreachable(self, reason: str) -> ServerError:
        return ServerError(
            Failure.UNREACHABLE,
            reason,
            doing=self._doing,
            advice=UNREACHABLE_ADVICE,
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
            if self._is_closing.is_set():
                return
            self._lost_connection()
            pause = PAUSE_SECONDS if self._heard_at > heard else min(2 * pause, PAUSE_SECONDS_MAX)
            self._connection.change_server()
            self._wake.wait(pause)

    def _lost_connection(self) -> None:
        if self._broken_since is not None:
            wait_meter.add(retries=1)
            return
        self._broken_since = time.monotonic()
        wait_meter.add(waits=1)
        _log.warning(
            "%s: the server is away, trying again for %g s (option reconnectTimeoutMs): %s",
            self._doing,
            self._connection.reconnect_ms / 1000,
            self._reason,
        )

    def _found_connection(self) -> None:
        self._heard_at = time.monotonic()
        if self._broken_since is not None:
            away = self.away_seconds
            self._broken_since = None
            wait_meter.add(seconds=away)
            _log.warning("%s: went on after %.1f s", self._doing, away)

    def _died(self, error: WorkerDiedError) -> None:
        """Nobody learns of versions any more."""
        self._failure = error

    def _may_recover(self, error: Exception) -> bool:
        """Whether to connect again; else the failure is kept for whoever asks."""
        try:
            found: Exception = as_server_error(error, doing=self._doing)
        except Exception as other:
            found = other
        if isinstance(found, ServerError):
            self._last_error = found
            # The watch names no version: lost is the history of a table that was made anew under
            # its name, whose epoch the next stream tells.
            if found.failure in (Failure.UNREACHABLE, Failure.LOST):
                return True
            # A server that has just restarted may not have made its tables yet, and a table that is
            # made anew is gone for a moment.
            if found.failure is Failure.NOT_FOUND and self.marks.newest is not None:
                if self.away_seconds < self._connection.reconnect_ms / 1000:
                    return True
                found = gave_up(found, self.away_seconds, doing=self._doing)
        self._failure = found
        return False

    def _follow(self) -> None:
        connection, client = self._connection, self._connection.client()
        # Older servers have this by DoGet alone; some of them would not answer at all.
        takes_questions = connection.act("journal.info", table=self._table).get("questions") is True
        question: Question | None = None
        if takes_questions:
            writer, stream = client.do_exchange(
                flight.FlightDescriptor.for_command(self._ticket),
                connection.call_options(further=READ_HEADERS),
            )
            question = Question(writer)
        else:
            stream = client.do_get(flight.Ticket(self._ticket), connection.call_options())
        try:
            self._stream, self._question = stream, question
            self._takes_questions = takes_questions
            self._read(stream, question)
        finally:
            self._stream = self._question = self._takes_questions = None
            stream.cancel()
            if question is not None:
                question.end()

    def _read(self, stream: Any, question: Question | None) -> None:
        for chunk in stream:
            if self._is_closing.is_set():
                return
            self._found_connection()
            if chunk.data is not None and chunk.data.num_rows:
                self.marks.add(mark_of(chunk.data))
            if question is not None and chunk.app_metadata is not None:
                question.answered(chunk.app_metadata.to_pybytes())


def mark_of(batch: pa.RecordBatch) -> VersionMark:
    """The newest mark of a watch batch."""
    last = batch.num_rows - 1
    epoch, *numbers = (
        batch.column(batch.schema.get_field_index(name))[last].as_py()
        for name in ("epoch", "version", "rows", "bytes", "timestamp_us")
    )
    return VersionMark(str(epoch), *(int(number) for number in numbers))

"""Every error this package raises on purpose, as one tree under :class:`BarrageError`.

Each class carries the gRPC status its condition maps to, so the server has one place to look.
Messages are built by the code that knows the fields; they say what was wrong, what was expected
and, where a user can act, what to do next. Codecs raise nothing but :class:`RemoteProtocolError`
on bad bytes.
"""

from __future__ import annotations

import difflib
import itertools
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class StatusCode(Enum):
    """The gRPC status codes we use, by their numbers, without importing grpc into the core."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BarrageError(Exception):
    """Root of the tree."""

    status_code: StatusCode = StatusCode.INTERNAL
    answered: tuple[StatusCode, str] | None = None
    """Status and text, as they came, of what a peer has answered a call with; None for what was
    found here."""


class ProtocolError(BarrageError):
    """A rule of the wire protocol was broken."""


class LocalProtocolError(ProtocolError):
    """Our own caller asked for something the protocol forbids in this state."""

    status_code = StatusCode.FAILED_PRECONDITION


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or a sequence of messages the protocol forbids."""

    status_code = StatusCode.INVALID_ARGUMENT


class LimitExceededError(BarrageError):
    """A declared limit (see :mod:`barrage.limits`) would be passed."""

    status_code = StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, what: str, *, actual: int, maximum: int, unit: str) -> None:
        self.what = what
        self.actual = actual
        self.maximum = maximum
        self.unit = unit
        super().__init__(f"{what} is {actual} {unit}, the limit is {maximum} {unit}")


class TicketError(BarrageError):
    """A ticket or descriptor does not name anything this server can route."""

    status_code = StatusCode.FAILED_PRECONDITION


COMPARED_LENGTH_MAX = 64
"""Longest name that is compared with others: it takes time in proportion to both lengths."""

COMPARED_NAMES_MAX = 1_000
"""Most names one is compared with."""


def near_miss(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when a known name is close, else nothing. Costs little whatever the
    names are, since peers choose them."""
    if len(name) > COMPARED_LENGTH_MAX:
        return ""
    some = itertools.islice(known, COMPARED_NAMES_MAX)
    short = [other for other in some if len(other) <= COMPARED_LENGTH_MAX]
    near = difflib.get_close_matches(name, short, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class TableNotFoundError(TicketError):
    """No table of that name; suggests the nearest names that exist."""

    status_code = StatusCode.NOT_FOUND

    def __init__(self, name: str, *, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"table {name!r} not found{near_miss(name, known)}")


class TableExistsError(TicketError):
    """A table of that name exists already."""

    status_code = StatusCode.ALREADY_EXISTS

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"table {name!r} exists already")


class SchemaError(BarrageError):
    """A schema, a column name or a column type does not fit; names the column."""

    status_code = StatusCode.INVALID_ARGUMENT


class RowError(BarrageError):
    """A row does not fit its table (null key, duplicate key, wrong value); names column and row."""

    status_code = StatusCode.INVALID_ARGUMENT

    def __init__(self, message: str, *, column: str | None = None, row: int | None = None) -> None:
        self.column = column
        self.row = row
        where = ", ".join(
            part
            for part in (
                f"column {column!r}" if column is not None else "",
                f"row {row}" if row is not None else "",
            )
            if part
        )
        super().__init__(f"{message} ({where})" if where else message)


class ExpressionError(BarrageError):
    """A filter or sort expression cannot be parsed or does not fit the schema."""

    status_code = StatusCode.INVALID_ARGUMENT


class UnsupportedError(BarrageError):
    """A legal request for something this engine does not have; names the operation."""

    status_code = StatusCode.UNIMPLEMENTED


class ActionNotFoundError(UnsupportedError):
    """An action the server does not know (Flight RPC: NOT_FOUND); an older server, mostly."""

    status_code = StatusCode.NOT_FOUND


class EngineError(BarrageError):
    """The update graph could not do what was asked."""


class TableFailedError(EngineError):
    """The table (or one it derives from) failed in an earlier cycle; no consistent state exists
    any more."""

    status_code = StatusCode.FAILED_PRECONDITION


ASK_AGAIN = "ask for it again"
"""In the text about a table that was ended and is made anew for who asks; clients know it by that
where it stands for something they can make themselves."""


class CycleTooLongError(TableFailedError):
    """So much has changed at once that all others would have waited for an operator of a client.
    Its table has ended; whoever asks for it again gets it made beside, of the rows there are
    then."""

    status_code = StatusCode.ABORTED

    def __init__(self, figures: str = "") -> None:
        """``figures`` say how much, to those who may know."""
        self._figures = figures
        super().__init__(
            "so much changed at once that all others would have waited for this derived "
            f"table{figures and f' ({figures})'}; {ASK_AGAIN}"
        )

    def anew(self) -> CycleTooLongError:
        """The same, to be raised: what a table keeps must get no frames, which keep the table."""
        return CycleTooLongError(self._figures)


class WorkerDiedError(BarrageError):
    """A thread or a task on which this depends has ended by an error nobody expected; only a
    restart brings it back. The log has the traceback under the id in the text."""

    status_code = StatusCode.UNAVAILABLE

    def __init__(self, worker: str, reason: str) -> None:
        self.worker = worker
        super().__init__(f"{worker} has died: {reason}")


MUST_RESTART = "the server must be restarted"
"""In the text of everything a server says that cannot go on; clients know it by that."""


class EngineDiedError(WorkerDiedError):
    """The engine thread has died, and nothing changes any more."""

    def __init__(self, error: WorkerDiedError) -> None:
        BarrageError.__init__(self, f"{error}; {MUST_RESTART}")
        self.worker = error.worker


class AuthenticationError(BarrageError):
    """Missing or wrong credentials."""

    status_code = StatusCode.UNAUTHENTICATED


class PermissionDeniedError(BarrageError):
    """Whoever asked is known, and may not do this."""

    status_code = StatusCode.PERMISSION_DENIED


class SlowConsumerError(BarrageError):
    """The subscriber took nothing for longer than its stall limit and was disconnected."""

    status_code = StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, *, stalled_ns: int, stall_ns_max: int) -> None:
        self.stalled_ns = stalled_ns
        self.stall_ns_max = stall_ns_max
        super().__init__(
            f"slow consumer: nothing was read for {stalled_ns / 1e9:.1f} s, "
            f"the limit is {stall_ns_max / 1e9:.1f} s; "
            "read faster, subscribe to fewer columns or raise the stall limit"
        )


class ReaderMemoryError(SlowConsumerError):
    """The subscriber was so far behind that only its row keys were remembered, and then not even
    those could be."""

    def __init__(self, *, nbytes: int, nbytes_max: int) -> None:
        self.nbytes = nbytes
        self.nbytes_max = nbytes_max
        BarrageError.__init__(
            self,
            f"slow consumer: what this table keeps for slow readers is {nbytes:,} bytes, "
            f"the limit is {nbytes_max:,} bytes; read faster or subscribe to a viewport",
        )


class SlowIteratorError(BarrageError):
    """An iterator of a blink table was not read until the rows that waited for it were too many.
    They are in no later state, so it is ended; the subscription goes on without it."""

    status_code = StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, *, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        super().__init__(
            f"slow iterator: the rows that wait for it are more than {bytes_max} bytes, and those "
            "of a blink table are in no later state; read faster, or follow an append-only table"
        )


class RequestRefusedError(BarrageError):
    """The peer ended a call with a status that no other class stands for; keeps code and text."""

    def __init__(self, code: StatusCode, details: str) -> None:
        self.code = code
        self.details = details
        super().__init__(f"{code.name}: {details}" if details else code.name)


class SubscriptionClosedError(BarrageError):
    """The subscription or session was closed; no more updates will come."""

    status_code = StatusCode.CANCELLED


class TransportError(BarrageError):
    """Moving frames failed."""

    status_code = StatusCode.UNAVAILABLE


class TransportUnavailableError(TransportError):
    """A transport is not installed or not configured; names the extra to install."""


class ConnectionLostError(TransportError):
    """The connection broke; a subscription reconnects unless told otherwise."""


class TLSFailedError(ConnectionLostError):
    """There is no connection because both sides do not agree on TLS: one does not speak it, or does
    not accept the other's certificate. Says which, and what to pass."""


class TableAwaitedError(ConnectionLostError):
    """A table that this server follows elsewhere and cannot serve yet; trying again helps."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"table {name!r} is not here yet: {why}; try again")


class ServerFailedError(ConnectionLostError):
    """The server answers, but its engine or its journal has failed for good: it must be restarted.
    Subscriptions and writers go on when it has been; calls that wait for it do not wait longer."""


class BodyChannelError(ConnectionLostError):
    """Bodies of record batches that travel outside their stream got lost; the stream cannot go on,
    a new one takes them inline."""


class CallCancelledError(BarrageError):
    """The client has ended the call before the server did."""

    status_code = StatusCode.CANCELLED


class ConfigError(BarrageError):
    """A setting is unknown or has a wrong value; names the setting and where it came from."""

    status_code = StatusCode.INVALID_ARGUMENT


class ConnectorRefusedError(BarrageError):
    """A worker has ended the connection of a source, and would do so again."""

    status_code = StatusCode.FAILED_PRECONDITION


class SourceLostError(BarrageError):
    """What a source would have to go on from is not there any more: rows would be missing."""

    status_code = StatusCode.DATA_LOSS


class CursorError(BarrageError):
    """A text is not a cursor, or the cursor is of another table."""

    status_code = StatusCode.INVALID_ARGUMENT


class JournalError(BarrageError):
    """A journal could not do what was asked."""


class HistoryLostError(JournalError):
    """The journal does not reach the version that was asked for: another epoch, a version it has
    already forgotten, or one that was never committed. Says what it still has."""

    status_code = StatusCode.FAILED_PRECONDITION

    def __init__(self, table: str, *, asked: str, reason: str) -> None:
        self.table = table
        self.asked = asked
        self.reason = reason
        super().__init__(f"history of table {table!r} at {asked} is lost: {reason}")


class NoJournalError(JournalError):
    """The table has no journal; says how to get one."""

    status_code = StatusCode.FAILED_PRECONDITION

    def __init__(self, table: str, *, is_view: bool = False, sources: Sequence[str] = ()) -> None:
        self.table = table
        self.is_view = is_view
        self.sources = tuple(sources)
        """Of a view: the tables with a journal that it is made of, as far as they are known."""
        made_of = f": {', '.join(map(repr, sources))}" if sources else ""
        super().__init__(
            f"table {table!r} is derived from others and has no journal of its own; "
            f"use the tables it is made of{made_of}"
            if is_view
            else f"table {table!r} has no journal; create it with journal='durable' or 'memory', "
            "or start the server with --data DIR"
        )


class JournalCorruptError(JournalError):
    """A record in the middle of a journal does not read as it was written."""

    status_code = StatusCode.DATA_LOSS

    def __init__(self, file: str, *, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(f"journal file {file} is damaged at byte {offset}: {reason}")


class JournalFullError(JournalError):
    """The disk has no room for more history: writes are refused until it has, reading goes on."""

    status_code = StatusCode.RESOURCE_EXHAUSTED


class JournalFailedError(JournalError):
    """The storage refused to keep what it was given, so nothing more is acknowledged until a
    restart has read back what is really there."""

    status_code = StatusCode.UNAVAILABLE


class RecordRefusedError(JournalError):
    """What a cycle changed in a table could not be made a record, so the history of the table ends
    before it, and a durable table takes no more writes. Others are not concerned."""

    status_code = StatusCode.FAILED_PRECONDITION

    def __init__(self, table: str, *, step: int, cause: Exception) -> None:
        self.table = table
        self.step = step
        super().__init__(
            f"step {step} of table {table!r} could not be recorded, its history ends before "
            f"it until the server is started again: {str(cause) or type(cause).__name__}"
        )


class ResumeRefusedError(BarrageError):
    """A subscription cannot go on from the version its owner holds; a snapshot is due. The message
    is the reason."""

    status_code = StatusCode.FAILED_PRECONDITION


class MuchMissedError(ResumeRefusedError):
    """More was missed, or is left, than may be worked for. The text has counts of whole tables."""


class SequenceError(BarrageError):
    """A producer's sequence numbers do not fit those the table has committed."""

    status_code = StatusCode.FAILED_PRECONDITION


class ProducerFencedError(SequenceError):
    """Another writer has begun under the same producer's name since, and nothing more is taken from
    this one. What it was acknowledged is kept; the other one goes on after it."""

    def __init__(self, producer: str) -> None:
        self.producer = producer
        super().__init__(
            f"producer {producer!r} is fenced: another writer has begun under its name since; "
            "one place writes for a producer at a time"
        )

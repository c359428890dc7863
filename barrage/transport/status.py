"""gRPC statuses back into the error tree, at the one place where gRPC errors are seen.

A status has a code and a text, nothing else travels. The text is kept; where a class is built from
fields (a table name) the fields are read from the text as far as they can be.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from barrage.errors import (
    MUST_RESTART,
    ActionNotFoundError,
    AuthenticationError,
    BarrageError,
    ConnectionLostError,
    HistoryLostError,
    JournalCorruptError,
    JournalFullError,
    NoJournalError,
    PermissionDeniedError,
    ProducerFencedError,
    ReaderMemoryError,
    RequestRefusedError,
    RowError,
    SequenceError,
    ServerFailedError,
    SlowConsumerError,
    StatusCode,
    TableExistsError,
    TableFailedError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.transport.tls.client_tls import tls_failure

if TYPE_CHECKING:
    import grpc

_TABLE_NAME = re.compile(r"table:? (?:variable )?'([^']+)'")
_SUGGESTED = re.compile(r"did you mean '([^']+)'")

_FAR_BEHIND = re.compile(r"slow consumer: .* is ([0-9,]+) bytes, the limit is ([0-9,]+) bytes")
_SLOW = re.compile(r"slow consumer: .* for ([0-9.]+) s, the limit is ([0-9.]+) s")

_ROW = re.compile(r" \((?:column '(?P<column>[^']*)', )?row (?P<row>\d+)\)$")

_HISTORY = re.compile(
    r"table '(?P<table>[^']*)' at (?P<asked>.+?) (?:is lost[:;]|cannot be had[:;]) (?P<reason>.*)",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*)'")
_NO_JOURNAL = re.compile(r"table '([^']*)' (has no journal|is derived from others and has no jour)")

_FULL = "no room for more history"

_DAMAGED = re.compile(r"journal file (.+) is damaged at byte (\d+): (.*)")

_PRODUCER = re.compile(
    r"a producer is named|a sequence number is|of producer '|producer '[^']*' has no"
)

_FENCED = re.compile(r"producer (?:'([^']*)'|\"([^\"]*)\") is fenced")

_UNKNOWN_ACTION = "unknown action "

_BROKEN_STREAM = re.compile(
    r"^Stream removed|RST_STREAM|overflows local window|^Internal error from Core$"
)
"""What gRPC itself says, as INTERNAL, of a stream that broke below it. A Deephaven server's HTTP/2
now and then sends more than the window it had just acknowledged; the last is all it says when a
write meets a connection that has just been cut."""

_REFUSED: dict[StatusCode, tuple[type[BarrageError], str, str]] = {
    StatusCode.UNAUTHENTICATED: (
        AuthenticationError,
        "the server accepts no call without valid credentials",
        "pass auth=barrage.Basic(user, password), barrage.Bearer(token) or "
        "barrage.PreSharedKey(key), or a certificate with tls=barrage.TLS(certificate=, key=)",
    ),
    StatusCode.PERMISSION_DENIED: (
        PermissionDeniedError,
        "the server does not permit this call",
        "the server knows who you are, and its rules do not let you: ask whoever keeps them",
    ),
}
"""Error, text where the server gives none, and what to do next."""

_LOST = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.CANCELLED,
        StatusCode.ABORTED,
    }
)


def error_from_rpc(error: grpc.RpcError, *, table: str | None = None) -> BarrageError:
    """The error a failed call stands for. ``table`` names the table when the text does not."""
    code: grpc.StatusCode = error.code()
    number = code.value[0]
    if number == StatusCode.DEADLINE_EXCEEDED.value:
        return DeadlineError(error.details() or "the call took longer than its timeout")
    known = {item.value: item for item in StatusCode}
    return error_from_status(known.get(number, StatusCode.UNKNOWN), error.details(), table=table)


class DeadlineError(RequestRefusedError, TimeoutError):
    """A call ran into its timeout; also a TimeoutError."""

    def __init__(self, details: str) -> None:
        super().__init__(StatusCode.DEADLINE_EXCEEDED, details)


def error_from_status(
    code: StatusCode, details: str | None, *, table: str | None = None
) -> BarrageError:
    """The error for one status."""
    error = _error(code, details or "", table)
    error.answered = code, details or ""
    return error


def _error(code: StatusCode, text: str, table: str | None) -> BarrageError:
    if code is StatusCode.UNAVAILABLE and (known := _about_server(text)) is not None:
        return known
    if code in _LOST or (code is StatusCode.INTERNAL and _BROKEN_STREAM.search(text)):
        return ConnectionLostError(text or code.name)
    if code in _REFUSED:
        kind, otherwise, advice = _REFUSED[code]
        refused = kind(text or otherwise)
        # Not in its text: commands and Spark have advice of their own.
        refused.add_note(advice)
        return refused
    if code is StatusCode.NOT_FOUND and text.startswith(_UNKNOWN_ACTION):
        return ActionNotFoundError(text)
    if code in (StatusCode.NOT_FOUND, StatusCode.ALREADY_EXISTS):
        return _about_table(code, text, table)
    if code is StatusCode.FAILED_PRECONDITION and (told := _about_history(text)) is not None:
        return told
    if code is StatusCode.FAILED_PRECONDITION:
        return TableFailedError(text) if "failed" in text else TicketError(text)
    if code is StatusCode.RESOURCE_EXHAUSTED and (spent := _about_exhaustion(text)) is not None:
        return spent
    if code is StatusCode.DATA_LOSS and (match := _DAMAGED.search(text)):
        return JournalCorruptError(match[1], offset=int(match[2]), reason=match[3])
    if code is StatusCode.INVALID_ARGUMENT and (match := _ROW.search(text)):
        return RowError(
            text[: match.start()], column=match.group("column"), row=int(match.group("row"))
        )
    if code is StatusCode.UNIMPLEMENTED:
        return UnsupportedError(text)
    return RequestRefusedError(code, text)


def _about_server(text: str) -> BarrageError | None:
    """Why there is no server to be had, if it is said."""
    return ServerFailedError(text) if MUST_RESTART in text else tls_failure(text)


def _about_history(text: str) -> BarrageError | None:
    """The error about a journal or a producer that a text stands for, if it is about one."""
    if match := _HISTORY.search(text):
        return HistoryLostError(match["table"], asked=match["asked"], reason=match["reason"])
    if match := _NO_JOURNAL.search(text):
        _, _, made_of = text.partition(" made of: ")
        sources = _QUOTED.findall(made_of)
        return NoJournalError(match[1], is_view=match[2].startswith("is"), sources=sources)
    if match := _FENCED.search(text):
        return ProducerFencedError(match[1] or match[2])
    return SequenceError(text) if _PRODUCER.search(text) else None


def _about_exhaustion(text: str) -> BarrageError | None:
    """What there was no room for, or who was too slow."""
    if _FULL in text:
        return JournalFullError(text)
    if match := _FAR_BEHIND.search(text):
        kept, limit = (int(number.replace(",", "")) for number in match.groups())
        return ReaderMemoryError(nbytes=kept, nbytes_max=limit)
    if match := _SLOW.search(text):
        stalled, limit = (round(float(seconds) * 1e9) for seconds in match.groups())
        return SlowConsumerError(stalled_ns=stalled, stall_ns_max=limit)
    return None


def _about_table(code: StatusCode, text: str, table: str | None) -> BarrageError:
    match = _TABLE_NAME.search(text)
    name = match.group(1) if match else table
    if name is None:
        return RequestRefusedError(code, text)
    if code is StatusCode.ALREADY_EXISTS:
        return TableExistsError(name)
    return TableNotFoundError(name, known=_SUGGESTED.findall(text))

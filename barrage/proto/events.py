"""What the server's side of an exchange tells its driver. Past tense: all of these have
happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.wire.frame import FlightFrame
    from barrage.wire.metadata import SnapshotOptions, SubscriptionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRequested:
    """The stream is a subscription from now on."""

    ticket: bytes
    columns: ColumnSet | None
    """None means all columns; indices past the schema are legal and echoed."""
    viewport: Viewport | None
    """None means a full subscription."""
    is_reverse: bool
    """The requested direction; only echoed when there is no viewport."""
    options: SubscriptionOptions
    token: bytes | None
    """No message has a field for it; a transport may have a way of its own to echo it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionChanged:
    """Another viewport or other columns are wanted; ticket and options of such a request do not
    count."""

    columns: ColumnSet | None
    viewport: Viewport
    token: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequested:
    """The stream is one snapshot: send it all, then wait for the half-close before completing."""

    ticket: bytes
    columns: ColumnSet | None
    viewport: Viewport | None
    is_reverse: bool
    options: SnapshotOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequested:
    """The stream is a read by ticket; see :mod:`barrage.proto.read_exchange`."""

    descriptor: bytes
    """An encoded FlightDescriptor, whose command is the ticket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsAsked:
    """The client of a watch asks whether it has been told all there is."""

    question: bytes
    """Some bytes, which are the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfClosed:
    """The client sends nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodiesReleased:
    """The client is done with bodies that travelled outside the stream."""

    ids: tuple[int, ...]
    """Addresses in shared memory or sequence numbers, as the stream's way has it; any number may
    be wrong or repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequested:
    """A session message of the draft: the client wants a token, or one in place of ``session``,
    and is answered with a SessionInfoResponse."""

    session: bytes | None = None
    """The token of before; None for a new session."""
    payload: bytes | None = None
    """Of a new session: what the client has to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequested:
    """The stream is plain Arrow both ways: rows come, and go back transformed."""

    descriptor: bytes
    """An encoded FlightDescriptor, whose command says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsArrived:
    """A message of the rows that are to be transformed: schema, dictionary or batch."""

    frame: FlightFrame


ServerEvent = (
    SubscriptionRequested
    | SubscriptionChanged
    | SnapshotRequested
    | HalfClosed
    | BodiesReleased
    | SessionRequested
    | TransformRequested
    | RowsArrived
)

"""What the event loop and the engine thread tell each other about DoExchange streams.

Each message is a frozen value and names its stream or streams by number. Either side keeps what it
knows of them in a table of its own (:mod:`barrage.server.exchange.stream_table` on the loop,
:mod:`barrage.server.exchange.subscription_registry` on the engine thread), and neither ever sees
the other's objects: nothing is written by two threads.

==========  ====================================================  =================================
sequence    loop to engine                                        engine to loop
==========  ====================================================  =================================
subscribe   ``Subscribe``                                         ``Subscribed`` or ``Refused``;
                                                                  updates; ``StreamEnded``
viewport    ``ChangeViewport``                                    ``AnswerAnnounced`` if there is a
                                                                  token; updates, or ``StreamEnded``
resume      ``PlanResume``, ``SubscribeTogether``                 ``ResumePlanned``, ``PlanBuilt``;
            or ``GiveUpPlan``                                     then as after ``Subscribe``
cancel      ``Unsubscribe``                                       nothing
flow        ``Hold``, ``Release``, ``RenewHold``                  nothing, or ``StreamEnded``
snapshot    ``ReadSnapshot``, ``ForgetSnapshot``                  ``SnapshotBegun``
==========  ====================================================  =================================

A *request* is answered with one value. A *notice* is not: it takes effect, or concerns a stream
that has ended meanwhile and does nothing. Updates and ends (*events*) come in the hand-over at the
end of an engine's turn, in the order in which they happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from barrage.errors import BarrageError
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.events import SubscriptionRequested
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.runtime.observation import UpdateOrigin
    from barrage.server.runtime.snapshot_work import SnapshotWork
    from barrage.server.tables.table_lease import TableSource
    from barrage.wire.dissociated.ways import BodyWay
    from barrage.wire.updates.update_codec import EncodeOptions, Mark, UpdateEncoder

Answer = TypeVar("Answer")

Headers: TypeAlias = "tuple[tuple[str, str], ...]"
"""What the response to a subscription carries besides its updates."""


class EngineRequest(Generic[Answer]):
    """A message that is answered with an ``Answer``."""

    __slots__ = ()


# --- subscribe ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(EngineRequest["Subscribed | Refused"]):
    """Begin a subscription: its schema goes to the stream first."""

    stream_id: int
    source: TableSource
    """The table, or what says on the engine thread which one it is then."""
    wanted: SubscriptionRequested
    options: EncodeOptions
    types: SessionTypes | None
    """How the caller's session sees tables; None for a caller without one."""
    way: BodyWay
    resume: ResumeRequest | None = None
    """The cursor it goes on from, if it can."""
    wants_each_step: bool = False
    """Whether every step is to be told by itself."""
    token: bytes | None = None
    """Announces the first state, where the transport can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The subscription has begun."""

    stream_id: int
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """There is no subscription, for this reason."""

    stream_id: int
    error: BarrageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedUpdate:
    """Frames of one update, ready to send, shared by all ``stream_ids``."""

    stream_ids: tuple[int, ...]
    frames: tuple[Frame, ...]
    byte_count: int
    origin: UpdateOrigin | None = None

    @classmethod
    def of(
        cls,
        stream_ids: tuple[int, ...],
        frames: tuple[Frame, ...],
        origin: UpdateOrigin | None = None,
    ) -> EncodedUpdate:
        size = sum(map(len, frames))
        return cls(stream_ids=stream_ids, frames=frames, byte_count=size, origin=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedViews:
    """Updates of many views: ``frames[i]`` is for the stream ``stream_ids[i]``. Equal ones are one
    object."""

    stream_ids: list[int]
    frames: list[bytes]
    origin: UpdateOrigin | None = None


class EncodingPlan(Protocol):
    """The part of :class:`barrage.wire.updates.update_codec.UpdatePlan` used here. Immutable: a
    mark gives the same frame every time, on any thread."""

    @property
    def byte_count(self) -> int: ...

    def frame_at(self, mark: Mark) -> tuple[Frame, Mark | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUpdate:
    """One large update for all ``stream_ids``, to be encoded frame by frame as they send it."""

    stream_ids: tuple[int, ...]
    plan: EncodingPlan
    first: Frame | None = None
    """The first frame, if it is encoded already."""
    mark: Mark | None
    """Where the next frame begins."""
    origin: UpdateOrigin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded:
    """A subscription has ended with an error; the stream ends after what it was sent before."""

    stream_id: int
    error: BarrageError


# --- change of viewport ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeViewport:
    """Another viewport or other columns. One that still waits when the next one of its stream comes
    is replaced by it, so that one at most is on its way however many a client sends."""

    stream_id: int
    columns: ColumnSet | None
    viewport: Viewport
    token: bytes | None = None
    """Announces the answer, where the transport can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAnnounced:
    """The next update of this stream answers its request with this token."""

    stream_id: int
    token: bytes


# --- resume ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResume(EngineRequest["ResumePlanned"]):
    """Begin a plan that leads from a subscription's cursor to the present, for it and for all that
    have the same one."""

    plan_id: int
    subscribe: Subscribe
    is_patient: bool = False
    """Whether to begin nothing and say so while the table has not come to the cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlanned:
    """What it takes is known."""

    plan_id: int
    is_building: bool
    """Whether journals are read for it now; ``PlanBuilt`` says when that is over."""
    awaits_from: int | None = None
    """The step the table is at, when the cursor is of one that is still to come here: ask again. No
    plan was begun."""
    refused: Refused | None = None
    """Why this subscription cannot begin, whatever its cursor: ask for the next of those who wait.
    No plan was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBuilt:
    """The plan is made as far as it can be made ahead, or cannot be made."""

    plan_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeTogether(EngineRequest["tuple[Subscribed | Refused, ...]"]):
    """Begin all these in one turn, from their cursor by this plan or else from a snapshot. The plan
    is forgotten. The answers are in the order of the subscriptions."""

    plan_id: int
    subscribes: tuple[Subscribe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpPlan:
    """Nobody will subscribe by this plan."""

    plan_id: int


# --- cancel ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """The stream has ended, however that came; nothing more is for it."""

    stream_id: int


# --- flow control ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The outboxes of these are full: send them nothing more, merge their changes."""

    stream_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The outboxes of these have room: send what they missed as one update."""

    stream_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewHold:
    """A held stream is reading, if slowly: its stall clock starts anew."""

    stream_id: int


# --- snapshot -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSnapshot(EngineRequest["SnapshotBegun"]):
    """Take hold of a table as it is now."""

    snapshot_id: int
    source: TableSource
    columns: ColumnSet | None
    viewport: Viewport | None
    is_reverse: bool
    options: EncodeOptions
    types: SessionTypes | None
    way: BodyWay
    is_parted: bool = False
    """Its rows are to be read part by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBegun:
    """The table is held; the work is to be done beside the engine thread."""

    snapshot_id: int
    encoder: UpdateEncoder[Frame]
    work: SnapshotWork
    epoch: str | None
    """Of the table's history; None when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSnapshot:
    """It has been read, or will not be: let go of the table, on the engine thread."""

    snapshot_id: int


# --- how they are sent ----------------------------------------------------------------------------

EngineNotice: TypeAlias = (
    ChangeViewport | GiveUpPlan | Unsubscribe | Hold | Release | RenewHold | ForgetSnapshot
)
StreamUpdate: TypeAlias = EncodedUpdate | PlannedUpdate
StreamEvent: TypeAlias = StreamUpdate | EncodedViews | AnswerAnnounced | StreamEnded | PlanBuilt


class EnginePort(Protocol):
    """The engine as the event loop sees it. Any thread."""

    def ask(self, request: EngineRequest[Answer]) -> Future[Answer]:
        """Have a request answered between two cycles. LimitExceededError when too many wait,
        TransportError or EngineDiedError when nobody will answer; the future may get them, too."""
        ...

    def tell(self, notice: EngineNotice) -> None:
        """Have a notice take effect between two cycles. Never refused; nothing when the engine has
        ended."""
        ...

    def events_taken(self) -> None:
        """One hand-over of events has been taken."""
        ...

    def close(self) -> None:
        """No more plans are built."""
        ...

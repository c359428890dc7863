"""What the engine thread hands to the event loop, and the sharing of encoded bytes.

A message is encoded once for all its subscribers. One that fits in a single frame is encoded on
the engine thread at once. A larger one is encoded by whichever stream needs its next frame first,
from immutable Arrow slices: the frame is kept until every stream has sent it, but never more than
:data:`WINDOW_BYTES_MAX` of frames. A stream that falls out of that window encodes its next frame
for itself, from the mark the one before left, and joins the others where they are still in the
window. So memory per large update is bounded, however slow a reader is, and every step costs the
event loop at most one frame.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from barrage.engine.making import Disconnect
from barrage.errors import BarrageError
from barrage.server.failure import unexpected_failure
from barrage.wire.update_codec import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.engine.making import Delivery
    from barrage.model.update import FullUpdate, ViewUpdate
    from barrage.server.body_frames import Frame
    from barrage.wire.update_codec import Mark

log = logging.getLogger(__name__)

WINDOW_BYTES_MAX = 4 * 1024 * 1024
"""Encoded frames of one large update kept for the streams that have not sent them yet."""

OUTSIDE_WINDOW_BYTES_MAX = 4 * WINDOW_BYTES_MAX
"""The same for frames with a body apart, which are larger and fewer."""


class Plan(Protocol):
    """The part of :class:`barrage.wire.update_codec.UpdatePlan` used here."""

    @property
    def byte_count(self) -> int: ...

    def frame_at(self, mark: Mark) -> tuple[Frame, Mark | None]: ...


class Encoder(Protocol):
    """The part of :class:`barrage.wire.update_codec.UpdateEncoder` used here; equal options, one
    encoder."""

    def plan(self, message: FullUpdate | ViewUpdate) -> Plan: ...


class EncodedUpdate:
    """Frames of one update, ready to send, shared by all ``subscription_ids``. Read-only."""

    __slots__ = ("byte_count", "frames", "subscription_ids")

    def __init__(
        self,
        subscription_ids: tuple[int, ...],
        frames: tuple[Frame, ...],
    ) -> None:
        self.subscription_ids = subscription_ids
        self.frames = frames
        self.byte_count = sum(map(len, frames))


class LazyUpdate:
    """One large update encoded on demand, frame by frame; belongs to the event loop once handed
    over."""

    __slots__ = (
        "_first",
        "_frames",
        "_mark",
        "_plan",
        "_reader_count",
        "_window_bytes",
        "_window_bytes_max",
        "byte_count",
        "subscription_ids",
    )

    def __init__(
        self,
        subscription_ids: tuple[int, ...],
        plan: Plan,
        *,
        first: Frame | None = None,
        mark: Mark | None = BEGINNING,
    ) -> None:
        """``first`` is the first frame if it is encoded already, ``mark`` is where the next one
        begins."""
        self.subscription_ids = subscription_ids
        self.byte_count = plan.byte_count
        self._plan = plan
        self._mark = mark
        self._first = 0
        self._reader_count = len(subscription_ids)
        self._frames: deque[_SharedFrame] = deque()
        self._window_bytes = 0
        self._window_bytes_max = WINDOW_BYTES_MAX
        if first is not None:
            self._keep(first, mark)

    def frames(self) -> Iterator[Frame]:
        """The frames for one stream, to be called once per subscription. Each step encodes at most
        one frame."""
        index = 0
        mark: Mark | None = BEGINNING
        while mark is not None:
            if index < self._first:
                frame, mark = self._plan.frame_at(mark)
            else:
                shared = self._shared_frame(index)
                frame, mark = shared.frame, shared.following
            yield frame
            index += 1

    def _shared_frame(self, index: int) -> _SharedFrame:
        """Frame ``index``, one that is kept or the one behind them, which is encoded now."""
        if index == self._first + len(self._frames):
            assert self._mark is not None
            frame, self._mark = self._plan.frame_at(self._mark)
            self._keep(frame, self._mark)
        shared = self._frames[index - self._first]
        shared.needed_by -= 1
        self._trim()
        return shared

    def _keep(self, frame: Frame, following: Mark | None) -> None:
        if not isinstance(frame, bytes):
            self._window_bytes_max = OUTSIDE_WINDOW_BYTES_MAX
        self._frames.append(_SharedFrame(frame, following, self._reader_count))
        self._window_bytes += len(frame)

    def _trim(self) -> None:
        """Forget frames everybody has, and the oldest while the window is too large."""
        frames = self._frames
        while frames and (
            frames[0].needed_by <= 0
            or (self._window_bytes > self._window_bytes_max and len(frames) > 1)
        ):
            self._window_bytes -= len(frames.popleft().frame)
            self._first += 1


class _SharedFrame:
    """One encoded frame, where the next one begins, and how many streams have not sent it yet."""

    __slots__ = ("following", "frame", "needed_by")

    def __init__(self, frame: Frame, following: Mark | None, needed_by: int) -> None:
        self.frame = frame
        self.following = following
        self.needed_by = needed_by


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A subscription has ended with an error; the stream ends after what it was sent before."""

    subscription_id: int
    error: BarrageError


HandoverItem = EncodedUpdate | LazyUpdate | StreamEnded


def convert(item: Delivery | Disconnect) -> Iterable[HandoverItem]:
    """Hand-over items for what a producer said. An update that cannot be encoded ends its
    subscriptions."""
    if isinstance(item, Disconnect):
        return (StreamEnded(item.subscription_id, item.error),)
    encoder = cast("Encoder", item.encoding)
    try:
        plan = encoder.plan(item.message)
        first, mark = plan.frame_at(BEGINNING)
        if mark is None:
            return (EncodedUpdate(item.subscription_ids, (first,)),)
        return (LazyUpdate(item.subscription_ids, plan, first=first, mark=mark),)
    except BarrageError as error:
        failure: BarrageError = error
    except Exception:
        failure = unexpected_failure(log, "an update could not be encoded")
    return [StreamEnded(subscription_id, failure) for subscription_id in item.subscription_ids]

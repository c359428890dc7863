"""The sharing of encoded bytes between the streams that send one large update. Belongs to the event
loop.

A message is encoded once for all its subscribers. One that fits in a single frame is encoded on
the engine thread at once (:mod:`barrage.server.exchange.delivery`). A larger one is encoded by
whichever stream needs its next frame first, from immutable Arrow slices: the frame is kept until
every stream has sent it, but never more than :data:`WINDOW_BYTES_MAX` of frames. A stream that
falls out of that window encodes its next frame for itself, from the mark the one before left, and
joins the others where they are still in the window. So memory per large update is bounded, however
slow a reader is, and every step costs the event loop at most one frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from barrage.wire.updates.update_codec import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.server.bodies.body_frames import Frame
    from barrage.server.exchange.exchange_messages import PlannedUpdate
    from barrage.wire.updates.update_codec import Mark

WINDOW_BYTES_MAX = 4 * 1024 * 1024
"""Encoded frames of one large update kept for the streams that have not sent them yet."""

OUTSIDE_WINDOW_BYTES_MAX = 4 * WINDOW_BYTES_MAX
"""The same for frames with a body apart, which are larger and fewer."""


class LazyUpdate:
    """One large update encoded on demand, frame by frame."""

    __slots__ = (
        "_first",
        "_frames",
        "_mark",
        "_plan",
        "_reader_count",
        "_window_bytes",
        "_window_bytes_max",
        "byte_count",
        "origin",
    )

    def __init__(self, update: PlannedUpdate) -> None:
        self.byte_count = update.plan.byte_count
        self.origin = update.origin
        self._plan = update.plan
        self._mark = update.mark
        self._first = 0
        self._reader_count = len(update.stream_ids)
        self._frames: deque[_SharedFrame] = deque()
        self._window_bytes = 0
        self._window_bytes_max = WINDOW_BYTES_MAX
        if update.first is not None:
            self._keep(update.first, update.mark)

    def frames(self) -> Iterator[Frame]:
        """The frames for one stream, to be called once per stream. Each step encodes at most
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

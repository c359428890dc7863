"""What the engine thread hands to the event loop, and the sharing of encoded bytes.

A message is encoded once for all its subscribers. One that fits in a single frame is encoded on
the engine thread at once. A larger one is encoded by whichever stream needs its next frame first,
from immutable Arrow slices: the frame is kept until every stream has sent it, but never more than
:data:`WINDOW_BYTES_MAX` of frames; a stream that falls out of that window encodes the rest for
itself. So memory per large update is bounded, however slow a reader is.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from barrage.engine.producer import Disconnect
from barrage.errors import BarrageError
from barrage.server.failure import unexpected_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.engine.producer import Delivery
    from barrage.model.update import FullUpdate, ViewUpdate
    from barrage.server.body_frames import Frame

log = logging.getLogger(__name__)

WINDOW_BYTES_MAX = 4 * 1024 * 1024
"""Encoded frames of one large update kept for the streams that have not sent them yet."""

OUTSIDE_WINDOW_BYTES_MAX = 4 * WINDOW_BYTES_MAX
"""The same for frames with a body apart, which are larger and fewer."""


class Encoder(Protocol):
    """The part of :class:`barrage.wire.update_codec.UpdateEncoder` used here; equal options, one
    encoder."""

    def schema_frame(self) -> bytes: ...

    def encode(self, message: FullUpdate | ViewUpdate) -> Iterator[Frame]: ...

    def estimate_bytes(self, message: FullUpdate | ViewUpdate) -> int: ...


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
        "_encoder",
        "_first",
        "_frames",
        "_message",
        "_reader_count",
        "_source",
        "_window_bytes",
        "_window_bytes_max",
        "byte_count",
        "subscription_ids",
    )

    def __init__(
        self,
        subscription_ids: tuple[int, ...],
        encoder: Encoder,
        message: FullUpdate | ViewUpdate,
        *,
        source: Iterator[Frame] | None = None,
        ahead: tuple[Frame, ...] = (),
    ) -> None:
        """``source`` goes on where ``ahead``, the frames encoded already, ends."""
        self.subscription_ids = subscription_ids
        self.byte_count = encoder.estimate_bytes(message)
        self._encoder = encoder
        self._message = message
        self._source = encoder.encode(message) if source is None else source
        self._first = 0
        self._reader_count = len(subscription_ids)
        self._frames: deque[_SharedFrame] = deque()
        self._window_bytes = 0
        self._window_bytes_max = WINDOW_BYTES_MAX
        for frame in ahead:
            self._keep(frame)

    def frames(self) -> Iterator[Frame]:
        """The frames for one stream, to be called once per subscription."""
        index = 0
        while index >= self._first:
            frame = self._shared_frame(index)
            if frame is None:
                return
            yield frame
            index += 1
        yield from itertools.islice(self._encoder.encode(self._message), index, None)

    def _shared_frame(self, index: int) -> Frame | None:
        """Frame ``index`` >= the first kept, encoded now if nobody has needed it yet; None past the
        end."""
        while index >= self._first + len(self._frames):
            if not self._encode_one():
                return None
        shared = self._frames[index - self._first]
        shared.needed_by -= 1
        self._trim()
        return shared.frame

    def _encode_one(self) -> bool:
        """Add the next frame to the window; False at the end."""
        frame = next(self._source, None)
        if frame is None:
            return False
        self._keep(frame)
        return True

    def _keep(self, frame: Frame) -> None:
        if not isinstance(frame, bytes):
            self._window_bytes_max = OUTSIDE_WINDOW_BYTES_MAX
        self._frames.append(_SharedFrame(frame, self._reader_count))
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
    """One encoded frame and how many streams have not sent it yet."""

    __slots__ = ("frame", "needed_by")

    def __init__(self, frame: Frame, needed_by: int) -> None:
        self.frame = frame
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
        frames = encoder.encode(item.message)
        first = next(frames)
        second = next(frames, None)
        if second is None:
            return (EncodedUpdate(item.subscription_ids, (first,)),)
        ahead = (first, second)
        return (
            LazyUpdate(item.subscription_ids, encoder, item.message, source=frames, ahead=ahead),
        )
    except BarrageError as error:
        failure: BarrageError = error
    except Exception:
        failure = unexpected_failure(log, "an update could not be encoded")
    return [StreamEnded(subscription_id, failure) for subscription_id in item.subscription_ids]

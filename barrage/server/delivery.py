"""What the engine thread hands to the event loop, and the sharing of encoded bytes.

A message is encoded once for all its subscribers. A small one is encoded on the engine thread at
once. A large one is encoded by whichever stream needs its next frame first, from immutable Arrow
slices: the frame is kept until every stream has sent it, but never more than
:data:`WINDOW_BYTES_MAX` of frames; a stream that falls out of that window encodes the rest for
itself. So memory per large update is bounded, however slow a reader is.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from barrage.engine.producer import Disconnect
from barrage.errors import BarrageError, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.engine.producer import Delivery
    from barrage.model.update import FullUpdate, ViewUpdate

log = logging.getLogger(__name__)

EAGER_BYTES_MAX = 64 * 1024
"""Messages up to this estimated size are encoded on the engine thread."""

WINDOW_BYTES_MAX = 4 * 1024 * 1024
"""Encoded frames of one large update kept for the streams that have not sent them yet."""


class Encoder(Protocol):
    """The part of :class:`barrage.wire.update_codec.UpdateEncoder` used here; equal options, one
    encoder."""

    def schema_frame(self) -> bytes: ...

    def encode(self, message: FullUpdate | ViewUpdate) -> Iterator[bytes]: ...

    def estimate_bytes(self, message: FullUpdate | ViewUpdate) -> int: ...


class EncodedUpdate:
    """Frames of one update, ready to send, shared by all ``subscription_ids``. Read-only."""

    __slots__ = ("byte_count", "frames", "is_update", "subscription_ids")

    def __init__(
        self,
        subscription_ids: tuple[int, ...],
        frames: tuple[bytes, ...],
        *,
        is_update: bool = True,
    ) -> None:
        self.subscription_ids = subscription_ids
        self.frames = frames
        self.byte_count = sum(map(len, frames))
        self.is_update = is_update


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
        "byte_count",
        "subscription_ids",
    )

    def __init__(
        self,
        subscription_ids: tuple[int, ...],
        encoder: Encoder,
        message: FullUpdate | ViewUpdate,
        byte_count: int,
    ) -> None:
        self.subscription_ids = subscription_ids
        self.byte_count = byte_count
        self._encoder = encoder
        self._message = message
        self._source: Iterator[bytes] | None = None
        self._frames: deque[list[object]] = deque()  # [frame, readers that still need it]
        self._first = 0
        self._reader_count = len(subscription_ids)
        self._window_bytes = 0

    def frames(self) -> Iterator[bytes]:
        """The frames for one stream, to be called once per subscription."""
        index = 0
        while index >= self._first:
            frame = self._shared_frame(index)
            if frame is None:
                return
            yield frame
            index += 1
        yield from itertools.islice(self._encoder.encode(self._message), index, None)

    def _shared_frame(self, index: int) -> bytes | None:
        """Frame ``index`` >= the first kept, encoded now if nobody has needed it yet; None past the
        end."""
        if self._source is None:
            self._source = self._encoder.encode(self._message)
        while index >= self._first + len(self._frames):
            fresh = next(self._source, None)
            if fresh is None:
                return None
            self._frames.append([fresh, self._reader_count])
            self._window_bytes += len(fresh)
        entry = self._frames[index - self._first]
        frame = cast("bytes", entry[0])
        entry[1] = cast("int", entry[1]) - 1
        self._trim()
        return frame

    def _trim(self) -> None:
        """Forget frames everybody has, and the oldest while the window is too large."""
        frames = self._frames
        while frames and (
            cast("int", frames[0][1]) <= 0
            or (self._window_bytes > WINDOW_BYTES_MAX and len(frames) > 1)
        ):
            self._window_bytes -= len(cast("bytes", frames.popleft()[0]))
            self._first += 1


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
        byte_count = encoder.estimate_bytes(item.message)
        if byte_count > EAGER_BYTES_MAX:
            return (LazyUpdate(item.subscription_ids, encoder, item.message, byte_count),)
        return (EncodedUpdate(item.subscription_ids, tuple(encoder.encode(item.message))),)
    except BarrageError as error:
        failure: BarrageError = error
    except Exception:
        failure = unexpected_failure(log, "an update could not be encoded")
    return [StreamEnded(subscription_id, failure) for subscription_id in item.subscription_ids]


def unexpected_failure(logger: logging.Logger, what: str) -> EngineError:
    """Log the exception being handled under a fresh id; the error to send names the id and nothing
    else."""
    failure_id = uuid.uuid4().hex[:12]
    logger.exception("%s (id %s)", what, failure_id)
    return EngineError(f"internal error, details are logged with id {failure_id}")

"""Many MESSAGE frames of the published dialect at once, as columns.

Sources send thousands of small messages a write. Where their frames lie is found frame by frame, or
by one comparison while they are of one length; all else is done for all of them together: numbers
are read out of the bytes by strides, payloads become one Arrow array.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.wire.connector.frame_values import SentMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from barrage.wire.payloads.payload_batch import PayloadBatch

    UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_MESSAGE_TAG = 5
_LENGTH_AND_TAG = struct.Struct(">IB")
_HEAD_FIELDS: list[tuple[str, str]] = [
    ("length", ">u4"),
    ("tag", "u1"),
    ("stream", ">u8"),
    ("id", ">u8"),
    ("event_time", ">i8"),
    ("key_size", ">u2"),
]
_HEAD = np.dtype(_HEAD_FIELDS)
HEAD_BYTES = _HEAD.itemsize
"""Of a message's frame, length included, before its key."""

RUN_MIN = 4
"""Fewer are not worth it."""

PROBE = 64
"""Frames of one length that are worth a run of their own, when others follow."""

RUN_BYTES_MAX = 2**31 - 1
"""Offsets of an Arrow array of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """Messages that came one after the other."""

    streams: UInt64Array
    ids: UInt64Array
    event_times: npt.NDArray[np.int64]
    keys: pa.BinaryArray
    payloads: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def byte_count(self) -> int:
        """Of keys and payloads."""
        return _bytes_of(self.payloads) + _bytes_of(self.keys)

    def head(self, count: int) -> MessageRun:
        """The first ``count`` of them."""
        return MessageRun(
            streams=self.streams[:count],
            ids=self.ids[:count],
            event_times=self.event_times[:count],
            keys=self.keys[:count],
            payloads=self.payloads[:count],
        )

    def messages(self) -> Iterator[SentMessage]:
        """One by one."""
        return map(
            SentMessage,
            self.streams.tolist(),
            self.ids.tolist(),
            self.event_times.tolist(),
            self.keys.to_pylist(),
            self.payloads.to_pylist(),
        )


def read_run(data: bytearray, start: int, *, frame_bytes_max: int) -> tuple[MessageRun | None, int]:
    """The whole frames of messages at ``start`` and where they end; None when they are few. Stops
    before what is no message, not whole, or wrong."""
    stride, count = _equal_frames(data, start, frame_bytes_max)
    if count >= RUN_MIN:
        stop = start + stride * count
        raw = bytes(memoryview(data)[start:stop])
        layout: Any = np.dtype(
            {  # type: ignore[call-overload]
                "names": _HEAD.names,
                "formats": [kind for _, kind in _HEAD_FIELDS],
                "offsets": [_HEAD.fields[name][1] for name, _ in _HEAD_FIELDS],  # type: ignore[index]
                "itemsize": stride,
            }
        )
        heads = np.frombuffer(raw, layout)
        starts = np.arange(0, stride * count, stride, dtype=np.int64)
    else:
        found, stop = _frames(data, start, frame_bytes_max)
        if len(found) < RUN_MIN:
            return None, start
        raw = bytes(memoryview(data)[start:stop])
        starts = np.array(found, dtype=np.int64) - start
        cells = np.frombuffer(raw, np.uint8)[starts[:, None] + np.arange(HEAD_BYTES)]
        heads = cells.view(_HEAD)[:, 0]
    key_sizes = heads["key_size"].astype(np.int64)
    ends = starts + 4 + heads["length"]
    too_long = starts + HEAD_BYTES + key_sizes > ends
    if too_long.any():
        count = int(np.argmax(too_long))
        if count < RUN_MIN:
            return None, start
        heads, starts, ends = heads[:count], starts[:count], ends[:count]
        key_sizes, stop = key_sizes[:count], start + int(ends[-1])
    return _run(raw, heads, starts=starts, ends=ends, key_sizes=key_sizes), stop


def encode_run(stream: int, batch: PayloadBatch) -> pa.Buffer:
    """The frames of messages of one stream, one after the other."""
    count = len(batch)
    key_sizes = pc.fill_null(pc.binary_length(batch.keys), 0).to_numpy()
    payload_sizes = pc.binary_length(batch.payloads).to_numpy()
    heads = np.empty(count, _HEAD)
    heads["length"] = key_sizes.astype(np.int64) + payload_sizes + (HEAD_BYTES - 4)
    heads["tag"] = _MESSAGE_TAG
    heads["stream"] = stream
    heads["id"] = batch.ids.to_numpy()
    heads["event_time"] = pc.fill_null(batch.event_times, 0).to_numpy()
    heads["key_size"] = key_sizes
    offsets = np.arange(0, HEAD_BYTES * (count + 1), HEAD_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(heads)]
    parts = [pa.BinaryArray.from_buffers(pa.binary(), count, buffers)]
    if key_sizes.any():
        parts.append(pc.fill_null(batch.keys, b""))
    frames = pc.binary_join_element_wise(*parts, batch.payloads, pa.scalar(b"", pa.binary()))
    bounds = np.frombuffer(frames.buffers()[1], np.int32)[frames.offset :]
    first, last = int(bounds[0]), int(bounds[count])
    return frames.buffers()[2].slice(first, last - first)


def _equal_frames(data: bytearray, start: int, frame_bytes_max: int) -> tuple[int, int]:
    """The size of the first frame and how many messages of that size begin the data."""
    available = min(len(data) - start, RUN_BYTES_MAX)
    if available < HEAD_BYTES:
        return 0, 0
    length, tag = _LENGTH_AND_TAG.unpack_from(data, start)
    stride = length + 4
    if tag != _MESSAGE_TAG or not HEAD_BYTES <= stride <= frame_bytes_max + 4:
        return 0, 0
    count = available // stride
    if count < RUN_MIN:
        return stride, 0
    size = PROBE
    while True:
        # Looked at in doubling steps, so that a change of length soon costs little.
        looked = min(size, count)
        cells = np.frombuffer(data, np.uint8, stride * looked, start).reshape(looked, stride)
        differs = (cells[:, :5] != cells[0, :5]).any(axis=1)
        # A view of the buffer would keep it from growing.
        del cells
        if differs.any():
            found = int(np.argmax(differs))
            return stride, found if found >= PROBE else 0
        if looked == count:
            return stride, count
        size *= 4


def _frames(data: bytearray, start: int, frame_bytes_max: int) -> tuple[list[int], int]:
    """Where whole messages begin, and where the last of them ends."""
    found: list[int] = []
    end, last = min(len(data), start + RUN_BYTES_MAX), 0
    unpack = _LENGTH_AND_TAG.unpack_from
    at = start
    while end - at >= HEAD_BYTES:
        length, tag = unpack(data, at)
        last = at + 4 + length
        is_message = tag == _MESSAGE_TAG and HEAD_BYTES - 4 <= length <= frame_bytes_max
        if not is_message or last > end:
            break
        found.append(at)
        at = last
    return found, at


def _run(raw: bytes, heads: Any, *, starts: Any, ends: Any, key_sizes: Any) -> MessageRun:
    key_starts = starts + HEAD_BYTES
    payload_starts = key_starts + key_sizes
    buffer = pa.py_buffer(raw)
    if key_sizes.any():
        keys = _spans(buffer, key_starts, payload_starts)
    else:
        keys = pa.repeat(pa.scalar(b"", pa.binary()), len(starts))
    return MessageRun(
        streams=heads["stream"].astype(np.uint64),
        ids=heads["id"].astype(np.uint64),
        event_times=heads["event_time"].astype(np.int64),
        keys=keys,
        payloads=_spans(buffer, payload_starts, ends),
    )


def _spans(buffer: pa.Buffer, starts: Any, stops: Any) -> pa.BinaryArray:
    """The bytes between. An array of them and of what lies before each, every second one taken."""
    count = len(starts)
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[1::2] = starts
    bounds[2::2] = stops
    offsets = pa.py_buffer(bounds)
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count, [None, offsets, buffer])
    return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64)))


def _bytes_of(values: pa.BinaryArray) -> int:
    """Bytes of the values themselves."""
    if not len(values):
        return 0
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    return int(offsets[values.offset + len(values)] - offsets[values.offset])

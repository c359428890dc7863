"""What sources hand to a delivery: messages in batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import LocalProtocolError
from barrage.wire.payloads.payload_batch import PayloadBatch

if TYPE_CHECKING:
    from collections.abc import Sequence


def stream_id_of(name: str) -> int:
    """The number of the stream with this name: the first eight bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages of one stream, ids growing. Lists and Arrow arrays are taken alike; arrays are much
    faster."""

    ids: Sequence[int]
    payloads: Sequence[bytes] | pa.BinaryArray
    keys: Sequence[bytes] | pa.BinaryArray | None = None
    event_times: Sequence[int] | None = None
    """In the unit that the mapping of the table has; 0 for none."""

    def __len__(self) -> int:
        return len(self.ids)

    def columns(self, stream: str) -> PayloadBatch:
        """The same as columns; LocalProtocolError when they differ in length or ids do not grow."""
        count = len(self.ids)
        ids = pa.array(self.ids, pa.uint64())
        numbers = ids.to_numpy()
        if count > 1 and not (numbers[1:] > numbers[:-1]).all():
            raise LocalProtocolError(f"ids of stream {stream!r} do not grow")
        none = b"" if self.keys is None else self.keys
        times = np.zeros(count, np.int64) if self.event_times is None else self.event_times
        made = PayloadBatch(
            streams=pa.repeat(stream, count),
            ids=ids,
            event_times=pa.array(times, pa.int64()),
            keys=_binary(none, count),
            payloads=_binary(self.payloads, count),
        )
        if not len(made.event_times) == len(made.keys) == len(made.payloads) == count:
            raise LocalProtocolError("the columns of a batch of messages differ in length")
        return made


def _binary(values: Sequence[bytes] | pa.BinaryArray, count: int) -> pa.BinaryArray:
    if isinstance(values, bytes):
        return pa.repeat(pa.scalar(values, pa.binary()), count)
    if isinstance(values, pa.Array):
        return values.cast(pa.binary())
    return pa.array(values, pa.binary())

"""Messages of streams as columns: what came over a connection and is not decoded yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadBatch:
    """One element of each column a message, in the order in which they came."""

    streams: pa.StringArray
    ids: pa.UInt64Array
    event_times: pa.Int64Array
    """As the source sent it, null when it sent none."""
    keys: pa.BinaryArray
    payloads: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(
        cls,
        *,
        streams: Sequence[str],
        ids: Sequence[int],
        event_times: Sequence[int | None],
        keys: Sequence[bytes | None],
        payloads: Sequence[bytes],
    ) -> PayloadBatch:
        """The same from lists."""
        return cls(
            streams=pa.array(streams, pa.string()),
            ids=pa.array(ids, pa.uint64()),
            event_times=pa.array(event_times, pa.int64()),
            keys=pa.array(keys, pa.binary()),
            payloads=pa.array(payloads, pa.binary()),
        )

    @classmethod
    def concatenated(cls, parts: Sequence[PayloadBatch]) -> PayloadBatch:
        """All of ``parts`` (one at least), one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            streams=pa.concat_arrays([each.streams for each in parts]),
            ids=pa.concat_arrays([each.ids for each in parts]),
            event_times=pa.concat_arrays([each.event_times for each in parts]),
            keys=pa.concat_arrays([each.keys for each in parts]),
            payloads=pa.concat_arrays([each.payloads for each in parts]),
        )

    def take(self, chosen: pa.Array) -> PayloadBatch:
        """The messages at ``chosen`` positions."""
        return PayloadBatch(
            streams=self.streams.take(chosen),
            ids=self.ids.take(chosen),
            event_times=self.event_times.take(chosen),
            keys=self.keys.take(chosen),
            payloads=self.payloads.take(chosen),
        )

    def slice(self, start: int, count: int) -> PayloadBatch:
        """At most ``count`` messages from ``start`` on."""
        return PayloadBatch(
            streams=self.streams.slice(start, count),
            ids=self.ids.slice(start, count),
            event_times=self.event_times.slice(start, count),
            keys=self.keys.slice(start, count),
            payloads=self.payloads.slice(start, count),
        )

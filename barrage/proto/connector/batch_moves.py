"""Which message of a batch moves which stream, so that a batch can be cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.wire.connector.message_run import UInt64Array

    Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class BatchMoves:
    """Moves of streams in the order in which they came, each with the count of messages that are in
    the batch by then. A batch is cut behind a move, where every position before it is one to go on
    from and every message before it has one."""

    _parts: list[tuple[Int64Array, UInt64Array, UInt64Array]] = field(default_factory=list)
    """Counts, streams, ids."""
    _singles: list[tuple[int, int, int]] = field(default_factory=list)
    _rests: list[int] = field(default_factory=list)

    def add(self, count: int, stream: int, number: int) -> None:
        """With ``count`` messages, ``stream`` stands at ``number``."""
        self._singles.append((count, stream, number))

    def add_run(self, before: int, streams: UInt64Array, ids: UInt64Array) -> None:
        """Every message of a run that follows ``before`` others moves its stream."""
        self._close_singles()
        self._parts.append((np.arange(before + 1, before + 1 + len(ids)), streams, ids))

    def rest(self, count: int) -> None:
        """Behind ``count`` messages the batch may be cut, though nothing has moved."""
        self._rests.append(count)

    def stops(self, total: int) -> Int64Array:
        """Where a batch of ``total`` messages may be cut, its end included."""
        counts, _, _ = self._columns()
        found = np.unique(np.concatenate([counts, np.array([*self._rests, total], np.int64)]))
        return found[found > 0]

    def between(self, start: int, stop: int) -> dict[int, tuple[int, int]]:
        """Of each stream that messages from ``start`` to ``stop`` move, the first and last id. What
        moved before the first message goes with it."""
        counts, streams, ids = self._columns()
        first = int(np.searchsorted(counts, start, "right")) if start else 0
        last = int(np.searchsorted(counts, stop, "right"))
        streams, ids = streams[first:last], ids[first:last]
        found, begins = np.unique(streams, return_index=True)
        ends = len(streams) - 1 - np.unique(streams[::-1], return_index=True)[1]
        bounds = zip(ids[begins].tolist(), ids[ends].tolist(), strict=True)
        return dict(zip(found.tolist(), bounds, strict=True))

    def _close_singles(self) -> None:
        if self._singles:
            counts, streams, ids = zip(*self._singles, strict=True)
            self._parts.append(
                (np.array(counts, np.int64), np.array(streams, np.uint64), np.array(ids, np.uint64))
            )
            self._singles = []

    def _columns(self) -> tuple[Int64Array, UInt64Array, UInt64Array]:
        self._close_singles()
        if len(self._parts) != 1:
            none = (np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint64))
            counts, streams, ids = zip(none, *self._parts, strict=True)
            whole = (np.concatenate(counts), np.concatenate(streams), np.concatenate(ids))
            self._parts = [whole]
        return self._parts[0]

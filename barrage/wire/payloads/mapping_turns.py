"""A batch of messages to rows, a bounded turn at a time: so many messages, bytes of payloads, rows,
bytes of rows and calls of the decoder, whatever the batch is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from barrage.wire.payloads.decoding import DecodeTurn, TurnExceededError, short

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.wire.payloads.decoding import Int64Array
    from barrage.wire.payloads.payload_batch import PayloadBatch
    from barrage.wire.payloads.source_mapping import MappedRows, RowMapper

log = logging.getLogger(__name__)

TURN_BYTES = 1024 * 1024
"""Of payloads in a turn, when it is more than one."""

SUSPECTS_MAX = 128
"""Messages of a turn whose payloads may each take a call of the decoder."""

CALLS_MAX = 64
"""Of the decoder, for more messages than that."""

TURN_MESSAGES_FIRST = 1024
"""Before anything is known of a program's payloads."""


@dataclass(slots=True)
class TurnPace:
    """How many messages of a program go in a turn, by what came of those before."""

    messages: int = TURN_MESSAGES_FIRST


@dataclass(frozen=True, slots=True)
class MappedTurn:
    """What became of the messages from ``start`` to ``stop``."""

    start: int
    stop: int
    rows: MappedRows
    byte_count: int
    """What the rows take."""


class MappingTurns:
    """See the module. Each turn may be on another thread, one at a time. ``stops`` are the counts
    of messages behind which the batch may be cut, the last of them all."""

    def __init__(
        self,
        mapper: RowMapper,
        messages: PayloadBatch,
        *,
        stops: Int64Array,
        pace: TurnPace,
        limits: Limits,
    ) -> None:
        self._mapper = mapper
        self._messages = messages
        self._stops = stops
        self._pace = pace
        self._limits = limits
        self._at = 0
        lengths = pc.binary_length(messages.payloads).to_numpy(zero_copy_only=False)
        self._byte_ends = np.cumsum(lengths.astype(np.int64))
        self._has_told = False

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._messages)

    def next(self) -> MappedTurn:
        """The next turn. Whatever goes wrong in it, its messages are rejected."""
        most = self._pace.messages = min(self._pace.messages, self._mapper.turn_messages)
        while True:
            start = self._at
            stop, is_last = self._stop(most)
            piece = self._messages.slice(start, stop - start)
            try:
                rows = self._mapper.map(piece, self._turn(len(piece), is_last=is_last))
            except TurnExceededError as error:
                most = SUSPECTS_MAX if error.count is None else max(1, error.count)
                self._pace.messages = most
                continue
            except Exception as error:
                rows = self._mapper.rejected(piece, self._reason(error))
            self._at = stop
            if len(rows.rejected) < SUSPECTS_MAX // 2:
                self._pace.messages *= 2
            return MappedTurn(start, stop, rows, int(rows.rows.nbytes))

    def _stop(self, most: int) -> tuple[int, bool]:
        """Where a turn of at most so many messages ends, and whether it can be no shorter."""
        start = self._at
        before = int(self._byte_ends[start - 1]) if start else 0
        fit = int(np.searchsorted(self._byte_ends, before + TURN_BYTES, "right"))
        first = int(np.searchsorted(self._stops, start, "right"))
        last = int(np.searchsorted(self._stops, min(start + most, fit), "right")) - 1
        return int(self._stops[max(first, last)]), last <= first

    def _turn(self, count: int, *, is_last: bool) -> DecodeTurn:
        limits = self._limits
        return DecodeTurn(
            rows_max=limits.connector_payload_rows_max,
            bytes_max=limits.connector_decoded_bytes_max,
            calls_max=None if is_last or count <= SUSPECTS_MAX else CALLS_MAX,
            is_last=is_last,
        )

    def _reason(self, error: Exception) -> str:
        if not self._has_told:
            log.exception("payloads could not be mapped, they are rejected")
        self._has_told = True
        return short(f"the payload could not be mapped: {type(error).__name__}: {error}")

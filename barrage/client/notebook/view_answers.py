"""Which request of a page an update answers, where nobody says so beside it.

A server tells its own pages the token of a request just before the update that answers it. On
another transport the update itself is all there is: a snapshot names rows, direction and columns it
is of (barrage-wire.md section 10), and with them the request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import PermissionDeniedError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.messages import SnapshotRequest, SubscriptionRequest, UpdateMetadata
from barrage.wire.metadata import decode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet

_WAITING_MAX = 256
"""Requests of one stream that are remembered: a page has one or two on their way."""

_REVISION = WireRevision.R1_0_0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request, as far as its answer repeats it."""

    token: bytes
    viewport: RowSet | None
    is_reverse: bool
    columns: ColumnSet | None


class ViewAnswers:
    """Of one stream."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._waiting: deque[_Asked] = deque(maxlen=_WAITING_MAX)

    def asked(self, frame: bytes) -> None:
        """The page has sent this. RemoteProtocolError when it is no FlightData, and
        PermissionDeniedError for what is no request for rows."""
        metadata = decode_flight_data(frame, self._limits).metadata
        if not metadata:
            return
        message = decode_wrapper(metadata, _REVISION, self._limits)
        if not isinstance(message, SubscriptionRequest | SnapshotRequest):
            raise PermissionDeniedError("a page of a notebook subscribes, and takes snapshots")
        if isinstance(message, SubscriptionRequest) and message.subscription_token is not None:
            self._waiting.append(
                _Asked(
                    token=message.subscription_token,
                    viewport=message.viewport,
                    is_reverse=message.is_reverse,
                    columns=message.columns,
                )
            )

    def answered(self, frame: bytes) -> bytes | None:
        """The token of the request that the update beginning with ``frame`` answers, if it does.
        Requests before it are overtaken. RemoteProtocolError."""
        if not self._waiting:
            return None
        metadata = decode_flight_data(frame, self._limits).metadata
        if not metadata:
            return None
        message = decode_wrapper(metadata, _REVISION, self._limits)
        if not isinstance(message, UpdateMetadata) or not message.is_snapshot:
            return None
        while self._waiting:
            newest = self._waiting[-1]
            if _answers(message, newest):
                self._waiting.clear()
                return newest.token
            found = [asked for asked in self._waiting if _answers(message, asked)]
            if not found:
                return None
            while self._waiting.popleft() is not found[-1]:
                pass
            return found[-1].token
        return None


def _answers(message: UpdateMetadata, asked: _Asked) -> bool:
    return (
        message.effective_viewport == asked.viewport
        and message.effective_reverse_viewport == asked.is_reverse
        and _same_columns(message.effective_column_set, asked.columns)
    )


def _same_columns(told: ColumnSet | None, asked: ColumnSet | None) -> bool:
    """A server may say all columns by naming none."""
    if told is None or asked is None:
        least = told if asked is None else asked
        return least is None or least == tuple(range(len(least)))
    return told == asked

"""Requests and session messages as flatbuffers.

Source: barrage-wire.md sections 2.2, 2.3 and 2.5. Fields a revision does not have are left out;
defaults are not written. A change of viewport is a request that somebody waits for: the builder of
the flatbuffers package took 60 us for it, the tables below take a quarter.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from barrage.errors import LocalProtocolError
from barrage.wire.bitset import encode_bit_set
from barrage.wire.messages import (
    CONVERT_STRINGIFY,
    NewSessionRequest,
    PublicationRequest,
    RefreshSessionRequest,
    SerializationOptions,
    SessionInfoResponse,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
)
from barrage.wire.revision import WireRevision
from barrage.wire.row_set_codec import encode_row_set

if TYPE_CHECKING:
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet

Request = (
    SubscriptionRequest
    | SnapshotRequest
    | SerializationOptions
    | PublicationRequest
    | NewSessionRequest
    | RefreshSessionRequest
    | SessionInfoResponse
)

_WIDTHS = {"q": 8, "i": 4, "I": 4, "b": 1, "?": 1}
_PADDING = tuple(b"\0" * count for count in range(8))
_ROOT_BYTES = 8


def encode_request(message: Request, revision: WireRevision) -> bytes:
    """The payload of a wrapper for ``message``. Raises LocalProtocolError if ``revision`` has no
    such message or cannot say what it says."""
    if isinstance(message, SubscriptionRequest):
        root = _subscription(message, revision)
    elif isinstance(message, SnapshotRequest):
        root = _snapshot(message, revision)
    elif isinstance(message, SerializationOptions):
        root = _serialization(message, revision)
    elif isinstance(message, PublicationRequest):
        root = _publication(message, revision)
    else:
        root = _session(message, revision)
    position, content = root.written_at(_ROOT_BYTES)
    return struct.pack("<I4x", position) + content


class _Table:
    """One table to be written: its vtable, itself (wide fields first), then what it points to."""

    def __init__(self, field_count: int) -> None:
        self._field_count = field_count
        self._scalars: list[tuple[str, int, int]] = []
        self._targets: list[tuple[int, bytes | _Table]] = []

    def vector(self, field: int, content: bytes | None) -> None:
        if content is not None:
            self._targets.append((field, content))

    def child(self, field: int, table: _Table | None) -> None:
        if table is not None:
            self._targets.append((field, table))

    def scalar(self, code: str, field: int, value: int, default: int = 0) -> None:
        """A field of the ``struct`` code q, i, I, b or ?; its default is not written."""
        if value != default:
            self._scalars.append((code, field, value))

    def written_at(self, start: int) -> tuple[int, bytes]:
        """Where the table itself lies, and all its bytes from ``start``, a multiple of eight."""
        vtable_bytes = 4 + 2 * self._field_count
        # Behind the distance to the vtable, 4 bytes, the widest fields lie at multiples of eight.
        gap = (4 - vtable_bytes) & 7
        table_at = start + vtable_bytes + gap
        slots = [0] * self._field_count
        fields = [*self._scalars, *[("I", field, 0) for field, _ in self._targets]]
        fields.sort(key=_width, reverse=True)
        size = 4
        for code, field, _ in fields:
            slots[field] = size
            size += _WIDTHS[code]
        end = table_at + size
        padding = -end & 7
        end += padding
        distances: dict[int, int] = {}
        parts = [b""]
        for field, target in self._targets:
            if isinstance(target, _Table):
                position, content = target.written_at(end)
            else:
                position, content = end, _vector(target)
            distances[field] = position - table_at - slots[field]
            parts.append(content)
            end += len(content)
        codes = "".join([code for code, _, _ in fields])
        parts[0] = struct.pack(
            f"<HH{self._field_count}H{gap}xi{codes}{padding}x",
            *(vtable_bytes, size, *slots, table_at - start),
            *[distances.get(field, value) for _, field, value in fields],
        )
        return table_at, b"".join(parts)


def _width(field: tuple[str, int, int]) -> int:
    return _WIDTHS[field[0]]


def _vector(content: bytes) -> bytes:
    """Count, bytes, and zeros up to a multiple of eight."""
    return len(content).to_bytes(4, "little") + content + _PADDING[-(len(content) + 4) & 7]


def _columns(columns: ColumnSet | None) -> bytes | None:
    return None if columns is None else encode_bit_set(columns)


def _rows(rows: RowSet | None) -> bytes | None:
    return None if rows is None else encode_row_set(rows)


def _check_reverse(is_reverse: bool, revision: WireRevision) -> None:
    if is_reverse and not revision.has_reverse_viewport:
        raise LocalProtocolError(f"revision {revision.value} has no reverse viewport")


def _subscription_options(options: SubscriptionOptions, revision: WireRevision) -> _Table | None:
    """The options table; None (absent) when every option has its default."""
    if options == SubscriptionOptions():
        return None
    if options.columns_as_list and not revision.has_columns_as_list:
        raise LocalProtocolError(f"revision {revision.value} cannot wrap columns in lists")
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(4 if is_draft else 7)
    table.scalar("b", 0, options.column_conversion_mode, CONVERT_STRINGIFY)
    table.scalar("?", 1, options.use_deephaven_nulls)
    table.scalar("i", 2, options.min_update_interval_ms)
    table.scalar("i", 3, options.batch_size)
    if not is_draft:
        table.scalar("i", 4, options.max_message_size)
        table.scalar("?", 5, options.columns_as_list)
        table.scalar("q", 6, options.preview_list_length_limit)
    return table


def _snapshot_options(options: SnapshotOptions, revision: WireRevision) -> _Table | None:
    if options == SnapshotOptions():
        return None
    if revision is WireRevision.DRAFT_2020:
        return _subscription_options(
            SubscriptionOptions(
                column_conversion_mode=options.column_conversion_mode,
                use_deephaven_nulls=options.use_deephaven_nulls,
                min_update_interval_ms=options.min_update_interval_ms,
                batch_size=options.batch_size,
            ),
            revision,
        )
    table = _Table(5)
    table.scalar("b", 0, options.column_conversion_mode, CONVERT_STRINGIFY)
    table.scalar("?", 1, options.use_deephaven_nulls)
    table.scalar("i", 2, options.batch_size)
    table.scalar("i", 3, options.max_message_size)
    table.scalar("q", 4, options.preview_list_length_limit)
    return table


def _subscription(request: SubscriptionRequest, revision: WireRevision) -> _Table:
    _check_reverse(request.is_reverse, revision)
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(4 if is_draft else 6)
    table.vector(0, request.ticket)
    table.vector(1, _columns(request.columns))
    table.vector(2, _rows(request.viewport))
    table.child(3, _subscription_options(request.options, revision))
    if not is_draft:
        table.scalar("?", 4, request.is_reverse)
        table.vector(5, request.subscription_token)
    return table


def _snapshot(request: SnapshotRequest, revision: WireRevision) -> _Table:
    _check_reverse(request.is_reverse, revision)
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(4 if is_draft else 5)
    table.vector(0, request.ticket)
    table.vector(1, _columns(request.columns))
    table.vector(2, _rows(request.viewport))
    table.child(3, _snapshot_options(request.options, revision))
    if not is_draft:
        table.scalar("?", 4, request.is_reverse)
    return table


def _serialization(message: SerializationOptions, revision: WireRevision) -> _Table:
    table = _Table(4)
    table.vector(0, message.ticket)
    table.child(3, _subscription_options(message.options, revision))
    return table


def _publication(request: PublicationRequest, revision: WireRevision) -> _Table:
    if revision is WireRevision.DRAFT_2020:
        raise LocalProtocolError("revision 2020 has no publication request")
    options = _Table(1)
    options.scalar("?", 0, request.use_deephaven_nulls)
    table = _Table(2)
    table.vector(0, request.ticket)
    table.child(1, options if request.use_deephaven_nulls else None)
    return table


def _session(
    message: NewSessionRequest | RefreshSessionRequest | SessionInfoResponse,
    revision: WireRevision,
) -> _Table:
    if revision is not WireRevision.DRAFT_2020:
        raise LocalProtocolError(f"revision {revision.value} has no session messages")
    if isinstance(message, NewSessionRequest):
        table = _Table(2)
        table.vector(1, message.payload)
        table.scalar("I", 0, message.protocol_version)
    elif isinstance(message, RefreshSessionRequest):
        table = _Table(1)
        table.vector(0, message.session)
    else:
        table = _Table(3)
        table.vector(0, message.metadata_header)
        table.vector(1, message.session_token)
        table.scalar("q", 2, message.token_refresh_deadline_ms)
    return table

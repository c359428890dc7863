"""Requests and session messages as flatbuffers. Off the hot path, so the flatbuffers builder writes
them.

Source: barrage-wire.md sections 2.2, 2.3 and 2.5. Fields a revision does not have are left out;
defaults are not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import flatbuffers

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

_BUILDER_BYTES = 256


def encode_request(message: Request, revision: WireRevision) -> bytes:
    """The payload of a wrapper for ``message``. Raises LocalProtocolError if ``revision`` has no
    such message or cannot say what it says."""
    builder = flatbuffers.Builder(_BUILDER_BYTES)
    if isinstance(message, SubscriptionRequest):
        root = _subscription(builder, message, revision)
    elif isinstance(message, SnapshotRequest):
        root = _snapshot(builder, message, revision)
    elif isinstance(message, SerializationOptions):
        root = _serialization(builder, message, revision)
    elif isinstance(message, PublicationRequest):
        root = _publication(builder, message, revision)
    else:
        root = _session(builder, message, revision)
    builder.Finish(root)
    return bytes(builder.Output())


class _Table:
    """One table being built: vectors must be made before it starts, so their offsets are collected
    first."""

    def __init__(self, builder: flatbuffers.Builder, field_count: int) -> None:
        self._builder = builder
        self._field_count = field_count
        self._offsets: list[tuple[int, int]] = []
        self._scalars: list[tuple[str, int, int, int]] = []

    def vector(self, field: int, content: bytes | None) -> None:
        if content is not None:
            self._offsets.append((field, self._builder.CreateByteVector(content)))

    def child(self, field: int, offset: int | None) -> None:
        if offset is not None:
            self._offsets.append((field, offset))

    def scalar(self, kind: str, field: int, value: int, default: int = 0) -> None:
        self._scalars.append((kind, field, value, default))

    def finish(self) -> int:
        builder = self._builder
        builder.StartObject(self._field_count)
        for field, offset in self._offsets:
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
        for kind, field, value, default in self._scalars:
            getattr(builder, f"Prepend{kind}Slot")(field, value, default)
        return int(builder.EndObject())


def _columns(columns: ColumnSet | None) -> bytes | None:
    return None if columns is None else encode_bit_set(columns)


def _rows(rows: RowSet | None) -> bytes | None:
    return None if rows is None else encode_row_set(rows)


def _check_reverse(is_reverse: bool, revision: WireRevision) -> None:
    if is_reverse and not revision.has_reverse_viewport:
        raise LocalProtocolError(f"revision {revision.value} has no reverse viewport")


def _subscription_options(
    builder: flatbuffers.Builder, options: SubscriptionOptions, revision: WireRevision
) -> int | None:
    """Offset of the options table; None (absent) when every option has its default."""
    if options == SubscriptionOptions():
        return None
    if options.columns_as_list and not revision.has_columns_as_list:
        raise LocalProtocolError(f"revision {revision.value} cannot wrap columns in lists")
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(builder, 4 if is_draft else 7)
    table.scalar("Int8", 0, options.column_conversion_mode, CONVERT_STRINGIFY)
    table.scalar("Bool", 1, options.use_deephaven_nulls)
    table.scalar("Int32", 2, options.min_update_interval_ms)
    table.scalar("Int32", 3, options.batch_size)
    if not is_draft:
        table.scalar("Int32", 4, options.max_message_size)
        table.scalar("Bool", 5, options.columns_as_list)
        table.scalar("Int64", 6, options.preview_list_length_limit)
    return table.finish()


def _snapshot_options(
    builder: flatbuffers.Builder, options: SnapshotOptions, revision: WireRevision
) -> int | None:
    if options == SnapshotOptions():
        return None
    if revision is WireRevision.DRAFT_2020:
        return _subscription_options(
            builder,
            SubscriptionOptions(
                column_conversion_mode=options.column_conversion_mode,
                use_deephaven_nulls=options.use_deephaven_nulls,
                min_update_interval_ms=options.min_update_interval_ms,
                batch_size=options.batch_size,
            ),
            revision,
        )
    table = _Table(builder, 5)
    table.scalar("Int8", 0, options.column_conversion_mode, CONVERT_STRINGIFY)
    table.scalar("Bool", 1, options.use_deephaven_nulls)
    table.scalar("Int32", 2, options.batch_size)
    table.scalar("Int32", 3, options.max_message_size)
    table.scalar("Int64", 4, options.preview_list_length_limit)
    return table.finish()


def _subscription(
    builder: flatbuffers.Builder, request: SubscriptionRequest, revision: WireRevision
) -> int:
    _check_reverse(request.is_reverse, revision)
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(builder, 4 if is_draft else 6)
    table.vector(0, request.ticket)
    table.vector(1, _columns(request.columns))
    table.vector(2, _rows(request.viewport))
    table.child(3, _subscription_options(builder, request.options, revision))
    if not is_draft:
        table.scalar("Bool", 4, request.is_reverse)
        table.vector(5, request.subscription_token)
    return table.finish()


def _snapshot(
    builder: flatbuffers.Builder, request: SnapshotRequest, revision: WireRevision
) -> int:
    _check_reverse(request.is_reverse, revision)
    is_draft = revision is WireRevision.DRAFT_2020
    table = _Table(builder, 4 if is_draft else 5)
    table.vector(0, request.ticket)
    table.vector(1, _columns(request.columns))
    table.vector(2, _rows(request.viewport))
    table.child(3, _snapshot_options(builder, request.options, revision))
    if not is_draft:
        table.scalar("Bool", 4, request.is_reverse)
    return table.finish()


def _serialization(
    builder: flatbuffers.Builder, message: SerializationOptions, revision: WireRevision
) -> int:
    table = _Table(builder, 4)
    table.vector(0, message.ticket)
    table.child(3, _subscription_options(builder, message.options, revision))
    return table.finish()


def _publication(
    builder: flatbuffers.Builder, request: PublicationRequest, revision: WireRevision
) -> int:
    if revision is WireRevision.DRAFT_2020:
        raise LocalProtocolError("revision 2020 has no publication request")
    options = _Table(builder, 1)
    options.scalar("Bool", 0, request.use_deephaven_nulls)
    table = _Table(builder, 2)
    table.vector(0, request.ticket)
    table.child(1, options.finish() if request.use_deephaven_nulls else None)
    return table.finish()


def _session(
    builder: flatbuffers.Builder,
    message: NewSessionRequest | RefreshSessionRequest | SessionInfoResponse,
    revision: WireRevision,
) -> int:
    if revision is not WireRevision.DRAFT_2020:
        raise LocalProtocolError(f"revision {revision.value} has no session messages")
    if isinstance(message, NewSessionRequest):
        table = _Table(builder, 2)
        table.vector(1, message.payload)
        table.scalar("Uint32", 0, message.protocol_version)
    elif isinstance(message, RefreshSessionRequest):
        table = _Table(builder, 1)
        table.vector(0, message.session)
    else:
        table = _Table(builder, 3)
        table.vector(0, message.metadata_header)
        table.vector(1, message.session_token)
        table.scalar("Int64", 2, message.token_refresh_deadline_ms)
    return table.finish()

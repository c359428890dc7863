"""Barrage metadata to bytes and back, for both revisions.

Source: barrage-wire.md sections 2.1 to 2.4 and 17. Everything a peer sent goes through the
bounds-checked reader; malformed input raises RemoteProtocolError and nothing else. Requests are
written by :mod:`barrage.wire.request_writer`, updates by
:mod:`barrage.wire.update_metadata` because they are on the hot path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.bitset import decode_bit_set
from barrage.wire.flatbuf import FlatTable, root_table
from barrage.wire.messages import (
    CONVERT_STRINGIFY,
    TYPE_NEW_SESSION,
    TYPE_PUBLICATION_REQUEST,
    TYPE_REFRESH_SESSION,
    TYPE_SERIALIZATION_OPTIONS,
    TYPE_SESSION_INFO,
    TYPE_SNAPSHOT_REQUEST,
    TYPE_SUBSCRIPTION_REQUEST,
    TYPE_UPDATE_METADATA,
    BarrageMessage,
    NewSessionRequest,
    OpaqueMessage,
    PublicationRequest,
    RefreshSessionRequest,
    SerializationOptions,
    SessionInfoResponse,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
    UpdateMetadata,
)
from barrage.wire.request_writer import encode_request
from barrage.wire.revision import WireRevision
from barrage.wire.row_sets.row_set_codec import decode_row_set, decode_shifts
from barrage.wire.update_metadata import (
    EMPTY_ROW_SET,
    EMPTY_SHIFTS,
    MAGIC,
    encode_update_metadata,
    wrap_payload,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet
__all__ = [
    "MAGIC",
    "BarrageMessage",
    "NewSessionRequest",
    "OpaqueMessage",
    "PublicationRequest",
    "RefreshSessionRequest",
    "SerializationOptions",
    "SessionInfoResponse",
    "SnapshotOptions",
    "SnapshotRequest",
    "SubscriptionOptions",
    "SubscriptionRequest",
    "UpdateMetadata",
    "WrongMagicError",
    "decode_wrapper",
    "encode_wrapper",
    "peek_message_type",
]

# Slots, barrage-wire.md sections 2.1 to 2.5.
_WRAPPER_MAGIC, _WRAPPER_TYPE, _WRAPPER_PAYLOAD, _WRAPPER_SOURCE_TIME = 4, 6, 8, 10
_TICKET, _COLUMNS, _VIEWPORT, _OPTIONS, _REVERSE, _TOKEN = 4, 6, 8, 10, 12, 14
_MODIFIED_ROWS = 4


class WrongMagicError(RemoteProtocolError):
    """The metadata is a flatbuffer, but not a Barrage wrapper: a server treats it as no metadata at
    all."""


def encode_wrapper(message: BarrageMessage, revision: WireRevision) -> bytes:
    """The ``app_metadata`` bytes of ``message``. Fields the revision does not have are left out."""
    if isinstance(message, UpdateMetadata):
        return encode_update_metadata(message, revision)
    if isinstance(message, OpaqueMessage):
        return wrap_payload(message.message_type, message.payload)
    return wrap_payload(message.message_type, encode_request(message, revision))


def peek_message_type(buffer: bytes) -> int:
    """Type number of a wrapper, without looking at its payload: a server names it when it refuses
    it. Raises like :func:`decode_wrapper`."""
    return _open_wrapper(buffer).int8(_WRAPPER_TYPE)


def _open_wrapper(buffer: bytes) -> FlatTable:
    wrapper = root_table(buffer)
    magic = wrapper.uint32(_WRAPPER_MAGIC)
    if magic != MAGIC:
        raise WrongMagicError(f"metadata has magic {magic:#010x}, expected {MAGIC:#010x}")
    return wrapper


def decode_wrapper(
    buffer: bytes, revision: WireRevision, limits: Limits = DEFAULT_LIMITS
) -> BarrageMessage:
    """Read ``app_metadata``. Raises WrongMagicError when it is somebody else's metadata and
    RemoteProtocolError when it is malformed or a payload is missing. Types without a meaning in
    ``revision`` come back as OpaqueMessage."""
    wrapper = _open_wrapper(buffer)
    message_type = wrapper.int8(_WRAPPER_TYPE)
    payload = wrapper.byte_vector(_WRAPPER_PAYLOAD)
    decode = _DECODERS[revision].get(message_type)
    if decode is None:
        return OpaqueMessage(message_type=message_type, payload=payload)
    if payload is None:
        raise RemoteProtocolError(f"{_TYPE_NAMES[message_type]} not supplied")
    source_time = wrapper.int64(_WRAPPER_SOURCE_TIME) if wrapper.has(_WRAPPER_SOURCE_TIME) else None
    if message_type == TYPE_UPDATE_METADATA:
        return decode_update_payload(
            root_table(payload), revision, limits, source_time_ns=source_time
        )
    return decode(root_table(payload), limits)


_TYPE_NAMES = {
    TYPE_NEW_SESSION: "Session request",
    TYPE_REFRESH_SESSION: "Session request",
    TYPE_SESSION_INFO: "Session info",
    TYPE_SERIALIZATION_OPTIONS: "Serialization options",
    TYPE_SUBSCRIPTION_REQUEST: "Subscription request",
    TYPE_UPDATE_METADATA: "Update metadata",
    TYPE_SNAPSHOT_REQUEST: "Snapshot request",
    TYPE_PUBLICATION_REQUEST: "Publication request",
}


# --- decoding
# -------------------------------------------------------------------------------------------------


_RANGE_BYTES_MAX = 18
"""Longest form of one range: two deltas, each a command and eight bytes."""


def _row_set(table: FlatTable, slot: int, limits: Limits) -> RowSet | None:
    encoded = table.byte_vector(slot)
    return None if encoded is None else _decode_rows(encoded, limits)


def _viewport(table: FlatTable, limits: Limits) -> RowSet | None:
    """The positions a peer asks for. Each range costs two deltas of nine bytes at most, so what is
    longer is refused unread."""
    encoded = table.byte_vector(_VIEWPORT)
    if encoded is None:
        return None
    ranges_max = limits.viewport_ranges_max
    least_ranges = len(encoded) // _RANGE_BYTES_MAX
    if least_ranges > ranges_max:
        raise _too_many_ranges(least_ranges, ranges_max)
    rows = _decode_rows(encoded, limits)
    if rows.range_count > ranges_max:
        raise _too_many_ranges(rows.range_count, ranges_max)
    return rows


def _too_many_ranges(actual: int, maximum: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"viewport of {actual} ranges or more, the limit is {maximum} (viewport_ranges_max)"
    )


def _decode_rows(encoded: bytes, limits: Limits) -> RowSet:
    """A row set, without work for the most frequent one."""
    return RowSet.empty() if encoded == EMPTY_ROW_SET else decode_row_set(encoded, limits)


def _shifts(table: FlatTable, slot: int, limits: Limits) -> RowSetShiftData | None:
    encoded = table.byte_vector(slot)
    if encoded is None:
        return None
    return RowSetShiftData.empty() if encoded == EMPTY_SHIFTS else decode_shifts(encoded, limits)


def _bit_set(table: FlatTable, slot: int, limits: Limits) -> ColumnSet | None:
    encoded = table.byte_vector(slot)
    return None if encoded is None else decode_bit_set(encoded, limits)


def _ticket(table: FlatTable, limits: Limits) -> bytes | None:
    ticket = table.byte_vector(_TICKET)
    if ticket is not None and len(ticket) > limits.ticket_bytes_max:
        raise RemoteProtocolError(
            f"ticket has {len(ticket)} bytes, the limit is {limits.ticket_bytes_max} bytes"
        )
    return ticket


def _subscription_options(table: FlatTable | None, *, is_draft: bool) -> SubscriptionOptions:
    if table is None:
        return SubscriptionOptions()
    common = SubscriptionOptions(
        column_conversion_mode=table.int8(4, CONVERT_STRINGIFY),
        use_deephaven_nulls=table.boolean(6),
        min_update_interval_ms=table.int32(8),
        batch_size=table.int32(10),
    )
    if is_draft:
        return common
    return SubscriptionOptions(
        column_conversion_mode=common.column_conversion_mode,
        use_deephaven_nulls=common.use_deephaven_nulls,
        min_update_interval_ms=common.min_update_interval_ms,
        batch_size=common.batch_size,
        max_message_size=table.int32(12),
        columns_as_list=table.boolean(14),
        preview_list_length_limit=table.int64(16),
    )


def _snapshot_options(table: FlatTable | None) -> SnapshotOptions:
    if table is None:
        return SnapshotOptions()
    return SnapshotOptions(
        column_conversion_mode=table.int8(4, CONVERT_STRINGIFY),
        use_deephaven_nulls=table.boolean(6),
        batch_size=table.int32(8),
        max_message_size=table.int32(10),
        preview_list_length_limit=table.int64(12),
    )


def _draft_snapshot_options(table: FlatTable | None) -> SnapshotOptions:
    options = _subscription_options(table, is_draft=True)
    return SnapshotOptions(
        column_conversion_mode=options.column_conversion_mode,
        use_deephaven_nulls=options.use_deephaven_nulls,
        batch_size=options.batch_size,
        min_update_interval_ms=options.min_update_interval_ms,
    )


def _decode_subscription(table: FlatTable, limits: Limits) -> SubscriptionRequest:
    return SubscriptionRequest(
        ticket=_ticket(table, limits),
        columns=_bit_set(table, _COLUMNS, limits),
        viewport=_viewport(table, limits),
        is_reverse=table.boolean(_REVERSE),
        options=_subscription_options(table.table(_OPTIONS), is_draft=False),
        subscription_token=table.byte_vector(_TOKEN),
    )


def _decode_draft_subscription(table: FlatTable, limits: Limits) -> SubscriptionRequest:
    return SubscriptionRequest(
        ticket=_ticket(table, limits),
        columns=_bit_set(table, _COLUMNS, limits),
        viewport=_viewport(table, limits),
        options=_subscription_options(table.table(_OPTIONS), is_draft=True),
    )


def _decode_snapshot(table: FlatTable, limits: Limits) -> SnapshotRequest:
    return SnapshotRequest(
        ticket=_ticket(table, limits),
        columns=_bit_set(table, _COLUMNS, limits),
        viewport=_viewport(table, limits),
        is_reverse=table.boolean(_REVERSE),
        options=_snapshot_options(table.table(_OPTIONS)),
    )


def _decode_draft_snapshot(table: FlatTable, limits: Limits) -> SnapshotRequest:
    return SnapshotRequest(
        ticket=_ticket(table, limits),
        columns=_bit_set(table, _COLUMNS, limits),
        viewport=_viewport(table, limits),
        options=_draft_snapshot_options(table.table(_OPTIONS)),
    )


def _decode_serialization(table: FlatTable, limits: Limits) -> SerializationOptions:
    return SerializationOptions(
        ticket=_ticket(table, limits),
        options=_subscription_options(table.table(_OPTIONS), is_draft=False),
    )


def _decode_draft_serialization(table: FlatTable, limits: Limits) -> SerializationOptions:
    return SerializationOptions(
        ticket=_ticket(table, limits),
        options=_subscription_options(table.table(_OPTIONS), is_draft=True),
    )


def _decode_publication(table: FlatTable, limits: Limits) -> PublicationRequest:
    options = table.table(6)
    return PublicationRequest(
        ticket=_ticket(table, limits),
        use_deephaven_nulls=options is not None and options.boolean(4),
    )


def _decode_new_session(table: FlatTable, _limits: Limits) -> NewSessionRequest:
    return NewSessionRequest(protocol_version=table.uint32(4), payload=table.byte_vector(6))


def _decode_refresh_session(table: FlatTable, _limits: Limits) -> RefreshSessionRequest:
    return RefreshSessionRequest(session=table.byte_vector(4))


def _decode_session_info(table: FlatTable, _limits: Limits) -> SessionInfoResponse:
    return SessionInfoResponse(
        metadata_header=table.byte_vector(4),
        session_token=table.byte_vector(6),
        token_refresh_deadline_ms=table.int64(8),
    )


def decode_update_payload(
    table: FlatTable, revision: WireRevision, limits: Limits, *, source_time_ns: int | None = None
) -> UpdateMetadata:
    """The update metadata in ``table``; every slot differs between the revisions (section 2.4)."""
    if not revision.counts_batches:
        return UpdateMetadata(
            first_seq=table.int64(4),
            last_seq=table.int64(6),
            is_snapshot=table.boolean(8),
            effective_viewport=_row_set(table, 10, limits),
            effective_reverse_viewport=table.boolean(12),
            effective_column_set=_bit_set(table, 14, limits),
            added_rows=_row_set(table, 16, limits),
            removed_rows=_row_set(table, 18, limits),
            shift_data=_shifts(table, 20, limits),
            added_rows_included=_row_set(table, 22, limits),
            mod_column_nodes=_mod_nodes(table, 24, limits),
            table_size=table.int64(26) if table.has(26) else None,
            source_time_ns=source_time_ns,
        )
    return UpdateMetadata(
        add_batch_count=table.uint16(4),
        mod_batch_count=table.uint16(6),
        first_seq=table.int64(8),
        last_seq=table.int64(10),
        is_snapshot=table.boolean(12),
        effective_viewport=_row_set(table, 14, limits),
        effective_column_set=_bit_set(table, 16, limits),
        added_rows=_row_set(table, 18, limits),
        removed_rows=_row_set(table, 20, limits),
        shift_data=_shifts(table, 22, limits),
        added_rows_included=_row_set(table, 24, limits),
        mod_column_nodes=_mod_nodes(table, 26, limits),
        source_time_ns=source_time_ns,
    )


def _mod_nodes(table: FlatTable, slot: int, limits: Limits) -> tuple[RowSet, ...] | None:
    nodes = table.tables(slot, count_max=limits.columns_max)
    if nodes is None:
        return None
    row_sets: list[RowSet] = []
    decoded: dict[bytes, RowSet] = {}  # most columns repeat each other's row set
    previous: FlatTable | None = None
    for node in nodes:
        if node is previous:
            row_sets.append(row_sets[-1])
            continue
        previous = node
        encoded = node.byte_vector(_MODIFIED_ROWS)
        if encoded is None:
            raise RemoteProtocolError("modified column without its rows")
        rows = decoded.get(encoded)
        if rows is None:
            rows = decoded[encoded] = _decode_rows(encoded, limits)
        row_sets.append(rows)
    return tuple(row_sets)


def _never(table: FlatTable, limits: Limits) -> BarrageMessage:  # pragma: no cover
    raise AssertionError("updates are decoded with their revision")


_DECODERS: dict[WireRevision, dict[int, Callable[[FlatTable, Limits], BarrageMessage]]] = {
    WireRevision.R1_0_0: {
        TYPE_SERIALIZATION_OPTIONS: _decode_serialization,
        TYPE_SUBSCRIPTION_REQUEST: _decode_subscription,
        TYPE_UPDATE_METADATA: _never,
        TYPE_SNAPSHOT_REQUEST: _decode_snapshot,
        TYPE_PUBLICATION_REQUEST: _decode_publication,
    },
    WireRevision.DRAFT_2020: {
        TYPE_NEW_SESSION: _decode_new_session,
        TYPE_REFRESH_SESSION: _decode_refresh_session,
        TYPE_SESSION_INFO: _decode_session_info,
        TYPE_SERIALIZATION_OPTIONS: _decode_draft_serialization,
        TYPE_SUBSCRIPTION_REQUEST: _decode_draft_subscription,
        TYPE_UPDATE_METADATA: _never,
        TYPE_SNAPSHOT_REQUEST: _decode_draft_snapshot,
    },
}

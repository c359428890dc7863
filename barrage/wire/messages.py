"""What Barrage metadata says, as values. Bytes are the business of :mod:`barrage.wire.metadata`.

Source: barrage-wire.md sections 2.1 to 2.5. ``None`` always means "absent on the wire"; an empty
row set and a zero-length vector are something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet, RowSetShiftData

TYPE_NONE = 0
TYPE_NEW_SESSION = 1
TYPE_REFRESH_SESSION = 2
TYPE_SESSION_INFO = 3
TYPE_SERIALIZATION_OPTIONS = 4
TYPE_SUBSCRIPTION_REQUEST = 5
TYPE_UPDATE_METADATA = 6
TYPE_SNAPSHOT_REQUEST = 7
TYPE_PUBLICATION_REQUEST = 8

CONVERT_STRINGIFY = 1
"""Default of ``column_conversion_mode``; deprecated and ignored in 1.0.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """How a subscriber wants its data. 0 means the server's default everywhere; -1 rows means no
    limit."""

    use_deephaven_nulls: bool = False
    min_update_interval_ms: int = 0
    batch_size: int = 0
    """Rows per record batch; <= 0 is no limit."""
    max_message_size: int = 0
    """Bytes of one FlightData; <= 0 is the default of 100 MiB. Not in the draft."""
    columns_as_list: bool = False
    """Wrap every column in a one-row list so that columns may differ in length. Not in the
    draft."""
    preview_list_length_limit: int = 0
    """k > 0 keeps the first k elements of every list, k < 0 the last -k. Not in the draft."""
    column_conversion_mode: int = CONVERT_STRINGIFY


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """Options of a one-shot snapshot. The draft reuses the subscription's table: it has an
    interval, but no message size limit (section 2.3)."""

    use_deephaven_nulls: bool = False
    batch_size: int = 0
    max_message_size: int = 0
    preview_list_length_limit: int = 0
    column_conversion_mode: int = CONVERT_STRINGIFY
    min_update_interval_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRequest:
    """Type 5: subscribe, or change columns and viewport of the subscription on this stream."""

    message_type: ClassVar[int] = TYPE_SUBSCRIPTION_REQUEST
    ticket: bytes | None = None
    columns: ColumnSet | None = None
    viewport: RowSet | None = None
    """Positions; None is a full subscription."""
    is_reverse: bool = False
    options: SubscriptionOptions = field(default_factory=SubscriptionOptions)
    subscription_token: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializationOptions:
    """Type 4: how a following upload is encoded; the payload is a subscription request's table
    (section 3.6)."""

    message_type: ClassVar[int] = TYPE_SERIALIZATION_OPTIONS
    ticket: bytes | None = None
    options: SubscriptionOptions = field(default_factory=SubscriptionOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Type 7: send the table, or a part of it, once."""

    message_type: ClassVar[int] = TYPE_SNAPSHOT_REQUEST
    ticket: bytes | None = None
    columns: ColumnSet | None = None
    viewport: RowSet | None = None
    is_reverse: bool = False
    options: SnapshotOptions = field(default_factory=SnapshotOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRequest:
    """Type 8: defined by the format, implemented by nobody (section 2.5)."""

    message_type: ClassVar[int] = TYPE_PUBLICATION_REQUEST
    ticket: bytes | None = None
    use_deephaven_nulls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadata:
    """Type 6: what one update does, without its values.

    Whether row sets hold row keys or view positions depends on the subscription (sections 8 and 9),
    so the fields carry their wire names. ``add_batch_count`` and ``mod_batch_count`` exist in the
    draft only, ``table_size`` and ``effective_reverse_viewport`` in 1.0.0 only. ``table_size`` None
    and 0 are the same on the wire; a reader gets 0.
    """

    message_type: ClassVar[int] = TYPE_UPDATE_METADATA
    first_seq: int = 0
    last_seq: int = 0
    is_snapshot: bool = False
    effective_viewport: RowSet | None = None
    effective_reverse_viewport: bool = False
    effective_column_set: ColumnSet | None = None
    added_rows: RowSet | None = None
    removed_rows: RowSet | None = None
    shift_data: RowSetShiftData | None = None
    added_rows_included: RowSet | None = None
    mod_column_nodes: tuple[RowSet, ...] | None = None
    table_size: int | None = None
    add_batch_count: int | None = None
    mod_batch_count: int | None = None
    source_time_ns: int | None = None
    """Our extension: wall time of the newest cycle in the update, int64 in slot 10 of the
    wrapper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSessionRequest:
    """Draft type 1, marked "not yet used" there."""

    message_type: ClassVar[int] = TYPE_NEW_SESSION
    protocol_version: int = 0
    payload: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSessionRequest:
    """Draft type 2."""

    message_type: ClassVar[int] = TYPE_REFRESH_SESSION
    session: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfoResponse:
    """Draft type 3."""

    message_type: ClassVar[int] = TYPE_SESSION_INFO
    metadata_header: bytes | None = None
    session_token: bytes | None = None
    token_refresh_deadline_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueMessage:
    """A wrapper this revision gives no meaning to: type 0, reserved, or private types
    (negative)."""

    message_type: int
    payload: bytes | None = None


BarrageMessage = (
    SubscriptionRequest
    | SnapshotRequest
    | UpdateMetadata
    | SerializationOptions
    | PublicationRequest
    | NewSessionRequest
    | RefreshSessionRequest
    | SessionInfoResponse
    | OpaqueMessage
)

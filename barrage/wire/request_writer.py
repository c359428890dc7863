"""Requests and session messages as flatbuffers.

Source: barrage-wire.md sections 2.2, 2.3 and 2.5. Fields a revision does not have are left out;
defaults are not written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from barrage.errors import LocalProtocolError
from barrage.wire.bitset import encode_bit_set
from barrage.wire.flatbuffer_writer import FlatbufferWriter
from barrage.wire.messages import (
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
from barrage.wire.row_sets.row_set_codec import encode_row_set

SessionMessage = NewSessionRequest | RefreshSessionRequest | SessionInfoResponse
Request = (
    SubscriptionRequest
    | SnapshotRequest
    | SerializationOptions
    | PublicationRequest
    | SessionMessage
)


def encode_request(message: Request, revision: WireRevision) -> bytes:
    """The payload of a wrapper for ``message``. Raises LocalProtocolError if ``revision`` has no
    such message or cannot say what it says."""
    writer = FlatbufferWriter(revision)
    if isinstance(message, SubscriptionRequest | SnapshotRequest):
        root = _selection(writer, message, revision)
    elif isinstance(message, SerializationOptions):
        options = _options(writer, message.options, revision)
        root = writer.table(
            "BarrageSubscriptionRequest", ticket=message.ticket, subscription_options=options
        )
    elif isinstance(message, PublicationRequest):
        root = _publication(writer, message, revision)
    elif revision is WireRevision.DRAFT_2020:
        root = writer.table(type(message).__name__, **_fields(message))
    else:
        raise LocalProtocolError(f"revision {revision.value} has no session messages")
    return writer.finished(root)


def _selection(
    writer: FlatbufferWriter, request: SubscriptionRequest | SnapshotRequest, revision: WireRevision
) -> int:
    """A request for columns and rows of a table."""
    if request.is_reverse and not revision.has_reverse_viewport:
        raise LocalProtocolError(f"revision {revision.value} has no reverse viewport")
    fields: dict[str, bytes | int | None] = {
        "ticket": request.ticket,
        "columns": None if request.columns is None else encode_bit_set(request.columns),
        "viewport": None if request.viewport is None else encode_row_set(request.viewport),
        "reverse_viewport": request.is_reverse,
    }
    options = _options(writer, request.options, revision)
    if isinstance(request, SubscriptionRequest):
        fields["subscription_token"] = request.subscription_token
        return writer.table("BarrageSubscriptionRequest", **fields, subscription_options=options)
    if revision is WireRevision.DRAFT_2020:
        return writer.table("DoGetRequest", **fields, get_options=options)
    return writer.table("BarrageSnapshotRequest", **fields, snapshot_options=options)


def _options(
    writer: FlatbufferWriter, options: SubscriptionOptions | SnapshotOptions, revision: WireRevision
) -> int | None:
    """The options table; None (absent) when every option has its default."""
    if options == type(options)():
        return None
    # The draft has one table for both.
    name = "BarrageSubscriptionOptions"
    if isinstance(options, SubscriptionOptions):
        if options.columns_as_list and not revision.has_columns_as_list:
            raise LocalProtocolError(f"revision {revision.value} cannot wrap columns in lists")
    elif revision is not WireRevision.DRAFT_2020:
        name = "BarrageSnapshotOptions"
    return writer.table(name, **_fields(options))


def _fields(values: SubscriptionOptions | SnapshotOptions | SessionMessage) -> dict[str, Any]:
    """Fields that have the names of the schema."""
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}


def _publication(
    writer: FlatbufferWriter, request: PublicationRequest, revision: WireRevision
) -> int:
    if revision is WireRevision.DRAFT_2020:
        raise LocalProtocolError(f"revision {revision.value} has no publication request")
    options = None
    if request.use_deephaven_nulls:
        options = writer.table("BarragePublicationOptions", use_deephaven_nulls=True)
    return writer.table("BarragePublicationRequest", ticket=request.ticket, publish_options=options)

"""Plays the peer: frames of a client or server, and updates with values, in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire import (
    EncodeOptions,
    FlightFrame,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
    UpdateAssembler,
    UpdateEncoder,
    WireRevision,
    decode_flight_data,
    encode_flight_data,
    encode_wrapper,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Column = pa.Array | pa.ChunkedArray

BARRAGE_DESCRIPTOR = bytes.fromhex("080212046470686e")
"""What C++ and Python clients send before their request (barrage-wire.md section 3.2)."""


def descriptor_frame() -> bytes:
    """The message before the request."""
    return encode_flight_data(FlightFrame(descriptor=BARRAGE_DESCRIPTOR))


def metadata_frame(metadata: bytes) -> bytes:
    """A message with nothing but metadata, as Java clients send it."""
    return encode_flight_data(FlightFrame(metadata=metadata))


def subscription_frame(
    ticket: bytes | None = b"s/t",
    *,
    columns: tuple[int, ...] | None = None,
    viewport: RowSet | None = None,
    is_reverse: bool = False,
    options: SubscriptionOptions | None = None,
    revision: WireRevision = WireRevision.R1_0_0,
) -> bytes:
    """A subscription request."""
    request = SubscriptionRequest(
        ticket=ticket,
        columns=columns,
        viewport=viewport,
        is_reverse=is_reverse,
        options=options or SubscriptionOptions(),
    )
    return metadata_frame(encode_wrapper(request, revision))


def snapshot_frame(
    ticket: bytes | None = b"s/t",
    *,
    columns: tuple[int, ...] | None = None,
    viewport: RowSet | None = None,
    is_reverse: bool = False,
    options: SnapshotOptions | None = None,
    revision: WireRevision = WireRevision.R1_0_0,
) -> bytes:
    """A one-shot snapshot request."""
    request = SnapshotRequest(
        ticket=ticket,
        columns=columns,
        viewport=viewport,
        is_reverse=is_reverse,
        options=options or SnapshotOptions(),
    )
    return metadata_frame(encode_wrapper(request, revision))


def no_rows(schema: pa.Schema) -> tuple[pa.Array, ...]:
    """One empty array per column."""
    return tuple(pa.nulls(0, field.type) for field in schema)


def full_update(
    schema: pa.Schema,
    *,
    added: RowSet | None = None,
    values: Sequence[Column] | None = None,
    removed: RowSet | None = None,
    shifts: RowSetShiftData | None = None,
    included: RowSet | None = None,
    modified: Sequence[RowSet] | None = None,
    modified_values: Sequence[Column] | None = None,
    columns: tuple[int, ...] | None = None,
    is_snapshot: bool = False,
    step: int = 7,
    table_size: int = 100,
    source_time_ns: int | None = None,
) -> FullUpdate:
    """An update in row keys; what is not given is empty."""
    empty = RowSet.empty()
    return FullUpdate(
        first_step=step,
        last_step=step,
        is_snapshot=is_snapshot,
        effective_viewport=None,
        is_effective_reverse=False,
        effective_columns=columns,
        table_size=table_size,
        added_columns=tuple(values) if values is not None else no_rows(schema),
        modified_columns=tuple(modified_values) if modified_values else no_rows(schema),
        source_time_ns=source_time_ns,
        removed_keys_pre=empty if removed is None else removed,
        shifts=RowSetShiftData.empty() if shifts is None else shifts,
        added_keys_post=empty if added is None else added,
        included_keys_post=included,
        modified_keys_post=tuple(modified) if modified else (empty,) * len(schema),
    )


def view_update(
    schema: pa.Schema,
    *,
    added: RowSet | None = None,
    values: Sequence[Column] | None = None,
    removed: RowSet | None = None,
    modified: Sequence[RowSet] | None = None,
    modified_values: Sequence[Column] | None = None,
    viewport: RowSet | None = None,
    is_reverse: bool = False,
    columns: tuple[int, ...] | None = None,
    is_snapshot: bool = False,
    table_size: int = 100,
) -> ViewUpdate:
    """An update in view positions; what is not given is empty."""
    empty = RowSet.empty()
    return ViewUpdate(
        first_step=7,
        last_step=8,
        is_snapshot=is_snapshot,
        effective_viewport=viewport,
        is_effective_reverse=is_reverse,
        effective_columns=columns,
        table_size=table_size,
        added_columns=tuple(values) if values is not None else no_rows(schema),
        modified_columns=tuple(modified_values) if modified_values else no_rows(schema),
        removed_positions=empty if removed is None else removed,
        added_positions=empty if added is None else added,
        modified_positions=tuple(modified) if modified else (empty,) * len(schema),
    )


def encoded_frames(
    schema: pa.Schema, update: FullUpdate | ViewUpdate, options: EncodeOptions | None = None
) -> list[FlightFrame]:
    """The schema message and all messages of one update, split into their fields."""
    encoder = UpdateEncoder(schema, options or EncodeOptions())
    return [decode_flight_data(raw) for raw in (encoder.schema_frame(), *encoder.encode(update))]


def assembler_for(options: EncodeOptions, *, is_viewport: bool = False) -> UpdateAssembler:
    """A receiver that asked for ``options``."""
    return UpdateAssembler(
        revision=options.revision,
        is_viewport=is_viewport,
        columns_as_list=options.columns_as_list,
        use_deephaven_nulls=options.use_deephaven_nulls,
    )


def through_the_wire(
    schema: pa.Schema, update: FullUpdate | ViewUpdate, options: EncodeOptions | None = None
) -> tuple[FullUpdate | ViewUpdate, int]:
    """``update`` as a receiver sees it, and how many messages it took. Fails if it is complete
    before the last message or incomplete after it."""
    options = options or EncodeOptions()
    assembler = assembler_for(options, is_viewport=isinstance(update, ViewUpdate))
    schema_frame, *frames = encoded_frames(schema, update, options)
    assert assembler.receive_frame(schema_frame) is not None
    results = [assembler.receive_frame(frame) for frame in frames]
    assert all(result is None for result in results[:-1])
    assert isinstance(results[-1], FullUpdate | ViewUpdate)
    assert assembler.is_between_updates
    return results[-1], len(frames)

"""Whatever an encoder sends, an assembler that asked for it receives."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData, Shift
from barrage.wire import (
    EncodeOptions,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
    UpdateMetadata,
    WireRevision,
    decode_flight_data,
    decode_wrapper,
    encode_flight_data,
    encode_wrapper,
)
from barrage.wire.frame import FlightFrame
from tests.helpers.frame_factory import full_update, through_the_wire, view_update
from tests.helpers.strategies_columns import VALUES, cells, columns, type_names

R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020

row_sets = st.builds(RowSet, st.sets(st.integers(0, 300) | st.integers(0, 2**63 - 1), max_size=12))
ints32 = st.integers(-(2**31), 2**31 - 1)
ints64 = st.integers(-(2**63), 2**63 - 1)
column_sets = st.none() | st.sets(st.integers(0, 40)).map(lambda s: tuple(sorted(s)))
tickets = st.none() | st.binary(max_size=20)
shifts = st.sampled_from(
    [
        RowSetShiftData.empty(),
        RowSetShiftData.from_shifts([Shift(10, 20, 5)]),
        RowSetShiftData.from_shifts([Shift(5, 9, -5), Shift(100, 2**40, 2**41)]),
    ]
)


@st.composite
def sized_row_sets(draw, size_max=9):
    return RowSet(draw(st.sets(st.integers(0, 1000), max_size=size_max)))


@st.composite
def encode_options(draw):
    revision = draw(st.sampled_from([R1, R1, DRAFT]))
    return EncodeOptions(
        use_deephaven_nulls=draw(st.booleans()),
        columns_as_list=draw(st.booleans()) and revision is R1,
        batch_rows_max=draw(st.sampled_from([1, 2, 3, 100, 2**31 - 1])),
        message_bytes_max=draw(st.sampled_from([500, 3000, 100 * 2**20])),
        revision=revision,
        sends_source_time=draw(st.booleans()),
    )


@st.composite
def updates(draw, revision):
    names = draw(st.lists(type_names, min_size=1, max_size=4))
    schema = pa.schema([pa.field(f"c{i}", VALUES[name][0]) for i, name in enumerate(names)])
    added = draw(sized_row_sets())
    selected = draw(st.sets(st.integers(0, len(names) - 1)))
    is_snapshot = draw(st.booleans())
    subset = tuple(sorted(selected)) if is_snapshot else None
    values = [
        draw(columns(name, added.size if subset is None or i in subset else 0))
        for i, name in enumerate(names)
    ]
    modified = [
        draw(sized_row_sets()) if not is_snapshot else RowSet.empty() for _ in range(len(names))
    ]
    changed = [draw(columns(name, rows.size)) for name, rows in zip(names, modified, strict=True)]
    common = {
        "added": added,
        "values": values,
        "removed": draw(sized_row_sets()),
        "modified": modified,
        "modified_values": changed,
        "is_snapshot": is_snapshot,
        "columns": subset,
        "table_size": draw(st.integers(0, 2**40)),
    }
    if revision is R1 and draw(st.booleans()):
        return schema, view_update(schema, viewport=draw(st.none() | row_sets), **common)
    return schema, full_update(
        schema,
        shifts=draw(shifts),
        step=draw(ints64),
        source_time_ns=draw(st.none() | st.integers(0, 2**62)),
        **common,
    )


@given(data=st.data())
def test_updates_survive_the_wire(data):
    options = data.draw(encode_options())
    schema, sent = data.draw(updates(options.revision))
    received, _ = through_the_wire(schema, sent, options)
    assert type(received) is type(sent)
    for name in ("first_step", "last_step", "is_snapshot", "effective_viewport"):
        assert getattr(received, name) == getattr(sent, name)
    if options.revision is R1:
        assert received.table_size == sent.table_size
    if isinstance(sent, FullUpdate):
        assert isinstance(received, FullUpdate)
        assert received.effective_columns == sent.effective_columns
        assert received.removed_keys_pre == sent.removed_keys_pre
        assert received.shifts == sent.shifts
        assert received.added_keys_post == sent.added_keys_post
        assert received.data_keys_post == sent.data_keys_post
        assert received.modified_keys_post == sent.modified_keys_post
    else:
        assert isinstance(received, ViewUpdate)
        assert received.removed_positions == sent.removed_positions
        assert received.added_positions == sent.added_positions
        assert received.modified_positions == sent.modified_positions
    expected_time = sent.source_time_ns if options.sends_source_time else None
    assert received.source_time_ns == expected_time
    for got, wanted in zip(
        (*received.added_columns, *received.modified_columns),
        (*sent.added_columns, *sent.modified_columns),
        strict=True,
    ):
        got.validate(full=True)
        assert cells(got) == cells(wanted)


subscription_options = st.builds(
    SubscriptionOptions,
    use_deephaven_nulls=st.booleans(),
    min_update_interval_ms=ints32,
    batch_size=ints32,
    max_message_size=ints32,
    columns_as_list=st.booleans(),
    preview_list_length_limit=ints64,
    column_conversion_mode=st.integers(1, 3),
)
draft_subscription_options = st.builds(
    SubscriptionOptions,
    use_deephaven_nulls=st.booleans(),
    min_update_interval_ms=ints32,
    batch_size=ints32,
    column_conversion_mode=st.integers(1, 3),
)
messages_r1 = st.one_of(
    st.builds(
        SubscriptionRequest,
        ticket=tickets,
        columns=column_sets,
        viewport=st.none() | row_sets,
        is_reverse=st.booleans(),
        options=subscription_options,
        subscription_token=tickets,
    ),
    st.builds(
        SnapshotRequest,
        ticket=tickets,
        columns=column_sets,
        viewport=st.none() | row_sets,
        is_reverse=st.booleans(),
        options=st.builds(
            SnapshotOptions,
            use_deephaven_nulls=st.booleans(),
            batch_size=ints32,
            max_message_size=ints32,
            preview_list_length_limit=ints64,
        ),
    ),
    st.builds(
        UpdateMetadata,
        first_seq=ints64,
        last_seq=ints64,
        is_snapshot=st.booleans(),
        effective_viewport=st.none() | row_sets,
        effective_reverse_viewport=st.booleans(),
        effective_column_set=column_sets,
        added_rows=st.none() | row_sets,
        removed_rows=st.none() | row_sets,
        shift_data=st.none() | shifts,
        added_rows_included=st.none() | row_sets,
        mod_column_nodes=st.none() | st.lists(row_sets, max_size=5).map(tuple),
        table_size=st.none() | st.integers(1, 2**63 - 1),
        source_time_ns=st.none() | ints64,
    ),
)
messages_draft = st.one_of(
    st.builds(
        SubscriptionRequest,
        ticket=tickets,
        columns=column_sets,
        viewport=st.none() | row_sets,
        options=draft_subscription_options,
    ),
    st.builds(
        SnapshotRequest,
        ticket=tickets,
        columns=column_sets,
        viewport=st.none() | row_sets,
        options=st.builds(
            SnapshotOptions,
            use_deephaven_nulls=st.booleans(),
            batch_size=ints32,
            min_update_interval_ms=ints32,
        ),
    ),
    st.builds(
        UpdateMetadata,
        first_seq=ints64,
        last_seq=ints64,
        is_snapshot=st.booleans(),
        effective_viewport=st.none() | row_sets,
        effective_column_set=column_sets,
        added_rows=st.none() | row_sets,
        removed_rows=st.none() | row_sets,
        shift_data=st.none() | shifts,
        added_rows_included=st.none() | row_sets,
        mod_column_nodes=st.none() | st.lists(row_sets, max_size=5).map(tuple),
        add_batch_count=st.integers(0, 65535),
        mod_batch_count=st.integers(0, 65535),
        source_time_ns=st.none() | ints64,
    ),
)


@given(messages_r1)
def test_metadata_survives_in_1_0_0(message):
    assert decode_wrapper(encode_wrapper(message, R1), R1) == message


@given(messages_draft)
def test_metadata_survives_in_the_draft(message):
    assert decode_wrapper(encode_wrapper(message, DRAFT), DRAFT) == message


field_bytes = st.none() | st.binary(max_size=300)


@given(field_bytes, field_bytes, field_bytes, field_bytes)
def test_frames_survive(descriptor, header, metadata, body):
    frame = FlightFrame(descriptor=descriptor, header=header, metadata=metadata, body=body)
    assert decode_flight_data(encode_flight_data(frame)) == frame

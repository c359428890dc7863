"""All recorded conversations through the assembler; values against the recorded truth.

Replays that need a replica (deltas applied to a table) belong to the client's tests; here an update
is checked by itself: it is complete exactly where the recording says, its arrays are valid, and
snapshots hold the recorded values.
"""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet
from barrage.wire import (
    SchemaReceived,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionRequest,
    UpdateAssembler,
    WireRevision,
    decode_wrapper,
)
from barrage.wire.metadata import RemoteProtocolError
from tests.helpers.conversations import all_conversations, conversation, conversations

R1 = WireRevision.R1_0_0


def _first_request(recording):
    for message in recording.requests:
        try:
            request = decode_wrapper(message.frame.metadata, R1)
        except RemoteProtocolError:
            continue
        if isinstance(request, SubscriptionRequest | SnapshotRequest):
            return request
    return SnapshotRequest(options=SnapshotOptions())


def _assembler(request, **options):
    is_subscription = isinstance(request, SubscriptionRequest)
    return UpdateAssembler(
        is_viewport=is_subscription and request.viewport is not None,
        columns_as_list=is_subscription and request.options.columns_as_list,
        use_deephaven_nulls=request.options.use_deephaven_nulls,
        **options,
    )


def _updates(recording, **options):
    """Every update with the index of the message that carried its metadata, and the schema."""
    assembler = _assembler(_first_request(recording), **options)
    schema, updates, metadata_at = None, [], None
    for message in recording.answers:
        if message.frame.metadata is not None:
            metadata_at = message.index
        received = assembler.receive_frame(message.frame)
        if isinstance(received, SchemaReceived):
            schema = received.schema
        elif received is not None:
            updates.append((metadata_at, received))
    assert assembler.is_between_updates
    return schema, updates


@pytest.mark.parametrize("recording", all_conversations(), ids=lambda c: c.name)
def test_every_message_is_understood_and_every_array_valid(recording):
    schema, updates = _updates(recording)
    with_metadata = [m for m in recording.answers if "update" in m.decoded]
    assert [index for index, _ in updates] == [m.index for m in with_metadata]
    for _, update in updates:
        for field, added, modified in zip(
            schema, update.added_columns, update.modified_columns, strict=True
        ):
            assert added.type == modified.type == field.type
            added.validate(full=True)
            modified.validate(full=True)
        _check_row_counts(update)


def _check_row_counts(update):
    if isinstance(update, FullUpdate):
        rows, modified = update.data_keys_post, update.modified_keys_post or ()
    else:
        rows, modified = update.added_positions, update.modified_positions
    assert {len(column) for column in update.added_columns} <= {0, len(rows)}
    for keys, column in zip(modified, update.modified_columns, strict=False):
        assert len(column) == len(keys)


@pytest.mark.parametrize("recording", all_conversations(), ids=lambda c: c.name)
def test_viewport_subscriptions_give_view_updates_and_everything_else_full_ones(recording):
    request = _first_request(recording)
    is_view = isinstance(request, SubscriptionRequest) and request.viewport is not None
    kinds = {type(update) for _, update in _updates(recording)[1]}
    if recording.name == "viewport-to-full":
        # 42.7 answers in row keys; its shift data gives that away (section 7.2).
        assert kinds == {ViewUpdate, FullUpdate}
    else:
        assert kinds <= ({ViewUpdate} if is_view else {FullUpdate})


_TEXT_TYPES = {"Du", "Pe", "Zd", "Bd", "Bi", "Lt"}
"""Columns whose truth is given as text in another notation."""


@pytest.mark.parametrize("recording", conversations("types"), ids=lambda c: c.name)
def test_every_type_holds_the_recorded_values(recording):
    schema, updates = _updates(recording)
    truth = recording.document["truth"][0]
    _, update = updates[-1]
    assert update.data_keys_post == RowSet.parse(truth["row_keys"])
    for field, column in zip(schema, update.added_columns, strict=True):
        expected = truth["columns"][field.name]
        if field.name in _TEXT_TYPES:
            assert [cell is None for cell in column.to_pylist()] == [e is None for e in expected]
        else:
            assert [_as_truth(cell, column.type) for cell in _raw(column)] == expected, field


def _raw(column):
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_list(column.type) and pa.types.is_timestamp(column.type.value_type):
        return column.cast(pa.list_(pa.int64())).to_pylist()
    return column.to_pylist()


def _as_truth(cell, kind):
    """A cell in the notation of the recordings."""
    if isinstance(cell, list):
        return [_as_truth(item, kind.value_type) for item in cell]
    if isinstance(cell, float):
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return names.get(str(cell), cell)
    if isinstance(cell, bytes):
        return {"hex": cell.hex()}
    if isinstance(cell, datetime.date):
        return cell.isoformat()
    if pa.types.is_uint16(kind) and cell is not None:
        return chr(cell)
    return cell


@pytest.mark.parametrize("recording", conversations("encodings")[:8], ids=lambda c: c.name)
def test_encoded_columns_hold_the_recorded_values(recording):
    for decodes in (False, True):
        _, updates = _updates(recording, decodes_encodings=decodes)
        truth = recording.document["truth"][0]
        update = updates[-1][1]
        names = truth["columns"]
        for column, expected in zip(update.added_columns, names.values(), strict=True):
            assert column.to_pylist() == expected


_WITH_TRUTH = [
    entry
    for entry in all_conversations()
    if entry.updates and entry.file not in ("types", "encodings")
]


@pytest.mark.parametrize("recording", _WITH_TRUTH, ids=lambda c: c.name)
def test_first_snapshots_hold_the_recorded_values(recording):
    """Their rows are all the receiver holds, so they can be checked without a replica."""
    schema, updates = _updates(recording)
    by_message = dict(updates)
    entry = recording.updates[0]
    update = by_message[entry["metadata_message"]]
    truth = recording.truth(entry["truth_step"])
    keys = RowSet.parse(truth["row_keys"])
    held = RowSet(entry["view_row_keys"]) if "view_row_keys" in entry else None
    if isinstance(update, FullUpdate):
        held = update.data_keys_post
        assert update.added_keys_post == keys
    positions = keys.positions_of(held).to_numpy()
    selected = update.effective_columns
    for i, (field, column) in enumerate(zip(schema, update.added_columns, strict=True)):
        if selected is not None and i not in selected:
            assert len(column) == 0
            continue
        expected = [truth["columns"][field.name][p] for p in positions]
        assert [_as_truth(cell, column.type) for cell in _raw(column)] == expected


def test_preview_limits_cut_lists_at_either_end():
    whole = conversation("preview-list-2").document
    first = _updates(conversation("preview-list-2"))[1][0][1]
    last = _updates(conversation("preview-list--2"))[1][0][1]
    lists = [i for i, c in enumerate(first.added_columns) if pa.types.is_list(c.type)]
    assert lists, whole
    for i in lists:
        for head, tail in zip(
            first.added_columns[i].to_pylist(), last.added_columns[i].to_pylist(), strict=True
        ):
            assert head is None or len(head) <= 2
            assert tail is None or len(tail) <= 2


def test_a_subscription_to_no_columns_still_counts_rows():
    _, updates = _updates(conversation("zero-length-columns"))
    update = updates[0][1]
    assert len(update.data_keys_post) == 20
    assert {len(column) for column in update.added_columns} == {0}

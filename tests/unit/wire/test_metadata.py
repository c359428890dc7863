"""Barrage metadata of both revisions against the vectors (barrage-wire.md section 2)."""

from __future__ import annotations

import json
from dataclasses import replace

import flatbuffers
import pytest

from barrage.errors import LimitExceededError, LocalProtocolError, RemoteProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet, RowSetShiftData, Shift
from barrage.wire import messages as m
from barrage.wire.bitset import decode_bit_set
from barrage.wire.metadata import (
    WrongMagicError,
    decode_wrapper,
    encode_wrapper,
    peek_message_type,
)
from barrage.wire.revision import WireRevision
from barrage.wire.row_sets.row_set_codec import decode_row_set, decode_shifts
from barrage.wire.update_metadata import wrap_payload
from tests.helpers.conversations import VECTORS, all_conversations, conversation

_MALFORMED = {
    "wrong-magic",
    "wrong-magic-twice",
    "no-payload",
    "zero-length-viewport",
    "malformed-viewport",
    "snapshot-zero-length-viewport",
}
"""Conversations that begin with a request no server can read."""

R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020
_REVISIONS = {"1.0.0": R1, "2020 draft": DRAFT}
_VECTORS = json.loads((VECTORS / "revisions.json").read_text())["vectors"]


def _rows(fields, name):
    return RowSet.parse(fields[name]) if name in fields else None


def _expected(vector):
    fields = vector["fields"]
    kind = vector["msg_type"]
    if kind == m.TYPE_UPDATE_METADATA:
        return _expected_update(fields, _REVISIONS[vector["revision"]])
    ticket = fields["ticket_text"].encode() if "ticket_text" in fields else None
    columns = tuple(fields["columns"]) if "columns" in fields else None
    options = {
        name: fields[name]
        for name in (
            "use_deephaven_nulls",
            "min_update_interval_ms",
            "batch_size",
            "max_message_size",
            "column_conversion_mode",
        )
        if name in fields
    }
    common = {"ticket": ticket, "columns": columns, "viewport": _rows(fields, "viewport")}
    if kind == m.TYPE_SUBSCRIPTION_REQUEST:
        return m.SubscriptionRequest(**common, options=m.SubscriptionOptions(**options))
    if kind == m.TYPE_SNAPSHOT_REQUEST:
        return m.SnapshotRequest(**common, options=m.SnapshotOptions(**options))
    if kind == m.TYPE_NEW_SESSION:
        return m.NewSessionRequest(
            protocol_version=fields["protocol_version"], payload=fields["payload_text"].encode()
        )
    if kind == m.TYPE_REFRESH_SESSION:
        return m.RefreshSessionRequest(session=fields["session_text"].encode())
    if kind == m.TYPE_SESSION_INFO:
        return m.SessionInfoResponse(
            metadata_header=fields["metadata_header_text"].encode(),
            session_token=fields["session_token_text"].encode(),
            token_refresh_deadline_ms=fields["token_refresh_deadline_ms"],
        )
    return m.OpaqueMessage(message_type=kind)


def _expected_update(fields, revision):
    nodes = fields.get("mod_column_nodes")
    columns = fields.get("effective_column_set")
    counts = {}
    if revision is DRAFT:
        counts = {
            "add_batch_count": fields["num_add_batches"],
            "mod_batch_count": fields["num_mod_batches"],
        }
    return m.UpdateMetadata(
        first_seq=fields["first_seq"],
        last_seq=fields["last_seq"],
        is_snapshot=fields.get("is_snapshot", False),
        effective_viewport=_rows(fields, "effective_viewport"),
        effective_reverse_viewport=fields.get("effective_reverse_viewport", False),
        effective_column_set=None if columns is None else tuple(columns),
        added_rows=_rows(fields, "added_rows"),
        removed_rows=_rows(fields, "removed_rows"),
        shift_data=_shifts(fields.get("shift_data")),
        added_rows_included=_rows(fields, "added_rows_included"),
        mod_column_nodes=None if nodes is None else tuple(RowSet.parse(node) for node in nodes),
        table_size=fields.get("table_size"),
        **counts,
    )


def _shifts(listed):
    if listed is None:
        return None
    return RowSetShiftData.from_shifts(Shift(*entry) for entry in listed)


@pytest.mark.parametrize("vector", _VECTORS, ids=lambda v: v["id"])
class TestRevisionVectors:
    def test_decoding_gives_the_recorded_meaning(self, vector):
        revision = _REVISIONS[vector["revision"]]
        decoded = decode_wrapper(bytes.fromhex(vector["wrapper_hex"]), revision)
        assert decoded == _expected(vector)

    def test_encoding_decodes_to_the_same_meaning(self, vector):
        revision = _REVISIONS[vector["revision"]]
        message = _expected(vector)
        encoded = encode_wrapper(message, revision)
        assert decode_wrapper(encoded, revision) == message
        assert peek_message_type(encoded) == vector["msg_type"]

    def test_only_the_recorded_slots_are_written(self, vector):
        revision = _REVISIONS[vector["revision"]]
        encoded = encode_wrapper(_expected(vector), revision)
        if vector["table"] is None:
            assert _present_slots(encoded) == {4, 6}
            return
        payload = _payload(encoded)
        assert _present_slots(payload) == {int(slot) for slot in vector["present_slots"]}


def _payload(wrapper):
    table = _root(wrapper)
    start = table.Vector(table.Offset(8))
    return bytes(wrapper[start : start + table.VectorLen(table.Offset(8))])


def _root(buffer):
    position = int.from_bytes(buffer[:4], "little")
    return flatbuffers.table.Table(bytearray(buffer), position)


def _present_slots(payload):
    table = _root(payload)
    vtable = table.Pos - int.from_bytes(payload[table.Pos : table.Pos + 4], "little", signed=True)
    size = int.from_bytes(payload[vtable : vtable + 2], "little")
    return {slot for slot in range(4, size, 2) if table.Offset(slot)}


def test_the_same_option_bytes_mean_different_things_in_the_two_revisions():
    raw = bytes.fromhex(
        next(v["wrapper_hex"] for v in _VECTORS if v["id"] == "v1-snapshot-same-slots")
    )
    new = decode_wrapper(raw, R1)
    old = decode_wrapper(raw, DRAFT)
    assert (new.options.batch_size, new.options.max_message_size) == (1000, 4096)
    assert (old.options.min_update_interval_ms, old.options.batch_size) == (1000, 4096)


class TestRecordedMetadata:
    """All metadata of the recorded conversations."""

    def test_requests_say_what_was_recorded(self):
        checked = 0
        for recording in all_conversations():
            for message in recording.requests:
                recorded = message.decoded.get("subscription_request") or message.decoded.get(
                    "snapshot_request"
                )
                if recorded is None or recording.name in _MALFORMED:
                    continue
                request = decode_wrapper(message.frame.metadata, R1)
                assert peek_message_type(message.frame.metadata) == message.decoded["msg_type"]
                _assert_request(request, recorded)
                assert decode_wrapper(encode_wrapper(request, R1), R1) == request
                checked += 1
        assert checked > 130

    @pytest.mark.parametrize("name", sorted(_MALFORMED))
    def test_requests_the_server_refused_are_refused(self, name):
        raw = conversation(name).requests[0].frame.metadata
        with pytest.raises(RemoteProtocolError) as caught:
            decode_wrapper(raw, R1)
        assert isinstance(caught.value, WrongMagicError) == name.startswith("wrong-magic")

    def test_updates_say_what_was_recorded(self):
        checked = 0
        for recording in all_conversations():
            for message in recording.answers:
                recorded = message.decoded.get("update")
                if recorded is None:
                    continue
                update = decode_wrapper(message.frame.metadata, R1)
                fields = {name: value for name, value in recorded.items() if value is not None}
                expected = _expected_update(fields, R1)
                # The recording shows 0 for a size that was not written.
                if update.table_size is None:
                    assert not expected.table_size
                    expected = replace(expected, table_size=None)
                assert update == expected
                checked += 1
        assert checked == 779

    def test_updates_encode_to_the_same_meaning_in_both_revisions(self):
        for recording in all_conversations():
            for message in recording.answers:
                if "update" not in message.decoded:
                    continue
                update = decode_wrapper(message.frame.metadata, R1)
                assert decode_wrapper(encode_wrapper(update, R1), R1) == update
                draft = replace(
                    update,
                    table_size=None,
                    effective_reverse_viewport=False,
                    add_batch_count=3,
                    mod_batch_count=0,
                )
                assert decode_wrapper(encode_wrapper(draft, DRAFT), DRAFT) == draft


def _assert_request(request, recorded):
    # The recording shows an absent ticket as an empty one.
    assert (request.ticket or b"") == bytes.fromhex(recorded["ticket"] or "")
    columns = recorded["columns"]
    assert request.columns == (None if columns is None else tuple(columns))
    viewport = recorded["viewport"]
    assert request.viewport == (None if viewport is None else RowSet.parse(viewport))
    assert request.is_reverse == recorded["reverse_viewport"]
    for name, value in (recorded["options"] or {}).items():
        assert getattr(request.options, name) == value


def _sample_update(**changes):
    return replace(
        m.UpdateMetadata(
            first_seq=3,
            last_seq=9,
            added_rows=RowSet.parse("0-9,100"),
            removed_rows=RowSet.empty(),
            shift_data=RowSetShiftData.empty(),
            mod_column_nodes=(RowSet.parse("1"), RowSet.empty(), RowSet.parse("1")),
            table_size=11,
        ),
        **changes,
    )


@pytest.mark.parametrize("revision", [R1, DRAFT])
def test_generated_code_reads_what_is_written_directly(revision):
    """The generated accessors are an independent reading of the schemas."""
    update = _sample_update(
        is_snapshot=True,
        effective_viewport=RowSet.parse("0-3"),
        effective_column_set=(0, 2),
        added_rows_included=RowSet.parse("0-4"),
        source_time_ns=1_700_000_000_123_456_789,
    )
    if revision is R1:
        from barrage.wire._fbs.r1_0_0 import BarrageMessageWrapper, BarrageUpdateMetadata

        update = replace(update, effective_reverse_viewport=True)
    else:
        from barrage.wire._fbs.draft_2020 import BarrageMessageWrapper, BarrageUpdateMetadata

        update = replace(update, add_batch_count=65535, mod_batch_count=2)
    raw = bytearray(encode_wrapper(update, revision))
    wrapper = BarrageMessageWrapper.BarrageMessageWrapper.GetRootAs(raw)
    assert (wrapper.Magic(), wrapper.MsgType()) == (0x6E687064, 6)
    assert wrapper.SourceTimeNs() == 1_700_000_000_123_456_789
    payload = bytearray(wrapper.MsgPayloadAsNumpy().tobytes())
    table = BarrageUpdateMetadata.BarrageUpdateMetadata.GetRootAs(payload)
    assert (table.FirstSeq(), table.LastSeq(), table.IsSnapshot()) == (3, 9, True)
    assert decode_row_set(table.EffectiveViewportAsNumpy().tobytes()) == RowSet.parse("0-3")
    assert decode_bit_set(table.EffectiveColumnSetAsNumpy().tobytes()) == (0, 2)
    assert decode_row_set(table.AddedRowsAsNumpy().tobytes()) == RowSet.parse("0-9,100")
    assert table.RemovedRowsAsNumpy().tobytes() == b"\x20"
    assert decode_shifts(table.ShiftDataAsNumpy().tobytes()).is_empty
    assert decode_row_set(table.AddedRowsIncludedAsNumpy().tobytes()) == RowSet.parse("0-4")
    nodes = [table.ModColumnNodes(i) for i in range(table.ModColumnNodesLength())]
    assert [decode_row_set(node.ModifiedRowsAsNumpy().tobytes()) for node in nodes] == [
        RowSet.parse("1"),
        RowSet.empty(),
        RowSet.parse("1"),
    ]
    if revision is R1:
        assert (table.TableSize(), table.EffectiveReverseViewport()) == (11, True)
    else:
        assert (table.NumAddBatches(), table.NumModBatches()) == (65535, 2)


def test_generated_code_reads_requests_written_directly():
    """All fields, and 64-bit ones at multiples of eight whatever the vectors before them."""
    from barrage.wire._fbs.r1_0_0 import BarrageSnapshotRequest, BarrageSubscriptionRequest

    for ticket in (b"", b"s/t", b"s/a longer name"):
        options = m.SubscriptionOptions(
            use_deephaven_nulls=True,
            min_update_interval_ms=-1,
            batch_size=2,
            max_message_size=3,
            columns_as_list=True,
            preview_list_length_limit=-(2**40),
            column_conversion_mode=2,
        )
        request = m.SubscriptionRequest(
            ticket=ticket,
            columns=(1, 9),
            viewport=RowSet.parse("5-9,70000"),
            is_reverse=True,
            options=options,
            subscription_token=b"token",
        )
        table = BarrageSubscriptionRequest.BarrageSubscriptionRequest.GetRootAs(
            bytearray(_payload(encode_wrapper(request, R1)))
        )
        assert table.TicketLength() == len(ticket)
        assert bytes(table.Ticket(i) for i in range(len(ticket))) == ticket
        assert decode_bit_set(table.ColumnsAsNumpy().tobytes()) == (1, 9)
        assert decode_row_set(table.ViewportAsNumpy().tobytes()) == RowSet.parse("5-9,70000")
        assert table.ReverseViewport() is True
        assert table.SubscriptionTokenAsNumpy().tobytes() == b"token"
        said = table.SubscriptionOptions()
        assert said.ColumnConversionMode() == options.column_conversion_mode
        assert (said.UseDeephavenNulls(), said.ColumnsAsList()) == (True, True)
        assert (said.MinUpdateIntervalMs(), said.BatchSize(), said.MaxMessageSize()) == (-1, 2, 3)
        assert said.PreviewListLengthLimit() == -(2**40)
        assert (said._tab.Pos + said._tab.Offset(16)) % 8 == 0
        snapshot = m.SnapshotRequest(
            ticket=ticket, options=m.SnapshotOptions(batch_size=7, preview_list_length_limit=5)
        )
        said = BarrageSnapshotRequest.BarrageSnapshotRequest.GetRootAs(
            bytearray(_payload(encode_wrapper(snapshot, R1)))
        ).SnapshotOptions()
        assert (said.BatchSize(), said.PreviewListLengthLimit()) == (7, 5)


def test_64_bit_fields_lie_at_multiples_of_eight():
    for source_time in (None, 5):
        raw = encode_wrapper(_sample_update(source_time_ns=source_time), R1)
        start = _root(raw).Vector(_root(raw).Offset(8))
        assert start % 8 == 0
        table = _root(_payload(raw))
        assert (table.Pos + table.Offset(4)) % 8 == 0


def test_defaults_are_not_written():
    update = m.UpdateMetadata(added_rows=RowSet.empty(), mod_column_nodes=())
    assert _present_slots(_payload(encode_wrapper(update, R1))) == {16, 24}
    assert decode_wrapper(encode_wrapper(update, R1), R1) == update


def test_source_time_is_only_there_when_set():
    assert decode_wrapper(encode_wrapper(_sample_update(), R1), R1).source_time_ns is None
    timed = _sample_update(source_time_ns=0)
    assert decode_wrapper(encode_wrapper(timed, R1), R1).source_time_ns == 0


def test_what_a_revision_cannot_say_is_refused_before_it_is_sent():
    with pytest.raises(LocalProtocolError, match="reverse"):
        encode_wrapper(m.SubscriptionRequest(ticket=b"t", is_reverse=True), DRAFT)
    options = m.SubscriptionOptions(columns_as_list=True)
    with pytest.raises(LocalProtocolError, match="lists"):
        encode_wrapper(m.SubscriptionRequest(ticket=b"t", options=options), DRAFT)
    with pytest.raises(LocalProtocolError, match="publication"):
        encode_wrapper(m.PublicationRequest(ticket=b"t"), DRAFT)
    with pytest.raises(LocalProtocolError, match="session"):
        encode_wrapper(m.NewSessionRequest(protocol_version=1), R1)
    with pytest.raises(LimitExceededError, match="65536 batches"):
        encode_wrapper(_sample_update(add_batch_count=65536), DRAFT)


def test_other_messages_round_trip():
    options = m.SubscriptionOptions(use_deephaven_nulls=True, preview_list_length_limit=-3)
    for message in (
        m.PublicationRequest(ticket=b"t", use_deephaven_nulls=True),
        m.PublicationRequest(ticket=b"t"),
        m.SerializationOptions(ticket=b"t", options=options),
        m.SubscriptionRequest(ticket=b"", columns=(), viewport=RowSet.empty()),
        m.SubscriptionRequest(ticket=b"t", subscription_token=b"", is_reverse=True),
        m.OpaqueMessage(message_type=-100, payload=b"ours"),
        m.OpaqueMessage(message_type=2, payload=b"x"),
    ):
        assert decode_wrapper(encode_wrapper(message, R1), R1) == message
    draft = m.SerializationOptions(ticket=b"t", options=m.SubscriptionOptions(batch_size=5))
    assert decode_wrapper(encode_wrapper(draft, DRAFT), DRAFT) == draft


def test_somebody_elses_metadata_is_told_apart_from_malformed_metadata():
    raw = bytearray(encode_wrapper(m.SubscriptionRequest(ticket=b"t"), R1))
    at = raw.index(b"dphn")
    raw[at : at + 4] = b"nope"
    with pytest.raises(WrongMagicError):
        decode_wrapper(bytes(raw), R1)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_wrapper(b"\xff\xff\xff\xff", R1)
    assert not isinstance(caught.value, WrongMagicError)


def test_a_wrapper_without_payload_names_what_is_missing():
    with pytest.raises(RemoteProtocolError, match="Subscription request not supplied"):
        decode_wrapper(wrap_payload(m.TYPE_SUBSCRIPTION_REQUEST, None), R1)


def test_tickets_are_limited():
    raw = encode_wrapper(m.SubscriptionRequest(ticket=b"12345"), R1)
    assert decode_wrapper(raw, R1, Limits(ticket_bytes_max=5)).ticket == b"12345"
    with pytest.raises(RemoteProtocolError, match="ticket has 5 bytes, the limit is 4"):
        decode_wrapper(raw, R1, Limits(ticket_bytes_max=4))


def test_a_zero_length_viewport_is_malformed_and_an_empty_one_is_not():
    raw = encode_wrapper(m.SubscriptionRequest(ticket=b"t", viewport=RowSet.empty()), R1)
    assert decode_wrapper(raw, R1).viewport == RowSet.empty()
    at = raw.index(b"\x01\x00\x00\x00\x20")
    with pytest.raises(RemoteProtocolError):
        decode_wrapper(raw[:at] + b"\x00" + raw[at + 1 :], R1)


def test_modified_columns_are_limited_and_must_have_rows():
    raw = encode_wrapper(_sample_update(), R1)
    assert len(decode_wrapper(raw, R1, Limits(columns_max=3)).mod_column_nodes) == 3
    with pytest.raises(RemoteProtocolError, match="limit is 2"):
        decode_wrapper(raw, R1, Limits(columns_max=2))

"""Updates to messages: fields, splitting, framing (barrage-wire.md sections 3.3 to 8.5)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import LocalProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet, RowSetShiftData, Shift
from barrage.wire import (
    EncodeOptions,
    SnapshotOptions,
    SubscriptionOptions,
    UpdateEncoder,
    WireRevision,
    decode_flight_data,
    decode_wrapper,
)
from barrage.wire.ipc import decode_batch_header
from tests.helpers.frame_factory import (
    encoded_frames,
    full_update,
    no_rows,
    through_the_wire,
    view_update,
)

R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020
SCHEMA = pa.schema([("A", pa.int64()), ("S", pa.string()), ("B", pa.bool_())])


def _values(rows, schema=SCHEMA):
    return [
        pa.array(range(rows), pa.int64()),
        pa.array([f"s{i}" for i in range(rows)]),
        pa.array([i % 2 == 0 for i in range(rows)]),
    ][: len(schema)]


def _metadata(frame, revision=R1):
    return decode_wrapper(frame.metadata, revision)


def _lengths(frames):
    return [decode_batch_header(f.header, len(f.body)).length for f in frames]


class TestPresence:
    """Which field is there when: the table of section 8.1."""

    def test_full_snapshot(self):
        rows = RowSet.parse("0-1,5")
        update = full_update(
            SCHEMA, added=rows, values=_values(3), is_snapshot=True, columns=(0, 1, 2)
        )
        metadata = _metadata(encoded_frames(SCHEMA, update)[1])
        assert metadata.is_snapshot
        assert metadata.effective_viewport is None
        assert metadata.effective_column_set == (0, 1, 2)
        assert metadata.added_rows == metadata.added_rows_included == rows
        assert metadata.removed_rows == RowSet.empty()
        assert metadata.shift_data == RowSetShiftData.empty()
        assert metadata.mod_column_nodes == (RowSet.empty(),) * 3
        assert metadata.table_size == 100

    def test_full_delta(self):
        shifts = RowSetShiftData.from_shifts([Shift(10, 20, 5)])
        update = full_update(SCHEMA, removed=RowSet.parse("3"), shifts=shifts)
        metadata = _metadata(encoded_frames(SCHEMA, update)[1])
        assert not metadata.is_snapshot
        assert metadata.effective_column_set is None
        assert metadata.added_rows_included is None
        assert metadata.added_rows == RowSet.empty()
        assert metadata.removed_rows == RowSet.parse("3")
        assert metadata.shift_data == shifts

    def test_included_rows_of_a_delta_travel_when_they_differ(self):
        included = RowSet.parse("1,2")
        update = full_update(
            SCHEMA, added=RowSet.parse("2-9"), included=included, values=_values(2)
        )
        received, _ = through_the_wire(SCHEMA, update)
        assert received.included_keys_post == included
        assert received.added_keys_post == RowSet.parse("2-9")

    def test_view_updates_have_neither_shifts_nor_included_rows(self):
        viewport = RowSet.parse("3-8")
        update = view_update(
            SCHEMA,
            added=RowSet.parse("5"),
            removed=RowSet.parse("0"),
            values=_values(1),
            viewport=viewport,
            is_reverse=True,
            is_snapshot=True,
        )
        metadata = _metadata(encoded_frames(SCHEMA, update)[1])
        assert metadata.shift_data is None
        assert metadata.added_rows_included is None
        assert metadata.effective_viewport == viewport
        assert metadata.effective_reverse_viewport
        assert metadata.table_size == 100
        assert through_the_wire(SCHEMA, update)[0] == update

    def test_answers_to_snapshot_requests_lack_removed_rows_mods_and_size(self):
        update = full_update(SCHEMA, added=RowSet.parse("0-1"), values=_values(2), is_snapshot=True)
        update = type(update)(
            **{
                **{name: getattr(update, name) for name in update.__dataclass_fields__},
                "removed_keys_pre": None,
                "modified_keys_post": None,
                "table_size": None,
            }
        )
        metadata = _metadata(encoded_frames(SCHEMA, update)[1])
        assert metadata.removed_rows is None
        assert metadata.mod_column_nodes is None
        assert metadata.table_size is None
        assert metadata.shift_data == RowSetShiftData.empty()
        received, _ = through_the_wire(SCHEMA, update)
        assert (received.removed_keys_pre, received.modified_keys_post) == (None, None)
        assert received.table_size is None

    def test_source_time_travels_only_when_asked_for(self):
        update = full_update(SCHEMA, source_time_ns=123)
        assert through_the_wire(SCHEMA, update)[0].source_time_ns is None
        options = EncodeOptions(sends_source_time=True)
        assert through_the_wire(SCHEMA, update, options)[0].source_time_ns == 123


class TestFraming:
    def test_an_update_without_rows_is_one_batch_with_all_nodes_and_buffers(self):
        """Traps 1, 4 and 7: body tag, zero-length buffers, nothing missing."""
        encoder = UpdateEncoder(SCHEMA, EncodeOptions())
        (raw,) = encoder.encode(full_update(SCHEMA))
        assert raw.endswith(b"\xc2\x3e\x00")
        header = decode_batch_header(decode_flight_data(raw).header, 0)
        assert header.length == 0
        assert header.nodes == (0, 0) * 3
        assert header.buffers == (0, 0) * 7

    def test_fields_stand_in_order_and_the_body_is_last(self):
        encoder = UpdateEncoder(SCHEMA, EncodeOptions())
        (raw,) = encoder.encode(full_update(SCHEMA, added=RowSet.parse("0-4"), values=_values(5)))
        frame = decode_flight_data(raw)
        assert raw[0:1] == b"\x12"
        assert raw.index(bytes(frame.body)) + len(frame.body) == len(raw)
        assert raw.index(frame.header) < raw.index(frame.metadata)

    @pytest.mark.parametrize("rows", [1, 2, 3, 100, 4000])
    @pytest.mark.parametrize("has_metadata", [True, False])
    def test_the_body_starts_at_a_multiple_of_eight(self, rows, has_metadata):
        encoder = UpdateEncoder(SCHEMA, EncodeOptions(batch_rows_max=rows))
        update = full_update(SCHEMA, added=RowSet.of_span(0, 2 * rows), values=_values(2 * rows))
        raw = list(encoder.encode(update))[0 if has_metadata else 1]
        frame = decode_flight_data(raw)
        assert (frame.metadata is not None) == has_metadata
        assert (len(raw) - len(frame.body)) % 8 == 0

    def test_columns_are_views_of_the_received_message(self):
        update = full_update(SCHEMA, added=RowSet.of_span(0, 100), values=_values(100))
        schema_frame, frame = encoded_frames(SCHEMA, update)
        base = pa.py_buffer(frame.body).address
        from barrage.wire import UpdateAssembler

        assembler = UpdateAssembler()
        assembler.receive_frame(schema_frame)
        column = assembler.receive_frame(frame).added_columns[0]
        assert base <= column.buffers()[1].address < base + len(frame.body)

    def test_the_schema_message_is_only_a_header(self):
        frame = decode_flight_data(UpdateEncoder(SCHEMA, EncodeOptions()).schema_frame())
        assert frame.header is not None
        assert (frame.descriptor, frame.metadata, frame.body) == (None, None, None)

    def test_metadata_rides_on_the_first_batch_only(self):
        """Trap 6."""
        update = full_update(
            SCHEMA,
            added=RowSet.of_span(0, 5),
            values=_values(5),
            modified=[RowSet.of_span(10, 13)] * 3,
            modified_values=_values(3),
        )
        frames = encoded_frames(SCHEMA, update, EncodeOptions(batch_rows_max=2))[1:]
        assert [frame.metadata is not None for frame in frames] == [True] + [False] * 4


class TestSplitting:
    def test_adds_come_first_and_batches_never_mix(self):
        update = full_update(
            SCHEMA,
            added=RowSet.of_span(0, 5),
            values=_values(5),
            modified=[RowSet.of_span(10, 13)] * 3,
            modified_values=_values(3),
        )
        frames = encoded_frames(SCHEMA, update, EncodeOptions(batch_rows_max=2))[1:]
        assert _lengths(frames) == [2, 2, 1, 2, 1]

    def test_modifications_are_cut_by_index_with_columns_of_different_length(self):
        """Section 8.4 and trap 13: the batch length is its longest column's."""
        modified = [RowSet.of_span(0, 5), RowSet.of_span(3, 6), RowSet.empty()]
        values = [
            pa.array(range(5), pa.int64()),
            pa.array(["x", "y", "z"]),
            pa.array([], pa.bool_()),
        ]
        update = full_update(SCHEMA, modified=modified, modified_values=values)
        frames = encoded_frames(SCHEMA, update, EncodeOptions(batch_rows_max=2))[1:]
        headers = [decode_batch_header(f.header, len(f.body)) for f in frames]
        assert [header.length for header in headers] == [2, 2, 1]
        assert [header.nodes[::2] for header in headers] == [(2, 2, 0), (2, 1, 0), (1, 0, 0)]
        received, count = through_the_wire(SCHEMA, update, EncodeOptions(batch_rows_max=2))
        assert count == 3
        assert [c.to_pylist() for c in received.modified_columns] == [c.to_pylist() for c in values]
        assert received.modified_keys_post == tuple(modified)

    def test_columns_not_subscribed_have_no_rows(self):
        values = [_values(4)[0], pa.array([], pa.string()), _values(4)[2]]
        update = full_update(
            SCHEMA, added=RowSet.of_span(0, 4), values=values, columns=(0, 2), is_snapshot=True
        )
        frame = encoded_frames(SCHEMA, update)[1]
        header = decode_batch_header(frame.header, len(frame.body))
        assert header.length == 4
        assert header.nodes == (4, 0, 0, 0, 4, 0)
        received, _ = through_the_wire(SCHEMA, update)
        assert [len(c) for c in received.added_columns] == [4, 0, 4]

    @pytest.mark.parametrize("as_list", [False, True])
    def test_no_column_subscribed_still_says_how_many_rows(self, as_list):
        update = full_update(SCHEMA, added=RowSet.of_span(0, 4), columns=(), is_snapshot=True)
        options = EncodeOptions(columns_as_list=as_list)
        frames = encoded_frames(SCHEMA, update, options)[1:]
        assert _lengths(frames) == [1 if as_list else 4]
        received, _ = through_the_wire(SCHEMA, update, options)
        assert received.data_keys_post == RowSet.of_span(0, 4)

    def test_the_message_limit_covers_the_whole_message(self):
        """Trap 38, and section 8.3: below the limit wherever rows can still be split."""
        schema = pa.schema([("s", pa.string())])
        rng = np.random.default_rng(1)
        values = [pa.array(["x" * int(n) for n in rng.integers(0, 400, 300)])]
        update = full_update(schema, added=RowSet.of_span(0, 300), values=values)
        for limit in (2000, 5000, 20_000):
            encoder = UpdateEncoder(schema, EncodeOptions(message_bytes_max=limit))
            messages = list(encoder.encode(update))
            assert len(messages) > 1
            assert max(map(len, messages)) < limit
        received, _ = through_the_wire(schema, update, EncodeOptions(message_bytes_max=2000))
        assert received.added_columns[0].to_pylist() == values[0].to_pylist()

    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_a_limit_no_message_can_keep_gives_one_row_a_batch(self, limit):
        """A peer may ask for max_message_size 1 (section 8.3: one row is sent regardless)."""
        update = full_update(SCHEMA, added=RowSet.of_span(0, 5), values=_values(5))
        options = EncodeOptions(message_bytes_max=limit)
        assert UpdateEncoder(SCHEMA, options).estimate_bytes(update) > 0
        received, frames = through_the_wire(SCHEMA, update, options)
        assert frames == 5
        assert received.added_columns[0].to_pylist() == [0, 1, 2, 3, 4]

    def test_a_row_larger_than_the_limit_is_sent_alone(self):
        schema = pa.schema([("s", pa.string())])
        values = [pa.array(["a", "x" * 5000, "b", "c"])]
        update = full_update(schema, added=RowSet.of_span(0, 4), values=values)
        encoder = UpdateEncoder(schema, EncodeOptions(message_bytes_max=2000))
        messages = list(encoder.encode(update))
        assert sum(len(message) > 2000 for message in messages) == 1
        received, _ = through_the_wire(schema, update, EncodeOptions(message_bytes_max=2000))
        assert received.added_columns[0].to_pylist() == values[0].to_pylist()

    def test_large_updates_come_in_messages_near_the_target(self):
        schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])
        values = [pa.array(np.arange(200_000)), pa.array(np.zeros(200_000))]
        update = full_update(schema, added=RowSet.of_span(0, 200_000), values=values)
        target = Limits().message_bytes_target
        sizes = [len(message) for message in UpdateEncoder(schema, EncodeOptions()).encode(update)]
        assert all(0.8 * target < size < 1.1 * target for size in sizes[:-1])
        estimate = UpdateEncoder(schema, EncodeOptions()).estimate_bytes(update)
        assert estimate == pytest.approx(sum(sizes), rel=0.05)

    def test_encoding_is_lazy(self):
        schema = pa.schema([("a", pa.int64())])
        values = [pa.array(np.arange(1_000_000))]
        update = full_update(schema, added=RowSet.of_span(0, 1_000_000), values=values)
        before = pa.total_allocated_bytes()
        next(UpdateEncoder(schema, EncodeOptions()).encode(update))
        assert pa.total_allocated_bytes() - before < 2_000_000

    def test_columns_as_list_make_batches_of_one_row(self):
        """Section 8.5: the outer list, its offsets, then the column's own buffers."""
        update = full_update(SCHEMA, added=RowSet.of_span(0, 3), values=_values(3))
        frame = encoded_frames(SCHEMA, update, EncodeOptions(columns_as_list=True))[1]
        header = decode_batch_header(frame.header, len(frame.body))
        assert header.length == 1
        assert header.nodes == (1, 0, 3, 0) * 3
        assert header.buffers[:8] == (0, 0, 0, 8, 8, 0, 8, 24)
        assert bytes(frame.body[:8]) == b"\0\0\0\0\x03\0\0\0"

    def test_an_empty_update_as_lists_has_empty_lists(self):
        frame = encoded_frames(SCHEMA, full_update(SCHEMA), EncodeOptions(columns_as_list=True))[1]
        header = decode_batch_header(frame.header, len(frame.body))
        assert header.length == 1
        assert header.nodes == (1, 0, 0, 0) * 3
        assert bytes(frame.body) == b"\0" * 24


class TestDraft:
    """The 2020 draft says how many batches follow."""

    def test_batches_are_counted(self):
        update = full_update(
            SCHEMA,
            added=RowSet.of_span(0, 5),
            values=_values(5),
            modified=[RowSet.of_span(10, 13)] * 3,
            modified_values=_values(3),
        )
        options = EncodeOptions(revision=DRAFT, batch_rows_max=2)
        metadata = _metadata(encoded_frames(SCHEMA, update, options)[1], DRAFT)
        assert (metadata.add_batch_count, metadata.mod_batch_count) == (3, 2)
        received, count = through_the_wire(SCHEMA, update, options)
        assert count == 5
        assert received.table_size is None
        assert received.added_columns[1].to_pylist() == _values(5)[1].to_pylist()

    def test_an_update_without_rows_counts_none_and_sends_one(self):
        options = EncodeOptions(revision=DRAFT)
        metadata = _metadata(encoded_frames(SCHEMA, full_update(SCHEMA), options)[1], DRAFT)
        assert (metadata.add_batch_count, metadata.mod_batch_count) == (0, 0)
        assert through_the_wire(SCHEMA, full_update(SCHEMA), options)[1] == 1

    def test_it_has_no_view_positions(self):
        encoder = UpdateEncoder(SCHEMA, EncodeOptions(revision=DRAFT))
        with pytest.raises(LocalProtocolError, match="no view positions"):
            list(encoder.encode(view_update(SCHEMA)))


class TestDictionaries:
    KIND = pa.dictionary(pa.int8(), pa.string())
    SCHEMA = pa.schema([("k", pa.int64()), ("d", KIND)])

    def _encode(self, update, **options):
        return encoded_frames(self.SCHEMA, update, EncodeOptions(**options))[1:]

    def test_an_id_is_defined_before_the_first_batch_even_without_rows(self):
        """Trap 36."""
        frames = self._encode(full_update(self.SCHEMA, is_snapshot=True))
        header = decode_batch_header(frames[0].header, len(frames[0].body))
        assert (header.dictionary_id, header.is_delta, header.length) == (0, False, 0)
        assert frames[0].metadata is None
        assert frames[1].metadata is not None

    def test_deltas_without_rows_of_the_column_send_no_dictionary(self):
        modified = [RowSet.of_span(0, 2), RowSet.empty()]
        values = [pa.array([1, 2]), pa.array([], self.KIND)]
        update = full_update(self.SCHEMA, modified=modified, modified_values=values)
        frames = self._encode(update)
        assert len(frames) == 1

    @pytest.mark.parametrize("deephaven", [False, True])
    def test_chunks_with_different_dictionaries_are_joined(self, deephaven):
        added = pa.chunked_array(
            [
                pa.array(["a", None, "b"]).dictionary_encode(),
                pa.array(["b", "c"]).dictionary_encode(),
            ]
        ).cast(self.KIND)
        changed = pa.array(["c", "z"], self.KIND)
        update = full_update(
            self.SCHEMA,
            added=RowSet.of_span(0, 5),
            values=[pa.array(range(5), pa.int64()), added],
            modified=[RowSet.empty(), RowSet.of_span(10, 12)],
            modified_values=[pa.array([], pa.int64()), changed],
        )
        options = EncodeOptions(use_deephaven_nulls=deephaven, batch_rows_max=2)
        received, _ = through_the_wire(self.SCHEMA, update, options)
        assert received.added_columns[1].to_pylist() == ["a", None, "b", "b", "c"]
        assert received.modified_columns[1].to_pylist() == ["c", "z"]

    def test_unused_entries_of_a_large_dictionary_stay_at_home(self):
        values = pa.DictionaryArray.from_arrays(
            pa.array([900, None, 17], pa.int32()), pa.array([f"v{i}" for i in range(1000)])
        )
        schema = pa.schema([("d", values.type)])
        update = full_update(schema, added=RowSet.of_span(0, 3), values=[values])
        frame = encoded_frames(schema, update)[1]
        assert decode_batch_header(frame.header, len(frame.body)).length == 2
        assert through_the_wire(schema, update)[0].added_columns[0].to_pylist() == [
            "v900",
            None,
            "v17",
        ]

    def test_nulls_of_numbers_are_an_entry_with_deephaven_nulls(self):
        """Section 12.4: objects have a negative index, primitives an entry with the null value."""
        values = pa.array([7, None, 7], pa.int32()).dictionary_encode()
        schema = pa.schema([("d", values.type)])
        update = full_update(schema, added=RowSet.of_span(0, 3), values=[values])
        frames = encoded_frames(schema, update, EncodeOptions(use_deephaven_nulls=True))
        assert bytes(frames[1].body) == b"\x07\0\0\0\0\0\0\x80"
        text = pa.array(["x", None], pa.string()).dictionary_encode()
        schema = pa.schema([("d", text.type)])
        update = full_update(schema, added=RowSet.of_span(0, 2), values=[text])
        frames = encoded_frames(schema, update, EncodeOptions(use_deephaven_nulls=True))
        assert bytes(frames[2].body) == b"\0\0\0\0\0\0\0\x80"

    def test_a_dictionary_larger_than_a_message_is_sent_in_deltas(self):
        words = [f"{i:060d}" for i in range(40_000)]
        values = pa.array(words).dictionary_encode()
        schema = pa.schema([("d", values.type)])
        update = full_update(schema, added=RowSet.of_span(0, len(words)), values=[values])
        frames = encoded_frames(schema, update)[1:]
        headers = [decode_batch_header(f.header, len(f.body)) for f in frames]
        dictionaries = [h for h in headers if h.dictionary_id is not None]
        assert [h.is_delta for h in dictionaries] == [False] + [True] * (len(dictionaries) - 1)
        assert len(dictionaries) > 1
        assert through_the_wire(schema, update)[0].added_columns[0].to_pylist() == words


class TestRefusals:
    def test_columns_must_fit_the_schema(self):
        encoder = UpdateEncoder(SCHEMA, EncodeOptions())
        with pytest.raises(LocalProtocolError, match="update has 2 columns"):
            list(encoder.encode(full_update(SCHEMA, values=no_rows(SCHEMA)[:2])))
        wrong = [pa.array([1], pa.int32()), *_values(1)[1:]]
        with pytest.raises(LocalProtocolError, match="'A' holds int32 instead of int64"):
            list(encoder.encode(full_update(SCHEMA, added=RowSet.parse("0"), values=wrong)))

    def test_row_counts_must_fit_the_row_sets(self):
        """A mismatch would leave the receiver waiting for ever."""
        encoder = UpdateEncoder(SCHEMA, EncodeOptions())
        with pytest.raises(LocalProtocolError, match="3 values for 2 rows of 'A'"):
            list(encoder.encode(full_update(SCHEMA, added=RowSet.parse("0-1"), values=_values(3))))
        update = full_update(SCHEMA, modified=[RowSet.parse("0")] * 3, modified_values=_values(2))
        with pytest.raises(LocalProtocolError, match="2 values for 1 rows of 'A'"):
            list(encoder.encode(update))


class TestOptions:
    def test_zero_and_negative_sizes_become_the_limits(self):
        limits = Limits(message_bytes_max=5000)
        for size in (0, -1):
            options = EncodeOptions.for_subscription(
                SubscriptionOptions(batch_size=size, max_message_size=size), limits
            )
            assert options.message_bytes_max == 5000
            assert options.batch_rows_max == 2**31 - 1
        options = EncodeOptions.for_snapshot(SnapshotOptions(max_message_size=10**9), limits)
        assert options.message_bytes_max == 5000

    def test_equal_wishes_are_equal_options(self):
        wish = SubscriptionOptions(use_deephaven_nulls=True, min_update_interval_ms=10)
        other = SubscriptionOptions(use_deephaven_nulls=True, min_update_interval_ms=99)
        first, second = map(EncodeOptions.for_subscription, (wish, other))
        assert first == second
        assert hash(first) == hash(second)

    def test_the_draft_has_no_lists_around_columns(self):
        wish = SubscriptionOptions(columns_as_list=True)
        assert not EncodeOptions.for_subscription(wish, revision=DRAFT).columns_as_list
        assert EncodeOptions.for_subscription(wish).columns_as_list

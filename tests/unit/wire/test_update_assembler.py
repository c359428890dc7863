"""The receiving side refuses what breaks the rules (barrage-wire.md sections 3.3, 8.4, 8.5)."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire import (
    BatchReader,
    EncodeOptions,
    FlightFrame,
    SchemaReceived,
    SubscriptionRequest,
    UpdateAssembler,
    UpdateMetadata,
    WireRevision,
    encode_schema,
    encode_wrapper,
)
from barrage.wire.columns.base import BatchSource, DictionaryStore
from barrage.wire.columns.registry import CodecStyle, codec_for
from barrage.wire.ipc import encode_dictionary_header, encode_record_header
from tests.helpers.frame_factory import assembler_for, encoded_frames, full_update

R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def _metadata(**fields):
    return encode_wrapper(UpdateMetadata(**fields), R1)


def _frames(**fields):
    return encoded_frames(SCHEMA, full_update(SCHEMA, **fields))


def _three_rows():
    return _frames(
        added=RowSet.of_span(0, 3), values=[pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
    )


def _started(schema=SCHEMA, **options):
    assembler = UpdateAssembler(**options)
    header = encode_schema(schema, options.get("columns_as_list", False))
    assert isinstance(assembler.receive_frame(FlightFrame(header=header)), SchemaReceived)
    return assembler


def _batch(rows, nodes, lengths, body=None, metadata=None):
    """A record batch of ``lengths`` long buffers laid end to end."""
    buffers, at = [], 0
    for length in lengths:
        buffers += (at, length)
        at += length
    content = bytes(at) if body is None else body
    header = encode_record_header(rows, nodes, buffers, body_bytes=len(content))
    return FlightFrame(header=header, metadata=metadata, body=content)


class TestOrder:
    def test_a_batch_before_the_schema(self):
        with pytest.raises(RemoteProtocolError, match="before the schema"):
            UpdateAssembler().receive_frame(_three_rows()[1])

    def test_a_second_schema(self):
        assembler = _started()
        with pytest.raises(RemoteProtocolError, match="second schema"):
            assembler.receive_frame(_three_rows()[0])

    def test_a_message_without_header(self):
        with pytest.raises(RemoteProtocolError, match="without Arrow header"):
            _started().receive_frame(FlightFrame(metadata=b""))

    def test_a_batch_without_metadata_between_updates(self):
        frame = _three_rows()[1]
        with pytest.raises(RemoteProtocolError, match="without metadata between updates"):
            _started().receive_frame(FlightFrame(header=frame.header, body=frame.body))

    def test_metadata_before_the_last_update_is_complete(self):
        values = [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
        update = full_update(SCHEMA, added=RowSet.of_span(0, 3), values=values)
        first = encoded_frames(SCHEMA, update, EncodeOptions(batch_rows_max=2))[1]
        assembler = _started()
        assert assembler.receive_frame(first) is None
        assert not assembler.is_between_updates
        with pytest.raises(RemoteProtocolError, match="previous update was not complete"):
            assembler.receive_frame(first)

    def test_metadata_that_is_no_update(self):
        frame = _three_rows()[1]
        request = encode_wrapper(SubscriptionRequest(ticket=b"t"), R1)
        with pytest.raises(RemoteProtocolError, match="type 5 is no update"):
            _started().receive_frame(
                FlightFrame(header=frame.header, metadata=request, body=frame.body)
            )

    def test_an_unknown_kind_of_message(self):
        header = bytearray(_three_rows()[1].header)
        header[34] = 4  # a tensor
        with pytest.raises(RemoteProtocolError, match="kind 4 is not supported"):
            _started().receive_frame(FlightFrame(header=bytes(header), body=b""))


class TestCounts:
    def test_more_added_rows_than_announced(self):
        metadata = _metadata(added_rows=RowSet.of_span(0, 2))
        frame = _three_rows()[1]
        with pytest.raises(RemoteProtocolError, match="3 added rows, the update announced 2"):
            _started().receive_frame(
                FlightFrame(header=frame.header, metadata=metadata, body=frame.body)
            )

    def test_rows_where_none_were_announced(self):
        metadata = _metadata(added_rows=RowSet.empty())
        frame = _three_rows()[1]
        with pytest.raises(RemoteProtocolError, match="3 rows more than the update announced"):
            _started().receive_frame(
                FlightFrame(header=frame.header, metadata=metadata, body=frame.body)
            )

    def test_a_subscribed_column_without_its_rows(self):
        metadata = _metadata(added_rows=RowSet.of_span(0, 1))
        frame = _batch(1, (1, 0, 0, 0), (0, 8, 0, 0, 0), metadata=metadata)
        with pytest.raises(RemoteProtocolError, match="column 1 has 0 added rows in a batch of 1"):
            _started().receive_frame(frame)

    def test_filler_in_a_column_nobody_asked_for_is_dropped(self):
        metadata = _metadata(
            added_rows=RowSet.of_span(0, 1), is_snapshot=True, effective_column_set=(1,)
        )
        body = bytes(8) + bytes(8) + b"x" + bytes(7)
        body = bytes(8) + struct.pack("<ii", 0, 1) + b"x" + bytes(7)
        frame = _batch(1, (1, 0, 1, 0), (0, 8, 0, 8, 8), body, metadata)
        update = _started().receive_frame(frame)
        assert [len(column) for column in update.added_columns] == [0, 1]

    def test_modified_columns_are_cut_by_index(self):
        metadata = _metadata(
            added_rows=RowSet.empty(),
            mod_column_nodes=(RowSet.of_span(0, 2), RowSet.empty()),
        )
        frame = _batch(2, (1, 0, 0, 0), (0, 8, 0, 0, 0), metadata=metadata)
        with pytest.raises(RemoteProtocolError, match="1 modified rows in a batch, expected 2"):
            _started().receive_frame(frame)

    def test_more_modified_columns_than_the_table_has(self):
        metadata = _metadata(added_rows=RowSet.empty(), mod_column_nodes=(RowSet.empty(),) * 3)
        frame = _batch(0, (0, 0, 0, 0), (0,) * 5, metadata=metadata)
        with pytest.raises(RemoteProtocolError, match="3 modified columns, the table has 2"):
            _started().receive_frame(frame)

    def test_fewer_modified_columns_count_as_unmodified(self):
        """Hierarchical views send an empty vector (section 11.4)."""
        metadata = _metadata(added_rows=RowSet.empty(), mod_column_nodes=())
        update = _started().receive_frame(_batch(0, (0,) * 4, (0,) * 5, metadata=metadata))
        assert update.modified_keys_post == (RowSet.empty(),) * 2

    def test_the_draft_counts_batches(self):
        metadata = encode_wrapper(
            UpdateMetadata(
                added_rows=RowSet.empty(),
                mod_column_nodes=(),
                add_batch_count=0,
                mod_batch_count=2,
            ),
            DRAFT,
        )
        empty = _batch(0, (0,) * 4, (0,) * 5, metadata=metadata)
        assembler = _started(revision=DRAFT)
        assert assembler.receive_frame(empty) is None
        update = assembler.receive_frame(FlightFrame(header=empty.header, body=b""))
        assert isinstance(update, FullUpdate)

    def test_nodes_and_buffers_must_be_as_many_as_the_schema_has(self):
        for nodes, lengths in (((0,) * 2, (0,) * 5), ((0,) * 4, (0,) * 4), ((0,) * 6, (0,) * 5)):
            with pytest.raises(RemoteProtocolError, match="its schema 2 and 5"):
                _started().receive_frame(_batch(0, nodes, lengths, metadata=_metadata()))


class TestViews:
    def test_a_size_of_zero_is_not_written_but_meant(self):
        metadata = _metadata(added_rows=RowSet.empty(), removed_rows=RowSet.empty())
        frame = _batch(0, (0,) * 4, (0,) * 5, metadata=metadata)
        assert _started(is_viewport=True).receive_frame(frame).table_size == 0
        assert _started().receive_frame(frame).table_size == 0

    def test_a_server_that_answers_a_viewport_in_row_keys_is_recognised(self):
        metadata = _metadata(added_rows=RowSet.empty(), shift_data=RowSetShiftData.empty())
        frame = _batch(0, (0,) * 4, (0,) * 5, metadata=metadata)
        assert isinstance(_started(is_viewport=True).receive_frame(frame), FullUpdate)


class TestLists:
    def test_a_schema_without_the_lists_that_were_asked_for(self):
        assembler = UpdateAssembler(columns_as_list=True)
        with pytest.raises(RemoteProtocolError, match="lists around columns were asked for"):
            assembler.receive_frame(FlightFrame(header=encode_schema(SCHEMA)))

    @pytest.mark.parametrize(
        ("rows", "nodes", "offsets", "reason"),
        [
            (2, (1, 0, 1, 0), (0, 1), "has 2 rows instead of 1"),
            (1, (2, 0, 1, 0), (0, 1), "2 lists with 0 nulls"),
            (1, (1, 1, 1, 0), (0, 1), "1 lists with 1 nulls"),
            (1, (1, 0, 1, 0), (0, 2), "list from 0 to 2 of 1"),
            (1, (1, 0, 1, 0), (1, 0), "list from 1 to 0 of 1"),
            (1, (1, 0, 1, 0), (-1, 0), "list from -1 to 0 of 1"),
        ],
    )
    def test_lists_must_be_one_per_column_and_inside_it(self, rows, nodes, offsets, reason):
        schema = pa.schema([("a", pa.int64())])
        metadata = _metadata(added_rows=RowSet.of_span(0, 1))
        body = struct.pack("<ii", *offsets) + bytes(8)
        frame = _batch(rows, nodes, (0, 8, 0, 8), body, metadata)
        with pytest.raises(RemoteProtocolError, match=reason):
            _started(schema, columns_as_list=True).receive_frame(frame)

    def test_a_list_that_shows_a_part_of_its_elements(self):
        schema = pa.schema([("a", pa.int64())])
        metadata = _metadata(added_rows=RowSet.of_span(0, 2))
        body = struct.pack("<ii3q", 1, 3, 7, 8, 9)
        frame = _batch(1, (1, 0, 3, 0), (0, 8, 0, 24), body, metadata)
        update = _started(schema, columns_as_list=True).receive_frame(frame)
        assert update.added_columns[0].to_pylist() == [8, 9]


KIND = pa.dictionary(pa.int8(), pa.string())


class TestDictionaries:
    SCHEMA = pa.schema([("d", KIND)])
    ONE = _metadata(added_rows=RowSet.of_span(0, 1))

    @staticmethod
    def _dictionary(values, *, dictionary_id=0, is_delta=False):
        column = pa.array(values, pa.string())
        _, offsets, data = column.buffers()
        content = b"" if data is None else data.to_pybytes()[: len("".join(values))]
        text = content + bytes(-len(content) % 8)
        offset_bytes = offsets.to_pybytes()[: 4 * (len(values) + 1)]
        offset_bytes += bytes(-len(offset_bytes) % 8)
        body = offset_bytes + text
        header = encode_dictionary_header(
            dictionary_id,
            len(values),
            nodes=(len(values), 0),
            buffers=(0, 0, 0, len(offset_bytes), len(offset_bytes), len(text)),
            body_bytes=len(body),
            is_delta=is_delta,
        )
        return FlightFrame(header=header, body=body)

    def _index(self, index):
        return _batch(1, (1, 0), (0, 8), bytes([index]) + bytes(7), self.ONE)

    def test_deltas_extend_and_others_replace(self):
        assembler = _started(self.SCHEMA)
        assert assembler.receive_frame(self._dictionary(["a"])) is None
        assembler.receive_frame(self._dictionary(["b"], is_delta=True))
        update = assembler.receive_frame(self._index(1))
        assert update.added_columns[0].to_pylist() == ["b"]
        assembler.receive_frame(self._dictionary(["c"]))
        update = assembler.receive_frame(self._index(0))
        assert update.added_columns[0].to_pylist() == ["c"]

    def test_ids_must_be_defined_and_belong_to_a_column(self):
        with pytest.raises(RemoteProtocolError, match="used before it was defined"):
            _started(self.SCHEMA).receive_frame(self._index(0))
        with pytest.raises(RemoteProtocolError, match="never defined"):
            _started(self.SCHEMA).receive_frame(self._dictionary(["a"], is_delta=True))
        with pytest.raises(RemoteProtocolError, match="no column uses dictionary 5"):
            _started(self.SCHEMA).receive_frame(self._dictionary(["a"], dictionary_id=5))

    @pytest.mark.parametrize("index", [1, 127, 255])
    def test_indexes_must_be_inside(self, index):
        assembler = _started(self.SCHEMA)
        assembler.receive_frame(self._dictionary(["a"]))
        with pytest.raises(RemoteProtocolError, match="index outside a dictionary of 1"):
            assembler.receive_frame(self._index(index))

    def test_negative_indexes_are_null_with_deephaven_nulls(self):
        assembler = _started(self.SCHEMA, use_deephaven_nulls=True)
        assembler.receive_frame(self._dictionary(["a"]))
        for index in (128, 255):
            update = assembler.receive_frame(self._index(index))
            assert update.added_columns[0].to_pylist() == [None]


def _column(kind, nodes, lengths, body):
    """Read one column of one batch through the assembler."""
    schema = pa.schema([pa.field("c", kind)])
    metadata = _metadata(added_rows=RowSet.of_span(0, nodes[0]))
    frame = _batch(nodes[0], nodes, lengths, body, metadata)
    return _started(schema).receive_frame(frame).added_columns[0]


def _ints(*values):
    raw = struct.pack(f"<{len(values)}i", *values)
    return raw + bytes(-len(raw) % 8)


class TestMalformedColumns:
    """One rule each; the fuzz tests cover the rest."""

    @pytest.mark.parametrize(
        ("kind", "nodes", "lengths", "body", "reason"),
        [
            (pa.int64(), (2, 0), (0, 8), bytes(8), "8 bytes, 16 are needed"),
            (pa.int64(), (1, 2), (8, 8), bytes(16), "2 nulls in 1 rows"),
            (pa.int64(), (1, 1), (0, 8), bytes(8), "0 bytes, 1 are needed"),
            (pa.string(), (1, 0), (0, 8, 8), _ints(0, 9) + bytes(8), "not ascending within 0..8"),
            (pa.string(), (1, 0), (0, 8, 8), _ints(-1, 1) + bytes(8), "not ascending"),
            (pa.string(), (2, 0), (0, 16, 8), _ints(0, 3, 1) + bytes(8), "not ascending"),
            (pa.string(), (1, 0), (0, 8, 8), _ints(0, 1) + b"\xff" + bytes(7), "no string"),
            (pa.time64("ns"), (1, 0), (0, 8), struct.pack("<q", 2**50), "no time64"),
            (
                pa.list_(pa.int32()),
                (1, 0, 1, 0),
                (0, 8, 0, 8),
                _ints(0, 2) + bytes(8),
                "not ascending within 0..1",
            ),
            (
                pa.list_(pa.int32(), 2),
                (2, 0, 3, 0),
                (0, 0, 16),
                bytes(16),
                "3 elements for 2 lists of 2",
            ),
            (
                pa.list_view(pa.int32()),
                (1, 0, 1, 0),
                (0, 8, 8, 0, 8),
                _ints(1) + _ints(1) + bytes(8),
                "list views lie outside 0..1",
            ),
            (
                pa.map_(pa.int32(), pa.int32()),
                (1, 0, 1, 1, 1, 0, 1, 0),
                (0, 8, 8, 0, 8, 0, 8),
                _ints(0, 1) + bytes(24),
                "map entry is null",
            ),
            (
                pa.map_(pa.int32(), pa.int32()),
                (1, 0, 2, 0, 1, 0, 2, 0),
                (0, 8, 0, 0, 8, 0, 8),
                _ints(0, 1) + bytes(16),
                "1 keys and 2 values for 2 map entries",
            ),
            (
                pa.map_(pa.int32(), pa.int32()),
                (1, 0, 1, 0, 1, 1, 1, 0),
                (0, 8, 0, 8, 8, 0, 8),
                _ints(0, 1) + bytes(24),
                "map key is null",
            ),
            (
                pa.run_end_encoded(pa.int32(), pa.int32()),
                (3, 0, 2, 0, 2, 0),
                (0, 8, 0, 8),
                _ints(2, 1) + bytes(8),
                "run ends are not ascending to 3",
            ),
            (
                pa.run_end_encoded(pa.int32(), pa.int32()),
                (3, 0, 1, 0, 1, 0),
                (0, 8, 0, 8),
                _ints(2) + bytes(8),
                "run ends are not ascending to 3",
            ),
            (
                pa.run_end_encoded(pa.int32(), pa.int32()),
                (3, 0, 1, 0, 0, 0),
                (0, 8, 0, 0),
                _ints(3),
                "1 run ends for 0 values",
            ),
            (
                pa.sparse_union([pa.field("i", pa.int32())]),
                (1, 0, 1, 0),
                (8, 0, 8),
                b"\x05" + bytes(15),
                "names no member",
            ),
            (
                pa.sparse_union([pa.field("i", pa.int32())]),
                (2, 0, 1, 0),
                (8, 0, 8),
                bytes(16),
                "fewer than 2 rows",
            ),
            (
                pa.sparse_union([pa.field("i", pa.int32())]),
                (1, 1, 1, 0),
                (8, 0, 8),
                bytes(16),
                "no nulls of its own",
            ),
            (
                pa.dense_union([pa.field("i", pa.int32())]),
                (1, 0, 1, 0),
                (8, 8, 0, 8),
                bytes(8) + _ints(1) + bytes(8),
                "offsets leave its child",
            ),
        ],
    )
    def test_it_is_refused_and_named(self, kind, nodes, lengths, body, reason):
        with pytest.raises(RemoteProtocolError, match=f"column 'c': .*{reason}"):
            _column(kind, nodes, lengths, body)

    def test_a_buffer_outside_the_body(self):
        schema = pa.schema([("c", pa.int64())])
        metadata = _metadata(added_rows=RowSet.of_span(0, 1))
        for offset, length in ((8, 8), (-8, 8), (0, -8), (2**62, 2**62)):
            header = encode_record_header(1, (1, 0), (0, 0, offset, length), body_bytes=8)
            frame = FlightFrame(header=header, metadata=metadata, body=bytes(8))
            with pytest.raises(RemoteProtocolError, match="lies outside 8 bytes"):
                _started(schema).receive_frame(frame)

    def test_list_views_of_another_writer_are_read(self):
        body = _ints(1, 0) + _ints(1, 2) + _ints(7, 8)
        column = _column(pa.list_view(pa.int32()), (2, 0, 2, 0), (0, 8, 8, 0, 8), body)
        assert column.to_pylist() == [[8], [7, 8]]

    def test_an_unaligned_body_is_copied_to_aligned_memory(self):
        schema = pa.schema([("c", pa.int64())])
        header = encode_record_header(1, (1, 0), (0, 0, 0, 8), body_bytes=8)
        body = memoryview(b"?" + struct.pack("<q", 5))[1:]
        metadata = _metadata(added_rows=RowSet.of_span(0, 1))
        frame = FlightFrame(header=header, metadata=metadata, body=body)
        column = _started(schema).receive_frame(frame).added_columns[0]
        assert column.to_pylist() == [5]
        assert column.buffers()[1].address % 8 == 0

    def test_a_struct_without_fields_counts_as_rows_without_bytes(self):
        codec = codec_for(pa.struct([]), CodecStyle(use_deephaven_nulls=False))
        for rows, is_read in ((10, True), (11, False)):
            source = BatchSource(
                (rows, 0),
                (0, 0),
                pa.py_buffer(b""),
                dictionaries=DictionaryStore(),
                repeated_rows_max=10,
            )
            if is_read:
                assert len(codec.decode(source)) == rows
                continue
            with pytest.raises(RemoteProtocolError, match="11 rows without bytes"):
                codec.decode(source)

    def test_a_field_of_a_struct_has_as_many_rows_as_the_struct(self):
        codec = codec_for(pa.struct([("x", pa.int8())]), CodecStyle(use_deephaven_nulls=False))
        source = BatchSource(
            (3, 0, 2, 0),
            (0, 0, 0, 0, 0, 8),
            pa.py_buffer(bytes(8)),
            dictionaries=DictionaryStore(),
            repeated_rows_max=10,
        )
        with pytest.raises(RemoteProtocolError, match="fewer than 3 rows"):
            codec.decode(source)


def test_a_bitmap_counts_too_when_nulls_were_asked_for_in_values():
    """A cleared bit over an ordinary value is a null for us, whatever else it may be elsewhere."""
    schema = pa.schema([("c", pa.int8())])
    metadata = _metadata(added_rows=RowSet.of_span(0, 3))
    body = b"\x06" + bytes(7) + b"\x01\x80\x03" + bytes(5)
    frame = _batch(3, (3, 1), (8, 8), body, metadata)
    update = _started(schema, use_deephaven_nulls=True).receive_frame(frame)
    assert update.added_columns[0].to_pylist() == [None, None, 3]


def test_encodings_can_be_dissolved_on_receipt():
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["r", "s"]))
    words = pa.array(["x", None, "x"]).dictionary_encode()
    schema = pa.schema([("r", runs.type), ("d", words.type), ("n", pa.int8())])
    values = [runs, words, pa.array([1, 2, 3], pa.int8())]
    update = full_update(schema, added=RowSet.of_span(0, 3), values=values)
    assembler = UpdateAssembler(decodes_encodings=True)
    schema_frame, *frames = encoded_frames(schema, update)
    received = assembler.receive_frame(schema_frame).schema
    assert received.types == [pa.string(), pa.string(), pa.int8()]
    got = [assembler.receive_frame(frame) for frame in frames][-1]
    assert [column.type for column in got.added_columns] == received.types
    assert [column.type for column in got.modified_columns] == received.types
    assert got.added_columns[0].to_pylist() == ["r", "r", "s"]
    assert got.added_columns[1].to_pylist() == ["x", None, "x"]


def test_plain_flight_streams_are_read_batch_by_batch():
    """What uploads use: no metadata, all columns of one length."""
    reader = BatchReader()
    schema_frame, frame = _three_rows()
    assert reader.receive(schema_frame) == SchemaReceived(schema=SCHEMA)
    batch = reader.receive(FlightFrame(header=frame.header, body=frame.body))
    assert batch.rows == 3
    assert [column.to_pylist() for column in batch.columns] == [[1, 2, 3], ["x", "y", "z"]]


def test_a_reader_that_asked_for_something_else_still_ends_in_its_own_error():
    options = EncodeOptions(columns_as_list=True)
    frames = encoded_frames(SCHEMA, full_update(SCHEMA), options)
    assembler = assembler_for(EncodeOptions())
    assembler.receive_frame(frames[0])
    with pytest.raises(RemoteProtocolError):
        assembler.receive_frame(frames[1])

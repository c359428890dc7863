"""Every column type, both ways: the conformance test of the column codecs, and their byte forms."""

from __future__ import annotations

import decimal
import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet
from barrage.wire import EncodeOptions, WireRevision
from barrage.wire.columns.base import BatchSink, bits_to_mask, mask_to_bits, slice_bits
from barrage.wire.columns.registry import CodecStyle, codec_for
from tests.helpers.examples import examples
from tests.helpers.frame_factory import encoded_frames, full_update, through_the_wire
from tests.helpers.strategies_columns import VALUES, cells, columns

OPTIONS = [
    EncodeOptions(),
    EncodeOptions(use_deephaven_nulls=True),
    EncodeOptions(columns_as_list=True, batch_rows_max=3),
    EncodeOptions(use_deephaven_nulls=True, columns_as_list=True),
    EncodeOptions(revision=WireRevision.DRAFT_2020, batch_rows_max=2),
]


@pytest.mark.parametrize("name", sorted(VALUES))
@examples(6)
@given(data=st.data())
def test_every_type_comes_back_as_it_went(name, data):
    kind = VALUES[name][0]
    column = data.draw(columns(name, data.draw(st.integers(0, 12))))
    schema = pa.schema([("before", pa.int8()), ("c", kind), ("after", pa.string())])
    rows = len(column)
    values = [pa.array([1] * rows, pa.int8()), column, pa.array(["x"] * rows, pa.string())]
    update = full_update(schema, added=RowSet.of_span(0, rows), values=values, is_snapshot=True)
    received, _ = through_the_wire(schema, update, data.draw(st.sampled_from(OPTIONS)))
    got = received.added_columns[1]
    got.validate(full=True)
    assert cells(got) == cells(column)
    assert received.added_columns[2].to_pylist() == ["x"] * rows


UNIONS = {
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1], pa.int8()),
        pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, None], pa.int64()), pa.array(["x", "y"])],
    ),
    "sparse": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 0], pa.int8()),
        [pa.array([1, None, 3, None], pa.int64()), pa.array(["p", "q", None, "s"])],
    ),
    "runs": pc.run_end_encode(pa.array(["a", "a", None, None])),
    "dictionary_with_null_entry": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.int8()), pa.array([None, "b"])
    ),
    "dictionary_of_unused": pa.DictionaryArray.from_arrays(
        pa.array([3, None, 7, 3], pa.int8()), pa.array(list("abcdefghijkl"))
    ),
    "text_under_null": pa.Array.from_buffers(
        pa.string(),
        4,
        [
            pa.py_buffer(b"\x0d"),
            pa.py_buffer(struct.pack("<5i", 0, 1, 3, 4, 5)),
            pa.py_buffer(b"abbcd"),
        ],
    ),
    "list_under_null": pa.Array.from_buffers(
        pa.list_(pa.int8()),
        4,
        [pa.py_buffer(b"\x0d"), pa.py_buffer(struct.pack("<5i", 0, 1, 3, 4, 5))],
        children=[pa.array([1, 2, 2, 3, 4], pa.int8())],
    ),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0" * 16, None, b"1" * 16, b"2" * 16], pa.binary(16))
    ),
}


@pytest.mark.parametrize("name", sorted(UNIONS))
@pytest.mark.parametrize("options", OPTIONS)
def test_types_without_python_values_come_back_too(name, options):
    for column in (UNIONS[name], UNIONS[name].slice(1), UNIONS[name].slice(1, 2)):
        schema = pa.schema([("c", column.type)])
        update = full_update(schema, added=RowSet.of_span(0, len(column)), values=[column])
        received, _ = through_the_wire(schema, update, options)
        got = received.added_columns[0]
        got.validate(full=True)
        plain = column.storage if isinstance(column, pa.ExtensionArray) else column
        assert got.to_pylist() == plain.to_pylist()


def _buffers(array: pa.Array, *, deephaven: bool) -> tuple[list[int], list[bytes]]:
    """Nodes and buffer contents of one encoded array."""
    sink = BatchSink()
    codec_for(array.type, CodecStyle(use_deephaven_nulls=deephaven)).encode(array, sink)
    body = b"".join(sink.parts)
    assert len(body) == sink.position
    spans = zip(sink.buffers[::2], sink.buffers[1::2], strict=True)
    return sink.nodes, [body[offset : offset + length] for offset, length in spans]


# barrage-wire.md section 12.2, the table of null values: type, bytes of one null.
SENTINELS = [
    (pa.int8(), "80"),
    (pa.int16(), "0080"),
    (pa.uint16(), "ffff"),
    (pa.int32(), "00000080"),
    (pa.date32(), "00000080"),
    (pa.time32("s"), "00000080"),
    (pa.int64(), "0000000000000080"),
    (pa.timestamp("ns", "UTC"), "0000000000000080"),
    (pa.date64(), "0000000000000080"),
    (pa.time64("ns"), "0000000000000080"),
    (pa.duration("ns"), "0000000000000080"),
    (pa.float32(), "ffff7fff"),
    (pa.float64(), "ffffffffffffefff"),
]


@pytest.mark.parametrize(("kind", "expected"), SENTINELS, ids=lambda x: str(x))
def test_a_null_has_the_documented_bytes_with_and_without_a_bitmap(kind, expected):
    array = pa.array([None, 1], pa.int64()).cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    array = pa.array([None, 1], kind) if kind.bit_width < 32 else array.cast(kind, safe=False)
    sentinel = bytes.fromhex(expected)
    nodes, (validity, data) = _buffers(array, deephaven=True)
    assert (nodes, validity) == ([2, 0], b"")
    assert data[: len(sentinel)] == sentinel
    nodes, (validity, data) = _buffers(array, deephaven=False)
    assert (nodes, validity) == ([2, 1], b"\x02" + b"\0" * 7)
    assert data[: len(sentinel)] == sentinel


@pytest.mark.parametrize(
    "array",
    [
        pa.array([None, True]),
        pa.array([None, "x"]),
        pa.array([None, b"x"]),
        pa.array([None, [1]]),
        pa.array([None, b"xyz"], pa.binary(3)),
        pa.array([None, decimal.Decimal("1.5")]),
        pa.array([None, (1, 2, 3)], pa.month_day_nano_interval()),
        pa.array([None, 1], pa.uint64()),
    ],
    ids=lambda a: str(a.type),
)
def test_other_types_keep_their_bitmap_with_deephaven_nulls(array):
    nodes, (validity, *_) = _buffers(array, deephaven=True)
    assert nodes[:2] == [2, 1]
    assert validity == b"\x02" + b"\0" * 7


def test_values_under_a_null_do_not_leak():
    """What an array happens to hold under a null is replaced (section 12.2)."""
    for kind, content in ((pa.binary(2), b"xxyy"), (pa.bool_(), b"\x03")):
        array = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x02"), pa.py_buffer(content)])
        _, (_, data) = _buffers(array, deephaven=False)
        assert data[:2] in (b"\0\0", b"\x02\0")
    _, (_, _, text) = _buffers(UNIONS["text_under_null"], deephaven=True)
    assert text == b"acd\0\0\0\0\0"


def test_elements_of_lists_follow_the_same_null_rule():
    nodes, (validity, offsets, inner_validity, inner) = _buffers(
        pa.array([[1, None], None, []], pa.list_(pa.int16())), deephaven=True
    )
    assert nodes == [3, 1, 2, 0]
    assert validity == b"\x05" + b"\0" * 7
    assert offsets == struct.pack("<4i", 0, 2, 2, 2)
    assert inner_validity == b""
    assert inner == b"\x01\0\0\x80\0\0\0\0"


def test_buffers_are_padded_and_adjacent():
    sink = BatchSink()
    for array in (pa.array([1], pa.int8()), pa.array(["abc", None]), pa.array([True])):
        codec_for(array.type, CodecStyle(use_deephaven_nulls=False)).encode(array, sink)
    position = 0
    for offset, length in zip(sink.buffers[::2], sink.buffers[1::2], strict=True):
        assert offset == position
        assert length % 8 == 0
        position += length
    assert position == sink.position


@pytest.mark.parametrize("limit", [1, 2, -1, -2, 100])
def test_preview_limits_cut_every_list_and_nothing_else(limit):
    lists = pa.array([[1, 2, 3], None, [], [4], [5, None]], pa.list_(pa.int32()))
    nested = pa.array(
        [[[1, 2, 3], [4, 5, 6], None], None, [[7]], [], []], pa.list_(pa.list_(pa.int8()))
    )
    text = pa.array(["abc", None, "", "d", "ef"])
    schema = pa.schema([("l", lists.type), ("n", nested.type), ("t", text.type)])
    update = full_update(schema, added=RowSet.of_span(0, 5), values=[lists, nested, text])
    received, _ = through_the_wire(schema, update, EncodeOptions(preview_list_length_limit=limit))

    def cut(value):
        if not isinstance(value, list):
            return value
        kept = value[:limit] if limit > 0 else value[limit:]
        return [cut(item) for item in kept]

    for column, original in zip(received.added_columns, (lists, nested, text), strict=True):
        assert column.to_pylist() == [cut(value) for value in original.to_pylist()]


def test_bits_are_cut_at_any_offset():
    rng = np.random.default_rng(5)
    mask = rng.random(200) < 0.5
    bits = pa.py_buffer(mask_to_bits(mask))
    for offset in (0, 1, 7, 8, 63, 64, 65):
        for count in (1, 7, 8, 63, 64, 65, 130):
            wanted = mask[offset : offset + count]
            assert (bits_to_mask(bits, offset, count) == wanted).all()
            assert bytes(slice_bits(bits, offset, count)) == bytes(mask_to_bits(wanted))


def test_equal_length_batches_are_plain_arrow():
    """pyarrow reads what we write when all columns have the same length."""
    schema = pa.schema([("i", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.float64()))])
    values = [pa.array([1, None, 3]), pa.array(["a", None, ""]), pa.array([[1.5], None, []])]
    values[2] = values[2].cast(pa.list_(pa.float64()))
    update = full_update(schema, added=RowSet.of_span(0, 3), values=values)
    schema_frame, frame = encoded_frames(schema, update)
    stream = b"".join(_encapsulated(f.header, f.body or b"") for f in (schema_frame, frame))
    table = pa.ipc.open_stream(stream).read_all()
    assert table.equals(pa.table(values, schema=schema))
    table.validate(full=True)


def _encapsulated(header: bytes, body: bytes | memoryview) -> bytes:
    padding = -len(header) % 8
    return (
        b"\xff\xff\xff\xff"
        + struct.pack("<i", len(header) + padding)
        + header
        + b"\0" * padding
        + bytes(body)
    )

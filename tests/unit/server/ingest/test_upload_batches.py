"""The frames of an upload as record batches: dictionaries that stay, change and grow, messages that
are no batch, and Deephaven nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage import wire
from barrage.errors import LimitExceededError, RemoteProtocolError, UnsupportedError
from barrage.limits import Limits
from barrage.server.ingest.upload import UploadReader
from barrage.wire.revision import WireRevision

WORDS = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([("w", WORDS), ("n", pa.int64())])


def batch(words: list[str], codes: list[int]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(words))
    return pa.record_batch([column, pa.array(range(len(codes)))], schema=SCHEMA)


def frames(
    batches: list[pa.RecordBatch], *, deltas: bool = False, compression: str | None = None
) -> list[wire.FlightFrame]:
    """The messages of a stream as Arrow writes it."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas, compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    return [
        wire.FlightFrame(
            header=message.metadata.to_pybytes(),
            body=None if message.body is None else message.body.to_pybytes(),
        )
        for message in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def read_all(reader: UploadReader, given: list[wire.FlightFrame]) -> list[pa.RecordBatch]:
    return [found for frame in given if (found := reader.read(frame)) is not None]


def options_frame(**options: bool) -> wire.FlightFrame:
    told = wire.SerializationOptions(options=wire.SubscriptionOptions(**options))
    return wire.FlightFrame(metadata=wire.encode_wrapper(told, WireRevision.R1_0_0))


@pytest.mark.parametrize("deltas", [False, True], ids=["replaced", "grown"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_batch_weighs_what_the_dictionaries_before_it_do(deltas, compression):
    """It makes them be read, and is checked with those that were."""
    words = ["x" * 100_000, "y" * 100_000]
    sent = [batch(["a"], [0]), batch(["a", *words[:1]], [1]), batch(["a", *words], [2])]
    reader, weights = UploadReader(Limits()), []
    for frame in frames(sent, deltas=deltas, compression=compression):
        weights.append(reader.unpacked_bytes(frame))
        reader.read(frame)
    small, large, larger = weights[2::2]
    assert small < 1000
    assert 100_000 < large < 102_000
    # What replaces another dictionary is read while that is there.
    assert 200_000 < larger < (202_000 if deltas else 304_000)
    assert max(weights[1], weights[3] - 100_000) < 1000  # Those that are only kept for then.


@pytest.mark.parametrize("deltas", [False, True], ids=["replaced", "grown"])
def test_dictionaries_between_batches(deltas):
    sent = [
        batch(["x"], [0, 0]),
        batch(["x"], [0]),
        batch(["x", "y"], [1, 0]),
        batch(["x", "y", "z"], [2, 1]),
    ]
    given = frames(sent, deltas=deltas)
    assert len(given) == 1 + 3 + 4
    read = read_all(UploadReader(Limits()), given)
    assert [each.to_pydict() for each in read] == [each.to_pydict() for each in sent]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_limit_of_dictionaries_counts_what_is_held(compression):
    """Replaced dictionaries are forgotten; one that is larger than the limit is refused."""
    sent = [batch([f"{number}{'x' * 1000}"], [0]) for number in range(50)]
    given = frames(sent, compression=compression)
    largest = max(len(frame.header) + len(frame.body or b"") for frame in given)
    room = Limits(ingest_bytes_pending_max=2 * max(largest, 1200) + 100)
    assert len(read_all(UploadReader(room), given)) == len(sent)
    tight = Limits(ingest_bytes_pending_max=1000)
    with pytest.raises(LimitExceededError):
        read_all(UploadReader(tight), given)


def test_dictionaries_that_nobody_reads_count_as_held():
    schema, dictionary, _ = frames([batch(["x" * 1000], [0])])
    reader = UploadReader(Limits(ingest_bytes_pending_max=5000))
    reader.read(schema)
    with pytest.raises(LimitExceededError, match="dictionaries"):
        read_all(reader, [dictionary] * 10)


def test_grown_dictionaries_count_with_what_they_grew_from():
    words = [f"{number}{'x' * 1000}" for number in range(8)]
    sent = [batch(words[: number + 1], [number]) for number in range(8)]
    given = frames(sent, deltas=True)
    with pytest.raises(LimitExceededError, match="dictionaries"):
        read_all(UploadReader(Limits(ingest_bytes_pending_max=5000)), given)


def tensor_frame() -> wire.FlightFrame:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.arange(4)), sink)
    message = pa.ipc.read_message(sink.getvalue())
    assert message.type == "tensor"
    return wire.FlightFrame(header=message.metadata.to_pybytes(), body=message.body.to_pybytes())


@pytest.mark.parametrize("count", [1, 2], ids=["after the schema", "after a dictionary"])
def test_a_message_that_is_no_batch_is_refused(count):
    reader = UploadReader(Limits())
    for frame in frames([batch(["x"], [0])])[:count]:
        reader.read(frame)
    with pytest.raises(RemoteProtocolError, match="kind"):
        reader.read(tensor_frame())


def test_a_batch_before_its_dictionaries_is_refused():
    schema, _, rows = frames([batch(["x"], [0])])
    reader = UploadReader(Limits())
    reader.read(schema)
    with pytest.raises(RemoteProtocolError):
        reader.read(rows)


def test_a_batch_with_one_of_two_dictionaries_is_refused():
    two = pa.schema([("a", WORDS), ("b", WORDS)])
    column = batch(["x"], [0])["w"]
    schema, first, _, rows = frames([pa.record_batch([column, column], schema=two)])
    reader = UploadReader(Limits())
    for frame in (schema, first):
        reader.read(frame)
    with pytest.raises(RemoteProtocolError):
        reader.read(rows)


SENTINELS = {
    "int8": pa.array([1, -(2**7)], pa.int8()),
    "int16": pa.array([1, -(2**15)], pa.int16()),
    "int32": pa.array([1, -(2**31)], pa.int32()),
    "int64": pa.array([1, -(2**63)], pa.int64()),
    "char": pa.array([1, 2**16 - 1], pa.uint16()),
    "float": pa.array([1, np.finfo(np.float32).min], pa.float32()),
    "double": pa.array([1, np.finfo(np.float64).min], pa.float64()),
    "timestamp": pa.array([1, -(2**63)], pa.int64()).view(pa.timestamp("ns", "UTC")),
    "date": pa.array([86_400_000, -(2**63)], pa.int64()).view(pa.date64()),
    "time": pa.array([1, -(2**63)], pa.int64()).view(pa.time64("ns")),
    "duration": pa.array([1, -(2**63)], pa.int64()).view(pa.duration("ns")),
}


def uploaded(column: pa.Array, **options: bool) -> pa.Array:
    reader = UploadReader(Limits())
    reader.read(options_frame(**options))
    (read,) = read_all(reader, frames([pa.record_batch([column], ["c"])]))
    return read["c"]


@pytest.mark.parametrize("column", SENTINELS.values(), ids=SENTINELS.keys())
def test_a_deephaven_null_is_a_null(column):
    read = uploaded(column, use_deephaven_nulls=True)
    assert read.type == column.type
    assert read.is_null().to_pylist() == [False, True]
    assert read[0] == column[0]


def test_without_deephaven_nulls_the_same_value_is_a_value():
    column = SENTINELS["int64"]
    assert uploaded(column).equals(column)


@pytest.mark.parametrize("column", [pa.array([7, 255], pa.uint8()), pa.array([True, False])])
def test_types_without_a_deephaven_null_are_taken_as_they_are(column):
    assert uploaded(column, use_deephaven_nulls=True).equals(column)


def test_nulls_of_a_bitmap_stay_beside_deephaven_nulls():
    column = pa.array([None, 5, -(2**63)], pa.int64())
    assert uploaded(column, use_deephaven_nulls=True).to_pylist() == [None, 5, None]


LOW = -(2**31)
NESTED = {
    "list": (pa.array([[1, LOW], None, []], pa.list_(pa.int32())), [[1, None], None, []]),
    "large list": (pa.array([[LOW], [2]], pa.large_list(pa.int32())), [[None], [2]]),
    "fixed list": (pa.array([[1, LOW], None], pa.list_(pa.int32(), 2)), [[1, None], None]),
    "struct": (
        pa.array([{"i": LOW, "s": "a"}, None], pa.struct([("i", pa.int32()), ("s", pa.string())])),
        [{"i": None, "s": "a"}, None],
    ),
    "list of lists": (pa.array([[[LOW, 3]]], pa.list_(pa.list_(pa.int32()))), [[[None, 3]]]),
}


@pytest.mark.parametrize(("column", "expected"), NESTED.values(), ids=NESTED.keys())
def test_deephaven_nulls_inside_of_other_values(column, expected):
    assert uploaded(column, use_deephaven_nulls=True).to_pylist() == expected


def test_a_layout_that_deephaven_does_not_upload_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="'c'"):
        uploaded(pa.array(["a"]).dictionary_encode(), use_deephaven_nulls=True)


def test_lists_around_columns_are_refused():
    with pytest.raises(UnsupportedError, match="lists"):
        UploadReader(Limits()).read(options_frame(columns_as_list=True))


def test_options_after_the_schema_are_refused():
    """They would hold for some batches and not for others."""
    reader = UploadReader(Limits())
    reader.read(frames([batch(["x"], [0])])[0])
    with pytest.raises(RemoteProtocolError, match="before the schema"):
        reader.read(options_frame(use_deephaven_nulls=True))

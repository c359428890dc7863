"""What payloads of Arrow IPC would become is known before it is made."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrage.wire.payloads.arrow_decoder import ArrowStreams
from barrage.wire.payloads.decoded_sizes import column_bytes, table_bytes
from barrage.wire.payloads.decoding import decode_payloads

WORDS = pa.array(["x" * 1000, "y"])
NESTED = pa.struct([("a", pa.int64()), ("t", pa.string())])


def stream(columns: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    return sink.getvalue().to_pybytes()


PLAIN = [
    (pa.nulls(100), pa.int64()),
    (pa.nulls(100), pa.list_(pa.int64(), 50)),
    (pa.array([1, None, 3], pa.int8()), pa.int64()),
    (pa.array([-(2**62)] * 50), pa.string()),
    (WORDS, pa.string()),
    (WORDS.slice(1), pa.large_string()),
    (pa.array(["x" * 1000, "y"], pa.string_view()), pa.string()),
    (pa.DictionaryArray.from_arrays(pa.array([0] * 50, pa.int8()), WORDS), pa.string()),
    (pa.DictionaryArray.from_arrays(pa.array([None, 0, 1], pa.int8()), WORDS), pa.string()),
    (pa.array([[1, 2], None, [3]], pa.list_(pa.int8())), pa.list_(pa.int64())),
    (pa.array([[None] * 500] * 4, pa.list_(pa.null())), pa.list_(pa.int64())),
    (pa.array([{"a": 1, "t": "x"}, None], NESTED), NESTED),
    (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), None),
]


@pytest.mark.parametrize(
    ("values", "target"), PLAIN, ids=lambda each: str(getattr(each, "type", each))
)
def test_sizes_are_never_too_low(values, target) -> None:
    plain = values if target is None else values.cast(target)
    assert plain.nbytes <= column_bytes(values, target) <= 50 * plain.nbytes + 200


def test_runs_take_their_length_times_their_value() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([40, 50], pa.int32()), WORDS)
    plain = pc.run_end_decode(runs)
    assert plain.nbytes <= column_bytes(runs, pa.string()) <= 2 * plain.nbytes
    nulls = pa.RunEndEncodedArray.from_arrays(pa.array([10**9], pa.int32()), pa.nulls(1))
    assert column_bytes(nulls, pa.int64()) >= 8 * 10**9


def test_items_that_take_nothing_are_counted() -> None:
    offsets = pa.array([0, 2**31 - 1], pa.int32())
    items = pa.ListArray.from_arrays(offsets, pa.nulls(2**31 - 1))
    assert column_bytes(items, pa.list_(pa.int64())) > 2**33
    views = pa.ListViewArray.from_arrays([0] * 50, [2] * 50, WORDS)
    assert column_bytes(views, pa.list_(pa.string())) >= 50 * 2 * 1000
    of_lists = pa.DictionaryArray.from_arrays(pa.array([0] * 50), pa.array([["x" * 1000]]))
    assert column_bytes(of_lists, pa.list_(pa.string())) >= 50_000
    struct = pa.StructArray.from_arrays([pa.nulls(1000)], names=["a"])
    assert column_bytes(struct, pa.struct([("a", pa.int64())])) >= 8000


def test_columns_that_are_not_there_are_counted() -> None:
    schema = pa.schema([(f"c{at}", pa.int64()) for at in range(20)])
    assert table_bytes(pa.table({"other": pa.nulls(1000)}), schema) >= 20 * 8 * 1000


class Watched(ArrowStreams):
    """Tells what was made at once."""

    largest = 0

    def decode(self, payloads):
        rows, origins = super().decode(payloads)
        self.largest = max(self.largest, rows.nbytes)
        return rows, origins


def test_rows_and_bytes_are_bounded_over_all_payloads() -> None:
    schema = pa.schema([(f"c{at}", pa.int64()) for at in range(20)])
    nulls = stream(pa.record_batch({"other": pa.nulls(100)}))
    one = table_bytes(pa.table({"other": pa.nulls(100)}), schema)
    for bounds in (
        {"rows_max": 250, "bytes_max": 1 << 30},
        {"rows_max": 10**6, "bytes_max": 2 * one},
    ):
        decoder = Watched(schema, **bounds)
        done = decode_payloads(decoder, pa.array([nulls] * 8, pa.binary()))
        assert len(done.rows) == 800
        assert not done.rejected
        assert decoder.largest <= 2 * one


@pytest.mark.parametrize(
    "values",
    [
        pa.nulls(1000),
        pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), WORDS),
        pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), pa.array(["x" * 1000])),
    ],
    ids=["nulls", "dictionary", "runs"],
)
def test_a_payload_that_becomes_too_much_is_told_so(values) -> None:
    bytes_max = 10_000
    decoder = ArrowStreams(pa.schema([("s", pa.string())]), rows_max=10**6, bytes_max=bytes_max)
    payloads = [stream(pa.record_batch({"s": each})) for each in (values, pa.array(["good"]))]
    done = decode_payloads(decoder, pa.array(payloads, pa.binary()))
    assert done.rows["s"].to_pylist() == ["good"]
    ((at, reason),) = done.rejected
    assert at == 0
    assert f"more than {bytes_max} bytes" in reason

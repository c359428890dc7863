"""Decoders against truncated, mutated and random bytes: RemoteProtocolError or a valid result.

Arrays that do come out must be valid in full, because a bad one takes the whole process down.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.wire import (
    EncodeOptions,
    FlightFrame,
    SchemaReceived,
    SubscriptionRequest,
    UpdateAssembler,
    WireRevision,
    decode_flight_data,
    decode_schema,
    decode_wrapper,
)
from barrage.wire.ipc import decode_batch_header, encode_record_header
from tests.helpers.conversations import all_conversations
from tests.helpers.frame_factory import assembler_for, encoded_frames, full_update

R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020
_LIMITS = Limits(ingest_batch_rows_max=100_000)


def _recorded_frames():
    return [
        message.frame
        for recording in all_conversations()
        for message in recording.messages
        if message.frame is not None
    ]


_FRAMES = _recorded_frames()
_HEADERS = sorted({frame.header for frame in _FRAMES if frame.header}, key=len)[::7]
_METADATA = sorted({frame.metadata for frame in _FRAMES if frame.metadata}, key=len)[::5]


@st.composite
def mutated(draw, samples):
    """A sample with a few bytes changed, or cut, or with a 32-bit field overwritten."""
    raw = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            raw = raw[:at]
        elif kind == 1 and raw:
            raw[at] = draw(st.integers(0, 255))
        elif kind == 2:
            word = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(raw)]))
            raw[at : at + 4] = word.to_bytes(4, "little")
        elif raw:
            raw[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(raw)


def _only_protocol_errors(decode, raw):
    try:
        return decode(raw)
    except RemoteProtocolError:
        return None


@given(mutated(_METADATA), st.sampled_from([R1, DRAFT]))
def test_metadata(raw, revision):
    _only_protocol_errors(lambda b: decode_wrapper(b, revision), raw)


@given(mutated(_HEADERS))
def test_headers(raw):
    _only_protocol_errors(decode_schema, raw)
    _only_protocol_errors(lambda b: decode_batch_header(b, 0), raw)


@given(st.binary(max_size=200))
def test_random_bytes(raw):
    for decode in (decode_flight_data, decode_schema):
        _only_protocol_errors(decode, raw)
    _only_protocol_errors(lambda b: decode_wrapper(b, R1), raw)
    _only_protocol_errors(lambda b: decode_batch_header(b, 0), raw)


@pytest.mark.parametrize("raw", [_METADATA[len(_METADATA) // 2], _METADATA[-1]], ids=len)
def test_every_truncation_of_metadata(raw):
    for length in range(min(len(raw), 600)):
        _only_protocol_errors(lambda b: decode_wrapper(b, R1), raw[:length])


_KINDS: dict[str, pa.Array | pa.ChunkedArray] = {
    "int64": pa.array([1, None, 3, 4]),
    "bool": pa.array([True, None, False, True]),
    "text": pa.array(["a", None, "bcd", ""]),
    "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "list": pa.array([[1, None], None, [], [3]], pa.list_(pa.int16())),
    "nested": pa.array([[["a"], None], None, [], [["b", None]]], pa.list_(pa.list_(pa.string()))),
    "fixed_list": pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32())),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), pa.array(["r", "s"])),
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1], pa.int8()),
        pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, None], pa.int64()), pa.array(["x", "y"])],
    ),
    "sparse": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 0], pa.int8()),
        [pa.array([1, None, 3, None], pa.int64()), pa.array(["p", "q", None, "s"])],
    ),
    "null": pa.nulls(4),
    "time": pa.array([1, None, 3, 4], pa.time64("ns")),
    "date": pa.array([0, None, 86_400_000, 0], pa.date64()),
    "decimal": pa.array([1, None, 3, 4], pa.decimal128(20, 2)),
}


def _frames_of(name, options):
    column = _KINDS[name]
    schema = pa.schema([("c", column.type), ("d", pa.int32())])
    values = [column, pa.array([1, 2, 3, 4], pa.int32())]
    update = full_update(schema, added=RowSet.of_span(0, 4), values=values, is_snapshot=True)
    return encoded_frames(schema, update, options)


def _run(frames, options):
    """Feed frames until something is refused; whatever comes out must be valid."""
    assembler = assembler_for(options)
    for frame in frames:
        received = _only_protocol_errors(assembler.receive_frame, frame)
        if received is None or isinstance(received, SchemaReceived):
            continue
        for column in (*received.added_columns, *received.modified_columns):
            column.validate(full=True)
            column.to_pylist()


@pytest.mark.parametrize("name", sorted(_KINDS))
@given(data=st.data())
def test_mutated_batches_never_make_an_invalid_array(name, data):
    """Numbers in headers, then bytes in bodies, changed one by one."""
    options = EncodeOptions(
        use_deephaven_nulls=data.draw(st.booleans()), columns_as_list=data.draw(st.booleans())
    )
    frames = list(_frames_of(name, options))
    at = data.draw(st.integers(1, len(frames) - 1))
    frame = frames[at]
    header, body = bytearray(frame.header), bytearray(frame.body or b"")
    if data.draw(st.booleans()):
        # Nodes and buffers are eight bytes wide and stand at multiples of eight.
        field = data.draw(st.integers(3, len(header) // 8 - 1)) * 8
        number = data.draw(
            st.sampled_from([0, 1, 2, 3, 5, 8, 16, 24, 40, 2**31, 2**62, 2**63 - 1, -1, -8])
        )
        header[field : field + 8] = number.to_bytes(8, "little", signed=True)
    elif body:
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    frames[at] = FlightFrame(
        descriptor=None, header=bytes(header), metadata=frame.metadata, body=bytes(body)
    )
    _run(frames, options)


@given(st.integers(0, 2**32))
def test_recorded_streams_with_flipped_bytes(seed):
    rng = random.Random(seed)
    recording = rng.choice([r for r in all_conversations() if len(r.answers) > 1])
    request = next(
        (
            r
            for r in (
                _only_protocol_errors(lambda b: decode_wrapper(b, R1), m.frame.metadata)
                for m in recording.requests
            )
            if isinstance(r, SubscriptionRequest)
        ),
        None,
    )
    assembler = UpdateAssembler(
        _LIMITS,
        is_viewport=request is not None and request.viewport is not None,
        columns_as_list=request is not None and request.options.columns_as_list,
        use_deephaven_nulls=request is not None and request.options.use_deephaven_nulls,
    )
    for message in recording.answers:
        raw = bytearray(message.raw)
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            received = assembler.receive_frame(decode_flight_data(bytes(raw)))
        except RemoteProtocolError:
            return
        if received is None or isinstance(received, SchemaReceived):
            continue
        for column in (*received.added_columns, *received.modified_columns):
            column.validate(full=True)


def test_huge_numbers_allocate_nothing():
    """Counts from a peer are believed only when the bytes are there."""
    for kind in (pa.null(), pa.run_end_encoded(pa.int32(), pa.int64()), pa.binary(0), pa.int64()):
        schema = pa.schema([("c", kind)])
        update = full_update(schema, is_snapshot=True, added=RowSet.of_span(0, 2**40), columns=())
        schema_frame, batch = encoded_frames(schema, update)[:2]
        nodes = (2**31 - 1, 0) * (3 if pa.types.is_run_end_encoded(kind) else 1)
        buffers = (0, 0) * {0: 0, 1: 2, 3: 4}[0 if kind == pa.null() else len(nodes) // 2]
        assembler = UpdateAssembler(_LIMITS)
        assembler.receive_frame(schema_frame)
        header = encode_record_header(2**31 - 1, nodes, buffers, body_bytes=0)
        before = pa.total_allocated_bytes()
        with pytest.raises(RemoteProtocolError):
            assembler.receive_frame(FlightFrame(header=header, metadata=batch.metadata, body=b""))
        assert pa.total_allocated_bytes() - before < 10_000

"""Messages whose body is taken out before it is joined, and the encoder that hands them over."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.errors import LocalProtocolError
from barrage.rowset import RowSet
from barrage.wire import (
    EncodeOptions,
    UpdateAssembler,
    UpdateEncoder,
    WireRevision,
    decode_flight_data,
)
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.ipc import HEADER_DICTIONARY, HEADER_RECORD, open_message
from tests.helpers.frame_factory import full_update

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = 700
COLUMNS = [pa.array(range(ROWS)), pa.array([None if i % 3 else f"row {i}" for i in range(ROWS)])]
UPDATE = full_update(SCHEMA, added=RowSet.of_range(0, ROWS - 1), values=COLUMNS)
REFERENCE = BodyReference(64, 128, 1).encode()


def keep(frame: DetachedFrame) -> DetachedFrame:
    return frame


def detached(options: EncodeOptions | None = None, update=UPDATE, schema=SCHEMA):
    encoder = UpdateEncoder(schema, options or EncodeOptions(batch_rows_max=300), detach=keep)
    return list(encoder.encode(update))


def inline(options: EncodeOptions | None = None, update=UPDATE, schema=SCHEMA):
    encoder = UpdateEncoder(schema, options or EncodeOptions(batch_rows_max=300))
    return list(encoder.encode(update))


OPTIONS = [
    EncodeOptions(),
    EncodeOptions(batch_rows_max=7),
    EncodeOptions(columns_as_list=True, use_deephaven_nulls=True),
    EncodeOptions(revision=WireRevision.DRAFT_2020, batch_rows_max=300),
]


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_put_together_again_the_bytes_are_the_same(options: EncodeOptions) -> None:
    frames = detached(options)
    assert all(isinstance(frame, DetachedFrame) for frame in frames)
    assert [frame.inline() for frame in frames] == inline(options)


def test_the_parts_are_the_body() -> None:
    for frame, raw in zip(detached(), inline(), strict=True):
        body = decode_flight_data(raw).body
        assert b"".join(frame.parts) == body
        assert frame.body_bytes == len(body)


def test_a_message_with_a_reference_has_everything_but_the_body() -> None:
    for frame, raw in zip(detached(), inline(), strict=True):
        whole, bare = decode_flight_data(raw), decode_flight_data(frame.message(REFERENCE))
        assert (bare.header, bare.metadata) == (whole.header, whole.metadata)
        assert bare.body is None
        assert bare.body_reference == REFERENCE
        assert bare.is_detached


def test_an_empty_reference_is_a_reference() -> None:
    bare = decode_flight_data(detached()[0].message(b""))
    assert bare.body_reference == b""
    assert bare.is_detached


def test_only_the_first_message_has_metadata() -> None:
    has_metadata = [
        decode_flight_data(frame.message(b"")).metadata is not None for frame in detached()
    ]
    assert has_metadata == [True, False, False]


def test_an_update_without_rows_has_nothing_to_detach() -> None:
    update = full_update(SCHEMA, removed=RowSet([3]))
    assert detached(update=update) == inline(update=update)


def test_batches_without_a_body_stay_whole() -> None:
    schema = pa.schema([("nothing", pa.null())])
    update = full_update(schema, added=RowSet.of_range(0, 4), values=[pa.nulls(5)])
    (frame,) = detached(update=update, schema=schema)
    assert isinstance(frame, bytes)
    assert [frame] == inline(update=update, schema=schema)


def test_dictionaries_are_detached_like_rows() -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    values = pa.array(["a", "b", "a"]).dictionary_encode()
    update = full_update(schema, added=RowSet.of_range(0, 2), values=[values])
    frames = detached(update=update, schema=schema)
    kinds = [open_message(frame.header()).kind for frame in frames]
    assert kinds == [HEADER_DICTIONARY, HEADER_RECORD]
    assert [frame.inline() for frame in frames] == inline(update=update, schema=schema)


def test_plain_rows_are_detached_too() -> None:
    encoder = UpdateEncoder(SCHEMA, EncodeOptions(batch_rows_max=300), detach=keep)
    plain = UpdateEncoder(SCHEMA, EncodeOptions(batch_rows_max=300))
    frames = list(encoder.encode_rows(COLUMNS, ROWS, {}))
    assert [frame.inline() for frame in frames] == list(plain.encode_rows(COLUMNS, ROWS, {}))


def test_what_the_hook_returns_takes_the_message_s_place() -> None:
    encoder = UpdateEncoder(SCHEMA, EncodeOptions(), detach=lambda frame: frame.body_bytes)
    (sent,) = encoder.encode(UPDATE)
    assert sent == detached(EncodeOptions())[0].body_bytes


def test_a_head_without_an_arrow_header_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="no Arrow header"):
        DetachedFrame(b"", [], 0).header()


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_a_receiver_sees_the_same_update_however_bodies_came(options: EncodeOptions) -> None:
    def assembler() -> UpdateAssembler:
        return UpdateAssembler(
            revision=options.revision,
            columns_as_list=options.columns_as_list,
            use_deephaven_nulls=options.use_deephaven_nulls,
        )

    encoder = UpdateEncoder(SCHEMA, options, detach=keep)
    apart, together = assembler(), assembler()
    for each in (apart, together):
        each.receive_frame(decode_flight_data(encoder.schema_frame()))
    expected = [together.receive_frame(decode_flight_data(raw)) for raw in inline(options)][-1]
    reassembly = Reassembly()
    frames = list(encoder.encode(UPDATE))
    for number, frame in reversed(list(enumerate(frames))):
        reassembly.receive_body(number, pa.py_buffer(b"".join(frame.parts)), 0)
    for number, frame in enumerate(frames):
        head = decode_flight_data(frame.message(b""))
        reassembly.receive_header(number, head, expects_body=head.is_detached, now_ns=0)
    received = [apart.receive_frame(frame) for frame in reassembly.take()][-1]
    assert received == expected
    assert received.added_columns[1].to_pylist() == COLUMNS[1].to_pylist()

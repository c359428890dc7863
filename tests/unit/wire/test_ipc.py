"""Record and dictionary batch headers against the generated reader and pyarrow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.ipc import (
    decode_batch_header,
    encode_dictionary_header,
    encode_record_header,
    open_message,
)
from tests.helpers._fbs.arrow_ipc import DictionaryBatchMessage, RecordBatchMessage

NODES = (5, 1, 5, 0)
BUFFERS = (0, 8, 8, 40, 48, 0)


def test_generated_code_reads_a_record_batch_header():
    raw = bytearray(encode_record_header(5, NODES, BUFFERS, body_bytes=48))
    message = RecordBatchMessage.RecordBatchMessage.GetRootAs(raw)
    assert (message.Version(), message.HeaderType(), message.BodyLength()) == (4, 3, 48)
    batch = message.Header()
    assert batch.Length() == 5
    nodes = [batch.Nodes(i) for i in range(batch.NodesLength())]
    assert [x for node in nodes for x in (node.Length(), node.NullCount())] == list(NODES)
    buffers = [batch.Buffers(i) for i in range(batch.BuffersLength())]
    assert [x for buffer in buffers for x in (buffer.Offset(), buffer.Length())] == list(BUFFERS)
    assert batch.Compression() is None


def test_generated_code_reads_a_dictionary_batch_header():
    raw = bytearray(
        encode_dictionary_header(9, 5, nodes=NODES, buffers=BUFFERS, body_bytes=48, is_delta=True)
    )
    message = DictionaryBatchMessage.DictionaryBatchMessage.GetRootAs(raw)
    assert (message.Version(), message.HeaderType(), message.BodyLength()) == (4, 2, 48)
    batch = message.Header()
    assert (batch.Id(), batch.IsDelta()) == (9, True)
    assert batch.Data().Length() == 5
    assert batch.Data().Nodes(0).Length() == 5
    assert batch.Data().Buffers(1).Length() == 40


def test_our_reader_agrees():
    header = decode_batch_header(encode_record_header(5, NODES, BUFFERS, body_bytes=48), 48)
    assert header == (5, NODES, BUFFERS, None, False)
    header = decode_batch_header(
        encode_dictionary_header(9, 5, nodes=NODES, buffers=BUFFERS, body_bytes=48), 48
    )
    assert header == (5, NODES, BUFFERS, 9, False)
    assert decode_batch_header(encode_record_header(0, (), (), body_bytes=0), 0).nodes == ()


def test_pyarrow_headers_are_read():
    batch = pa.record_batch({"a": [1, None], "b": ["x", "yz"]})
    content = batch.serialize().to_pybytes()
    header_bytes = int.from_bytes(content[4:8], "little")
    header = content[8 : 8 + header_bytes]
    body_bytes = len(content) - 8 - header_bytes
    read = decode_batch_header(header, body_bytes)
    assert read.length == 2
    assert read.nodes == (2, 1, 2, 0)
    assert len(read.buffers) == 2 * 5


def test_headers_that_do_not_fit_their_body_are_refused():
    raw = encode_record_header(5, NODES, BUFFERS, body_bytes=48)
    with pytest.raises(RemoteProtocolError, match="48 bytes of body, not 47"):
        decode_batch_header(raw, 47)
    with pytest.raises(RemoteProtocolError, match="-1 rows"):
        decode_batch_header(encode_record_header(-1, (), (), body_bytes=0), 0)


def test_compressed_batches_are_refused():
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": list(range(1000))})
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message()
    with pytest.raises(RemoteProtocolError, match="compressed"):
        decode_batch_header(message.metadata.to_pybytes(), message.body.size)


def test_old_metadata_versions_are_refused():
    raw = bytearray(encode_record_header(5, NODES, BUFFERS, body_bytes=48))
    raw[32] = 2
    with pytest.raises(RemoteProtocolError, match="version 3 is too old"):
        open_message(bytes(raw))

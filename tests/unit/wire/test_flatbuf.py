"""The bounds-checked flatbuffers reader refuses whatever leaves the buffer."""

from __future__ import annotations

import struct

import flatbuffers
import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.flatbuf import FlatTable, root_table


def _sample() -> bytes:
    builder = flatbuffers.Builder(0)
    content = builder.CreateByteVector(b"abc")
    builder.StartObject(4)
    builder.PrependInt32Slot(0, -5, 0)
    builder.PrependBoolSlot(1, True, False)
    builder.PrependUOffsetTRelativeSlot(2, content, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_fields_and_defaults():
    table = root_table(_sample())
    assert table.int32(4) == -5
    assert table.boolean(6)
    assert table.byte_vector(8) == b"abc"
    assert table.string(8) == "abc"
    assert not table.has(10)
    assert table.int64(10, 7) == 7
    assert table.int8(400, -1) == -1
    assert table.table(10) is None
    assert table.tables(10, count_max=1) is None
    assert table.longs(10) is None


@pytest.mark.parametrize("length", range(len(_sample())))
def test_every_truncation_is_refused_or_harmless(length):
    """Cut anywhere, the reader raises its own error or reads what is still there."""
    raw = _sample()[:length]
    try:
        table = root_table(raw)
        table.int32(4)
        table.byte_vector(8)
    except RemoteProtocolError:
        pass


def _table(vtable: bytes, fields: bytes) -> bytes:
    """A root table at 4 + len(vtable), right behind its vtable."""
    at = 4 + len(vtable)
    return struct.pack("<I", at) + vtable + struct.pack("<i", len(vtable)) + fields


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "too few"),
        (struct.pack("<I", 100), "table at 100"),
        (struct.pack("<Ii", 4, 100), "vtable at -96"),
        (struct.pack("<Ii", 4, -100), "vtable at 104"),
        (_table(struct.pack("<HH", 5, 4), b""), "vtable of 5"),
        (_table(struct.pack("<HH", 2, 4), b""), "vtable of 2"),
        (_table(struct.pack("<HH", 4, 3), b""), "table of 3"),
        (_table(struct.pack("<HH", 4, 100), b""), "table of 100"),
        (_table(struct.pack("<HHH", 6, 8, 6), b"1234"), "slot 4 points outside its table"),
        (_table(struct.pack("<HHH", 6, 8, 2), b"1234"), "slot 4 points outside its table"),
    ],
)
def test_broken_tables_are_refused(raw, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        root_table(raw).int32(4)


def test_broken_vectors_are_refused():
    def vector(offset: int, count: int) -> FlatTable:
        fields = struct.pack("<III", offset, count, 0)
        return root_table(_table(struct.pack("<HHH", 6, 8, 4), fields))

    assert vector(4, 4).byte_vector(4) == b"\0\0\0\0"
    for broken in (vector(4, 5), vector(100, 0), vector(2**32 - 1, 0), vector(4, 2**32 - 1)):
        with pytest.raises(RemoteProtocolError):
            broken.byte_vector(4)
    with pytest.raises(RemoteProtocolError):
        vector(4, 2**29).longs(4)
    with pytest.raises(RemoteProtocolError, match="limit is 0"):
        vector(4, 1).tables(4, count_max=0)
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        root_table(_table(struct.pack("<HHH", 6, 8, 4), b"\x04\0\0\0\x01\0\0\0\xff")).string(4)

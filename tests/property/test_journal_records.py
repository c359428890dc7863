"""Entries to bytes and back, for every column type; and CRCs that names cannot confuse."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.journal.disk.framing import FramingError, next_message, read_message
from barrage.journal.files.segment import SegmentEnd, SegmentHeader, read_header
from barrage.journal.records.identity import TableIdentity, TableRecord, directory_of
from barrage.journal.records.numbering import EntryBuilder, PendingChange
from barrage.journal.records.record import (
    EntryEncoder,
    Surroundings,
    decode_entry,
    entry_schema,
    plain_type,
    read_head,
)
from barrage.model.row_ids import RowIdMap
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.examples import examples
from tests.helpers.strategies_columns import VALUES, cells, columns, type_names

AROUND = Surroundings(frontier=3, synced=100, previous_crc=0xDEADBEEF)
NAMES = st.one_of(st.text(max_size=8), st.just("crc32c:00000000"), st.just("crc32c:12345678"))


@st.composite
def changes(draw: st.DrawFn, name: str) -> TableChange:
    """A cycle of a table of one column with rows 0..9: some removed, modified, added."""
    removed = RowSet(draw(st.sets(st.integers(0, 3), max_size=3)))
    modified = RowSet(draw(st.sets(st.integers(4, 9), max_size=4)))
    added = RowSet(draw(st.sets(st.integers(10, 60), max_size=6)))
    return TableChange(
        update=TableUpdate(
            first_step=7,
            last_step=7,
            removed_keys_pre=removed,
            shifts=RowSetShiftData.empty(),
            added_keys_post=added,
            modified_keys_post=(modified,),
        ),
        removed=(draw(columns(name, len(removed))),),
        modified_keys_post=modified,
        before=(draw(columns(name, len(modified))),),
        after=(draw(columns(name, len(modified))),),
        added=(draw(columns(name, len(added))),),
    )


def encoded(entry, schema) -> bytes:
    """The message as one piece of bytes."""
    pieces, _ = EntryEncoder(schema).encode(entry, AROUND)
    return b"".join(map(bytes, pieces))


@given(st.data(), st.dictionaries(NAMES, st.integers(0, 2**62), max_size=3), NAMES)
@examples(50)
def test_every_type_goes_there_and_back(
    data: st.DataObject, positions: dict[str, int], column: str
) -> None:
    name = data.draw(type_names)
    change = data.draw(changes(name))
    schema = entry_schema(pa.schema([(column, VALUES[name][0])]))
    ids = RowIdMap.of(RowSet(range(10)), pa.array(range(100, 110)).to_numpy())
    builder = EntryBuilder(schema, ids, 200, is_blink=False)
    entry = builder.build(PendingChange(change, 7, 123, positions))
    content = encoded(entry, schema)
    # Something before and behind it, as in a file.
    buffer = pa.py_buffer(b"12345678" + content + b"\xff\xff\xff\xff")
    message = read_message(buffer, 8)
    assert message.stop == 8 + len(content)
    assert read_head(message).surroundings == AROUND
    again = decode_entry(buffer, message, schema)
    assert again.update == change.update
    assert (again.step, again.wall_ns, again.first_offset) == (7, 123, 200)
    assert dict(again.positions) == positions
    assert again.ops.tolist() == (
        [1] * len(change.update.removed_keys_pre)
        + [2, 3] * len(change.modified_keys_post)
        + [0] * len(change.update.added_keys_post)
    )
    got = cells(again.rows.column(2))
    pairs = zip(cells(change.before[0]), cells(change.after[0]), strict=True)
    updates = [cell for pair in pairs for cell in pair]
    assert got == [*cells(change.removed[0]), *updates, *cells(change.added[0])]
    removed_ids = [100 + key for key in change.update.removed_keys_pre]
    modified_ids = [100 + key for key in change.modified_keys_post for _ in range(2)]
    assert again.row_ids.tolist() == removed_ids + modified_ids + again.added_ids.tolist()
    place = data.draw(st.integers(0, len(content) - 1))
    broken = bytearray(content)
    broken[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FramingError):
        read_message(pa.py_buffer(bytes(broken)), 0)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_message_are_refused(junk: bytes) -> None:
    for content in (junk, b"\xff\xff\xff\xff" + junk):
        with pytest.raises(FramingError):
            read_message(pa.py_buffer(content), 0)
        assert next_message(pa.py_buffer(content), 0) is None


def test_a_message_is_found_behind_a_hole() -> None:
    schema = entry_schema(pa.schema([("n", pa.int64())]))
    builder = EntryBuilder(schema, RowIdMap.empty(), 0, is_blink=False)
    nothing = (pa.array([], pa.int64()),)
    change = TableChange(
        update=TableUpdate.nothing(step=1, column_count=1),
        removed=nothing,
        modified_keys_post=RowSet.empty(),
        before=nothing,
        after=nothing,
        added=nothing,
    )
    encoder = EntryEncoder(schema)
    entry = builder.build(PendingChange(change, 1, 1, {}))
    pieces, crc = encoder.encode(entry, AROUND)
    content = b"".join(bytes(piece) for piece in pieces)
    found = next_message(pa.py_buffer(b"\0" * 64 + content), 8)
    assert found is not None
    assert (found.start, found.crc) == (64, crc)


@given(NAMES, st.booleans())
def test_headers_of_segments_go_there_and_back(name: str, has_previous: bool) -> None:
    previous = SegmentEnd(number=4, byte_count=99, step=12, crc=5, next_offset=31)
    header = SegmentHeader(
        table=name,
        epoch="0123456789abcdef",
        number=5,
        first_step=8,
        previous=previous if has_previous else None,
    )
    schema = entry_schema(pa.schema([(name or "x", pa.string())]))
    content, crc = header.encode(schema)
    again, message = read_header(pa.py_buffer(content))
    assert again == header
    assert message.crc == crc
    assert pa.ipc.open_stream(content).schema.names == ["op", "row_id", name or "x"]


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_name_has_a_directory_of_its_own(one: str, other: str) -> None:
    assert (directory_of(one) == directory_of(other)) == (one == other)
    for name in (one, other):
        directory = directory_of(name)
        assert len(directory.encode()) <= 200
        assert not set(directory) & set("/.\\\0")


@given(st.text(), st.text(max_size=5))
def test_identities_go_there_and_back(name: str, key: str) -> None:
    record = TableRecord(
        identity=TableIdentity(
            name=name,
            kind="ring",
            key=(key,),
            capacity=7,
            is_read_only=True,
            schema=pa.schema([pa.field(key, pa.int8(), metadata={"a": "b"})], {"c": "d"}),
        ),
        epoch="0123456789abcdef",
        created_step=3,
        created_wall_ns=9,
    )
    again = TableRecord.decode(record.encode(), path="x")
    assert again == record
    assert again.identity.schema.equals(record.identity.schema, check_metadata=True)


def test_dictionaries_and_runs_are_plain_in_the_journal() -> None:
    inner = pa.dictionary(pa.int32(), pa.string())
    assert plain_type(inner) == pa.string()
    assert plain_type(pa.run_end_encoded(pa.int32(), pa.int64())) == pa.int64()
    assert plain_type(pa.list_(inner)) == pa.list_(pa.string())
    assert plain_type(pa.list_(inner, 2)) == pa.list_(pa.string(), 2)
    assert plain_type(pa.large_list(inner)) == pa.large_list(pa.string())
    assert plain_type(pa.struct([("a", inner)])) == pa.struct([("a", pa.string())])

"""One committed cycle of one table as its journal records it, as a value and as bytes.

Row identity (the numbering): the rows of a cycle are numbered in the order -R, pairs of -C and +C,
+A, and the numbers go on from cycle to cycle; an added row's number is its id for ever, and later
-R, -C and +C rows carry it in ``row_id``. So ids grow, are never used twice, and of a table that is
only appended to they are its positions.

As bytes an entry is one Arrow IPC record batch message (see :mod:`.framing`). Its metadata has
``crc`` and, under ``barrage``, a JSON object:

* ``step``, ``wall_ns``, ``offset`` (the number of its first row);
* ``frontier``: the step up to which every table's changes were on the disk when this was written;
* ``synced``: how long this file was sure to be when this was written;
* ``previous``: the CRC of the record before it;
* ``removed``, ``shifts``, ``added``: row sets of the update as they go over the wire, in base 64;
* ``modified``: pairs of columns (as ranges) and their row set, each distinct row set once;
* ``positions``: producer to sequence;
* ``joint``: true when other tables have changes of this cycle, too, which all count or none (see
  :mod:`.commits`).

What is empty is left out.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.journal.disk.framing import (
    CRC_BLANK,
    CRC_KEY,
    PREFIX_BYTES,
    FramingError,
    Message,
    metadata_of,
    seal,
)
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.row_sets.row_set_codec import (
    decode_row_set,
    decode_shifts,
    encode_row_set,
    encode_shifts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from barrage.journal.disk.storage import Piece
    from barrage.rowset.arrays import Int64Array

OP_ADD: Final = 0
OP_REMOVE: Final = 1
OP_BEFORE: Final = 2
OP_AFTER: Final = 3

METADATA_KEY: Final = "barrage"
_NO_ROWS: Final = RowSet.empty()
_NO_SHIFTS: Final = RowSetShiftData.empty()
NO_POSITIONS: Final[Mapping[str, int]] = MappingProxyType({})

_PLAIN_OF_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

_SMALL_PIECE_BYTES: Final = 4096
_SMALL_MESSAGE_BYTES: Final = 32 * 1024
"""Messages up to this size are joined: copying them costs less than handling their pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One committed cycle of one table. Shared between readers: nothing in it changes."""

    step: int
    wall_ns: int
    update: TableUpdate
    rows: pa.RecordBatch
    """``op`` int8 (0 +A, 1 -R, 2 -C, 3 +C), ``row_id`` int64, then the table's columns in plain
    types. -R rows in pre-shift key order, then -C directly followed by +C for each modified row,
    then +A, both in post-shift key order. A blink table's rows have no -R."""
    first_offset: int
    """Number of ``rows[0]``; row i has number ``first_offset + i``."""
    positions: Mapping[str, int]
    """Producers whose position moved in this cycle."""

    @property
    def added_ids(self) -> Int64Array:
        """Ids of the added rows, in key order."""
        return np.arange(self.first_added_id, self.next_offset, dtype=np.int64)

    @property
    def first_added_id(self) -> int:
        """Id of the first added row; the others' follow on it."""
        return self.next_offset - self.update.added_keys_post.size

    @property
    def before_count(self) -> int:
        """How many of the rows say what was there before a modification."""
        update = self.update
        return _before_count(
            self.rows.num_rows, update.removed_keys_pre.size, update.added_keys_post.size
        )

    @property
    def ops(self) -> npt.NDArray[np.int8]:
        """The ``op`` column."""
        ops: npt.NDArray[np.int8] = self.rows.column(0).to_numpy()
        return ops

    @property
    def row_ids(self) -> Int64Array:
        """The ``row_id`` column."""
        row_ids: Int64Array = self.rows.column(1).to_numpy()
        return row_ids

    @property
    def next_offset(self) -> int:
        """Number the next entry's rows begin with."""
        count: int = self.rows.num_rows
        return self.first_offset + count


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type a column has in the journal: no dictionaries, no runs, no views of texts, at any
    depth of lists."""
    if data_type in _PLAIN_OF_VIEWS:
        return _PLAIN_OF_VIEWS[data_type]
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return plain_type(data_type.value_type)
    if pa.types.is_list(data_type):
        return pa.list_(plain_field(data_type.value_field))
    if pa.types.is_large_list(data_type):
        return pa.large_list(plain_field(data_type.value_field))
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(plain_field(data_type.value_field), data_type.list_size)
    if pa.types.is_struct(data_type):
        return pa.struct([plain_field(field) for field in data_type])
    return data_type


def plain_field(field: pa.Field) -> pa.Field:
    """A field of that type without metadata."""
    return pa.field(field.name, plain_type(field.type), field.nullable)


def entry_schema(schema: pa.Schema) -> pa.Schema:
    """Schema of the rows of a table's entries."""
    return pa.schema(
        [
            pa.field("op", pa.int8(), nullable=False),
            pa.field("row_id", pa.int64(), nullable=False),
            *(pa.field(field.name, plain_type(field.type)) for field in schema),
        ]
    )


# --- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a record says beside the cycle itself: about the moment and the file it is written
    to."""

    frontier: int
    synced: int
    previous_crc: int
    is_joint: bool = False
    """Whether the cycle changed other tables on disk, too."""


class _PieceSink:
    """Collects what an IPC writer writes, without copying bodies."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.byte_count = 0

    def write(self, piece: Piece) -> int:
        self.pieces.append(piece)
        size = len(piece)
        self.byte_count += size
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to release."""


class EntryEncoder:
    """Turns entries of one table into messages. Not thread-safe."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._sink = _PieceSink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema)
        # The writer puts the schema before the first batch; ours stands in the segment's header.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))

    def encode(self, entry: Entry, surroundings: Surroundings) -> tuple[list[Piece], int]:
        """The message in pieces that refer to the entry's buffers, and its CRC."""
        sink = self._sink
        sink.pieces, sink.byte_count = [], 0
        self._writer.write_batch(entry.rows, custom_metadata=_metadata(entry, surroundings))
        pieces = sink.pieces
        if sink.byte_count <= _SMALL_MESSAGE_BYTES:
            return seal(b"".join(pieces), [])
        return seal(*_header_and_body(pieces))


def _header_and_body(pieces: list[Piece]) -> tuple[bytes, list[Piece]]:
    """The pieces of one message with small ones joined."""
    # The writer hands over: continuation word, length, header, perhaps padding; then the body.
    header_bytes = PREFIX_BYTES + int.from_bytes(bytes(pieces[1]), "little")
    stop = 3
    while sum(len(piece) for piece in pieces[:stop]) < header_bytes:
        stop += 1
    body: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces[stop:]:
        if len(piece) < _SMALL_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            body.append(b"".join(small))
            small = []
        body.append(piece)
    if small:
        body.append(b"".join(small))
    return b"".join(pieces[:stop]), body


def _metadata(entry: Entry, surroundings: Surroundings) -> dict[str, str]:
    update = entry.update
    facts: dict[str, object] = {
        "step": entry.step,
        "wall_ns": entry.wall_ns,
        "offset": entry.first_offset,
        "frontier": surroundings.frontier,
        "synced": surroundings.synced,
        "previous": surroundings.previous_crc,
    }
    for name, rows in (("removed", update.removed_keys_pre), ("added", update.added_keys_post)):
        if not rows.is_empty:
            facts[name] = _base64(encode_row_set(rows))
    if not update.shifts.is_empty:
        facts["shifts"] = _base64(encode_shifts(update.shifts))
    modified = _modified_pairs(update.modified_keys_post)
    if modified:
        facts["modified"] = modified
    if entry.positions:
        facts["positions"] = dict(entry.positions)
    if surroundings.is_joint:
        facts["joint"] = True
    text = json.dumps(facts)
    if entry.positions:
        # The CRC is found by its tag, and producers choose their names.
        text = text.replace("crc32c", "crc32\\u0063")
    return {METADATA_KEY: text, CRC_KEY.decode(): CRC_BLANK}


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _modified_pairs(modified: tuple[RowSet, ...]) -> list[list[str]]:
    """Columns that changed in the same rows share a pair."""
    columns: dict[RowSet, list[int]] = {}
    for index, rows in enumerate(modified):
        if not rows.is_empty:
            columns.setdefault(rows, []).append(index)
    return [
        [RowSet(indices).to_text(), _base64(encode_row_set(rows))]
        for rows, indices in columns.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """What a record's metadata says, before its rows are looked at."""

    step: int
    wall_ns: int
    first_offset: int
    row_count: int
    surroundings: Surroundings
    facts: Mapping[str, Any]

    def before_count(self) -> int:
        """See :attr:`Entry.before_count`. FramingError."""
        if not self.facts.get("modified"):
            return 0
        try:
            removed, added = (_row_set(self.facts.get(name)) for name in ("removed", "added"))
        except (RemoteProtocolError, TypeError, ValueError) as error:
            raise FramingError(f"the row sets of a record make no sense: {error}") from error
        return _before_count(self.row_count, removed.size, added.size)


def _before_count(rows: int, removed: int, added: int) -> int:
    """Modified rows stand there twice. Of a blink table the removed ones do not stand there."""
    return max(0, rows - removed - added) // 2


def read_head(message: Message) -> RecordHead:
    """The metadata of a record; FramingError when it is none of ours."""
    try:
        facts = json.loads(metadata_of(message.header, 12)[METADATA_KEY])
        return RecordHead(
            step=facts["step"],
            wall_ns=facts["wall_ns"],
            first_offset=facts["offset"],
            row_count=message.length(),
            surroundings=Surroundings(
                frontier=facts["frontier"],
                synced=facts["synced"],
                previous_crc=facts["previous"],
                is_joint=facts.get("joint") is True,
            ),
            facts=facts,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FramingError(f"the metadata of a record is incomplete: {error}") from error


def decode_entry(
    data: pa.Buffer, message: Message, schema: pa.Schema, *, head: RecordHead | None = None
) -> Entry:
    """The entry of a message in ``data``, without copying its cells; FramingError."""
    head = head or read_head(message)
    facts = head.facts
    try:
        rows = pa.ipc.read_record_batch(data.slice(message.start, message.size), schema)
        shifts = facts.get("shifts")
        update = TableUpdate(
            first_step=head.step,
            last_step=head.step,
            removed_keys_pre=_row_set(facts.get("removed")),
            shifts=_NO_SHIFTS if shifts is None else decode_shifts(binascii.a2b_base64(shifts)),
            added_keys_post=_row_set(facts.get("added")),
            modified_keys_post=_modified_of(facts.get("modified"), len(schema) - 2),
        )
    except (RemoteProtocolError, TypeError, ValueError, IndexError, OSError) as error:
        raise FramingError(f"a record cannot be read: {error}") from error
    return Entry(
        step=head.step,
        wall_ns=head.wall_ns,
        update=update,
        rows=rows,
        first_offset=head.first_offset,
        positions=facts.get("positions", NO_POSITIONS),
    )


def _row_set(text: str | None) -> RowSet:
    return _NO_ROWS if text is None else decode_row_set(binascii.a2b_base64(text))


def _modified_of(pairs: list[list[str]] | None, column_count: int) -> tuple[RowSet, ...]:
    if pairs is None:
        return (_NO_ROWS,) * column_count
    modified = [_NO_ROWS] * column_count
    for columns, encoded in pairs:
        rows = _row_set(encoded)
        for index in RowSet.parse(columns):
            modified[index] = rows
    return tuple(modified)

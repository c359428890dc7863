"""One committed cycle of one table as its journal records it, as a value and as bytes.

Row identity (the numbering): the rows of a cycle are numbered in the order -R, pairs of -C and +C,
+A, and the numbers go on from cycle to cycle; an added row's number is its id for ever, and later
-R, -C and +C rows carry it in ``row_id``. So ids grow, are never used twice, and of a table that is
only appended to they are its positions.

As bytes an entry is one Arrow IPC record batch message (see :mod:`.framing`) whose metadata has:

* ``step``, ``wall_ns``, ``offset`` (the number of its first row): decimal;
* ``frontier``: the step up to which every table's changes were on the disk when this was written;
* ``synced``: how long this file was sure to be when this was written;
* ``previous``: the CRC of the record before it;
* ``removed``, ``shifts``, ``added``: row sets of the update as they go over the wire, in base 64;
* ``modified``: per distinct row set ``<columns>=<base 64>``, columns as ranges, ``;`` between them;
* ``positions``: JSON object, producer to sequence.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.journal.framing import CRC_BLANK, FramingError, Message, metadata_of, seal
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet
from barrage.wire.row_set_codec import (
    decode_row_set,
    decode_shifts,
    encode_row_set,
    encode_shifts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from barrage.journal.storage import Piece
    from barrage.model.row_ids import RowIdMap
    from barrage.model.table_change import TableChange
    from barrage.rowset.arrays import Int64Array

OP_ADD: Final = 0
OP_REMOVE: Final = 1
OP_BEFORE: Final = 2
OP_AFTER: Final = 3

NO_POSITIONS: Final[Mapping[str, int]] = MappingProxyType({})

_SMALL_PIECE_BYTES = 4096


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
        stop = self.first_offset + self.rows.num_rows
        return np.arange(stop - self.update.added_keys_post.size, stop, dtype=np.int64)

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
    """The type a column has in the journal: no dictionaries, no runs, at any depth of lists."""
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


def history_row_count(change: TableChange, *, is_blink: bool) -> int:
    """Rows a change has in the history, and so how many numbers it takes."""
    removed = 0 if is_blink else change.update.removed_keys_pre.size
    return removed + 2 * change.modified_keys_post.size + change.update.added_keys_post.size


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change as the engine handed it over."""

    change: TableChange
    step: int
    wall_ns: int
    positions: Mapping[str, int]


def build_entry(
    pending: PendingChange, ids: RowIdMap, first_offset: int, schema: pa.Schema, *, is_blink: bool
) -> tuple[Entry, RowIdMap]:
    """Number the rows of a change, and the map of ids after it. ``schema`` is that of entries."""
    change, update = pending.change, pending.change.update
    removed_count = 0 if is_blink else update.removed_keys_pre.size
    modified, added = change.modified_keys_post, update.added_keys_post
    count = removed_count + 2 * modified.size + added.size
    added_ids = np.arange(first_offset + count - added.size, first_offset + count, dtype=np.int64)
    parts = []
    if removed_count:
        parts.append(ids.ids_of(update.removed_keys_pre))
    if not (update.removed_keys_pre.is_empty and update.shifts.is_empty and added.is_empty):
        ids = ids.apply(update.removed_keys_pre, update.shifts, added, added_ids)
    if modified.size:
        parts.append(np.repeat(ids.ids_of(modified), 2))
    parts.append(added_ids)
    ops = np.repeat(
        np.array([OP_REMOVE, OP_BEFORE, OP_ADD], dtype=np.int8),
        [removed_count, 2 * modified.size, added.size],
    )
    ops[removed_count + 1 : removed_count + 2 * modified.size : 2] = OP_AFTER
    columns = [
        _history_cells(
            change, index, has_removed=removed_count > 0, kind=schema.field(index + 2).type
        )
        for index in range(len(schema) - 2)
    ]
    row_ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    rows = pa.RecordBatch.from_arrays([pa.array(ops), pa.array(row_ids), *columns], schema=schema)
    entry = Entry(
        step=pending.step,
        wall_ns=pending.wall_ns,
        update=update,
        rows=rows,
        first_offset=first_offset,
        positions=pending.positions,
    )
    return entry, ids


def _history_cells(
    change: TableChange, index: int, *, has_removed: bool, kind: pa.DataType
) -> pa.Array:
    """One column of an entry."""
    parts = [change.removed[index]] if has_removed else []
    count = change.modified_keys_post.size
    if count:
        both = _contiguous([change.before[index], change.after[index]], kind)
        order = np.empty(2 * count, dtype=np.int64)
        order[::2] = np.arange(count)
        order[1::2] = np.arange(count, 2 * count)
        parts.append(both.take(pa.array(order)))
    if change.update.added_keys_post.size:
        parts.append(change.added[index])
    return _contiguous(parts, kind)


def _contiguous(parts: list[pa.Array | pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """The parts as one array of a plain type; no copy when there is one chunk of that type."""
    chunks: list[pa.Array] = []
    for part in parts:
        chunks.extend(part.chunks if isinstance(part, pa.ChunkedArray) else [part])
    plain = [_plain(chunk, kind) for chunk in chunks if len(chunk)]
    if len(plain) == 1:
        return plain[0]
    return pa.concat_arrays(plain) if plain else pa.array([], kind)


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary_decode(), kind)
    return values.cast(kind)


# --- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a record says beside the cycle itself: about the moment and the file it is written
    to."""

    frontier: int
    synced: int
    previous_crc: int


class _PieceSink:
    """Collects what an IPC writer writes, without copying bodies."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def write(self, piece: Piece) -> int:
        self.pieces.append(piece)
        return len(piece)

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

    def encode(self, entry: Entry, surroundings: Surroundings) -> tuple[list[Piece], int]:
        """The message in pieces that refer to the entry's buffers, and its CRC."""
        self._sink.pieces = []
        self._writer.write_batch(entry.rows, custom_metadata=_metadata(entry, surroundings))
        return seal(*_header_and_body(self._sink.pieces))


def _header_and_body(pieces: list[Piece]) -> tuple[bytes, list[Piece]]:
    """Split what the writer wrote, which begins with the schema the first time, and join small
    pieces."""
    # The writer hands over: word, length, header, then the body.
    start = next(
        index
        for index in range(len(pieces))
        if len(pieces[index]) == 4 and bytes(pieces[index]) == b"\xff\xff\xff\xff"
    )
    if CRC_BLANK.encode() not in bytes(pieces[start + 2]):
        return _header_and_body(pieces[start + 3 :])
    stop = start + 3
    length = int.from_bytes(bytes(pieces[start + 1]), "little")
    had = len(pieces[start + 2])
    while had < length:
        had += len(pieces[stop])
        stop += 1
    header = b"".join(bytes(piece) for piece in pieces[start:stop])
    body: list[Piece] = []
    small: list[bytes] = []
    for piece in pieces[stop:]:
        if len(piece) < _SMALL_PIECE_BYTES:
            small.append(bytes(piece))
            continue
        if small:
            body.append(b"".join(small))
            small = []
        body.append(piece)
    if small:
        body.append(b"".join(small))
    return header, body


def encode_entry(entry: Entry, surroundings: Surroundings) -> bytes:
    """The message as one piece of bytes; for tests and tools."""
    pieces, _ = EntryEncoder(entry.rows.schema).encode(entry, surroundings)
    return b"".join(bytes(piece) for piece in pieces)


def _metadata(entry: Entry, surroundings: Surroundings) -> dict[str, str | bytes]:
    update = entry.update
    texts: dict[str, str | bytes] = {
        "step": str(entry.step),
        "wall_ns": str(entry.wall_ns),
        "offset": str(entry.first_offset),
        "frontier": str(surroundings.frontier),
        "synced": str(surroundings.synced),
        "previous": f"{surroundings.previous_crc:08x}",
    }
    for name, rows in (("removed", update.removed_keys_pre), ("added", update.added_keys_post)):
        if not rows.is_empty:
            texts[name] = _base64(encode_row_set(rows))
    if not update.shifts.is_empty:
        texts["shifts"] = _base64(encode_shifts(update.shifts))
    modified = _modified_text(update.modified_keys_post)
    if modified:
        texts["modified"] = modified
    if entry.positions:
        # The CRC is found by its tag, and producers choose their names.
        texts["positions"] = json.dumps(dict(entry.positions)).replace("crc32c", "crc32\\u0063")
    texts["crc"] = CRC_BLANK
    return texts


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


def _modified_text(modified: tuple[RowSet, ...]) -> str:
    """``0-2,5=<base 64>;3=...``: columns that changed in the same rows share them."""
    columns: dict[RowSet, list[int]] = {}
    for index, rows in enumerate(modified):
        if not rows.is_empty:
            columns.setdefault(rows, []).append(index)
    return ";".join(
        f"{RowSet(indices).to_text()}={_base64(encode_row_set(rows)).decode()}"
        for rows, indices in columns.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """What a record's metadata says, before its rows are looked at."""

    step: int
    wall_ns: int
    first_offset: int
    row_count: int
    surroundings: Surroundings
    texts: Mapping[str, str]


def read_head(message: Message) -> RecordHead:
    """The metadata of a record; FramingError when it is none of ours."""
    texts = metadata_of(message.header, 12)
    try:
        return RecordHead(
            step=int(texts["step"]),
            wall_ns=int(texts["wall_ns"]),
            first_offset=int(texts["offset"]),
            row_count=message.length(),
            surroundings=Surroundings(
                frontier=int(texts["frontier"]),
                synced=int(texts["synced"]),
                previous_crc=int(texts["previous"], 16),
            ),
            texts=texts,
        )
    except (KeyError, ValueError) as error:
        raise FramingError(f"the metadata of a record is incomplete: {error}") from error


def decode_entry(
    data: pa.Buffer, message: Message, schema: pa.Schema, head: RecordHead | None = None
) -> Entry:
    """The entry of a message in ``data``, without copying its cells; FramingError."""
    head = head or read_head(message)
    texts = head.texts
    try:
        rows = pa.ipc.read_record_batch(data.slice(message.start, message.size), schema)
        update = TableUpdate(
            first_step=head.step,
            last_step=head.step,
            removed_keys_pre=_row_set(texts.get("removed")),
            shifts=decode_shifts(binascii.a2b_base64(texts.get("shifts", "ICAg"))),
            added_keys_post=_row_set(texts.get("added")),
            modified_keys_post=_modified_of(texts.get("modified", ""), len(schema) - 2),
        )
        positions = json.loads(texts.get("positions", "{}"))
    except (RemoteProtocolError, ValueError, IndexError, OSError) as error:
        raise FramingError(f"a record cannot be read: {error}") from error
    return Entry(
        step=head.step,
        wall_ns=head.wall_ns,
        update=update,
        rows=rows,
        first_offset=head.first_offset,
        positions=positions,
    )


def _row_set(text: str | None) -> RowSet:
    return RowSet.empty() if text is None else decode_row_set(binascii.a2b_base64(text))


def _modified_of(text: str, column_count: int) -> tuple[RowSet, ...]:
    modified = [RowSet.empty()] * column_count
    for part in text.split(";") if text else ():
        columns, _, encoded = part.partition("=")
        rows = _row_set(encoded)
        for index in RowSet.parse(columns):
            modified[index] = rows
    return tuple(modified)

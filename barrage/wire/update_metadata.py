"""Update metadata written straight into bytes: one small join per update.

Source: barrage-wire.md sections 2.1 and 2.4. The layouts below put all 64-bit fields of the table
first, so that they lie at multiples of eight from the start of the flatbuffer; defaults (0, false)
are marked absent, as the reference server never writes one. The draft's payload is written with
generated code.

    wrapper   root offset | vtable | table: vtable distance, type, [source time], magic, offset |
    count, payload payload   root offset | vtable | table: vtable distance, int64s, offsets, small
    fields | vectors

Vectors that are equal (most often the empty row set) are written once and shared, which FlatBuffers
allows: only offsets count.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from barrage.errors import LimitExceededError
from barrage.wire.bitset import encode_bit_set
from barrage.wire.flatbuffer_writer import FlatbufferWriter
from barrage.wire.messages import TYPE_UPDATE_METADATA
from barrage.wire.revision import WireRevision
from barrage.wire.row_sets.row_set_codec import encode_row_set, encode_shifts

if TYPE_CHECKING:
    from barrage.rowset import RowSet, RowSetShiftData
    from barrage.wire.messages import UpdateMetadata

MAGIC = 0x6E687064
"""First field of every wrapper, "dphn" on the wire (section 2.1)."""

EMPTY_ROW_SET = b"\x20"
EMPTY_SHIFTS = b"\x20\x20\x20"

_BATCHES_MAX = 0xFFFF

# Without source time: vtable of 10 bytes at 6, table of 16 bytes at 16, payload vector at 36.
_WRAPPER = struct.Struct("<I2xHHHHHi3xbII4xI")
# With source time: vtable of 12 bytes at 4, table of 24 bytes at 16, payload vector at 44.
_WRAPPER_TIMED = struct.Struct("<IHHHHHHi3xbqII4xI")
# Without payload: vtable of 8 bytes at 4, table of 12 bytes at 12.
_WRAPPER_BARE = struct.Struct("<IHHHHi3xbI")

# Payload, 1.0.0: vtable of 28 bytes at 4, table at 36: three int64, seven offsets, two booleans.
_TABLE_AT = 36
_R1_TABLE = struct.Struct("<I14H4xiqqq7I??2x")
_R1_BYTES = 60

_NODE_VTABLE = (6, 8, 4)
_NODE_VTABLE_BYTES = 8
_COUNT = struct.Struct("<I")
_PADDING = tuple(b"\0" * count for count in range(4))


class EncodedMetadata(NamedTuple):
    """The parts of update metadata with row sets already encoded; None is absent."""

    first_seq: int
    last_seq: int
    is_snapshot: bool
    is_effective_reverse: bool
    effective_viewport: bytes | None
    effective_columns: bytes | None
    added_rows: bytes | None
    removed_rows: bytes | None
    shift_data: bytes | None
    added_rows_included: bytes | None
    modified_rows: tuple[bytes, ...] | None
    table_size: int
    add_batch_count: int
    mod_batch_count: int
    source_time_ns: int | None


def wrap_payload(
    message_type: int, payload: bytes | None, source_time_ns: int | None = None
) -> bytes:
    """A complete wrapper. The payload starts at a multiple of eight bytes, so aligned readers need
    no copy."""
    if payload is None:
        return _WRAPPER_BARE.pack(12, 8, 12, 8, 7, 8, message_type, MAGIC)
    if source_time_ns is None:
        head = _WRAPPER.pack(16, 10, 16, 8, 7, 12, 10, message_type, MAGIC, 8, len(payload))
    else:
        head = _WRAPPER_TIMED.pack(
            *(16, 12, 24, 16, 7, 20, 8, 12, message_type, source_time_ns, MAGIC, 8, len(payload))
        )
    return head + payload + b"\0" * (-len(payload) % 4)


def encode_rows(rows: RowSet) -> bytes:
    """A row set's wire form, without work for the most frequent one."""
    return EMPTY_ROW_SET if rows.is_empty else encode_row_set(rows)


def encode_shift_data(shifts: RowSetShiftData) -> bytes:
    """Shift data's wire form, without work for the most frequent one."""
    return EMPTY_SHIFTS if shifts.is_empty else encode_shifts(shifts)


def encode_modified_rows(row_sets: tuple[RowSet, ...]) -> tuple[bytes, ...]:
    """One encoding per column; columns that share a row set object are encoded once."""
    distinct = {id(rows): rows for rows in row_sets}
    encoded = {key: encode_rows(rows) for key, rows in distinct.items()}
    return tuple([encoded[id(rows)] for rows in row_sets])


def encode_update_metadata(metadata: UpdateMetadata, revision: WireRevision) -> bytes:
    """The wrapper bytes of ``metadata``; fields ``revision`` does not have are left out."""
    return encode_update(
        EncodedMetadata(
            first_seq=metadata.first_seq,
            last_seq=metadata.last_seq,
            is_snapshot=metadata.is_snapshot,
            is_effective_reverse=metadata.effective_reverse_viewport,
            effective_viewport=_optional_rows(metadata.effective_viewport),
            effective_columns=None
            if metadata.effective_column_set is None
            else encode_bit_set(metadata.effective_column_set),
            added_rows=_optional_rows(metadata.added_rows),
            removed_rows=_optional_rows(metadata.removed_rows),
            shift_data=None
            if metadata.shift_data is None
            else encode_shift_data(metadata.shift_data),
            added_rows_included=_optional_rows(metadata.added_rows_included),
            modified_rows=None
            if metadata.mod_column_nodes is None
            else encode_modified_rows(metadata.mod_column_nodes),
            table_size=metadata.table_size or 0,
            add_batch_count=metadata.add_batch_count or 0,
            mod_batch_count=metadata.mod_batch_count or 0,
            source_time_ns=metadata.source_time_ns,
        ),
        revision,
    )


def _optional_rows(rows: RowSet | None) -> bytes | None:
    return None if rows is None else encode_rows(rows)


def encode_update(update: EncodedMetadata, revision: WireRevision) -> bytes:
    """The wrapper bytes of an update."""
    encode = _encode_draft if revision.counts_batches else _encode_r1
    payload = encode(update)
    return wrap_payload(TYPE_UPDATE_METADATA, payload, update.source_time_ns)


def update_template(update: EncodedMetadata) -> tuple[bytes, list[int]]:
    """The wrapper bytes of an update (1.0.0), and where in them the six byte vectors (0 where one
    is absent) and the distinct modified row sets, in order of first use, begin. Other contents of
    equal lengths may be written over them."""
    vectors = _vectors(update)
    wrapped = wrap_payload(
        TYPE_UPDATE_METADATA, _r1_payload(update, vectors), update.source_time_ns
    )
    begin = (_WRAPPER if update.source_time_ns is None else _WRAPPER_TIMED).size + _COUNT.size
    return wrapped, [at and begin + at for at in (*vectors.contents, *vectors.modified)]


class _Vectors(NamedTuple):
    """Where in the payload the vectors lie, 0 for absent ones, and the bytes after the table."""

    contents: list[int]
    """Viewport, columns, added, removed, shifts and included rows."""
    modified: list[int]
    """The distinct modified row sets."""
    nodes: int
    """The vector of tables that refer to those."""
    parts: list[bytes]


def _vectors(update: EncodedMetadata) -> _Vectors:
    parts: list[bytes] = []
    placed: dict[bytes, int] = {}
    position = table_end = _TABLE_AT + _R1_BYTES
    mods = update.modified_rows
    distinct: tuple[bytes, ...] = ()
    if mods is not None:
        distinct = tuple(dict.fromkeys(mods))
        position += 4 + 4 * len(mods) + 8 * len(distinct) + _NODE_VTABLE_BYTES
    contents = (
        *(update.effective_viewport, update.effective_columns, update.added_rows),
        *(update.removed_rows, update.shift_data, update.added_rows_included),
        *distinct,
    )
    positions: list[int] = []
    for content in contents:
        if content is None:
            positions.append(0)
            continue
        at = placed.get(content)
        if at is None:
            at = placed[content] = position
            length = len(content)
            padding = -length & 3
            parts += (_COUNT.pack(length), content, _PADDING[padding])
            position += 4 + length + padding
        positions.append(at)
    if mods is None:
        return _Vectors(positions, [], 0, parts)
    parts.insert(0, _mod_section(mods, placed, distinct, start=table_end))
    return _Vectors(positions[:6], positions[6:], table_end, parts)


def _mod_section(
    mods: tuple[bytes, ...], placed: dict[bytes, int], distinct: tuple[bytes, ...], *, start: int
) -> bytes:
    """Vector of tables, the tables themselves (one per distinct row set) and their vtable, from
    ``start``; ``placed`` tells where the row sets lie."""
    count = len(mods)
    nodes_at = 4 + 4 * count
    vtable_at = nodes_at + 8 * len(distinct)
    node_of: dict[bytes, int] = {}
    nodes: list[int] = []
    at = nodes_at
    for content in distinct:
        node_of[content] = at
        nodes += (at - vtable_at, placed[content] - start - at - 4)
        at += 8
    offsets = map(sub, map(node_of.__getitem__, mods), range(4, nodes_at, 4))
    return _mod_layout(count, len(distinct)).pack(count, *offsets, *nodes, *_NODE_VTABLE)


@lru_cache(maxsize=256)
def _mod_layout(count: int, nodes: int) -> struct.Struct:
    """Count and offsets of a vector of ``count`` tables, ``nodes`` tables, their vtable."""
    return struct.Struct(f"<{count + 1}I" + "iI" * nodes + "HHH2x")


def _encode_r1(update: EncodedMetadata) -> bytes:
    return _r1_payload(update, _vectors(update))


def _r1_payload(update: EncodedMetadata, vectors: _Vectors) -> bytes:
    positions = [*vectors.contents, vectors.nodes]
    viewport, columns, added, removed, shifts, included, mods = positions
    first, last, size = update.first_seq, update.last_seq, update.table_size
    at = _TABLE_AT + 28  # of the first offset field
    head = _R1_TABLE.pack(
        _TABLE_AT,
        28,
        _R1_BYTES,
        4 if first else 0,
        12 if last else 0,
        56 if update.is_snapshot else 0,
        28 if viewport else 0,
        57 if update.is_effective_reverse else 0,
        32 if columns else 0,
        36 if added else 0,
        40 if removed else 0,
        44 if shifts else 0,
        48 if included else 0,
        52 if mods else 0,
        20 if size else 0,
        _TABLE_AT - 4,
        first,
        last,
        size,
        *[target and target - at - 4 * i for i, target in enumerate(positions)],
        update.is_snapshot,
        update.is_effective_reverse,
    )
    return b"".join((head, *vectors.parts))


def _encode_draft(update: EncodedMetadata) -> bytes:
    """As often as an interval of subscribers to the draft passes, so with generated code."""
    batches = max(update.add_batch_count, update.mod_batch_count)
    if batches > _BATCHES_MAX:
        raise LimitExceededError(
            "number of record batches of one update",
            actual=batches,
            maximum=_BATCHES_MAX,
            unit="batches",
        )
    writer = FlatbufferWriter(WireRevision.DRAFT_2020)
    mods = None
    if update.modified_rows is not None:
        nodes = {
            rows: writer.table("BarrageModColumnMetadata", modified_rows=rows)
            for rows in dict.fromkeys(update.modified_rows)
        }
        mods = writer.tables([nodes[rows] for rows in update.modified_rows])
    root = writer.table(
        "BarrageUpdateMetadata",
        num_add_batches=update.add_batch_count,
        num_mod_batches=update.mod_batch_count,
        first_seq=update.first_seq,
        last_seq=update.last_seq,
        is_snapshot=update.is_snapshot,
        effective_viewport=update.effective_viewport,
        effective_column_set=update.effective_columns,
        added_rows=update.added_rows,
        removed_rows=update.removed_rows,
        shift_data=update.shift_data,
        added_rows_included=update.added_rows_included,
        mod_column_nodes=mods,
    )
    return writer.finished(root)

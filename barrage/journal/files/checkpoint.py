"""Checkpoints: the rows of a table at one version, so that reading back need not begin at the
beginning.

A checkpoint is an Arrow IPC file, rows in key order: ``row_id``, then the table's columns; its
schema's metadata has the version, the row keys and the positions of producers. The CRC-32C of the
whole file stands in its name, ``<version>-<crc>.arrow``. It is written under another name, synced
and then renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import binascii
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from barrage.errors import JournalCorruptError, RemoteProtocolError
from barrage.journal.disk.framing import crc_of
from barrage.journal.records.table_state import TableState
from barrage.model.row_ids import RowIdMap
from barrage.wire.row_sets.row_set_codec import decode_row_set, encode_row_set

if TYPE_CHECKING:
    from barrage.journal.disk.storage import AppendFile, Piece, Storage

FORMAT_VERSION: Final = 1
METADATA_KEY: Final = b"barrage.checkpoint"
KEYS_KEY: Final = b"barrage.row_keys"
_NAME = re.compile(r"(\d{20})-([0-9a-f]{8})\.arrow\Z")
_BATCH_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """One checkpoint that is there."""

    path: str
    version: int
    crc: int
    byte_count: int


def list_checkpoints(storage: Storage, directory: str) -> list[CheckpointFile]:
    """All checkpoints of a table, oldest first."""
    found = []
    for name in storage.list(directory):
        match = _NAME.match(name)
        if match is not None:
            path = f"{directory}/{name}"
            found.append(
                CheckpointFile(
                    path=path,
                    version=int(match[1]),
                    crc=int(match[2], 16),
                    byte_count=storage.size(path),
                )
            )
    return found


class _FileSink:
    """Writes what an IPC writer writes to a file, keeping count and CRC."""

    closed = False

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self.byte_count = 0
        self.crc = 0

    def write(self, piece: Piece) -> int:
        size = len(piece)
        self._file.write([piece])
        self.crc = crc_of([piece], self.crc)
        self.byte_count += size
        return size

    def tell(self) -> int:
        return self.byte_count

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The file is closed by who opened it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that is on the disk and does not count yet."""

    path: str
    made: CheckpointFile

    def finish(self, storage: Storage) -> CheckpointFile:
        """Let it count, now and after a crash."""
        storage.rename(self.path, self.made.path)
        return self.made


def write_checkpoint(
    storage: Storage, directory: str, state: TableState, *, table: str, epoch: str
) -> PendingCheckpoint:
    """Write a state; it counts when it is finished."""
    texts = {
        "format": FORMAT_VERSION,
        "table": table,
        "epoch": epoch,
        "version": state.version,
        "wall_ns": state.wall_ns,
        "next_offset": state.next_offset,
        "positions": dict(state.positions),
    }
    schema = pa.schema([pa.field("row_id", pa.int64(), nullable=False), *state.rows.schema])
    metadata = {
        METADATA_KEY: json.dumps(texts),
        KEYS_KEY: binascii.b2a_base64(encode_row_set(state.keys), newline=False),
    }
    temporary = f"{directory}/{epoch}.pending"
    storage.remove(temporary)
    file = storage.append_to(temporary)
    try:
        sink = _FileSink(file)
        rows = pa.Table.from_arrays(
            [pa.chunked_array([pa.array(state.row_ids)]), *state.rows.columns], schema=schema
        ).replace_schema_metadata(metadata)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), rows.schema) as writer:
            writer.write_table(rows, max_chunksize=_BATCH_ROWS)
        file.sync()
    finally:
        file.close()
    made = CheckpointFile(
        path=f"{directory}/{state.version:020d}-{sink.crc:08x}.arrow",
        version=state.version,
        crc=sink.crc,
        byte_count=sink.byte_count,
    )
    return PendingCheckpoint(path=temporary, made=made)


def read_checkpoint(
    storage: Storage, file: CheckpointFile, *, table: str, epoch: str, is_checked: bool = True
) -> TableState:
    """The state in a checkpoint, its cells mapped; JournalCorruptError."""
    data = storage.read(file.path)
    if is_checked and crc_of([data]) != file.crc:
        raise _damaged(file, "its CRC does not fit its content")
    try:
        rows = pa.ipc.open_file(data).read_all()
        texts = json.loads(rows.schema.metadata[METADATA_KEY])
        keys = decode_row_set(binascii.a2b_base64(rows.schema.metadata[KEYS_KEY]))
        if texts["format"] != FORMAT_VERSION or texts["version"] != file.version:
            raise _damaged(file, "it is of another format or version than its name says")
        if (texts["table"], texts["epoch"]) != (table, epoch):
            raise _damaged(file, f"it belongs to table {texts['table']!r} {texts['epoch']}")
        return TableState(
            version=file.version,
            wall_ns=texts["wall_ns"],
            ids=RowIdMap.of(keys, rows.column(0).to_numpy()),
            rows=rows.select(range(1, rows.num_columns)).replace_schema_metadata(None),
            next_offset=texts["next_offset"],
            positions=texts["positions"],
        )
    except (KeyError, TypeError, ValueError, OSError, RemoteProtocolError) as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: CheckpointFile, reason: str) -> JournalCorruptError:
    return JournalCorruptError(file.path, offset=0, reason=reason)

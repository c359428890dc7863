"""History in files: segments of entries and checkpoints, in one directory per table.

    DIR/tables/<name>/table.json                 identity, epoch
                      wal/00000001.arrow         segments
                      checkpoints/<version>-<crc>.arrow
                      synced                     version and epoch last acknowledged, never synced

The writer thread appends; a maintenance thread makes checkpoints and removes what they make
superfluous; readers map files. The lock guards the lists of both, never any IO that takes long.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from barrage.errors import HistoryLostError, JournalCorruptError
from barrage.journal.checkpoint import CheckpointFile, read_checkpoint, write_checkpoint
from barrage.journal.framing import FramingError, crc_of, read_message
from barrage.journal.record import EntryEncoder, decode_entry
from barrage.journal.retention import forgettable_upto
from barrage.journal.segment import SegmentHeader, SegmentWriter
from barrage.journal.table_state import TableState, replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from barrage.journal.identity import TableRecord
    from barrage.journal.index import Index, IndexRow
    from barrage.journal.options import JournalOptions
    from barrage.journal.record import Entry
    from barrage.journal.segment import SegmentEnd
    from barrage.journal.storage import Storage

WITNESS_FILE: Final = "synced"
_MAPPED_SEGMENTS_MAX: Final = 8
"""Segments kept mapped between reads."""


def segment_path(directory: str, number: int) -> str:
    """Where a segment lies."""
    return f"{directory}/wal/{number:08d}.arrow"


def checkpoint_directory(directory: str) -> str:
    """Where a table's checkpoints lie."""
    return f"{directory}/checkpoints"


def witness(epoch: str, version: int) -> bytes:
    """Content of the file that says what was acknowledged: a line with its own CRC."""
    text = f"{epoch}:{version:020d}".encode()
    return b"%s %08x\n" % (text, crc_of([text]))


def read_witness(content: bytes, epoch: str) -> int:
    """The version in a witness; -1 when it is torn, or of another epoch."""
    text, _, rest = content[:47].partition(b" ")
    said_epoch, _, version = text.partition(b":")
    if rest.strip() != b"%08x" % crc_of([text]) or said_epoch.decode() != epoch:
        return -1
    return int(version)


class FileHistory:
    """Entries and checkpoints of one table in a storage."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        record: TableRecord,
        options: JournalOptions,
        *,
        first_step: int,
        index: Index,
        checkpoints: list[CheckpointFile],
        end: SegmentEnd | None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._record = record
        self._options = options
        self._first_step = first_step
        self._schema = record.identity.entry_schema
        self._encoder = EntryEncoder(self._schema)
        self._index = index
        self._checkpoints = checkpoints
        self._end = end
        self._writer: SegmentWriter | None = None
        self._written: list[IndexRow] = []
        self._synced_end = end
        self._mapped: OrderedDict[int, pa.Buffer] = OrderedDict()
        self._lock = threading.Lock()

    # --- the writer -------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        return self._index

    @property
    def earliest(self) -> int:
        with self._lock:
            return self._earliest()

    def _earliest(self) -> int:
        if self._has_beginning:
            return self._record.created_step
        return self._checkpoints[0].version if self._checkpoints else self._record.created_step

    @property
    def _has_beginning(self) -> bool:
        """Whether the first entry of the history is still there, so that no checkpoint is
        needed."""
        rows = self._index.rows
        if len(rows):
            return bool(rows[0, 2] == 0 and rows[0, 5] == 1) or not self._checkpoints
        return not self._checkpoints

    def write(self, entry: Entry, frontier: int) -> None:
        writer = self._writer
        if writer is None or writer.end.byte_count >= self._options.segment_bytes:
            writer = self._next_segment()
        self._written.append(writer.write(entry, frontier))

    def _next_segment(self) -> SegmentWriter:
        end = self._end
        if self._writer is not None:
            # The next header says how this one ended, which must be true by then.
            self.sync()
            end = self._writer.end
            self._writer.file.close()
            self._writer = None
        number = 1 if end is None else end.number + 1
        header = SegmentHeader(
            table=self._record.identity.name,
            epoch=self._record.epoch,
            number=number,
            first_step=self._first_step,
            previous=end,
        )
        file = self._storage.append_to(segment_path(self._directory, number))
        file.truncate(0)
        self._writer = SegmentWriter.begin(file, header, self._encoder)
        return self._writer

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()
            self._synced_end = self._end = self._writer.end

    def publish(self) -> None:
        with self._lock:
            self._index.extend(self._written)
        version = self._written[-1].step if self._written else -1
        self._written = []
        if version >= 0:
            self._storage.overwrite(
                f"{self._directory}/{WITNESS_FILE}", witness(self._record.epoch, version)
            )

    def rewind(self) -> None:
        """Take back what was written since the last sync, after the disk had no room for it."""
        self._written = []
        if self._writer is None:
            return
        if self._synced_end is not None and self._synced_end.number == self._writer.end.number:
            self._writer.rewind(self._synced_end)
            return
        self._writer.file.truncate(0)
        self._writer.file.close()
        self._storage.remove(segment_path(self._directory, self._writer.end.number))
        self._writer = None

    # --- readers ----------------------------------------------------------------------------------

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Entry]:
        for segment, place, size in rows[:, [5, 6, 4]].tolist():
            data = self._segment(segment, place + size)
            try:
                yield decode_entry(data, read_message(data, place), self._schema)
            except FramingError as error:
                raise JournalCorruptError(
                    segment_path(self._directory, segment), offset=place, reason=str(error)
                ) from error

    def _segment(self, number: int, size: int) -> pa.Buffer:
        """The content of a segment, of at least ``size`` bytes."""
        with self._lock:
            data = self._mapped.get(number)
            if data is not None and data.size >= size:
                self._mapped.move_to_end(number)
                return data
        path = segment_path(self._directory, number)
        try:
            data = self._storage.read(path)
        except FileNotFoundError as error:
            raise HistoryLostError(
                self._record.identity.name,
                asked=f"segment {number}",
                reason="it was forgotten while it was read",
            ) from error
        if data.size < size:
            raise JournalCorruptError(path, offset=data.size, reason="the file has become shorter")
        with self._lock:
            self._mapped[number] = data
            while len(self._mapped) > _MAPPED_SEGMENTS_MAX:
                self._mapped.popitem(last=False)
        return data

    def base_for(self, version: int) -> TableState:
        with self._lock:
            usable = [each for each in self._checkpoints if each.version <= version]
        record = self._record
        if usable:
            return read_checkpoint(
                self._storage, usable[-1], table=record.identity.name, epoch=record.epoch
            )
        return TableState.nothing(
            self._schema, version=record.created_step, wall_ns=record.created_wall_ns
        )

    # --- maintenance ------------------------------------------------------------------------------

    def maintain(self, keep_from: Callable[[], int], now_wall_ns: int) -> None:
        self._checkpoint_when_due()
        upto = forgettable_upto(
            self._index.rows,
            self._options,
            retain_bytes=self._options.retain_bytes,
            keep_from=keep_from(),
            now_wall_ns=now_wall_ns,
        )
        if upto is not None:
            self._forget(upto)

    def _checkpoint_when_due(self) -> None:
        with self._lock:
            newest = self._checkpoints[-1] if self._checkpoints else None
            rows = self._index.rows
        after = self._record.created_step if newest is None else newest.version
        waiting = rows[rows[:, 0] > after]
        replay_bytes = int(waiting[:, 4].sum())
        if replay_bytes <= self._options.checkpoint_bytes_min:
            return
        if newest is not None:
            limit = self._options.checkpoint_state_ratio * newest.byte_count
            # Rows that were only added are read back as fast from the segments.
            added = int(waiting[:, 4].sum()) if self._is_appended(waiting) else 0
            if replay_bytes - added <= limit:
                return
        elif self._is_appended(waiting):
            return
        self.checkpoint(int(rows[-1, 0]))

    def _is_appended(self, rows: npt.NDArray[np.int64]) -> bool:
        return self._record.identity.kind in ("append-only", "static")

    def checkpoint(self, version: int) -> None:
        """Make a checkpoint of ``version``; those between the first and it are removed."""
        with self._lock:
            if any(each.version == version for each in self._checkpoints):
                return
        state = self._state_at(version)
        record = self._record
        made = write_checkpoint(
            self._storage,
            checkpoint_directory(self._directory),
            state,
            table=record.identity.name,
            epoch=record.epoch,
        )
        with self._lock:
            base = self._checkpoints[:1] if not self._has_beginning else []
            gone = [each for each in self._checkpoints if each not in base]
            self._checkpoints = [*base, made]
        for each in gone:
            self._storage.remove(each.path)

    def _state_at(self, version: int) -> TableState:
        base = self.base_for(version)
        rows = self._index.span(base.version, version)
        return replayed(base, self.read(rows), producers_max=self._options.producers_max)

    def _forget(self, upto: int) -> None:
        """Remove the segments that end at or before ``upto``, when that is worth a checkpoint."""
        rows = self._index.rows
        segments = rows[:, 5]
        past = rows[rows[:, 0] > upto]
        kept_from = int(past[0, 5]) if len(past) else int(segments[-1])
        gone = rows[segments < kept_from]
        if len(gone) == 0:
            return
        version = int(gone[-1, 0])
        with self._lock:
            newest = self._checkpoints[-1] if self._checkpoints else None
            has_base = any(each.version == version for each in self._checkpoints)
        if newest is not None and not has_base and 2 * int(gone[:, 4].sum()) < newest.byte_count:
            return
        self._advance_base(version)
        first_segment = int(gone[0, 5])
        with self._lock:
            self._index.forget_upto(version)
            for number in range(first_segment, kept_from):
                self._mapped.pop(number, None)
        for number in range(first_segment, kept_from):
            self._storage.remove(segment_path(self._directory, number))

    def _advance_base(self, version: int) -> None:
        """Make a checkpoint of ``version`` the one that the history begins with."""
        with self._lock:
            found = [each for each in self._checkpoints if each.version == version]
        record = self._record
        made = (
            found[0]
            if found
            else write_checkpoint(
                self._storage,
                checkpoint_directory(self._directory),
                self._state_at(version),
                table=record.identity.name,
                epoch=record.epoch,
            )
        )
        with self._lock:
            gone = [each for each in self._checkpoints if each.version < version]
            later = [each for each in self._checkpoints if each.version > version]
            self._checkpoints = [made, *later]
        for each in gone:
            self._storage.remove(each.path)

    @property
    def checkpoints(self) -> tuple[CheckpointFile, ...]:
        """Checkpoints that are there, oldest first."""
        with self._lock:
            return tuple(self._checkpoints)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.file.close()
            self._writer = None
        self._mapped.clear()

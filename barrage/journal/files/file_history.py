"""History in files: segments of entries and checkpoints, in one directory per table.

    DIR/tables/<name>/table.json                 identity, epoch
                      wal/00000001.arrow         segments
                      checkpoints/<version>-<crc>.arrow
                      begin.json                 where the history begins, once something is gone
                      synced                     version and epoch last acknowledged, never synced

The writer thread appends; a maintenance thread makes checkpoints and removes what they make
superfluous; readers map files. The lock guards the lists of both, never any IO: who hands changes
over waits for it, too.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from barrage.errors import HistoryLostError, JournalCorruptError
from barrage.journal.disk.framing import FramingError, crc_of, read_message
from barrage.journal.files.checkpoint import CheckpointFile, read_checkpoint, write_checkpoint
from barrage.journal.files.segment import SegmentHeader, SegmentWriter
from barrage.journal.files.segment_index import SegmentIndex
from barrage.journal.records.identity import HistoryBegin
from barrage.journal.records.record import EntryEncoder, decode_entry
from barrage.journal.records.retention import forgettable_upto
from barrage.journal.records.table_state import TableState, replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from barrage.journal.disk.storage import Storage
    from barrage.journal.files.segment import SegmentEnd
    from barrage.journal.records.identity import TableRecord
    from barrage.journal.records.index import Index, IndexRow
    from barrage.journal.records.options import JournalOptions
    from barrage.journal.records.record import Entry

logger = logging.getLogger(__name__)

BEGIN_FILE: Final = "begin.json"
WITNESS_FILE: Final = "synced"
STEPS_MIN: Final = 16
"""Entries a segment has at least, however few are kept."""

_MAPPED_SEGMENTS_MAX: Final = 8
"""Segments kept mapped between reads."""


def segment_path(directory: str, number: int) -> str:
    """Where a segment lies."""
    return f"{directory}/wal/{number:08d}.arrow"


def index_path(directory: str, number: int) -> str:
    """Where the index of a closed segment lies."""
    return f"{directory}/wal/{number:08d}.index"


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
        *,
        options: JournalOptions,
        first_step: int,
        index: Index,
        checkpoints: list[CheckpointFile],
        end: SegmentEnd | None,
        begin: HistoryBegin | None = None,
        frontier: int = -1,
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
        self._unattested: int | None = None
        self._begin = begin or HistoryBegin(version=record.created_step, segment=1)
        self._announced = {self._begin.version}
        """Versions the history may begin with for who reads the files: the write of another
        beginning may have failed when it was done already."""
        self._frontier = frontier
        self._is_closed = False
        self._begun_wall_ns = self._begun_count = 0
        self._mapped: OrderedDict[int, pa.Buffer] = OrderedDict()
        self._placing = threading.Lock()
        """Held while a file is put in its place: a table that was dropped, and perhaps made anew,
        gets no file of the old one. Taken before the other."""
        self._lock = threading.Lock()

    # --- the writer -------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        return self._index

    @property
    def earliest(self) -> int:
        return self._begin.version

    def write(self, entry: Entry, frontier: int, *, is_joint: bool = False) -> None:
        if self._end is not None and entry.step <= self._end.step:
            # The disk got full after this was synced with the segment before.
            return
        writer = self._writer
        if writer is None or self._is_long(writer, entry):
            writer = self._next_segment()
            self._begun_wall_ns, self._begun_count = entry.wall_ns, 0
        self._written.append(writer.write(entry, frontier, is_joint=is_joint))
        self._begun_count += 1
        self._frontier = frontier

    def _is_long(self, writer: SegmentWriter, entry: Entry) -> bool:
        """Whether a new segment is due: by size, and where history goes by age or steps, which it
        does in whole segments, after a part of what is kept."""
        options = self._options
        age_ns, steps = options.retain_age_ns, options.retain_steps
        return (
            writer.end.byte_count >= options.segment_bytes
            or (age_ns is not None and entry.wall_ns - self._begun_wall_ns > age_ns // 4)
            or (steps is not None and self._begun_count >= max(STEPS_MIN, steps // 4))
        )

    def _next_segment(self) -> SegmentWriter:
        if self._writer is not None:
            # The next header says how this one ended, which must be true by then.
            self.sync()
            self._writer.file.close()
            self._writer = None
        end = self._end
        if end is not None:
            self._write_index(end)
        number = 1 if end is None else end.number + 1
        header = SegmentHeader(
            table=self._record.identity.name,
            epoch=self._record.epoch,
            number=number,
            first_step=self._first_step,
            previous=end,
        )
        file = self._storage.append_to(segment_path(self._directory, number))
        try:
            file.truncate(0)
            self._writer = SegmentWriter.begin(file, header, self._encoder)
        except BaseException:
            file.close()
            raise
        return self._writer

    def _write_index(self, end: SegmentEnd) -> None:
        """Spare the next start the reading of a closed segment."""
        rows = self._index.rows
        rows = rows[rows[:, 5] == end.number]
        fresh = [row for row in self._written if row.segment == end.number]
        if fresh:
            rows = np.concatenate((rows, np.array(fresh, dtype=np.int64)))
        content = SegmentIndex(end=end, frontier=self._frontier, rows=rows).encode()
        try:
            self._storage.overwrite(index_path(self._directory, end.number), content)
        except OSError as error:
            logger.warning("no index of segment %d: %s", end.number, error)

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()
            self._end = self._writer.end

    def publish(self) -> None:
        written, self._written = self._written, []
        if written:
            with self._lock:
                self._index.extend(written)
            self._unattested = written[-1].step

    def attest(self) -> None:
        step, self._unattested = self._unattested, None
        if step is None:
            return
        path = f"{self._directory}/{WITNESS_FILE}"
        try:
            self._storage.overwrite(path, witness(self._record.epoch, step))
        except OSError as error:
            # An older one is no lie, it only tells less.
            logger.warning("%s: %s", path, error)

    def rewind(self) -> None:
        """Take back what was written since the last sync, after the disk had no room for it."""
        end = self._end
        self._written = [row for row in self._written if end is not None and row.step <= end.step]
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if end is not None and end.number == writer.end.number:
            writer.rewind(end)
            self._writer = writer
            return
        writer.file.truncate(0)
        writer.file.close()
        self._storage.remove(segment_path(self._directory, writer.end.number))

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
        record = self._record
        gone: CheckpointFile | None = None
        while True:
            with self._lock:
                usable = [each for each in self._checkpoints if each.version <= version]
                begin = self._begin
            if not usable and begin.segment == 1 and version >= begin.version:
                return TableState.nothing(
                    self._schema, version=record.created_step, wall_ns=record.created_wall_ns
                )
            if not usable or usable[-1] is gone:
                raise HistoryLostError(
                    record.identity.name,
                    asked=f"{record.epoch}:{version}",
                    reason=f"the oldest version kept is {self.earliest}",
                )
            try:
                return read_checkpoint(
                    self._storage, usable[-1], table=record.identity.name, epoch=record.epoch
                )
            except FileNotFoundError:
                # Retention was faster; what it put in its place is in the list.
                gone = usable[-1]

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
        if self._record.identity.kind in ("append-only", "static"):
            # Rows that were only added are read back as fast from the segments.
            return
        with self._lock:
            newest = self._checkpoints[-1] if self._checkpoints else None
        rows = self._index.rows
        after = self._begin.version if newest is None else newest.version
        replay_bytes = int(rows[rows[:, 0] > after, 4].sum())
        state_bytes = 0 if newest is None else newest.byte_count
        limit = self._options.checkpoint_state_ratio * state_bytes
        if replay_bytes > max(limit, self._options.checkpoint_bytes_min):
            self.checkpoint(int(rows[-1, 0]))

    def checkpoint(self, version: int) -> None:
        """Make a checkpoint of ``version``; those that the history does not begin with are
        removed."""
        with self._lock:
            if any(each.version == version for each in self._checkpoints):
                return
        made = self._make_checkpoint(version)
        if made is None:
            return
        with self._lock:
            gone = [each for each in self._checkpoints if each.version not in self._announced]
            kept = [each for each in self._checkpoints if each.version in self._announced]
            self._checkpoints = [*kept, made]
        for each in gone:
            self._storage.remove(each.path)

    def state_at(self, version: int) -> TableState:
        """The rows at a version that was published."""
        base = self.base_for(version)
        rows = self._index.span(base.version, version)
        return replayed(base, self.read(rows), producers_max=self._options.producers_max)

    def begin_anew(self) -> None:
        """Forget all changes: the history begins with a checkpoint of now and an empty segment."""
        end = self._end
        if end is None:
            return
        version = max(end.step, self._begin.version)
        if self._begin.version == version:
            return
        found = [each for each in self._checkpoints if each.version == version]
        base = found[0] if found else self._make_checkpoint(version)
        if base is not None:
            self._next_segment()
            self._begin_with(base, first_segment=self._begin.segment, kept_from=end.number + 1)

    def _make_checkpoint(self, version: int) -> CheckpointFile | None:
        """Write one; None when the history was closed meanwhile."""
        state = self.state_at(version)
        record = self._record
        directory = checkpoint_directory(self._directory)
        pending = write_checkpoint(
            self._storage, directory, state, table=record.identity.name, epoch=record.epoch
        )
        with self._placing:
            return None if self._is_closed else pending.finish(self._storage)

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
            base = [each for each in self._checkpoints if each.version == version]
        if newest is not None and not base and 2 * int(gone[:, 4].sum()) < newest.byte_count:
            return
        made = base[0] if base else self._make_checkpoint(version)
        if made is not None:
            self._begin_with(made, first_segment=int(gone[0, 5]), kept_from=kept_from)

    def _begin_with(self, base: CheckpointFile, *, first_segment: int, kept_from: int) -> None:
        """Let the history begin with a checkpoint, and remove what is older."""
        numbers = range(first_segment, kept_from)
        begin = HistoryBegin(version=base.version, segment=kept_from)
        with self._placing:
            if self._is_closed:
                return
            with self._lock:
                self._announced.add(begin.version)
            self._storage.replace(f"{self._directory}/{BEGIN_FILE}", begin.encode())
        with self._lock:
            self._begin, self._announced = begin, {begin.version}
            older = [each for each in self._checkpoints if each.version < base.version]
            later = [each for each in self._checkpoints if each.version > base.version]
            self._checkpoints = [base, *later]
            self._index.forget_upto(base.version)
            for number in numbers:
                self._mapped.pop(number, None)
        # What a crash leaves of this is removed by the next start.
        for number in numbers:
            self._storage.remove(index_path(self._directory, number))
            self._storage.remove(segment_path(self._directory, number))
        for each in older:
            self._storage.remove(each.path)

    @property
    def checkpoints(self) -> tuple[CheckpointFile, ...]:
        """Checkpoints that are there, oldest first."""
        with self._lock:
            return tuple(self._checkpoints)

    def close(self) -> None:
        with self._placing:
            self._is_closed = True
        if self._writer is not None:
            self._writer.file.close()
            self._writer = None
        self._mapped.clear()

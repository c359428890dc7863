"""Reading a table's files back after a restart, however the process before it ended.

What a crash may leave is taken away: a torn tail of the last segment, a last segment whose header
is not whole, files that were not finished, changes of a cycle over several tables that was not
committed (see :mod:`.commits`). Everything else that is not as it was written is damage and raises
JournalCorruptError with file and offset: nothing that was acknowledged is skipped.

Reading changes nothing. What is read may never have reached the disk, as a process that is killed
leaves what it wrote in the system's cache; :meth:`RecoveredTable.settle` makes sure of it, and
nobody is told of any of it before.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barrage.errors import JournalCorruptError
from barrage.journal.disk.framing import FramingError, may_hold_message
from barrage.journal.files.checkpoint import list_checkpoints, read_checkpoint
from barrage.journal.files.commits import read_commit
from barrage.journal.files.file_history import (
    BEGIN_FILE,
    WITNESS_FILE,
    FileHistory,
    checkpoint_directory,
    index_path,
    read_witness,
    segment_path,
)
from barrage.journal.files.segment import SegmentEnd, SegmentHeader, read_header, scan
from barrage.journal.files.segment_index import decode_segment_index
from barrage.journal.records.identity import HistoryBegin, TableRecord
from barrage.journal.records.index import Index
from barrage.journal.records.record import decode_entry
from barrage.journal.records.table_state import TableState, replayed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from barrage.journal.disk.framing import Message
    from barrage.journal.disk.storage import Storage
    from barrage.journal.files.checkpoint import CheckpointFile
    from barrage.journal.records.options import JournalOptions
    from barrage.journal.records.record import Entry, RecordHead

logger = logging.getLogger(__name__)

RECORD_FILE: Final = "table.json"
_SEGMENT = re.compile(r"(\d{8})\.arrow\Z")


@dataclass(kw_only=True)
class RecoveredTable:
    """A table as its files have it."""

    record: TableRecord
    directory: str
    index: Index
    begin: HistoryBegin
    checkpoints: list[CheckpointFile]
    end: SegmentEnd | None
    state: TableState
    frontier: int
    """Step up to which all tables' changes were on the disk, as this table's records know."""
    synced: int = 0
    """Bytes of the last segment that its records say were synced; 0 without records."""
    left_overs: tuple[str, ...] = ()
    """Files to be removed, in this order."""

    def settle(self, storage: Storage, *, sure_step: int) -> None:
        """Put on the disk what has been read, and take off what has been left out. OSError.

        Up to ``sure_step`` everything is known to have been synced by who wrote it. Names come
        before removals: what a removal relies upon must not be undone by a power cut after it.
        """
        for part in ("wal", "checkpoints"):
            storage.sync_directory(f"{self.directory}/{part}")
        storage.sync_directory(self.directory)
        for path in self.left_overs:
            storage.remove(path)
        end = self.end
        if end is None:
            return
        # What was synced is not written again, but the file is synced in any case: a process that
        # was killed right here may have cut it off already, in the cache alone.
        is_sure = end.step <= sure_step and self.synced > 0
        start = end.byte_count if is_sure else min(self.synced, end.byte_count)
        storage.settle(segment_path(self.directory, end.number), start, end.byte_count)

    def history(self, storage: Storage, options: JournalOptions, *, first_step: int) -> FileHistory:
        """The history, ready to be written on."""
        return FileHistory(
            storage,
            self.directory,
            self.record,
            options=options,
            first_step=first_step,
            index=self.index,
            begin=self.begin,
            checkpoints=self.checkpoints,
            end=self.end,
            frontier=self.frontier,
        )


def recover_table(storage: Storage, directory: str, options: JournalOptions) -> RecoveredTable:
    """Read a table back, writing nothing: of a directory in use, too."""
    path = f"{directory}/{RECORD_FILE}"
    record = TableRecord.decode(storage.read(path).to_pybytes(), path=path)
    # Before the segments, and in the order in which they are written: of a table in use they go on
    # while they are read.
    acknowledged = _acknowledged(storage, directory, record)
    committed = read_commit(storage)
    found = list_checkpoints(storage, checkpoint_directory(directory))
    all_numbers = segment_numbers(storage, directory)
    begin = _begin(storage, directory, record)
    checkpoints = [each for each in found if each.version >= begin.version]
    numbers = [number for number in all_numbers if number >= begin.segment]
    _check_beginning(
        directory, begin, numbers, checkpoints=checkpoints, created_step=record.created_step
    )
    base = (
        read_checkpoint(storage, checkpoints[-1], table=record.identity.name, epoch=record.epoch)
        if checkpoints
        else TableState.nothing(
            record.identity.entry_schema,
            version=record.created_step,
            wall_ns=record.created_wall_ns,
        )
    )
    # Of what was acknowledged, or is in a checkpoint, it is known without the commit's word.
    sure = None if committed is None else max(committed, acknowledged, base.version)
    reader = _Reader(storage, directory, record, committed=sure)
    state = replayed(
        base, reader.entries_after(numbers, base.version), producers_max=options.producers_max
    )
    _check_end(directory, reader.end, state, base=base if checkpoints else None, told=acknowledged)
    return RecoveredTable(
        record=record,
        directory=directory,
        index=reader.index,
        begin=begin,
        checkpoints=checkpoints,
        end=reader.end,
        state=state,
        frontier=reader.frontier,
        synced=reader.synced,
        left_overs=(
            *_unfinished(storage, directory),
            *_forgotten(directory, begin, all_numbers, checkpoints=found),
            *reader.left_overs,
        ),
    )


def _check_end(
    directory: str,
    end: SegmentEnd | None,
    state: TableState,
    *,
    base: TableState | None,
    told: int,
) -> None:
    """The files must reach the newest checkpoint, and what was acknowledged."""
    if base is not None and (end is None or end.step < base.version):
        raise JournalCorruptError(
            f"{directory}/wal",
            offset=0,
            reason=f"there is a checkpoint of version {base.version}, which the files do not reach",
        )
    if told > state.version:
        raise JournalCorruptError(
            f"{directory}/wal",
            offset=0,
            reason=f"version {told} was acknowledged, but the files end at {state.version}",
        )


def remove_table(storage: Storage, directory: str) -> None:
    """Remove a table, or what is left of one. Without its record the rest is a left-over, which the
    next start removes; so that goes first, and for good, before anything else does."""
    storage.remove(f"{directory}/{RECORD_FILE}")
    storage.sync_directory(directory)
    storage.remove(directory)


def salvage_table(storage: Storage, directory: str) -> RecoveredTable:
    """A damaged table up to the damage: the newest whole checkpoint, and the changes that follow on
    it as far as they can be read. Nothing is written. JournalCorruptError when not even the
    table's record can be read."""
    path = f"{directory}/{RECORD_FILE}"
    record = TableRecord.decode(storage.read(path).to_pybytes(), path=path)
    checkpoints, state = _newest_whole(storage, directory, record)
    reader = _Reader(storage, directory, record, committed=read_commit(storage))
    entries: list[Entry] = []
    try:
        for entry in reader.entries_after(segment_numbers(storage, directory), state.version):
            if entry.first_offset != (entries[-1].next_offset if entries else state.next_offset):
                break
            entries.append(entry)
    except JournalCorruptError as error:
        logger.debug("salvaged up to %s", error)
    first = entries[0].step if entries else state.version + 1
    if any(reader.index.steps < first):
        # Whole as well, but before a checkpoint: of no use without the state they follow on.
        reader.index.forget_upto(first - 1)
    return RecoveredTable(
        record=record,
        directory=directory,
        index=reader.index,
        begin=HistoryBegin(version=state.version, segment=1),
        checkpoints=checkpoints,
        end=reader.end,
        state=replayed(state, entries),
        frontier=reader.frontier,
    )


def _newest_whole(
    storage: Storage, directory: str, record: TableRecord
) -> tuple[list[CheckpointFile], TableState]:
    """The newest checkpoint that can be read, else the table as it was created."""
    for each in reversed(list_checkpoints(storage, checkpoint_directory(directory))):
        try:
            state = read_checkpoint(storage, each, table=record.identity.name, epoch=record.epoch)
        except JournalCorruptError as error:
            logger.debug("no use for %s", error)
        else:
            return [each], state
    nothing = TableState.nothing(
        record.identity.entry_schema, version=record.created_step, wall_ns=record.created_wall_ns
    )
    return [], nothing


def _unfinished(storage: Storage, directory: str) -> list[str]:
    return [
        f"{part}/{name}"
        for part in (directory, checkpoint_directory(directory))
        for name in storage.list(part)
        if name.endswith(".pending")
    ]


def _begin(storage: Storage, directory: str, record: TableRecord) -> HistoryBegin:
    """Where the history begins; without retention with the empty table."""
    path = f"{directory}/{BEGIN_FILE}"
    try:
        return HistoryBegin.decode(storage.read(path).to_pybytes(), path=path)
    except FileNotFoundError:
        return HistoryBegin(version=record.created_step, segment=1)


def _forgotten(
    directory: str, begin: HistoryBegin, numbers: list[int], *, checkpoints: list[CheckpointFile]
) -> list[str]:
    """What retention had given up when a crash came."""
    gone = []
    for number in numbers:
        if number < begin.segment:
            gone += [index_path(directory, number), segment_path(directory, number)]
    return gone + [each.path for each in checkpoints if each.version < begin.version]


def _check_beginning(
    directory: str,
    begin: HistoryBegin,
    numbers: list[int],
    *,
    checkpoints: list[CheckpointFile],
    created_step: int,
) -> None:
    """The first segment and the state it begins with must be there."""
    is_fresh = begin.segment == 1 and begin.version == created_step
    if not is_fresh and (not checkpoints or checkpoints[0].version != begin.version):
        raise JournalCorruptError(
            checkpoint_directory(directory),
            offset=0,
            reason=f"the checkpoint of version {begin.version} is missing",
        )
    if (numbers or not is_fresh or checkpoints) and numbers[:1] != [begin.segment]:
        raise JournalCorruptError(
            segment_path(directory, begin.segment), offset=0, reason="the file is missing"
        )


def segment_numbers(storage: Storage, directory: str) -> list[int]:
    """Numbers of the segments that are there, ascending."""
    found = (_SEGMENT.match(name) for name in storage.list(f"{directory}/wal"))
    return sorted(int(match[1]) for match in found if match is not None)


class _Reader:
    """Goes through the segments of one table, checking that each follows on the one before."""

    def __init__(
        self, storage: Storage, directory: str, record: TableRecord, *, committed: int | None
    ) -> None:
        """``committed``: the step up to which cycles over several tables are whole; None when all
        of them are."""
        self.index = Index()
        self.end: SegmentEnd | None = None
        self.frontier = -1
        self.synced = 0
        self.left_overs: list[str] = []
        self._committed = committed
        self._is_cut = False
        self._storage = storage
        self._directory = directory
        self._record = record

    def entries_after(self, numbers: list[int], version: int) -> Iterator[Entry]:
        """Every entry past ``version``; all are put into the index."""
        for place, number in enumerate(numbers):
            is_last = number == numbers[-1]
            if is_last or not self._skip(number, version):
                yield from self._segment(number, version, is_last=is_last)
            if self._is_cut:
                # Newest first, so that what a crash leaves of them follows on each other.
                for gone in reversed(numbers[place + 1 :]):
                    self._leave_out(gone)
                self.left_overs.append(index_path(self._directory, number))
                return

    def _leave_out(self, number: int) -> None:
        self.left_overs.append(index_path(self._directory, number))
        self.left_overs.append(segment_path(self._directory, number))

    def _skip(self, number: int, version: int) -> bool:
        """Take a closed segment whose entries are all in the checkpoint from its index."""
        try:
            content = self._storage.read(index_path(self._directory, number)).to_pybytes()
        except FileNotFoundError:
            return False
        found = decode_segment_index(content)
        if found is None or found.end.step > version:
            return False
        path = segment_path(self._directory, number)
        if self._storage.size(path) != found.end.byte_count:
            return False
        self._header(path, self._storage.read(path))
        self.index.extend(found.rows)
        self.frontier = max(self.frontier, found.frontier)
        self.end = found.end
        return True

    def _header(self, path: str, data: pa.Buffer) -> tuple[SegmentHeader, Message]:
        """The header of a segment, which must follow on the segments read so far."""
        try:
            header, message = read_header(data)
        except FramingError as error:
            raise JournalCorruptError(path, offset=0, reason=str(error)) from error
        record = self._record
        if (header.table, header.epoch) != (record.identity.name, record.epoch):
            raise JournalCorruptError(
                path, offset=0, reason=f"it belongs to table {header.table!r} {header.epoch}"
            )
        if self.end is not None and header.previous != self.end:
            raise JournalCorruptError(
                path,
                offset=0,
                reason=f"the segment before it should end as {header.previous}, "
                f"but ends as {self.end}",
            )
        return header, message

    def _segment(self, number: int, version: int, *, is_last: bool) -> Iterator[Entry]:
        path = segment_path(self._directory, number)
        data = self._storage.read(path)
        if is_last and self._is_unfinished(path, data):
            return
        header, message = self._header(path, data)
        self.end = header.beginning(byte_count=message.stop, crc=message.crc)
        self.synced = 0
        schema = self._record.identity.entry_schema
        rows = []
        for found in scan(data, header, message, name=path, is_last=is_last):
            if self._is_half(found.head):
                self._is_cut = True
                break
            rows.append(found.row)
            self.synced = max(self.synced, found.head.surroundings.synced)
            self.frontier = max(self.frontier, found.head.surroundings.frontier)
            self.end = SegmentEnd(
                number=number,
                byte_count=found.message.stop,
                step=found.head.step,
                crc=found.message.crc,
                next_offset=found.head.first_offset + found.head.row_count,
            )
            if found.head.step > version:
                try:
                    yield decode_entry(data, found.message, schema, head=found.head)
                except FramingError as error:
                    raise JournalCorruptError(
                        path, offset=found.message.start, reason=str(error)
                    ) from error
        self.index.extend(rows)

    def _is_half(self, head: RecordHead) -> bool:
        """Whether a record is of a cycle over several tables that was not committed."""
        if self._committed is None or head.step <= self._committed:
            return False
        return head.surroundings.is_joint

    def _is_unfinished(self, path: str, data: pa.Buffer) -> bool:
        """Whether a crash came while the segment was begun: its header is not whole, and no record
        follows it, as headers are synced before records are written."""
        try:
            read_header(data)
        except FramingError:
            if may_hold_message(data):
                return False
            self.left_overs.append(path)
            return True
        return False


def _acknowledged(storage: Storage, directory: str, record: TableRecord) -> int:
    """The version last acknowledged, as far as its witness knows; -1 when there is none."""
    try:
        content = storage.read(f"{directory}/{WITNESS_FILE}").to_pybytes()
    except FileNotFoundError:
        return -1
    return read_witness(content, record.epoch)

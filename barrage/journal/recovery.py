"""Reading a table's files back after a restart, however the process before it ended.

What a crash may leave is taken away: a torn tail of the last segment, a last segment whose header
is not whole, files that were not finished. Everything else that is not as it was written is damage
and raises JournalCorruptError with file and offset: nothing that was acknowledged is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barrage.errors import JournalCorruptError
from barrage.journal.checkpoint import list_checkpoints, read_checkpoint
from barrage.journal.file_history import (
    WITNESS_FILE,
    FileHistory,
    checkpoint_directory,
    read_witness,
    segment_path,
)
from barrage.journal.framing import FramingError
from barrage.journal.identity import TableRecord
from barrage.journal.index import Index
from barrage.journal.record import decode_entry
from barrage.journal.segment import SegmentEnd, read_header, scan
from barrage.journal.table_state import TableState, replayed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.journal.checkpoint import CheckpointFile
    from barrage.journal.options import JournalOptions
    from barrage.journal.record import Entry
    from barrage.journal.storage import Storage

RECORD_FILE: Final = "table.json"
_SEGMENT = re.compile(r"(\d{8})\.arrow\Z")


@dataclass(kw_only=True)
class RecoveredTable:
    """A table as its files have it."""

    record: TableRecord
    directory: str
    index: Index
    checkpoints: list[CheckpointFile]
    end: SegmentEnd | None
    state: TableState
    frontier: int
    """Step up to which all tables' changes were on the disk, as this table's records know."""

    def history(self, storage: Storage, options: JournalOptions, *, first_step: int) -> FileHistory:
        """The history, ready to be written on."""
        return FileHistory(
            storage,
            self.directory,
            self.record,
            options,
            first_step=first_step,
            index=self.index,
            checkpoints=self.checkpoints,
            end=self.end,
        )


def recover_table(
    storage: Storage, directory: str, options: JournalOptions, *, is_repaired: bool = True
) -> RecoveredTable:
    """Read a table back. ``is_repaired``: cut torn tails off the files, too; without it nothing is
    written, for looking at a directory in use."""
    path = f"{directory}/{RECORD_FILE}"
    record = TableRecord.decode(storage.read(path).to_pybytes(), path=path)
    if is_repaired:
        _remove_unfinished(storage, directory)
    checkpoints = list_checkpoints(storage, checkpoint_directory(directory))
    numbers = _segment_numbers(storage, directory)
    reader = _Reader(storage, directory, record, is_repaired=is_repaired)
    base = (
        read_checkpoint(storage, checkpoints[-1], table=record.identity.name, epoch=record.epoch)
        if checkpoints
        else TableState.nothing(
            record.identity.entry_schema,
            version=record.created_step,
            wall_ns=record.created_wall_ns,
        )
    )
    state = replayed(
        base, reader.entries_after(numbers, base.version), producers_max=options.producers_max
    )
    reader.check_beginning(checkpoints)
    _check_acknowledged(storage, directory, record, state)
    return RecoveredTable(
        record=record,
        directory=directory,
        index=reader.index,
        checkpoints=checkpoints,
        end=reader.end,
        state=state,
        frontier=reader.frontier,
    )


def _remove_unfinished(storage: Storage, directory: str) -> None:
    for part in (directory, checkpoint_directory(directory)):
        for name in storage.list(part):
            if name.endswith(".pending"):
                storage.remove(f"{part}/{name}")


def _segment_numbers(storage: Storage, directory: str) -> list[int]:
    found = (_SEGMENT.match(name) for name in storage.list(f"{directory}/wal"))
    return sorted(int(match[1]) for match in found if match is not None)


class _Reader:
    """Goes through the segments of one table, checking that each follows on the one before."""

    def __init__(
        self, storage: Storage, directory: str, record: TableRecord, *, is_repaired: bool
    ) -> None:
        self.index = Index()
        self.end: SegmentEnd | None = None
        self.frontier = -1
        self._storage = storage
        self._directory = directory
        self._record = record
        self._is_repaired = is_repaired

    def entries_after(self, numbers: list[int], version: int) -> Iterator[Entry]:
        """Every entry past ``version``; all are put into the index."""
        for number in numbers:
            yield from self._segment(number, version, is_last=number == numbers[-1])

    def _segment(self, number: int, version: int, *, is_last: bool) -> Iterator[Entry]:
        path = segment_path(self._directory, number)
        data = self._storage.read(path)
        try:
            header, message = read_header(data)
        except FramingError as error:
            if is_last and self._is_torn_header(data.size, path):
                return
            raise JournalCorruptError(path, offset=0, reason=str(error)) from error
        self._check_header(path, header)
        end = header.previous
        self.end = SegmentEnd(
            number=number,
            byte_count=message.stop,
            step=header.first_step - 1 if end is None else end.step,
            crc=message.crc,
            next_offset=0 if end is None else end.next_offset,
        )
        schema = self._record.identity.entry_schema
        for found in scan(data, header, message, name=path, is_last=is_last):
            self.index.extend([found.row])
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
                    yield decode_entry(data, found.message, schema, found.head)
                except FramingError as error:
                    raise JournalCorruptError(
                        path, offset=found.message.start, reason=str(error)
                    ) from error
        if self.end.byte_count < data.size and self._is_repaired:
            self._cut(path, self.end.byte_count)

    def _is_torn_header(self, size: int, path: str) -> bool:
        """A crash while a segment was begun leaves part of a header and nothing else."""
        if self._is_repaired:
            self._storage.remove(path)
        return size < 1 << 20

    def _cut(self, path: str, size: int) -> None:
        file = self._storage.append_to(path)
        try:
            file.truncate(size)
            file.sync()
        finally:
            file.close()

    def _check_header(self, path: str, header: object) -> None:
        from barrage.journal.segment import SegmentHeader

        assert isinstance(header, SegmentHeader)
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

    def check_beginning(self, checkpoints: list[CheckpointFile]) -> None:
        """The first entry must be the table's first, or follow on a checkpoint."""
        rows = self.index.rows
        if len(rows) == 0:
            return
        first = int(rows[0, 5])
        if first > 1 and not checkpoints:
            raise JournalCorruptError(
                segment_path(self._directory, first - 1), offset=0, reason="the file is missing"
            )


def _check_acknowledged(
    storage: Storage, directory: str, record: TableRecord, state: TableState
) -> None:
    try:
        content = storage.read(f"{directory}/{WITNESS_FILE}").to_pybytes()
    except FileNotFoundError:
        return
    version = read_witness(content, record.epoch)
    if version > state.version:
        raise JournalCorruptError(
            f"{directory}/wal",
            offset=0,
            reason=f"version {version} was acknowledged, but the files end at {state.version}",
        )

"""A data directory without a server: what is in it, whether it is whole, and making it smaller.

Looking and verifying write nothing and need no lock, so they work on a directory in use; compacting
needs the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import JournalCorruptError, TableNotFoundError
from barrage.journal.disk.framing import FramingError
from barrage.journal.files.checkpoint import read_checkpoint
from barrage.journal.files.file_history import segment_path
from barrage.journal.files.opening import TABLES
from barrage.journal.files.recovery import (
    RECORD_FILE,
    RecoveredTable,
    recover_table,
    salvage_table,
    segment_numbers,
)
from barrage.journal.files.segment import read_header, scan
from barrage.journal.files.steps import Steps
from barrage.journal.records.identity import TableRecord, directory_of
from barrage.journal.records.options import DEFAULT_JOURNAL_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.journal.disk.storage import Storage
    from barrage.journal.records.record import Entry
    from barrage.journal.records.table_state import TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table in a data directory."""

    directory: str
    name: str
    record: TableRecord | None
    """None when not even that could be read."""
    damage: JournalCorruptError | None = None


def find_tables(storage: Storage) -> list[FoundTable]:
    """All tables in a directory, by name. What is left of creating or dropping one is none."""
    found = []
    for directory_name in storage.list(TABLES):
        directory = f"{TABLES}/{directory_name}"
        path = f"{directory}/{RECORD_FILE}"
        try:
            record = TableRecord.decode(storage.read(path).to_pybytes(), path=path)
        except FileNotFoundError:
            continue
        except JournalCorruptError as error:
            found.append(
                FoundTable(directory=directory, name=directory_name, record=None, damage=error)
            )
            continue
        found.append(FoundTable(directory=directory, name=record.identity.name, record=record))
    return sorted(found, key=lambda table: table.name)


def find_table(storage: Storage, name: str) -> FoundTable:
    """The table of that name; TableNotFoundError, JournalCorruptError."""
    tables = find_tables(storage)
    for table in tables:
        if table.name == name or table.directory == f"{TABLES}/{directory_of(name)}":
            if table.damage is not None:
                raise table.damage
            return table
    raise TableNotFoundError(name, known=[table.name for table in tables])


def look_at(storage: Storage, table: FoundTable) -> RecoveredTable:
    """A table as a restart would find it, without touching its files; JournalCorruptError."""
    if table.damage is not None:
        raise table.damage
    return recover_table(storage, table.directory, DEFAULT_JOURNAL_OPTIONS)


def salvaged(
    storage: Storage, table: FoundTable
) -> tuple[RecoveredTable, JournalCorruptError | None]:
    """A table as far as it can be read, and what is damaged behind that. JournalCorruptError when
    nothing can be read."""
    try:
        return look_at(storage, table), None
    except JournalCorruptError as error:
        if table.record is None:
            raise
        return salvage_table(storage, table.directory), error


def table_bytes(storage: Storage, table: FoundTable) -> int:
    """Bytes of all files that :func:`verify` reads."""
    return sum(storage.size(path) for path in _files(storage, table))


def _files(storage: Storage, table: FoundTable) -> list[str]:
    folders = (f"{table.directory}/wal", f"{table.directory}/checkpoints")
    return [
        f"{folder}/{name}"
        for folder in folders
        for name in storage.list(folder)
        if name.endswith(".arrow")
    ]


def verify(
    storage: Storage, table: FoundTable, on_bytes: Callable[[int], None]
) -> list[JournalCorruptError]:
    """Read every record and checkpoint of a table and say what is damaged, one line a file.
    ``on_bytes`` gets the bytes read, file by file."""
    if table.record is None:
        return [] if table.damage is None else [table.damage]
    damages = []
    try:
        recovered = look_at(storage, table)
    except JournalCorruptError as error:
        damages.append(error)
        begin = 1
    else:
        begin = recovered.begin.segment
        for checkpoint in recovered.checkpoints:
            try:
                record = table.record
                read_checkpoint(storage, checkpoint, table=record.identity.name, epoch=record.epoch)
            except JournalCorruptError as error:
                damages.append(error)
            except FileNotFoundError:
                continue  # Retention was faster.
            on_bytes(checkpoint.byte_count)
    numbers = [each for each in segment_numbers(storage, table.directory) if each >= begin]
    for number in numbers:
        try:
            on_bytes(_verify_segment(storage, table, number, is_last=number == numbers[-1]))
        except JournalCorruptError as error:
            damages.append(error)
        except FileNotFoundError:
            continue
    return list({(error.file, error.offset): error for error in damages}.values())


def _verify_segment(storage: Storage, table: FoundTable, number: int, *, is_last: bool) -> int:
    path = segment_path(table.directory, number)
    data = storage.read(path)
    try:
        header, message = read_header(data)
    except FramingError as error:
        if is_last:
            return int(data.size)
        raise JournalCorruptError(path, offset=0, reason=str(error)) from error
    for _ in scan(data, header, message, name=path, is_last=is_last):
        pass
    return int(data.size)


def read_history(
    storage: Storage, recovered: RecoveredTable, *, after: int, upto: int
) -> Iterator[Entry]:
    """The entries of versions in ``(after, upto]``; JournalCorruptError."""
    history = recovered.history(storage, DEFAULT_JOURNAL_OPTIONS, first_step=0)
    return history.read(recovered.index.span(after, upto))


def state_of(storage: Storage, recovered: RecoveredTable, version: int) -> TableState:
    """The rows at a version from the beginning of the history on; HistoryLostError."""
    if version >= recovered.state.version:
        return recovered.state
    history = recovered.history(storage, DEFAULT_JOURNAL_OPTIONS, first_step=0)
    return history.state_at(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What compacting a table came to."""

    bytes_before: int
    bytes_after: int
    earliest: int


def compact(storage: Storage, table: FoundTable) -> Compacted:
    """Let the history of a table begin with its rows of now: changes before are forgotten, the rows
    are read back at once. The caller has the lock. JournalCorruptError."""
    before = table_bytes(storage, table)
    if table.damage is not None:
        raise table.damage
    recovered = recover_table(storage, table.directory, DEFAULT_JOURNAL_OPTIONS)
    # Before anything is removed that the rows could still be had from.
    recovered.settle(storage, sure_step=-1)
    steps = Steps.read(storage)
    history = recovered.history(
        storage, DEFAULT_JOURNAL_OPTIONS, first_step=0 if steps is None else steps.first_step
    )
    try:
        history.begin_anew()
        earliest = history.earliest
    finally:
        history.close()
    after = table_bytes(storage, table)
    return Compacted(bytes_before=before, bytes_after=after, earliest=earliest)

"""A copy of a data directory, taken while a server uses it, and a directory made of one.

A backup is a directory with ``files/`` (tables as they lie in a data directory) and the manifest
``backup.json``, which names every file with its size and CRC and is written last: without it there
is no backup. It is made under another name and renamed when it is whole.

All tables are copied up to one step, the newest that any of them had when copying began: what was
acknowledged before is in it, of two writes that followed on each other never the second alone, and
of a cycle over several tables all or nothing. Retention may take files away meanwhile; then it is
begun anew.

A server that goes on from a backup must not give steps that were used after it to other content.
So restoring sets :data:`STEPS_SKIPPED` of them aside as unknown: cursors of after the backup get a
snapshot.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from barrage.errors import ConfigError, JournalCorruptError, JournalError
from barrage.journal.disk.framing import FramingError, crc_of
from barrage.journal.disk.room import NO_ROOM
from barrage.journal.disk.storage import LOCK_FILE, LocalStorage, SystemCalls
from barrage.journal.files.commits import read_commit
from barrage.journal.files.file_history import (
    BEGIN_FILE,
    WITNESS_FILE,
    index_path,
    read_witness,
    segment_path,
)
from barrage.journal.files.opening import TABLES
from barrage.journal.files.recovery import (
    RECORD_FILE,
    RecoveredTable,
    recover_table,
    segment_numbers,
)
from barrage.journal.files.segment import read_header, scan
from barrage.journal.files.steps import StepGap, Steps
from barrage.journal.records.identity import decode_facts, directory_of, encode_facts
from barrage.journal.records.options import DEFAULT_JOURNAL_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMAT: Final = 1
MANIFEST_FILE: Final = "backup.json"
FILES: Final = "files"
PENDING: Final = ".pending"

STEPS_SKIPPED: Final = 2**40
"""More steps than a server uses in decades."""

ATTEMPTS_MAX: Final = 10

_PIECE_BYTES: Final = 1 << 20


class BackupError(JournalError):
    """A backup cannot be made, or is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupTable:
    """One table in a backup."""

    name: str
    version: int
    rows: int
    epoch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What is in a backup."""

    step: int
    """No table has a newer one."""
    tables: tuple[BackupTable, ...]
    gaps: tuple[StepGap, ...]
    files: dict[str, tuple[int, int]]
    """Path to bytes and CRC."""

    @property
    def byte_count(self) -> int:
        return sum(size for size, _ in self.files.values())

    def encode(self) -> bytes:
        """The manifest, with a CRC of itself."""
        told = {
            "step": self.step,
            "tables": [[t.name, t.version, t.rows, t.epoch] for t in self.tables],
            "gaps": [[gap.known_upto, gap.next_step] for gap in self.gaps],
            "files": {path: list(facts) for path, facts in self.files.items()},
        }
        return encode_facts({"format": FORMAT, "backup": json.dumps(told)})

    @classmethod
    def read(cls, directory: Path) -> Backup:
        """What the manifest says; BackupError when there is none that is whole."""
        path = directory / MANIFEST_FILE
        try:
            facts = decode_facts(path.read_bytes(), path=str(path))
        except (FileNotFoundError, NotADirectoryError):
            raise BackupError(
                f"{directory} is no finished backup: it has no {MANIFEST_FILE}"
            ) from None
        if facts.get("format") != FORMAT:
            raise BackupError(f"{path} has format {facts.get('format')}, not {FORMAT}")
        try:
            told = json.loads(str(facts["backup"]))
            return cls(
                step=told["step"],
                tables=tuple(
                    BackupTable(name=name, version=version, rows=rows, epoch=epoch)
                    for name, version, rows, epoch in told["tables"]
                ),
                gaps=tuple(StepGap(*pair) for pair in told["gaps"]),
                files={name: (size, crc) for name, (size, crc) in told["files"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorruptError(str(path), offset=0, reason=str(error)) from error


class _Unmapped(SystemCalls):
    """Reads files instead of mapping them: one that its server cuts off would end this process."""

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(Path(path).read_bytes())


# --- making one -----------------------------------------------------------------------------------


def make_backup(
    data: Path, target: Path, on_bytes: Callable[[int], object] = lambda _: None
) -> Backup:
    """Copy a data directory, in use or not, to ``target``, which must not be there. Nothing is left
    of a backup that could not be made. ``on_bytes`` is told what was copied.

    BackupError, JournalCorruptError for a damaged table, OSError of the disk.
    """
    if target.exists():
        raise BackupError(f"{target} is there already; choose another name, or remove it first")
    if target.resolve().is_relative_to(data.resolve()):
        raise BackupError(f"{target} is inside the data directory; choose a place outside of it")
    pending = target.with_name(target.name + PENDING)
    try:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            _remove(pending)
            store = LocalStorage(pending)
            try:
                made = _copied(LocalStorage(data, _Unmapped()), store, on_bytes)
                break
            except FileNotFoundError as error:
                if attempt == ATTEMPTS_MAX:
                    raise BackupError(
                        f"{data} changes faster than it can be copied: {error}"
                    ) from error
        store.replace(MANIFEST_FILE, made.encode())
        pending.rename(target)
        SystemCalls().sync_names(str(target.absolute().parent))
    except OSError as error:
        _remove(pending)
        if error.errno in NO_ROOM:
            raise BackupError(
                f"there is no room for the backup at {target}; nothing of it was kept"
            ) from error
        raise
    except BaseException:
        _remove(pending)
        raise
    return made


def _remove(directory: Path) -> None:
    if directory.exists():
        LocalStorage(directory.parent).remove(directory.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Up to where tables are copied."""

    step: int
    sure_step: int
    """Cycles over several tables are whole up to here, and only they are copied."""


def _copied(
    source: LocalStorage, target: LocalStorage, on_bytes: Callable[[int], object]
) -> Backup:
    """FileNotFoundError when files went away meanwhile."""
    tables, cut, steps = _looked_at(source)
    files: dict[str, tuple[int, int]] = {}
    told = []
    for table in tables:
        if table.record.created_step > cut.step:
            continue
        for path, content in _files_of(source, table, cut):
            place = f"{FILES}/{path}"
            _write(target, place, content)
            files[path] = (content.size, crc_of([content]))
            on_bytes(content.size)
        found = recover_table(
            LocalStorage(target.root / FILES), table.directory, DEFAULT_JOURNAL_OPTIONS
        )
        told.append(
            BackupTable(
                name=found.record.identity.name,
                version=found.state.version,
                rows=len(found.state.ids),
                epoch=found.record.epoch,
            )
        )
        target.sync_directory(f"{FILES}/{table.directory}")
    return Backup(
        step=cut.step,
        tables=tuple(told),
        gaps=() if steps is None else steps.gaps,
        files=files,
    )


def _looked_at(source: LocalStorage) -> tuple[list[RecoveredTable], _Cut, Steps | None]:
    """The tables as they are, and where to cut. In this order: what is read first is never newer
    than what is read after it."""
    directories = [f"{TABLES}/{name}" for name in source.list(TABLES)]
    directories = [each for each in directories if RECORD_FILE in source.list(each)]
    if not directories:
        raise BackupError(f"{source.name} has no tables")
    steps = Steps.read(source)
    committed = read_commit(source)
    tables = [recover_table(source, each, DEFAULT_JOURNAL_OPTIONS) for each in directories]
    # What is in a checkpoint, or was acknowledged, is whole in all tables.
    sure = [-1 if committed is None else committed, 0 if steps is None else steps.first_step]
    for table in tables:
        sure += [table.begin.version, *(each.version for each in table.checkpoints)]
        sure.append(_acknowledged(source, table))
    step = max([*sure, *(table.state.version for table in tables)])
    return tables, _Cut(step=step, sure_step=step if committed is None else max(sure)), steps


def _acknowledged(source: LocalStorage, table: RecoveredTable) -> int:
    try:
        content = source.read(f"{table.directory}/{WITNESS_FILE}").to_pybytes()
    except FileNotFoundError:
        return -1
    return read_witness(content, table.record.epoch)


def _files_of(
    source: LocalStorage, table: RecoveredTable, cut: _Cut
) -> Iterator[tuple[str, pa.Buffer]]:
    """The files of one table and what of them is copied. FileNotFoundError when its history begins
    later than it did."""
    directory = table.directory
    yield f"{directory}/{RECORD_FILE}", pa.py_buffer(table.record.encode())
    if BEGIN_FILE in source.list(directory):
        yield f"{directory}/{BEGIN_FILE}", pa.py_buffer(table.begin.encode())
    for checkpoint in table.checkpoints:
        # Never written again, and large: removed or not, it stays as long as it is mapped.
        yield checkpoint.path, LocalStorage(source.root).read(checkpoint.path)
    numbers = [n for n in segment_numbers(source, directory) if n >= table.begin.segment]
    if table.end is not None and numbers[:1] != [table.begin.segment]:
        raise FileNotFoundError(segment_path(directory, table.begin.segment))
    for number in numbers:
        path = segment_path(directory, number)
        content, is_whole = _segment(source.read(path), path, cut, is_last=number == numbers[-1])
        if content is not None:
            yield path, content
        if not is_whole:
            return
        index = index_path(directory, number)
        if number != numbers[-1] and index.rpartition("/")[2] in source.list(f"{directory}/wal"):
            yield index, source.read(index)


def _segment(
    data: pa.Buffer, path: str, cut: _Cut, *, is_last: bool
) -> tuple[pa.Buffer | None, bool]:
    """What of a segment is copied, and whether that is all of it."""
    try:
        header, message = read_header(data)
    except FramingError as error:
        if is_last:
            return None, False
        raise JournalCorruptError(path, offset=0, reason=str(error)) from error
    if header.previous is not None and header.previous.step > cut.step:
        return None, False
    stop = message.stop
    for found in scan(data, header, message, name=path, is_last=is_last):
        step = found.head.step
        is_half = found.head.surroundings.is_joint and step > cut.sure_step
        if step > cut.step or is_half:
            return data.slice(0, stop), False
        stop = found.message.stop
    return data.slice(0, stop), stop == data.size


def _write(target: LocalStorage, path: str, content: pa.Buffer) -> None:
    file = target.append_to(path)
    try:
        for place in range(0, content.size, _PIECE_BYTES):
            file.write([content.slice(place, min(_PIECE_BYTES, content.size - place))])
        file.sync()
    finally:
        file.close()


# --- making a directory of one --------------------------------------------------------------------


def restore_backup(
    backup: Path, data: Path, on_bytes: Callable[[int], object] = lambda _: None
) -> Backup:
    """Make a data directory of a backup, every byte of which is checked. ``data`` must not be
    there, or be empty. Nothing is left of one that could not be made.

    BackupError, JournalCorruptError when the backup is not as it was made, OSError.
    """
    told = Backup.read(backup)
    if data.is_dir() and any(data.iterdir()):
        is_used = " and a server may be using it" if (data / LOCK_FILE).exists() else ""
        raise BackupError(
            f"{data} is not empty{is_used}; stop the server and move the directory away first"
        )
    if data.exists() and not data.is_dir():
        raise ConfigError(f"{data} is not a directory")
    pending = data.absolute().with_name(data.name + PENDING)
    source, target = LocalStorage(backup / FILES), LocalStorage(pending)
    try:
        _remove(pending)
        for path, (size, crc) in told.files.items():
            _write(target, path, _checked(source, path, size=size, crc=crc))
            on_bytes(size)
        for table in told.tables:
            _check_table(target, table)
        _steps_of(told).write(target)
        if data.is_dir():
            data.rmdir()
        pending.rename(data)
        SystemCalls().sync_names(str(data.absolute().parent))
    except BaseException as error:
        _remove(pending)
        if isinstance(error, OSError) and error.errno in (*NO_ROOM, errno.ENOTEMPTY):
            raise BackupError(f"{data} could not be made: {error.strerror}") from error
        raise
    return told


def _checked(source: LocalStorage, path: str, *, size: int, crc: int) -> pa.Buffer:
    if os.path.isabs(path) or ".." in path.split("/"):
        raise BackupError(f"the backup names a file outside of it: {path!r}")
    try:
        content = source.read(path)
    except FileNotFoundError:
        raise JournalCorruptError(path, offset=0, reason="it is missing in the backup") from None
    if content.size != size or crc_of([content]) != crc:
        raise JournalCorruptError(
            path, offset=0, reason="it is not as it was when the backup was made"
        )
    return content


def _check_table(target: LocalStorage, told: BackupTable) -> None:
    """Open a table of the new directory, and compare it with what the manifest says."""
    directory = f"{TABLES}/{directory_of(told.name)}"
    try:
        found = recover_table(target, directory, DEFAULT_JOURNAL_OPTIONS)
    except FileNotFoundError:
        raise BackupError(f"the backup has no files of table {told.name!r}") from None
    is_same = (found.state.version, len(found.state.ids)) == (told.version, told.rows)
    if not is_same or found.record.epoch != told.epoch:
        raise JournalCorruptError(directory, offset=0, reason="it is not as the backup says")


def _steps_of(told: Backup) -> Steps:
    """The steps a server that starts there goes on with: none that was used after the backup."""
    begin = Steps(first_step=told.step, reserved=told.step, is_clean=True, gaps=told.gaps)
    following = told.step + STEPS_SKIPPED
    skipped = begin.with_gap(StepGap(told.step, following))
    return Steps(first_step=told.step, reserved=following, is_clean=True, gaps=skipped.gaps)

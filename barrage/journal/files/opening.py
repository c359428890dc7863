"""Opening a data directory: read what is there, make sure of it, and number the steps of this run.

The order is what counts. First everything is read and nothing changed. Then what was read is put on
the disk, as the process before may have been killed before it had synced that, or have failed to;
then the steps of this run are set aside. Only after that anything of it is told to anybody, or
built upon: otherwise a power cut could take back what was told, or the middle of a history that has
gone on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from barrage.errors import JournalCorruptError
from barrage.journal.files.commits import CommitLog, read_commit
from barrage.journal.files.recovery import RECORD_FILE, RecoveredTable, recover_table, remove_table
from barrage.journal.files.steps import Steps, next_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.journal.disk.room import StorageRoom
    from barrage.journal.disk.storage import Storage
    from barrage.journal.records.options import JournalOptions

    OnDamage: TypeAlias = Callable[[str, JournalCorruptError], None]
    OnTable: TypeAlias = Callable[[str, int, int], None]

TABLES: Final = "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDirectory:
    """What was in a directory, all of it on the disk."""

    tables: list[RecoveredTable]
    damaged: set[str]
    """Directories of tables that are not as they were written."""
    steps: Steps
    commits: CommitLog


def open_directory(
    storage: Storage,
    options: JournalOptions,
    room: StorageRoom,
    *,
    on_damage: OnDamage | None,
    on_table: OnTable | None,
) -> OpenedDirectory:
    """Read every table back and make sure of it. JournalCorruptError, OSError; with ``on_damage``
    that is told of a damaged table, whose files are left as they are."""
    before = Steps.read(storage)
    # Raises here, and not once for each table.
    read_commit(storage)
    tables, damaged = [], set()
    names = storage.list(TABLES)
    for number, name in enumerate(names):
        if on_table is not None:
            on_table(unquote(name), number, len(names))
        directory = f"{TABLES}/{name}"
        if RECORD_FILE not in storage.list(directory):
            # Creating or dropping it was not finished.
            remove_table(storage, directory)
            continue
        try:
            tables.append(recover_table(storage, directory, options))
        except JournalCorruptError as error:
            if on_damage is None:
                raise
            damaged.add(directory)
            on_damage(unquote(name), error)
    opened: list[OpenedDirectory] = []

    def settle() -> None:
        steps = _settled(storage, before, tables, options=options)
        commits = CommitLog(storage, steps.first_step)
        opened.append(OpenedDirectory(tables=tables, damaged=damaged, steps=steps, commits=commits))

    room.find_reserve()
    room.with_reserve(settle)
    return opened[-1]


def _settled(
    storage: Storage, before: Steps | None, tables: list[RecoveredTable], *, options: JournalOptions
) -> Steps:
    """Make sure of everything that was read, then of the steps of this run: those."""
    newest = max((table.state.version for table in tables), default=0)
    frontier = max((table.frontier for table in tables), default=0)
    is_clean = before is not None and before.is_clean
    for table in tables:
        table.settle(storage, sure_step=newest if is_clean else frontier)
    steps = next_run(
        before,
        recovered_step=newest,
        frontier=frontier,
        reserved_steps=options.reserved_steps,
    )
    steps.write(storage)
    return steps

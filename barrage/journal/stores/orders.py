"""What is to be done to the files of tables as a whole: begun, removed.

Orders are numbered with the same tickets as changes and carried out by the writer, before it writes
what waits: whoever gives one does not wait for the disk. A table for whose beginning there is no
room is refused, and nothing but that table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.journal.disk.room import NO_ROOM
from barrage.journal.files.recovery import RECORD_FILE, remove_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.errors import JournalFullError
    from barrage.journal.disk.storage import Storage
    from barrage.journal.records.identity import TableRecord
    from barrage.journal.stores.table_journal import TableJournal


@dataclass(frozen=True, slots=True)
class Order:
    """One order, and the table that cannot be had when there is no room for it."""

    ticket: int
    work: Callable[[], None]
    journal: TableJournal | None = None


def begin_files(storage: Storage, directory: str, record: TableRecord) -> None:
    """Make sure of the files of a new table, in place of whatever an earlier one has left; nothing
    is left of it when there was no room for them. OSError."""
    remove_table(storage, directory)
    try:
        storage.replace(f"{directory}/{RECORD_FILE}", record.encode())
    except OSError:
        # The record may be there already, and only its name not be sure.
        remove_table(storage, directory)
        raise


def end_files(storage: Storage | None, directory: str, journal: TableJournal) -> None:
    """Let go of the files of a table that was dropped, and remove them."""
    journal.history.close()
    if storage is not None and journal.is_durable:
        remove_table(storage, directory)


def carry_out(orders: Iterable[Order], no_room: Callable[[], JournalFullError]) -> None:
    """Do what was ordered, in order. ``no_room`` is told that there is none, and says so."""
    for order in orders:
        try:
            order.work()
        except OSError as error:
            if error.errno not in NO_ROOM or order.journal is None:
                raise
            order.journal.refuse(no_room())


def rewind_all(journals: list[TableJournal]) -> None:
    """Take back what a round has written."""
    for journal in journals:
        journal.history.rewind()

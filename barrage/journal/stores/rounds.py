"""What one round of a store writes: the entries of its tables, cycle by cycle whole.

A change that cannot be made an entry ends the history of its table, and of nothing else. Only of a
cycle that changed several tables on disk all count or none: where one of them lacks it, the others
end with it, and whatever they share with further ones from there on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.journal.records.record import Entry
    from barrage.journal.stores.table_journal import TableJournal, Waiting

Work: TypeAlias = list[tuple["TableJournal", list["Entry"]]]
"""The tables of a round, each with what is to be written of it."""


def built(items: Sequence[Waiting], step: int, joint_steps: set[int]) -> Work:
    """The entries of the versions up to ``step`` of all tables that have something waiting. Tables
    of which one cannot be built have ended before it."""
    journals = dict.fromkeys(item.journal for item in items)
    work = [(each, each.build(step)) for each in journals if not each.is_dropped]
    if any(journal.failed_step is not None for journal, _ in work):
        _end_together(items, joint_steps)
    return [
        (journal, [entry for entry in entries if _is_before_end(journal, entry.step)])
        for journal, entries in work
    ]


def write_all(work: Work, frontier: int, joint_steps: set[int]) -> None:
    """Hand the entries over to the files. OSError, JournalFailedError."""
    for journal, entries in work:
        for entry in entries:
            journal.history.write(entry, frontier, is_joint=entry.step in joint_steps)


def _end_together(items: Iterable[Waiting], joint_steps: set[int]) -> None:
    members: dict[int, list[TableJournal]] = {}
    for item in items:
        if item.step in joint_steps and item.journal.is_durable and not item.journal.is_dropped:
            members.setdefault(item.step, []).append(item.journal)
    # A table that ends at a step takes along those of later ones only.
    for step in sorted(members):
        for ended in members[step]:
            failure = ended.failure
            if failure is not None and not _is_before_end(ended, step):
                for journal in members[step]:
                    journal.fail(step, failure)
                break


def _is_before_end(journal: TableJournal, step: int) -> bool:
    return journal.failed_step is None or step < journal.failed_step

"""The journal: what happened to a table, cycle by cycle, on disk or in memory.

It receives :class:`~barrage.model.table_change.TableChange` values and knows nothing of the engine
that made them. docs/journal.md has the format and the guarantees.
"""

from barrage.journal.change_feed.feed import (
    change_batches,
    id_bounds,
    options_schema,
    snapshot_batches,
)
from barrage.journal.change_feed.feed_schema import FeedOptions
from barrage.journal.disk.storage import LocalStorage, Storage
from barrage.journal.records.identity import TableIdentity
from barrage.journal.records.index import EntryIndex
from barrage.journal.records.options import DEFAULT_JOURNAL_OPTIONS, JournalClass, JournalOptions
from barrage.journal.records.record import Entry
from barrage.journal.records.table_state import TableState, replayed
from barrage.journal.records.tracker import ChangeTracker
from barrage.journal.stores.store import JournalStore
from barrage.journal.stores.table_journal import TableJournal

__all__ = [
    "DEFAULT_JOURNAL_OPTIONS",
    "ChangeTracker",
    "Entry",
    "EntryIndex",
    "FeedOptions",
    "JournalClass",
    "JournalOptions",
    "JournalStore",
    "LocalStorage",
    "Storage",
    "TableIdentity",
    "TableJournal",
    "TableState",
    "change_batches",
    "id_bounds",
    "options_schema",
    "replayed",
    "snapshot_batches",
]

"""The journal: what happened to a table, cycle by cycle, on disk or in memory.

It receives :class:`~barrage.model.table_change.TableChange` values and knows nothing of the engine
that made them. docs/journal.md has the format and the guarantees.
"""

from barrage.journal.feed import change_batches, id_bounds, options_schema, snapshot_batches
from barrage.journal.feed_schema import FeedOptions
from barrage.journal.identity import TableIdentity
from barrage.journal.index import EntryIndex
from barrage.journal.options import DEFAULT_JOURNAL_OPTIONS, JournalClass, JournalOptions
from barrage.journal.record import Entry
from barrage.journal.storage import LocalStorage, Storage
from barrage.journal.store import JournalStore
from barrage.journal.table_journal import TableJournal
from barrage.journal.table_state import TableState, replayed
from barrage.journal.tracker import ChangeTracker

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

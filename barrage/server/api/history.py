"""Time travel for the Python API: rows and changes of a table out of its journal.

Runs on the caller's thread; journals may be read from any.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from barrage.engine.tables.source import SourceTable
from barrage.errors import CursorError, HistoryLostError, NoJournalError
from barrage.journal.change_feed.feed import FeedOptions, change_batches, options_schema
from barrage.model.cursor import Cursor

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.server.tables.table_service import TableService

Moment: TypeAlias = "int | datetime | Cursor"
"""A step, a time (without a zone: local time), or a cursor."""

_NANOS_PER_MICRO = 1000
_EPOCH_START = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def journal_for(service: TableService, table: Table, name: str | None) -> TableJournal:
    """The journal of a table; NoJournalError."""
    journal = service.journals.journal_of(table)
    if journal is None:
        shown = "(unpublished)" if name is None else name
        raise NoJournalError(shown, is_view=not isinstance(table, SourceTable))
    return journal


def version_at(journal: TableJournal, moment: Moment) -> int:
    """The step a moment stands for. HistoryLostError for a cursor of another epoch, or a step
    later than the journal's last; CursorError for what is no moment."""
    if isinstance(moment, Cursor):
        if moment.epoch != journal.epoch:
            raise HistoryLostError(
                journal.identity.name,
                asked=str(moment),
                reason=f"the table's history has another epoch, {journal.epoch}",
            )
        moment = moment.version
    if isinstance(moment, datetime):
        since = moment.astimezone() - _EPOCH_START
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return journal.version_at_time(micros * _NANOS_PER_MICRO)
    if isinstance(moment, bool) or not isinstance(moment, int) or moment < 0:
        raise CursorError(f"a moment is a step, a datetime or a cursor, not {moment!r}")
    return moment


def rows_at(journal: TableJournal, moment: Moment) -> pa.Table:
    """The rows of a table as they were. HistoryLostError."""
    return journal.state_at(version_at(journal, moment)).rows


def changes_between(
    journal: TableJournal, after: Moment, upto: Moment | None = None, **options: Any
) -> pa.Table:
    """What changed after ``after`` up to ``upto`` (default: the latest safe version), in feed form;
    ``options`` are fields of :class:`barrage.journal.change_feed.feed.FeedOptions`.
    HistoryLostError."""
    start = version_at(journal, after)
    stop = journal.durable_version if upto is None else version_at(journal, upto)
    chosen = FeedOptions(**options)
    batches = change_batches(journal.entries(start, stop), chosen)
    schema = options_schema(journal.identity.schema, chosen)
    return pa.Table.from_batches(list(batches), schema=schema)

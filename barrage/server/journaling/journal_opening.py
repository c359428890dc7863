"""Opening a data directory: the journals in it, and the tables made of them.

A table comes back with its rows, their row keys, its epoch and its producers' positions; the graph
goes on after every step that has ever been told to anybody. A table whose journal is damaged in the
middle does not come back: its name is taken, and whoever asks for it is told the file, the place
and what to do. The other tables are served.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from barrage.engine.resume.restore import restore_source
from barrage.errors import JournalCorruptError
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.records.options import JournalOptions
from barrage.journal.stores.store import JournalStore
from barrage.limits import NANOS_PER_MS
from barrage.server.runtime.catalog import Publication

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.clock import Clock
    from barrage.engine import UpdateGraph
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.settings.config import ServerConfig

log = logging.getLogger(__name__)

NANOS_PER_HOUR = 3600 * 1000 * NANOS_PER_MS


class DamagedTableError(JournalCorruptError):
    """A table is not served because its journal is damaged; says where, and what to do."""

    def __init__(self, table: str, damage: JournalCorruptError) -> None:
        self.table = table
        super().__init__(damage.file, offset=damage.offset, reason=damage.reason)
        self.args = (
            f"table {table!r} is not served: {damage}. Restore the file from a copy and start "
            "again; or move the table's directory away, which gives its history up, and create the "
            "table anew",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How far reading a data directory has got."""

    table: str
    """The table being read."""
    tables_done: int
    tables: int


def journal_options(config: ServerConfig) -> JournalOptions:
    """The settings of a server in the journal's terms."""
    return JournalOptions(
        group_ns=config.journal_group_ms * NANOS_PER_MS,
        group_bytes=config.journal_group_bytes,
        segment_bytes=config.journal_segment_bytes,
        retain_bytes=config.journal_retain_bytes or None,
        retain_age_ns=config.journal_retain_hours * NANOS_PER_HOUR or None,
        retain_steps=config.journal_retain_steps or None,
        memory_bytes=config.journal_memory_bytes,
        reserve_bytes=config.journal_reserve_bytes,
        producers_max=config.limits.producers_max,
    )


def open_store(
    config: ServerConfig, clock: Clock, on_synced: Callable[[int], None]
) -> JournalStore | None:
    """The store of the configured directory; None without one. ConfigError when another process
    uses it."""
    if config.data is None:
        return None
    return JournalStore(
        LocalStorage(Path(config.data)), journal_options(config), clock=clock, on_synced=on_synced
    )


def open_journals(
    store: JournalStore,
    catalog: Catalog,
    *,
    on_progress: Callable[[Recovery], None] | None = None,
) -> list[TableJournal]:
    """The journals of a store. The names of damaged ones cannot be used."""

    def show(name: str, number: int, count: int) -> None:
        if on_progress is not None:
            on_progress(Recovery(table=name, tables_done=number, tables=count))

    def block(name: str, error: JournalCorruptError) -> None:
        damage = DamagedTableError(name, error)
        log.error("%s", damage)
        catalog.block(name, damage)

    return store.open_all(on_damage=block, on_table=show)


def restore_tables(
    found: Sequence[TableJournal], graph: UpdateGraph, catalog: Catalog, *, journals: JournalService
) -> None:
    """Make and publish the tables of these journals, before anybody can use them."""
    for journal in found:
        _restore(journal, graph, catalog, journals=journals)


def _restore(
    journal: TableJournal, graph: UpdateGraph, catalog: Catalog, *, journals: JournalService
) -> None:
    identity = journal.identity
    state = journal.state_at(journal.latest_version)
    table = restore_source(
        graph,
        identity.kind,
        identity.schema,
        key=identity.key,
        capacity=identity.capacity,
        keys=state.keys,
        rows=state.rows,
        changed_step=journal.latest_version,
    )
    publication = Publication(
        name=identity.name, table=table, kind=identity.kind, is_read_only=identity.is_read_only
    )
    journals.adopt(publication, journal)
    catalog.add(publication)

"""Reading a journal on behalf of a peer: which one, whether it reaches, which rows of it.

Refusals begin with words a program can act upon: ``no-journal:``, ``history-lost: epoch`` (the
table's history is another one, or the version is none of its versions) and ``history-lost:
truncated`` (the journal has forgotten it), and say what the journal has.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from barrage.conditions import Condition
from barrage.errors import (
    BarrageError,
    HistoryLostError,
    NoJournalError,
    PermissionDeniedError,
    SchemaError,
    StatusCode,
    TableNotFoundError,
    near_miss,
)
from barrage.journal.change_feed.feed_schema import STRIPE_IDS, FeedOptions
from barrage.server.identity.current_call import current_caller
from barrage.server.policy.rules import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from barrage.journal.stores.table_journal import TableJournal
    from barrage.server.history.journal_tickets import FeedSelection
    from barrage.server.identity.caller import Owner
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.tables.table_service import TableService

EPOCH, TRUNCATED = "epoch", "truncated"

DURABLE_WAIT_S = 10.0
"""How long a reader waits for a version that is committed to be safe as well."""


class JournalRefusedError(BarrageError):
    """A journal cannot give what was asked for; the text begins with the reason's words."""

    status_code = StatusCode.FAILED_PRECONDITION


class NotDurableError(BarrageError):
    """A version was committed and is not safe yet."""

    status_code = StatusCode.UNAVAILABLE


@contextlib.contextmanager
def refusals_for_peers() -> Iterator[None]:
    """Puts the words before what a journal refuses."""
    try:
        yield
    except NoJournalError as error:
        raise JournalRefusedError(f"no-journal: {error}") from error
    except HistoryLostError as error:
        raise JournalRefusedError(f"history-lost: {TRUNCATED}: {error}") from error


def lost(journal: TableJournal, asked: str, word: str) -> JournalRefusedError:
    """The refusal of a version or an epoch."""
    return JournalRefusedError(
        f"history-lost: {word}: table {journal.identity.name!r} at {asked} cannot be had; the "
        f"journal has epoch {journal.epoch}, versions {journal.earliest_version} to "
        f"{journal.durable_version}"
    )


class JournalAccess:
    """Finds journals and checks what is asked of them. Runs on the event loop."""

    def __init__(self, journals: JournalService, tables: TableService, gate: AccessGate) -> None:
        self._journals = journals
        self._tables = tables
        self._gate = gate

    def check_allowed(self, table: str) -> None:
        """Let through whose call may read all of the table. TableNotFoundError,
        PermissionDeniedError."""
        self._gate.check_whole(table)

    def check_own(self, table: str, owner: Owner, what: str) -> None:
        """Let through whom ``what`` of a table belongs to, and who administers the table by a rule.
        PermissionDeniedError."""
        is_admin = (
            self._gate.policy is not None and Operation.ADMIN in self._gate.decision(table).allow
        )
        if not is_admin and current_caller().owner != owner:
            raise PermissionDeniedError(
                f"{what} of table {table!r} is somebody else's: who began it ends it, or who may "
                "administer the table"
            )

    def journal(self, table: str, epoch: str | None = None) -> TableJournal:
        """The journal of a table in an epoch, for a caller that may read all of it.
        TableNotFoundError, TableAwaitedError, PermissionDeniedError, JournalRefusedError."""
        self._gate.check_whole(table)
        try:
            with refusals_for_peers():
                journal = self._named(table)
        except TableNotFoundError:
            awaited = self._tables.absence(table)
            if awaited is not None:
                raise awaited from None
            if self._gate.policy is None:
                raise
            raise TableNotFoundError(table) from None  # Names that are alike may be hidden.
        if epoch is not None and epoch != journal.epoch:
            raise lost(journal, f"epoch {epoch}", EPOCH)
        return journal

    def _named(self, table: str) -> TableJournal:
        try:
            return self._journals.journal_named(table)
        except NoJournalError as error:
            if self._gate.policy is None:
                raise
            # What a view is made of may be hidden.
            raise NoJournalError(table, is_view=error.is_view) from None

    def check_state(self, journal: TableJournal, version: int) -> None:
        """Refuse a version whose state cannot be had, or changes that begin there."""
        if version < journal.earliest_version:
            raise lost(journal, f"version {version}", TRUNCATED)
        if not journal.is_known(version):
            raise lost(journal, f"version {version}", EPOCH)

    async def settle(self, journal: TableJournal, version: int) -> int:
        """A version that may be read, of the same state: this one, or the table's last before it.
        Waits for one that is committed and not durable yet. JournalRefusedError, NotDurableError.
        """
        self.check_state(journal, version)
        if version <= journal.durable_version:
            return version
        if version > journal.latest_version:
            # It may be a step in which this table did not change.
            step = await asyncio.wrap_future(self._tables.graph_step())
            if version > step:
                raise lost(journal, f"version {version}", EPOCH)
            version = min(version, journal.latest_version)
        await wait_durable(journal, version)
        return version


async def wait_durable(journal: TableJournal, version: int) -> None:
    """Until a version is durable. NotDurableError when that takes too long."""
    if version <= journal.durable_version:
        return
    loop = asyncio.get_running_loop()
    has_come = asyncio.Event()
    stop = journal.on_durable(lambda _: _wake(loop, has_come))
    try:
        async with asyncio.timeout(DURABLE_WAIT_S):
            while version > journal.durable_version:
                has_come.clear()
                if version <= journal.durable_version:
                    return
                await has_come.wait()
    except TimeoutError as error:
        raise NotDurableError(
            f"version {version} of table {journal.identity.name!r} is not durable yet; ask again"
        ) from error
    finally:
        stop()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """On the journal's thread. The loop may have ended with the server."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def feed_options(
    journal: TableJournal,
    selection: FeedSelection,
    *,
    stripe: tuple[int, int] = (0, 1),
    stripe_ids: int = STRIPE_IDS,
) -> FeedOptions:
    """What a peer selected, checked against the table. SchemaError, ExpressionError."""
    schema = journal.identity.schema
    for name in selection.columns or ():
        if name not in schema.names:
            raise SchemaError(f"unknown column {name[:60]!r}{near_miss(name, schema.names)}")
    own = schema.names if selection.columns is None else selection.columns
    if not own and not selection.feed_columns:
        # A record batch without columns does not say how many rows it has.
        raise SchemaError(f"no column of table {journal.identity.name!r} is wanted")
    predicate: Callable[[pa.RecordBatch], pa.Array] | None = None
    if selection.filter is not None:
        predicate = Condition.of(selection.filter, schema)
    return FeedOptions(
        columns=selection.columns,
        predicate=predicate,
        preimage=selection.preimage,
        net=selection.net,
        stripe=stripe,
        stripe_ids=stripe_ids,
        row_key=selection.row_key,
        modified_columns=selection.modified_columns,
        feed_columns=selection.feed_columns,
    )

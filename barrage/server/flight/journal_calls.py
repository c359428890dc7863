"""Journals over Flight: what they have, plans of reads, and the reads themselves.

Actions take and give JSON. Versions that leave here are durable ones, so nobody ever knows a state
that a crash could take back. Reads go through :mod:`barrage.server.history.journal_reading`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    StatusCode,
    TicketError,
)
from barrage.journal.change_feed.feed import (
    STRIPE_IDS_MAX,
    change_batches,
    id_bounds,
    next_id_bound,
    options_schema,
    snapshot_batches,
)
from barrage.journal.change_feed.feed_schema import FEED_COLUMNS
from barrage.server.access.method_table import Action
from barrage.server.history.journal_access import JournalAccess, feed_options, refusals_for_peers
from barrage.server.history.journal_reading import FeedEncoder, FrameSink
from barrage.server.history.journal_tickets import (
    ChangesTicket,
    JournalPlan,
    SnapshotTicket,
    Version,
    WatchTicket,
    lease_ns,
    parse_plan,
    parse_ticket,
)
from barrage.server.history.journal_watch import WatchCalls, newest
from barrage.server.settings.declared import NUMBER_MAX, Number
from barrage.server.settings.json_fields import Epoch, Fields
from barrage.server.tables.tickets import check_table_name
from barrage.transport import flight_messages
from barrage.transport.flight_messages import Descriptor, Endpoint, FlightInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from barrage.journal.change_feed.feed import FeedOptions
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.rowset.arrays import Int64Array
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.history.journal_leases import JournalLeases, ReadGroup
    from barrage.server.history.journal_reading import JournalReaders
    from barrage.transport.base import CallContext
    from barrage.wire.dissociated.detached import DetachedFrame


PLAN_BYTES_MAX = 4 * 1024 * 1024
"""Longest list of tickets one plan may become."""

_Microseconds = Annotated[int, Meta(ge=0, le=NUMBER_MAX // 1000)]
"""Whose nanoseconds fit 64 bits."""


class GroupNotHeldError(TicketError):
    """The version of a read group is not held any more, or never was."""

    status_code = StatusCode.NOT_FOUND

    def __init__(self, group: str) -> None:
        super().__init__(
            f"no version is held for read group {group[:40]!r}: its time was up, or nobody has "
            "asked for it; plan the read again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A plan cut into tickets."""

    tickets: tuple[bytes, ...]
    schema: pa.Schema
    row_count: int
    byte_count: int
    told: dict[str, Any]
    expires_ns: int | None = None
    """Wall clock: until when its version is held; None where nothing is promised."""


class JournalCalls:
    """The behaviors. Runs on the event loop; journals are read by ``readers``."""

    def __init__(
        self,
        access: JournalAccess,
        leases: JournalLeases,
        readers: JournalReaders,
        *,
        limits: Limits,
    ) -> None:
        self._access = access
        self._leases = leases
        self._readers = readers
        self._limits = limits
        self.watches = WatchCalls(access, leases, limits)

    def actions(self) -> Mapping[str, Action]:
        return {
            "journal.info": Action(
                'The journal of a table. Body: JSON {"table"}. Result: JSON {"table", "epoch", '
                '"version", "earliest", "rows", "bytes", "offset", "timestamp_us", "key", "kind", '
                '"stripe_ids_max", "feed_columns": those that tickets may leave out, "questions": '
                "whether a watch by DoExchange answers them, "
                '"schema": '
                "base64 of an encapsulated Arrow IPC schema message}.",
                self._info,
            ),
            "journal.bound": Action(
                "The last version up to which changes are few enough, at least the next one. Body: "
                'JSON {"table", "epoch", "from", "max_rows", "max_bytes", "cap", "preimage": '
                'whether the rows of before count, too}. Result: {"version", "rows", "bytes"}. '
                'For a piece of a snapshot: {"table", "epoch", "version", "row", "max_rows", '
                '"max_bytes"}; result {"row", "rows", "bytes"}, the row id at which it ends, or -1 '
                "for the last.",
                self._bound,
            ),
            "journal.version": Action(
                'The version at a time. Body: JSON {"table", "timestamp_us"}. Result: JSON '
                '{"epoch", "version"}.',
                self._version,
            ),
            "journal.cursor": Action(
                "What a consumer has finished: history after it is kept while the lease lives. "
                'Body: JSON {"table", "consumer", "version", "epoch", "lease_ms"}. Result: JSON '
                '{"epoch", "version"}.',
                self._cursor,
            ),
            "journal.release": Action(
                'A consumer needs nothing any more. Body: JSON {"table", "consumer"}. Result: JSON '
                '{"known"}.',
                self._release,
            ),
        }

    # --- actions ---

    async def _info(self, body: bytes) -> bytes:
        fields = self._fields(body)
        journal = self._access.journal(check_table_name(fields.value("table")))
        fields.finish()
        identity = journal.identity
        version, offset, wall_ns = newest(journal)
        told = {
            "table": identity.name,
            "epoch": journal.epoch,
            "version": version,
            "earliest": journal.earliest_version,
            "rows": journal.row_count,
            "bytes": journal.byte_count,
            "offset": offset,
            "timestamp_us": wall_ns // 1000,
            "key": list(identity.key),
            "kind": identity.kind,
            "stripe_ids_max": STRIPE_IDS_MAX,
            "feed_columns": list(FEED_COLUMNS),
            "questions": True,
            "schema": base64.b64encode(identity.schema.serialize().to_pybytes()).decode(),
        }
        return json.dumps(told).encode()

    async def _bound(self, body: bytes) -> bytes:
        fields = self._fields(body)
        table, epoch = check_table_name(fields.value("table")), fields.get("epoch", Epoch, None)
        rows_max = fields.get("max_rows", Number, None)
        bytes_max = fields.get("max_bytes", Number, None)
        has_preimage = fields.get("preimage", bool, False)
        version = fields.get("version", Number, None)
        if version is not None:
            start = fields.get("row", Number, 0)
            fields.finish()
            journal = self._access.journal(table, epoch)
            version = await self._access.settle(journal, version)
            return await self._chunk_bound(journal, version, start, most=(rows_max, bytes_max))
        after = fields.get("from", Version)
        cap = fields.get("cap", Number, None)
        fields.finish()
        journal = self._access.journal(table, epoch)
        self._access.check_state(journal, after)
        upto = journal.durable_version if cap is None else min(cap, journal.durable_version)
        if upto <= after:
            return json.dumps({"version": after, "rows": 0, "bytes": 0}).encode()
        with refusals_for_peers():
            index = await self._readers.run(partial(journal.index, after, upto))
        rows = index.feed_counts(has_preimage=has_preimage)
        count = bounded_count(rows, index.byte_counts, most=(rows_max, bytes_max))
        told = {
            "version": int(index.steps[count - 1]) if count else after,
            "rows": int(rows[:count].sum()),
            "bytes": int(index.byte_counts[:count].sum()),
        }
        return json.dumps(told).encode()

    async def _chunk_bound(
        self,
        journal: TableJournal,
        version: int,
        start: int,
        *,
        most: tuple[int | None, int | None],
    ) -> bytes:
        """Where the next piece of a snapshot ends, from the row id ``start`` on; -1 when it is the
        last."""
        rows_max, bytes_max = most

        def work() -> tuple[int, int, int]:
            each = row_bytes(journal, version)
            wanted = NUMBER_MAX if rows_max is None else rows_max
            if bytes_max is not None:
                wanted = min(wanted, bytes_max // each)
            ids = journal.row_ids_at(version)
            wanted = max(1, wanted)
            left = int(np.count_nonzero(ids.ids >= start))
            if left <= wanted:
                return -1, left, each
            return next_id_bound(ids, start, wanted), wanted, each

        with refusals_for_peers():
            stop, count, each = await self._readers.run(work)
        return json.dumps({"row": stop, "rows": count, "bytes": count * each}).encode()

    async def _version(self, body: bytes) -> bytes:
        fields = self._fields(body)
        table = check_table_name(fields.value("table"))
        moment_us = fields.get("timestamp_us", _Microseconds)
        fields.finish()
        journal = self._access.journal(table)
        with refusals_for_peers():
            version = await self._readers.run(partial(journal.version_at_time, moment_us * 1000))
        version = min(version, journal.durable_version)
        return json.dumps({"epoch": journal.epoch, "version": version}).encode()

    async def _cursor(self, body: bytes) -> bytes:
        fields = self._fields(body)
        table, epoch = check_table_name(fields.value("table")), fields.get("epoch", Epoch, None)
        consumer, version = fields.name("consumer"), fields.get("version", Version)
        lease = lease_ns(fields, self._limits)
        fields.finish()
        journal = self._access.journal(table, epoch)
        version = await self._access.settle(journal, version)
        self._leases.renew(journal, consumer, lease_ns=lease, version=version)
        return json.dumps({"epoch": journal.epoch, "version": version}).encode()

    async def _release(self, body: bytes) -> bytes:
        fields = self._fields(body)
        table, consumer = check_table_name(fields.value("table")), fields.name("consumer")
        fields.finish()
        self._access.check_allowed(table)
        with contextlib.suppress(BarrageError):
            # The table may be gone, and its consumers not yet.
            table = self._access.journal(table).identity.name
        return json.dumps({"known": self._leases.release(table, consumer)}).encode()

    def _fields(self, body: bytes) -> Fields:
        return Fields.parse(body, "action body", bytes_max=self._limits.journal_request_bytes_max)

    # --- plans ---

    async def flight_info(self, descriptor: Descriptor) -> FlightInfo:
        """The plan a descriptor's command asks for: one endpoint per split. ``total_records`` are
        the rows of the feed and ``total_bytes`` those of the journal, both before a filter. Splits
        have no order."""
        planned = await self._planned(parse_plan(descriptor.command or b"", self._limits))
        return FlightInfo(
            schema_message=planned.schema.serialize().to_pybytes(),
            descriptor=descriptor,
            endpoints=tuple(
                Endpoint(ticket=ticket, expires_ns=planned.expires_ns) for ticket in planned.tickets
            ),
            total_records=planned.row_count,
            total_bytes=planned.byte_count,
            metadata=json.dumps(planned.told).encode(),
            is_ordered=len(planned.tickets) == 1,
        )

    def renewed(self, ticket: bytes) -> Endpoint | None:
        """The endpoint of a read group, whose version is held for longer; None for a ticket that
        names no group. GroupNotHeldError when its time was up."""
        held = self._held_group(ticket)
        if held is None:
            return None
        pinned = self._leases.pin(held.journal, held.name)
        return Endpoint(ticket=ticket, expires_ns=pinned.expires_wall_ns)

    def given_up(self, ticket: bytes) -> bool:
        """Hold the version of the ticket's read group no longer; False for a ticket that names no
        group. Tickets of it are still read, as long as the journal happens to have the version.
        GroupNotHeldError when its time was up, PermissionDeniedError when it is somebody else's."""
        held = self._held_group(ticket)
        if held is not None:
            self._access.check_own(held.table, held.owner, f"read group {held.name!r}")
            self._leases.give_up(held.journal, held.name)
        return held is not None

    def _held_group(self, ticket: bytes) -> ReadGroup | None:
        """The read group of a ticket, which holds the ticket's version; None when it names no
        group. GroupNotHeldError."""
        parsed = parse_ticket(ticket, self._limits)
        if not isinstance(parsed, SnapshotTicket) or parsed.read_group is None:
            return None
        journal = self._access.journal(parsed.table, parsed.epoch)
        held = self._leases.pinned(journal, parsed.read_group)
        if held is None or parsed.version not in (None, held.version):
            raise GroupNotHeldError(parsed.read_group)
        return held

    async def get_schema(self, descriptor: Descriptor) -> bytes:
        """The schema of the feed a descriptor's command asks for."""
        plan = parse_plan(descriptor.command or b"", self._limits)
        journal = self._access.journal(plan.table, plan.epoch)
        schema = self._encoder(journal, feed_options(journal, plan.selection)).schema
        return flight_messages.encode_schema_result(schema.serialize().to_pybytes())

    async def _planned(self, plan: JournalPlan) -> _Planned:
        journal = self._access.journal(plan.table, plan.epoch)
        schema = self._encoder(journal, feed_options(journal, plan.selection)).schema
        upto = journal.durable_version
        if plan.upto is not None:
            upto = await self._access.settle(journal, plan.upto)
        expires_ns = None
        if plan.read_group is not None:
            pinned = self._leases.pin(journal, plan.read_group)
            upto, expires_ns = pinned.version, pinned.expires_wall_ns
        make = self._snapshot_plan if plan.is_snapshot else self._changes_plan
        with refusals_for_peers():
            planned = await self._readers.run(lambda: make(journal, plan, upto, schema=schema))
        size = sum(map(len, planned.tickets))
        if size > PLAN_BYTES_MAX:
            raise LimitExceededError(
                "tickets of the plan (columns and filter stand in each; ask for fewer splits)",
                actual=size,
                maximum=PLAN_BYTES_MAX,
                unit="bytes",
            )
        return replace(planned, expires_ns=expires_ns)

    def _changes_plan(
        self, journal: TableJournal, plan: JournalPlan, upto: int, *, schema: pa.Schema
    ) -> _Planned:
        assert plan.after is not None
        self._access.check_state(journal, plan.after)
        upto = max(upto, plan.after)
        index = journal.index(plan.after, upto)
        tickets = tuple(
            ChangesTicket(
                table=plan.table,
                epoch=journal.epoch,
                after=plan.after,
                upto=upto,
                stripe=(part, plan.splits),
                selection=plan.selection,
            ).encode()
            for part in range(plan.splits)
        )
        return _Planned(
            tickets=tickets,
            schema=schema,
            row_count=int(index.feed_counts(has_preimage=plan.selection.preimage).sum()),
            byte_count=int(index.byte_counts.sum()),
            told={"epoch": journal.epoch, "from": plan.after, "to": upto},
        )

    def _snapshot_plan(
        self, journal: TableJournal, plan: JournalPlan, version: int, *, schema: pa.Schema
    ) -> _Planned:
        ids = journal.row_ids_at(version)
        bounds = id_bounds(ids, plan.splits) if plan.splits > 1 else []
        ticket = SnapshotTicket(
            table=plan.table,
            epoch=journal.epoch,
            version=version,
            read_group=plan.read_group,
            selection=plan.selection,
        )
        cuts = [0, *(stop for _, stop in bounds[:-1]), NUMBER_MAX]
        ranges: Sequence[tuple[int, int] | None] = [None]
        if len(bounds) > 1:
            ranges = list(pairwise(cuts))
        return _Planned(
            tickets=tuple(replace(ticket, ids=span).encode() for span in ranges),
            schema=schema,
            row_count=len(ids),
            byte_count=len(ids) * row_bytes(journal, version),
            told={"epoch": journal.epoch, "version": version},
        )

    # --- reads ---

    async def do_get(self, ticket: bytes, context: CallContext) -> None:
        """Serve one ticket."""
        parsed = self.parsed(ticket)
        if isinstance(parsed, WatchTicket):
            await self.watches.run(parsed, context)
        else:
            await self.read(parsed, FrameSink(write=context.write))

    def parsed(self, ticket: bytes) -> WatchTicket | ChangesTicket | SnapshotTicket:
        """What a ticket says; TicketError."""
        return parse_ticket(ticket, self._limits)

    async def read(self, ticket: ChangesTicket | SnapshotTicket, sink: FrameSink) -> None:
        """Serve one ticket into ``sink``."""
        if isinstance(ticket, ChangesTicket):
            await self._get_changes(ticket, sink)
        else:
            await self._get_snapshot(ticket, sink)

    async def _get_changes(self, ticket: ChangesTicket, sink: FrameSink) -> None:
        journal = self._access.journal(ticket.table, ticket.epoch)
        options = feed_options(
            journal, ticket.selection, stripe=ticket.stripe, stripe_ids=ticket.stripe_ids
        )
        self._access.check_state(journal, ticket.after)
        upto = max(await self._access.settle(journal, ticket.upto), ticket.after)
        with refusals_for_peers():
            # Whether the history reaches is better told before the first message.
            await self._readers.run(partial(journal.index, ticket.after, upto))

        def batches() -> Iterator[pa.RecordBatch]:
            return change_batches(journal.entries(ticket.after, upto), options)

        await self._write(sink, journal, options, batches=batches)

    async def _get_snapshot(self, ticket: SnapshotTicket, sink: FrameSink) -> None:
        journal = self._access.journal(ticket.table, ticket.epoch)
        options = feed_options(journal, ticket.selection)
        if ticket.version is not None:
            version = await self._access.settle(journal, ticket.version)
            if ticket.read_group is not None:
                self._leases.pin(journal, ticket.read_group, version=version)
        elif ticket.read_group is not None:
            version = self._leases.pin(journal, ticket.read_group).version
            self._access.check_state(journal, version)
        else:
            version = journal.durable_version

        def batches() -> Iterator[pa.RecordBatch]:
            return snapshot_batches(journal, version, options, ids=ticket.ids)

        await self._write(sink, journal, options, batches=batches)

    async def _write(
        self,
        sink: FrameSink,
        journal: TableJournal,
        options: FeedOptions,
        *,
        batches: Callable[[], Iterator[pa.RecordBatch]],
    ) -> None:
        encoder = self._encoder(journal, options, sink.detach)
        with refusals_for_peers():
            await self._readers.write(sink.write, lambda: encoder.frames(batches()))

    def _encoder(
        self,
        journal: TableJournal,
        options: FeedOptions,
        detach: Callable[[DetachedFrame], Frame] | None = None,
    ) -> FeedEncoder[Frame]:
        return FeedEncoder(options_schema(journal.identity.schema, options), self._limits, detach)


def row_bytes(journal: TableJournal, version: int) -> int:
    """About how many bytes a row has, as far as the journal can tell without reading; at least
    1."""
    base = journal.base_state(version)
    rows, size = base.rows.num_rows, base.rows.nbytes
    if rows == 0:
        index = journal.index(base.version, max(base.version, version))
        rows, size = int(index.row_counts.sum()), int(index.byte_counts.sum())
    return int(max(1, size // max(1, rows)))


def bounded_count(
    rows: Int64Array, sizes: Int64Array, *, most: tuple[int | None, int | None]
) -> int:
    """How many of the first entries fit, given the rows and bytes of each; at least one, if there
    is any."""
    count = len(rows)
    for amounts, limit in zip((rows, sizes), most, strict=True):
        if limit is not None:
            count = min(count, int(np.searchsorted(np.cumsum(amounts), limit, side="right")))
    return max(count, min(1, len(rows)))

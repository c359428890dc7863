"""What is asked of a journal: plans (the command of GetFlightInfo) and tickets (of DoGet).

Both are ``j/`` and a JSON object. A ticket is self-contained: epoch, versions, split and selection
stand in it, so that any process can fetch it, again and again, and always gets the same rows. What
we write has one form (fixed order of fields, defaults left out); what we read may have any.

=========== ========================================================================================
mode        fields besides ``table``
=========== ========================================================================================
changes     ``epoch``, ``from``, ``to``, ``stripe`` [i, n]: the rows of (from, to] whose id is in
            stripe i of n, ``stripe_ids`` consecutive ids in each
snapshot    ``epoch``, ``version``, ``ids`` [lo, hi): the rows as of a version. With a
            ``read_group`` the version is held meanwhile; without a version it is the one that was
            current when the group was first heard of
watch       ``consumer``, ``lease_ms``, ``version``: endless news of versions
=========== ========================================================================================

Changes and snapshots also take a selection: ``columns``, ``filter``, ``preimage``, ``net``,
``row_key``, ``modified_columns``, ``feed_columns`` (those of the four that are wanted).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from barrage.errors import RemoteProtocolError
from barrage.journal.change_feed.feed import STRIPE_IDS, STRIPE_IDS_MAX, is_stripe
from barrage.journal.change_feed.feed_schema import FEED_COLUMNS
from barrage.server.settings.declared import NUMBER_MAX, Number
from barrage.server.settings.json_fields import Epoch, Fields, Pair
from barrage.server.tables.tickets import check_table_name

if TYPE_CHECKING:
    from barrage.limits import Limits

JOURNAL_ROUTE = b"j/"
Mode = Literal["changes", "snapshot", "watch"]
PlanMode = Literal["changes", "snapshot"]
LEASE_MS_DEFAULT = 60_000
LEASE_MS_MIN = 100
FROM_MIN = -1
"""Smallest version a reader may stand at: before every step."""

Version = Annotated[int, Meta(ge=FROM_MIN, le=NUMBER_MAX)]
Splits = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]

_FLAGS = ("preimage", "net", "row_key", "modified_columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSelection:
    """Which part of the feed is wanted, and in which form. ``columns`` None is all of them."""

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    preimage: bool = False
    net: bool = False
    row_key: bool = False
    modified_columns: bool = False
    feed_columns: tuple[str, ...] = FEED_COLUMNS

    @classmethod
    def read(cls, fields: Fields, limits: Limits) -> FeedSelection:
        columns = fields.texts("columns", count_max=limits.columns_max)
        wanted = fields.texts("feed_columns", count_max=len(FEED_COLUMNS))
        feed_columns = FEED_COLUMNS if wanted is None else wanted
        if not set(feed_columns) <= set(FEED_COLUMNS):
            raise fields.fail("feed_columns", f"some of {', '.join(FEED_COLUMNS)}")
        return cls(
            columns=columns,
            feed_columns=tuple(name for name in FEED_COLUMNS if name in feed_columns),
            filter=fields.text("filter", bytes_max=limits.expression_bytes_max),
            **{name: fields.get(name, bool, False) for name in _FLAGS},
        )

    def told(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        told: dict[str, Any] = {}
        if self.columns is not None:
            told["columns"] = list(self.columns)
        if self.filter is not None:
            told["filter"] = self.filter
        if self.feed_columns != FEED_COLUMNS:
            told["feed_columns"] = list(self.feed_columns)
        return told | {name: True for name in _FLAGS if getattr(self, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesTicket:
    """The changes after ``after`` up to and with ``upto``, one stripe of them."""

    table: str
    epoch: str
    after: int
    upto: int
    stripe: tuple[int, int] = (0, 1)
    stripe_ids: int = STRIPE_IDS
    selection: FeedSelection = FeedSelection()

    def encode(self) -> bytes:
        told: dict[str, Any] = {
            "mode": "changes",
            "table": self.table,
            "epoch": self.epoch,
            "from": self.after,
            "to": self.upto,
        }
        if self.stripe != (0, 1):
            told["stripe"] = list(self.stripe)
        if self.stripe_ids != STRIPE_IDS:
            told["stripe_ids"] = self.stripe_ids
        return _encoded(told | self.selection.told())


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTicket:
    """The rows as of a version, one range of ids (half-open) of them. Without a version, that of
    the read group, or the current one; a version that is there is held for the group."""

    table: str
    epoch: str | None = None
    version: int | None = None
    ids: tuple[int, int] | None = None
    read_group: str | None = None
    selection: FeedSelection = FeedSelection()

    def encode(self) -> bytes:
        told: dict[str, Any] = {"mode": "snapshot", "table": self.table}
        for name in ("epoch", "version", "read_group"):
            if getattr(self, name) is not None:
                told[name] = getattr(self, name)
        if self.ids is not None:
            told["ids"] = list(self.ids)
        return _encoded(told | self.selection.told())


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTicket:
    """News of every version, for a consumer whose lease it keeps. ``version`` is what the consumer
    has finished; None leaves its cursor where it is."""

    table: str
    consumer: str
    lease_ms: int = LEASE_MS_DEFAULT
    version: int | None = None

    def encode(self) -> bytes:
        told: dict[str, Any] = {
            "mode": "watch",
            "table": self.table,
            "consumer": self.consumer,
            "lease_ms": self.lease_ms,
        }
        if self.version is not None:
            told["version"] = self.version
        return _encoded(told)


JournalTicket: TypeAlias = ChangesTicket | SnapshotTicket | WatchTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlan:
    """What to cut into tickets. ``epoch`` None is the one there is, ``upto`` None the last
    version. ``splits`` is a wish: there are at most ``journal_splits_max``."""

    table: str
    epoch: str | None
    after: int | None
    upto: int | None
    is_snapshot: bool
    splits: int
    read_group: str | None
    selection: FeedSelection


def is_journal_request(ticket: bytes | None) -> bool:
    """Whether a ticket, or the command of a descriptor, is about a journal."""
    return ticket is not None and ticket.startswith(JOURNAL_ROUTE)


def parse_ticket(ticket: bytes, limits: Limits) -> JournalTicket:
    """What a ticket asks for. RemoteProtocolError, SchemaError (a table's name),
    LimitExceededError."""
    fields = _fields(ticket, "journal ticket", limits)
    mode = fields.get("mode", Mode)
    table = check_table_name(fields.value("table"))
    parsed: JournalTicket = _READERS[mode](fields, table, limits)
    fields.finish()
    return parsed


def parse_plan(command: bytes, limits: Limits) -> JournalPlan:
    """What a plan asks for; errors as :func:`parse_ticket`."""
    fields = _fields(command, "journal plan", limits)
    is_snapshot = fields.get("mode", PlanMode, "changes") == "snapshot"
    plan = JournalPlan(
        table=check_table_name(fields.value("table")),
        epoch=fields.get("epoch", Epoch, None),
        after=fields.get("from", Version, None),
        upto=fields.get("to", Number, None),
        is_snapshot=is_snapshot,
        splits=min(fields.get("splits", Splits, 1), limits.journal_splits_max),
        read_group=fields.name("read_group", None),
        selection=FeedSelection.read(fields, limits),
    )
    fields.finish()
    if not is_snapshot:
        if plan.after is None:
            raise fields.fail("from", "a version")
        if plan.upto is not None and plan.upto < plan.after:
            raise fields.fail("to", f"at least {plan.after}, where the changes start")
        if plan.read_group is not None:
            raise fields.fail("read_group", "missing in mode 'changes'")
    elif plan.read_group is not None and plan.upto is not None:
        raise fields.fail("read_group", "missing when there is a version")
    return plan


def lease_ns(fields: Fields, limits: Limits) -> int | None:
    """The lease a request asks for, or None."""
    most = limits.journal_lease_ns_max // 1_000_000
    lease_ms = fields.get("lease_ms", Number, None)
    if lease_ms is None:
        return None
    if not LEASE_MS_MIN <= lease_ms <= most:
        raise fields.fail("lease_ms", f"a whole number from {LEASE_MS_MIN} to {most}")
    return int(lease_ms) * 1_000_000


def _fields(request: bytes, what: str, limits: Limits) -> Fields:
    if not is_journal_request(request):
        raise RemoteProtocolError(f"a {what} starts with {JOURNAL_ROUTE.decode()}")
    text = memoryview(request)[len(JOURNAL_ROUTE) :]
    return Fields.parse(text, what, bytes_max=limits.journal_request_bytes_max)


def _changes(fields: Fields, table: str, limits: Limits) -> ChangesTicket:
    after = fields.get("from", Version)
    upto = fields.get("to", Number)
    if upto < after:
        raise fields.fail("to", f"at least {after}, where the changes start")
    stripe = fields.get("stripe", Pair, (0, 1))
    if not stripe[0] < stripe[1] <= limits.journal_splits_max:
        raise fields.fail("stripe", f"[i, n] with i < n <= {limits.journal_splits_max}")
    stripe_ids = fields.get("stripe_ids", Number, STRIPE_IDS)
    if not is_stripe(stripe_ids):
        raise fields.fail("stripe_ids", f"a power of two, {STRIPE_IDS} to {STRIPE_IDS_MAX}")
    return ChangesTicket(
        table=table,
        epoch=fields.get("epoch", Epoch),
        after=after,
        upto=upto,
        stripe=stripe,
        stripe_ids=stripe_ids,
        selection=FeedSelection.read(fields, limits),
    )


def _snapshot(fields: Fields, table: str, limits: Limits) -> SnapshotTicket:
    ids = fields.get("ids", Pair, None)
    if ids is not None and ids[0] > ids[1]:
        raise fields.fail("ids", "[lo, hi] with lo <= hi, half-open")
    ticket = SnapshotTicket(
        table=table,
        epoch=fields.get("epoch", Epoch, None),
        version=fields.get("version", Number, None),
        ids=ids,
        read_group=fields.name("read_group", None),
        selection=FeedSelection.read(fields, limits),
    )
    if ticket.version is not None and ticket.epoch is None:
        raise fields.fail("epoch", "there when there is a version")
    if ticket.version is None and ticket.read_group is None and ids is not None:
        raise fields.fail("version", "there, or a read_group, when there are ids")
    return ticket


def _watch(fields: Fields, table: str, limits: Limits) -> WatchTicket:
    lease = lease_ns(fields, limits)
    return WatchTicket(
        table=table,
        consumer=fields.name("consumer"),
        lease_ms=LEASE_MS_DEFAULT if lease is None else lease // 1_000_000,
        version=fields.get("version", Number, None),
    )


_READERS: dict[str, Any] = {"changes": _changes, "snapshot": _snapshot, "watch": _watch}


def _encoded(told: dict[str, Any]) -> bytes:
    return JOURNAL_ROUTE + json.dumps(told, separators=(",", ":")).encode()

"""One alert of a running server: the tap below its table, the keys that fire, what is to be told.

The engine thread leaves edges here and goes on. The event loop takes them in portions, so that ten
thousand keys that come to fire together hold it up no longer than a hundred.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import bind_condition
from barrage.engine.operators.last_by import last_by
from barrage.engine.operators.where import where
from barrage.engine.tables.keyed import check_key_columns
from barrage.errors import (
    BarrageError,
    ExpressionError,
    LimitExceededError,
    SchemaError,
    TableAwaitedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.server.access.query import QueryRun
from barrage.server.alerting.alert import AlertError
from barrage.server.alerting.edge_tap import EdgeTap
from barrage.server.alerting.event_queue import EventQueue
from barrage.server.alerting.firing_keys import FiringKeys
from barrage.server.alerting.webhook_delivery import WebhookDelivery
from barrage.server.runtime.failure import unexpected_failure
from barrage.server.runtime.query_dispatcher import THE_SERVER
from barrage.server.tables.table_lease import TableLease
from barrage.wire.json_cells import json_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.alerting.alert import Alert
    from barrage.server.alerting.edge_tap import Edges
    from barrage.server.alerting.firing_keys import JsonCells
    from barrage.server.alerting.webhook_post import WebhookPost
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.tables.table_service import TableService

log = logging.getLogger(__name__)

EVENT_BYTES_MAX = 64 * 1024
"""Longest event; of a longer one the row is left out."""

EDGES_MAX = 4_096
"""Rows of one alert that the engine has told and the loop has not looked at."""

PORTION_ROWS = 100
"""Rows that are looked at before the loop does something else."""

PORTION_BYTES = 512 * 1024
"""Bytes of these."""


HAS_FAILED = "its table has failed: the log says why"
UNFIT = "it does not fit its table: the log says why"
"""All that receivers and the table of alerts are told: errors may quote cells and columns."""


class AlertState(Enum):
    """How an alert is."""

    WAITING = "waiting"
    """A table it is about is not there."""
    WATCHING = "watching"
    FAILED = "failed"
    """Its table has failed, or does not fit it."""
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPlace:
    """Where alerts look: what is of the server."""

    runtime: EngineRuntime
    catalog: Catalog
    tables: TableService
    limits: Limits


class WatchedAlert:
    """Used on the event loop."""

    def __init__(
        self, alert: Alert, place: AlertPlace, *, server: str, ids: Iterator[str], post: WebhookPost
    ) -> None:
        """``ids`` gives each event one of its own; ``server`` is told in messages."""
        self.alert = alert
        limits, clock = place.limits, place.runtime.clock
        self.keys = FiringKeys(
            alert, ids, event_bytes_max=EVENT_BYTES_MAX, held_bytes_max=limits.alert_bytes_max
        )
        self.queue = EventQueue(
            events_max=limits.alert_events_max, bytes_max=limits.alert_bytes_max
        )
        self.delivery = WebhookDelivery(
            alert=alert,
            server=server,
            keys=self.keys,
            queue=self.queue,
            post=post,
            clock=clock,
            further_count=lambda: self.further_count,
        )
        self.task: asyncio.Task[None] | None = None
        """Of the delivery."""
        self.state = AlertState.WAITING
        self.detail: str | None = None
        self.further_count = 0
        self.known: Mapping[str, int | None] | None = None
        """What the names of its tables stood for when it looked at them."""
        self.looking = asyncio.Lock()
        self._place = place
        self._is_first = True
        self._inbox: _Inbox | None = None
        self._lease: TableLease | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing is told of it any more, whatever happens."""
        return self.state is AlertState.REMOVED or (self.task is not None and self.task.done())

    @property
    def is_settled(self) -> bool:
        """Whether nothing that the engine has told is still to be told, or can be."""
        if self.task is None or self.has_ended:
            return True
        return self.delivery.is_idle and (self._inbox is None or self._inbox.is_empty)

    # --- tables ---

    async def attach(self) -> None:
        """Look at the tables there are now, anew."""
        self.detach("its table was dropped or replaced")
        inbox = _Inbox(self, is_first=self._is_first)
        self._is_first = False
        try:
            make = partial(self._make, inbox)
            lease = await asyncio.wrap_future(self._place.tables.derive(make, THE_SERVER))
        except (TableNotFoundError, TableAwaitedError) as error:
            self.state, self.detail = AlertState.WAITING, f"table {error.name!r} is not there"
            return
        except LimitExceededError as error:
            # Of what is under way: it is tried again.
            log.warning("alert %r waits: %s", self.alert.name, error)
            self.known = None
            self.detail = "the server is busy"
            return
        except BarrageError as error:
            self._fail(error)
            return
        if self.state is AlertState.REMOVED:
            return
        self._inbox, self._lease = inbox, lease
        self.state, self.detail = AlertState.WATCHING, None
        # What was told before there was anybody to look at it.
        inbox.ask()

    def detach(self, reason: str, state: AlertState = AlertState.WAITING) -> None:
        """Look at no table any more: no key fires that did. Idempotent."""
        self.let_go()
        self.state, self.detail = state, reason
        clock = self._place.runtime.clock
        ended = self.keys.end_all(
            at_ns=clock.monotonic_ns(), wall_ns=clock.wall_ns(), reason=reason
        )
        self.queue.put(ended)
        self.delivery.wake()

    def let_go(self) -> None:
        """Hold no table of the engine any more. Idempotent."""
        if self._inbox is not None:
            self._inbox.is_open = False
        self._inbox = self._lease = None
        self.further_count = 0

    def _fail(self, error: BarrageError) -> None:
        is_unfit = isinstance(error, AlertError)
        log.error("%s", error if is_unfit else f"alert {self.alert.name!r}: {error}")
        self.detach(UNFIT if is_unfit else HAS_FAILED, AlertState.FAILED)

    def check(self) -> None:
        """AlertError when what is there does not fit the alert. On the engine thread."""
        try:
            table = self._queried()
        except (ExpressionError, SchemaError, UnsupportedError) as error:
            wanted = f"one that fits its tables: {error}"
            raise AlertError(self.alert.name, "query", wanted) from None
        except BarrageError:
            return  # It is not there, or has failed: the state of the alert tells that.
        self._shape(table)

    def _queried(self) -> Table:
        return QueryRun(self._place.catalog, self.alert.parsed, self._place.limits)()

    def _shape(self, table: Table) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The key columns, and all columns that are told. AlertError."""
        alert, schema = self.alert, table.schema
        key = table.key_columns if alert.key is None else alert.key
        told = schema.names if alert.columns is None else alert.columns
        for what, names in (("key", key), ("columns", told)):
            missing = [name for name in names if name not in schema.names]
            if missing:
                wanted = f"columns of its table ({', '.join(schema.names)}), not {missing[0]!r}"
                raise AlertError(alert.name, what, wanted)
        try:
            if key:
                check_key_columns(schema, key)
        except SchemaError as error:
            raise AlertError(alert.name, "key", f"columns that can be a key: {error}") from None
        try:
            bind_condition(alert.where, schema)
        except (ExpressionError, SchemaError) as error:
            raise AlertError(alert.name, "where", f"a condition upon its table: {error}") from None
        columns = dict.fromkeys((*key, *told))
        return tuple(key), tuple(schema.get_field_index(name) for name in columns)

    def _make(self, inbox: _Inbox) -> TableLease:
        """On the engine thread, perhaps more than once."""
        table = self._queried()
        key, columns = self._shape(table)
        inbox.key = key
        true = where(table, self.alert.where)
        if key:
            true = last_by(true, *key)
        tap = EdgeTap(
            true,
            columns,
            is_keyed=bool(key),
            keys_max=self._place.limits.alert_keys_max,
            edges_max=EDGES_MAX,
            clock=self._place.runtime.clock,
        )
        true.know(("edges", tap.serial), tap)
        tap.tell, tap.tell_failure = inbox.put, inbox.fail
        tap.begin()
        return TableLease(self._place.tables, tap)

    # --- edges ---

    def take(self, inbox: _Inbox) -> None:
        """Look at a portion of what the engine has told."""
        if inbox is not self._inbox or self._lease is None:
            return
        if inbox.failure is not None:
            self._fail(inbox.failure)
            return
        edges = inbox.next_edges()
        if edges is None:
            if self.further_count:
                self._place.runtime.post(partial(_refill, self._lease), inbox.fail)
            return
        try:
            self._note(edges, inbox)
        except Exception:
            self._fail(unexpected_failure(log, f"alert {self.alert.name!r} could not be told"))
            return
        _taken(self._lease, edges.rows)
        inbox.ask()

    def _note(self, edges: Edges, inbox: _Inbox) -> None:
        """Make events of edges."""
        events = self.keys.end(edges.ended.tolist(), at_ns=edges.at_ns, wall_ns=edges.wall_ns)
        events += self.keys.begin(
            edges.begun.tolist(),
            told_rows(edges.rows, inbox.key, self.alert.columns),
            at_ns=edges.at_ns,
            wall_ns=edges.wall_ns,
            is_initial=edges.is_initial and inbox.is_first,
        )
        if edges.is_full and edges.further_count and not self.further_count:
            events.append(self.keys.overflow(edges.further_count, edges.wall_ns))
        self.further_count = edges.further_count
        self.queue.put(events)
        self.delivery.wake()


def told_rows(
    rows: pa.Table, key: tuple[str, ...], columns: tuple[str, ...] | None
) -> list[tuple[JsonCells | None, JsonCells | None]]:
    """Of each row its key cells, and the cells that are told; None for what is too long."""
    told = rows.column_names if columns is None else columns
    return list(zip(_json_rows(rows.select(key)), _json_rows(rows.select(list(told))), strict=True))


def _json_rows(rows: pa.Table) -> list[JsonCells | None]:
    """The cells of rows, of which there may be one alone that is long."""
    if len(rows) == 1 and rows.nbytes > EVENT_BYTES_MAX:
        return [None]
    names = rows.column_names
    cells = [json_values(rows.column(name)) for name in names]
    if not names:
        return [{} for _ in range(len(rows))]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


class _Inbox:
    """Where the engine thread leaves the edges of one tap."""

    def __init__(self, owner: WatchedAlert, *, is_first: bool) -> None:
        self.is_first = is_first
        """Whether the alert begins with this tap: rows of a table that comes later are news."""
        self.key: tuple[str, ...] = ()
        self.failure: BarrageError | None = None
        self.is_open = True
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Edges] = deque()
        self._is_asked = False
        """Whether the loop has been told and has not looked yet."""

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    # --- engine thread ---

    def put(self, edges: Edges) -> None:
        """Something has happened."""
        if self.is_open:
            self._waiting.append(edges)
            self._wake()

    def fail(self, error: BarrageError) -> None:
        """Nothing more will."""
        self.failure = error
        self._wake()

    def _wake(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._look)

    # --- event loop ---

    def ask(self) -> None:
        """Look again, once others have had their turn."""
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        # First the flag: what comes after this line wakes the loop again.
        self._is_asked = False
        self._owner.take(self)

    def next_edges(self) -> Edges | None:
        """A portion of the oldest."""
        if not self._waiting:
            return None
        first, rest = self._waiting[0].split(PORTION_ROWS, PORTION_BYTES)
        if rest is None:
            self._waiting.popleft()
        else:
            self._waiting[0] = rest
        return first


def _refill(lease: TableLease) -> None:
    tap = lease.table
    assert isinstance(tap, EdgeTap)
    tap.refill()


def _taken(lease: TableLease, rows: pa.Table) -> None:
    tap = lease.table
    assert isinstance(tap, EdgeTap)
    tap.taken(rows)

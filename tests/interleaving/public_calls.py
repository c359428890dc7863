"""What every public method is called with by the test of concurrent callers. Synchronous and
asynchronous classes have the same names, and so the same line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from barrage import Operation, Policy, Rule
from barrage.client.session import AsyncSession
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.client.synchronous.sync import Session
from barrage.client.synchronous.sync_tables import InputTable
from barrage.client.synchronous.sync_ticking import TickingTable
from barrage.client.synchronous.sync_writer import Writer
from barrage.client.tables.remote_table import AsyncInputTable
from barrage.client.writing.writer import AsyncWriter
from barrage.server.alerting.alert import Alert
from barrage.server.api.publish import Server
from barrage.server.api.publish_async import AsyncServer
from barrage.server.api.publish_tables import PublishedTable, Transaction
from barrage.server.api.publish_tables_async import AsyncPublishedTable
from barrage.wire.messages import SubscriptionOptions

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64())])
ROWS = pa.table({"k": [1, 2], "x": [1, 2]}, schema=SCHEMA)
MORE = pa.table({"k": [3], "x": [3]}, schema=SCHEMA)
KEYS = ROWS.select(["k"]).slice(1)


@dataclass(frozen=True)
class Call:
    """How a method is called, and what must be true of what it gives."""

    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None
    is_right: Callable[[Any], object] | None = None
    may_be_refused: bool = False
    """Because of the other caller, or because it does not fit this kind of table."""


def _holds(result: Any) -> bool:
    return {1, 2} <= set(result.column("k").to_pylist())


OPEN = Policy.of(Rule(tables=("*", "_*"), allow=frozenset(Operation)))


def _nothing(_: object) -> None:
    """A callback."""


ALERT = Alert(name="hot", table="t", where="x > 1", url="https://hooks.invalid/")
READ = Call()
CALLS: dict[str, Call] = {
    # of sessions and servers
    "act": Call(("barrage.statistics",), may_be_refused=True),
    "body_status": READ,
    "create_table": Call(("new", SCHEMA), may_be_refused=True),
    "drop_table": Call(("spare",), may_be_refused=True),
    "follow": Call(("t", SubscriptionOptions()), is_right=lambda stream: stream is not None),
    "input_table": Call((SCHEMA,), {"key": "k"}),
    "open_input_table": Call(("t",)),
    "open_table": Call(("t",)),
    "put": Call(("t", MORE), {"key": "k"}, lambda told: told.rows == 1),
    "read_journal": Call((b"j/",), {"table": "t", "is_in_order": True}),
    "shared": Call((b"hidden",)),
    "table": Call(("t",)),
    "table_from_ticket": Call((b"s/t",)),
    "tables": Call(is_right=lambda infos: "t" in [info.name for info in infos]),
    "upload": Call((MORE,)),
    "writer": Call(("t",), {"producer": "p", "key": "k"}, may_be_refused=True),
    "publish": Call(may_be_refused=True),
    "table_names": Call(is_right=lambda names: "t" in names),
    "damaged_tables": Call(is_right=lambda found: not found),
    "transaction": READ,
    "start": Call(may_be_refused=True),
    "stop": READ,
    "set_policy": Call((OPEN,)),
    "add_alert": Call((ALERT,), may_be_refused=True),
    "remove_alert": Call(("hot",), may_be_refused=True),
    # of tables
    "add": Call((MORE,)),
    "upsert": Call((MORE,)),
    "remove": Call((KEYS,)),
    "insert": Call((0, MORE), may_be_refused=True),
    "delete": Call((KEYS,), may_be_refused=True),
    "replace": Call((ROWS,)),
    "position": Call(("p",), is_right=lambda number: number is None),
    "fail": Call(may_be_refused=True),
    "info": Call(is_right=lambda info: info.name),
    "key": READ,
    "history": Call(may_be_refused=True),
    "schema": READ,
    "changes": Call((0,), may_be_refused=True),
    "as_of": Call((1,), may_be_refused=True),
    "snapshot": READ,
    "show": Call(is_right=lambda shown: "not live" in repr(shown)),
    "subscribe": READ,
    "publish_shared": Call(is_right=lambda ticket: ticket.startswith(b"h")),
    "give_back": READ,
    "select": Call(("x",)),
    "drop": Call(("x",)),
    "where": Call(("x >= 0",)),
    "sort": Call(("-x",)),
    "head": Call((1,)),
    "tail": Call((1,)),
    "last_by": Call(("k",)),
    "head_by": Call((1, "k")),
    "tail_by": Call((1, "k")),
    "ungroup": Call(may_be_refused=True),
    "update_by": Call((), {"total": "cum_sum(x)"}),
    "agg_by": Call((), {"n": "count()"}),
    "select_distinct": Call(("k",)),
    "natural_join": Call(may_be_refused=True),
    "merge": Call(may_be_refused=True),
    "flatten": READ,
    "slice": Call((0, 1)),
    "to_arrow": Call(is_right=_holds),
    "to_pandas": Call(is_right=lambda frame: len(frame) >= 2),
    "to_polars": Call(is_right=lambda frame: len(frame) >= 2),
    "to_perspective": Call(may_be_refused=True),
    # of live tables and writers
    "checkpoint": Call(is_right=lambda told: _holds(told[1])),
    "on_error": Call((_nothing,)),
    "on_state": Call((_nothing,)),
    "on_update": Call((_nothing,)),
    "set_columns": Call((["k"],)),
    "set_viewport": Call((slice(0, 1),)),
    "updates": READ,
    "wait_ready": READ,
    "abandon": READ,
    "close": READ,
    "flush": Call(may_be_refused=True),
    "write": Call((MORE,), may_be_refused=True),
}

INTERNAL: dict[type, set[str]] = {
    AsyncSession: {
        *("fail", "forget", "forget_writer", "open", "open_put", "publish", "spawn", "subscribe"),
        "unary",
    },
    AsyncTickingTable: {"finish", "note_callback_error", "open_queue", "start"},
    AsyncWriter: {"open"},
    TickingTable: {"listen"},
    Server: {"serve_forever"},
    AsyncServer: {"serve_forever"},
}
"""What only the package itself calls, or (``serve_forever``) only a main thread."""

CLASSES: tuple[type, ...] = (
    *(Session, InputTable, TickingTable, Writer, Server, PublishedTable, Transaction),
    *(AsyncSession, AsyncInputTable, AsyncTickingTable, AsyncWriter),
    *(AsyncServer, AsyncPublishedTable),
)


def public_names(kind: type) -> list[str]:
    """Methods and properties, but for those that are internal."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return [name for name in names if name not in INTERNAL.get(kind, ())]


def methods(kind: type) -> list[str]:
    """Public methods; properties are read by everybody all the time."""
    return [name for name in public_names(kind) if callable(getattr(kind, name))]


def properties(kind: type) -> list[str]:
    return [name for name in public_names(kind) if not callable(getattr(kind, name))]

"""Ticking tables over Arrow Flight, compatible with Deephaven's Barrage.

``barrage.connect`` opens a client session, ``barrage.Server`` publishes tables. Names load on
first use, so a client never imports the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.names_on_demand import on_demand

__version__ = "0.1.0"

_HOMES = {
    "TLS": "barrage.client",
    "connect": "barrage.client",
    "aconnect": "barrage.client",
    "Basic": "barrage.client",
    "Bearer": "barrage.client",
    "PreSharedKey": "barrage.client",
    "AsyncServer": "barrage.server",
    "Operation": "barrage.server.policy.rules",
    "Policy": "barrage.server.policy.rules",
    "Rule": "barrage.server.policy.rules",
    "Server": "barrage.server",
    "Cursor": "barrage.model.cursor",
    "RowSet": "barrage.rowset",
    "wire": "",
    "errors": "",
}

if TYPE_CHECKING:
    from barrage import errors, wire
    from barrage.client import TLS, Basic, Bearer, PreSharedKey, aconnect, connect
    from barrage.model.cursor import Cursor
    from barrage.rowset import RowSet
    from barrage.server import AsyncServer, Server
    from barrage.server.policy.rules import Operation, Policy, Rule

__all__ = [
    "TLS",
    "AsyncServer",
    "Basic",
    "Bearer",
    "Cursor",
    "Operation",
    "Policy",
    "PreSharedKey",
    "RowSet",
    "Rule",
    "Server",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "wire",
]

__getattr__ = on_demand(__name__, _HOMES)

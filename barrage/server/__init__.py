"""The server: engine thread, gRPC services, configuration, and the API that publishes tables.

Names load on first use, so a command that changes the users file loads no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.names_on_demand import on_demand

if TYPE_CHECKING:
    from barrage.server.alerting.alert import Alert
    from barrage.server.api.publish import Server
    from barrage.server.api.publish_async import AsyncServer
    from barrage.server.api.publish_tables import PublishedTable, Transaction, View
    from barrage.server.api.publish_tables_async import AsyncPublishedTable, AsyncView
    from barrage.server.identity.ways import Login, User
    from barrage.server.settings.config import ServerConfig, load_config
    from barrage.wire.payloads.source_mapping import SourceMapping

__all__ = [
    "Alert",
    "AsyncPublishedTable",
    "AsyncServer",
    "AsyncView",
    "Login",
    "PublishedTable",
    "Server",
    "ServerConfig",
    "SourceMapping",
    "Transaction",
    "User",
    "View",
    "load_config",
]

_HOMES = {
    "Alert": "barrage.server.alerting.alert",
    "AsyncPublishedTable": "barrage.server.api.publish_tables_async",
    "AsyncServer": "barrage.server.api.publish_async",
    "AsyncView": "barrage.server.api.publish_tables_async",
    "Login": "barrage.server.identity.ways",
    "PublishedTable": "barrage.server.api.publish_tables",
    "Server": "barrage.server.api.publish",
    "ServerConfig": "barrage.server.settings.config",
    "SourceMapping": "barrage.wire.payloads.source_mapping",
    "Transaction": "barrage.server.api.publish_tables",
    "User": "barrage.server.identity.ways",
    "View": "barrage.server.api.publish_tables",
    "load_config": "barrage.server.settings.config",
}

__getattr__ = on_demand(__name__, _HOMES)

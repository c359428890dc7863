"""The server: engine thread, gRPC services, configuration, and the API that publishes tables."""

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

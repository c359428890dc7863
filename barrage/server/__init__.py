"""The server: engine thread, gRPC services, configuration, and the API that publishes tables."""

from barrage.server.config import ServerConfig, load_config
from barrage.server.publish import PublishedTable, Server, Transaction, View
from barrage.server.publish_async import AsyncPublishedTable, AsyncServer, AsyncView

__all__ = [
    "AsyncPublishedTable",
    "AsyncServer",
    "AsyncView",
    "PublishedTable",
    "Server",
    "ServerConfig",
    "Transaction",
    "View",
    "load_config",
]

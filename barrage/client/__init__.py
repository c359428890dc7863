"""The client: ticking tables and snapshots from a Barrage server, rows to it.

``connect`` gives a synchronous :class:`Session`, ``aconnect`` an asyncio one with the same names.
"""

from barrage.client.address import Basic, PreSharedKey, Token
from barrage.client.put import PutProgress
from barrage.client.reconnect import Backoff
from barrage.client.session import AsyncRemoteTable, AsyncSession, TableInfo, aconnect
from barrage.client.state import State, Stats
from barrage.client.subscription import AsyncTickingTable
from barrage.client.sync import RemoteTable, Session, TickingTable, connect
from barrage.client.update import Update
from barrage.transport.grpc_channel import TLS

__all__ = [
    "TLS",
    "AsyncRemoteTable",
    "AsyncSession",
    "AsyncTickingTable",
    "Backoff",
    "Basic",
    "PreSharedKey",
    "PutProgress",
    "RemoteTable",
    "Session",
    "State",
    "Stats",
    "TableInfo",
    "TickingTable",
    "Token",
    "Update",
    "aconnect",
    "connect",
]

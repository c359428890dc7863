"""The client: ticking tables and snapshots from a Barrage server, rows to it.

``connect`` gives a synchronous :class:`Session`, ``aconnect`` an asyncio one with the same names.
"""

from barrage.client.bodies.bodies import BodyChoice, BodyCount, BodyStats, BodyStatus
from barrage.client.connection.address import Auth, Basic, Bearer, Handler, PreSharedKey, Token
from barrage.client.connection.reconnect import Backoff
from barrage.client.connection.table_info import TableInfo
from barrage.client.session import AsyncSession, aconnect
from barrage.client.subscriptions.state import State, Stats
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.client.synchronous.sync import Session, connect
from barrage.client.synchronous.sync_journal import JournalBatches
from barrage.client.synchronous.sync_tables import InputTable, RemoteTable
from barrage.client.synchronous.sync_ticking import TickingTable
from barrage.client.synchronous.sync_writer import Writer
from barrage.client.tables.remote_table import AsyncInputTable, AsyncRemoteTable
from barrage.client.updates.update import Update
from barrage.client.writing.put import PutProgress
from barrage.client.writing.writer import AsyncWriter
from barrage.model.cursor import Cursor
from barrage.transport.base import TLS
from barrage.wire.dissociated.ways import BodyWay

__all__ = [
    "TLS",
    "AsyncInputTable",
    "AsyncRemoteTable",
    "AsyncSession",
    "AsyncTickingTable",
    "AsyncWriter",
    "Auth",
    "Backoff",
    "Basic",
    "Bearer",
    "BodyChoice",
    "BodyCount",
    "BodyStats",
    "BodyStatus",
    "BodyWay",
    "Cursor",
    "Handler",
    "InputTable",
    "JournalBatches",
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
    "Writer",
    "aconnect",
    "connect",
]

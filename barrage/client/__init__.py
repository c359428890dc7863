"""The client: ticking tables and snapshots from a Barrage server, rows to it.

``connect`` gives a synchronous :class:`Session`, ``aconnect`` an asyncio one with the same names.
"""

from barrage.client.address import Auth, Basic, Handler, PreSharedKey, Token
from barrage.client.bodies import BodyChoice, BodyCount, BodyStats, BodyStatus
from barrage.client.put import PutProgress
from barrage.client.reconnect import Backoff
from barrage.client.remote_table import AsyncInputTable, AsyncRemoteTable
from barrage.client.session import AsyncSession, aconnect
from barrage.client.state import State, Stats
from barrage.client.subscription import AsyncTickingTable
from barrage.client.sync import Session, connect
from barrage.client.sync_journal import JournalBatches
from barrage.client.sync_tables import InputTable, RemoteTable
from barrage.client.sync_ticking import TickingTable
from barrage.client.sync_writer import Writer
from barrage.client.table_info import TableInfo
from barrage.client.update import Update
from barrage.client.writer import AsyncWriter
from barrage.model.cursor import Cursor
from barrage.transport.grpc_channel import TLS
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

"""For authors of connectors: sources that push messages into tables, sinks that follow tables, and
the connectors that ship; a client of servers, never a part of one."""

from barrage.connector.delivery import (
    DeliveryProgress,
    SourceDelivery,
    run_sources,
    run_sources_blocking,
)
from barrage.connector.messages import MessageBatch, stream_id_of
from barrage.connector.sink import Sink, SinkBatch, SinkFollower, SyncSink
from barrage.connector.source import Source, SyncSource
from barrage.connector.state_file import StateFile
from barrage.connector.table_delivery import TableDelivery
from barrage.connector.worker_delivery import WorkerDelivery
from barrage.wire.payloads.source_mapping import SourceMapping

__all__ = [
    "DeliveryProgress",
    "MessageBatch",
    "Sink",
    "SinkBatch",
    "SinkFollower",
    "Source",
    "SourceDelivery",
    "SourceMapping",
    "StateFile",
    "SyncSink",
    "SyncSource",
    "TableDelivery",
    "WorkerDelivery",
    "run_sources",
    "run_sources_blocking",
    "stream_id_of",
]

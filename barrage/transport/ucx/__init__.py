"""UCX by our own thin binding, and streams of Arrow data over it. Importing this opens no library;
:func:`load_library` does. What concerns streams is imported when it is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from barrage.transport.ucx.connection import (
    ConnectionState,
    ErrorMode,
    Probed,
    Received,
    RemoteKey,
    UcxConnection,
)
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import UcxLibrary, load_library
from barrage.transport.ucx.listener import UcxListener
from barrage.transport.ucx.remote_memory import RegisteredMemory
from barrage.transport.ucx.settings import UcxSettings

if TYPE_CHECKING:
    from barrage.transport.ucx.lenders import RemoteMemory
    from barrage.transport.ucx.numbered_bodies import UcxBodyReceiver, UcxBodySender
    from barrage.transport.ucx.stream_client import BatchStream, fetch, open_batches, open_stream
    from barrage.transport.ucx.stream_server import OfferedStream, ServedConnection, StreamServer
    from barrage.transport.ucx.table_streams import (
        BodyPlace,
        OfferedTable,
        StreamHalf,
        TableStreams,
        table_source,
    )

_STREAMS = {
    "UcxBodyReceiver": "numbered_bodies",
    "UcxBodySender": "numbered_bodies",
    "RemoteMemory": "lenders",
    "BatchStream": "stream_client",
    "fetch": "stream_client",
    "open_batches": "stream_client",
    "open_stream": "stream_client",
    "OfferedStream": "stream_server",
    "ServedConnection": "stream_server",
    "StreamServer": "stream_server",
    "BodyPlace": "table_streams",
    "OfferedTable": "table_streams",
    "StreamHalf": "table_streams",
    "TableStreams": "table_streams",
    "table_source": "table_streams",
}
"""Names and the modules they are in."""


def __getattr__(name: str) -> Any:
    module = _STREAMS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


__all__ = [
    "BatchStream",
    "BodyPlace",
    "ConnectionState",
    "ErrorMode",
    "OfferedStream",
    "OfferedTable",
    "Probed",
    "Received",
    "RegisteredMemory",
    "RemoteKey",
    "RemoteMemory",
    "ServedConnection",
    "StreamHalf",
    "StreamServer",
    "TableStreams",
    "UcxBodyReceiver",
    "UcxBodySender",
    "UcxConnection",
    "UcxContext",
    "UcxLibrary",
    "UcxListener",
    "UcxSettings",
    "fetch",
    "load_library",
    "open_batches",
    "open_stream",
    "table_source",
]

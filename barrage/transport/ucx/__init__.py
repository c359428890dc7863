"""UCX by our own thin binding. Importing this opens no library; :func:`load_library` does."""

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

__all__ = [
    "ConnectionState",
    "ErrorMode",
    "Probed",
    "Received",
    "RegisteredMemory",
    "RemoteKey",
    "UcxConnection",
    "UcxContext",
    "UcxLibrary",
    "UcxListener",
    "UcxSettings",
    "load_library",
]

"""Services of which this server has nothing to offer, and says so: objects that are not tables
(ObjectService), and the files of the web UI (StorageService), which accepts that
(deephaven-clients.md section 4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import UnsupportedError
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from barrage.server.access.session_store import ClientSession
    from barrage.transport.base import CallContext


class ObjectCalls:
    """The behaviors: each refuses."""

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "FetchObject": MethodEntry("unary", self.fetch_object, SessionUse.REQUIRED),
            "MessageStream": MethodEntry("bidi", self.message_stream, SessionUse.REQUIRED),
        }

    async def fetch_object(
        self, _request: bytes, _context: CallContext, _session: ClientSession
    ) -> bytes:
        raise UnsupportedError("ObjectService/FetchObject: this server has tables and nothing else")

    async def message_stream(
        self, _requests: object, _context: CallContext, _session: ClientSession
    ) -> None:
        raise UnsupportedError(
            "ObjectService/MessageStream: this server has tables and nothing else"
        )


class StorageCalls:
    """The behaviors."""

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "ListItems": MethodEntry("unary", self.list_items, SessionUse.REQUIRED),
            "FetchFile": MethodEntry("unary", self.fetch_file, SessionUse.REQUIRED),
        }

    async def list_items(
        self, request: bytes, _context: CallContext, _session: ClientSession
    ) -> bytes:
        """No items, whatever the path."""
        path = MESSAGES.decode("ListItemsRequest", request).path
        return MESSAGES.encode("ListItemsResponse", canonical_path=path)

    async def fetch_file(
        self, _request: bytes, _context: CallContext, _session: ClientSession
    ) -> bytes:
        raise UnsupportedError("StorageService/FetchFile: this server keeps no files")

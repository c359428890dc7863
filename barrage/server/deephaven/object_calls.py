"""ObjectService: objects that are not tables. This server has none and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import UnsupportedError
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry

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

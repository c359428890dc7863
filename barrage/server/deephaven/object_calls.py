"""ObjectService: objects that are not tables. This server has none and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.errors import UnsupportedError
from barrage.server.flight.call_guard import SessionUse
from barrage.server.method_table import MethodEntry

if TYPE_CHECKING:
    import grpc.aio

    from barrage.server.session_store import ClientSession

    Context = grpc.aio.ServicerContext[Any, Any]


class ObjectCalls:
    """The behaviors: each refuses."""

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "FetchObject": MethodEntry("unary", self.fetch_object, SessionUse.REQUIRED),
            "MessageStream": MethodEntry("bidi", self.message_stream, SessionUse.REQUIRED),
        }

    async def fetch_object(
        self, _request: bytes, _context: Context, _session: ClientSession
    ) -> bytes:
        raise UnsupportedError("ObjectService/FetchObject: this server has tables and nothing else")

    async def message_stream(
        self, _requests: object, _context: Context, _session: ClientSession
    ) -> None:
        raise UnsupportedError(
            "ObjectService/MessageStream: this server has tables and nothing else"
        )

"""What pages ask that nobody else does: who they are (docs/web-protocol.md section 1)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry
from barrage.server.identity.current_call import current_caller

if TYPE_CHECKING:
    from barrage.server.access.session_store import ClientSession
    from barrage.transport.base import CallContext

PAGE_SERVICE = "barrage.web.Page"


class PageCalls:
    """The behaviors."""

    def methods(self) -> dict[str, MethodEntry]:
        return {"Caller": MethodEntry("server_stream", self.caller, SessionUse.OPTIONAL)}

    async def caller(
        self, _request: bytes, context: CallContext, _session: ClientSession | None
    ) -> None:
        """Who calls, in JSON; then nothing, for as long as that holds."""
        caller = current_caller()
        told = {
            "name": caller.name,
            "roles": sorted(caller.roles),
            "proof": caller.proof.value,
            "expires_ns": caller.expires_ns,
        }
        await context.write(json.dumps(told).encode())
        await asyncio.get_running_loop().create_future()

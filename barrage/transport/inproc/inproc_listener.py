"""The server's side of calls within one process."""

from __future__ import annotations

from barrage.transport.inproc.call_server import CallServer
from barrage.transport.inproc.inproc_call import SCHEME, register, unregister


class InprocListener(CallServer):
    """Takes the calls for one name."""

    port = 0

    def __init__(self, name: str, *, message_bytes_max: int) -> None:
        self.name = name
        self.address = self.uri = f"{SCHEME}://{name}"
        super().__init__(self.uri, f"{SCHEME}:{name}", message_bytes_max=message_bytes_max)

    def bind(self) -> None:
        """A name is taken when it starts."""

    async def start(self) -> None:
        """Let clients find it; ConfigError when the name is taken."""
        await super().start()
        register(self.name, self)

    async def stop(self, grace_s: float | None) -> None:
        unregister(self.name, self)
        await super().stop(grace_s)

"""UCX as a body transport: the entry point ``ucx`` of the group ``barrage.bodies``.

Nothing of this package is imported by the rest of Barrage. Neither cffi nor the library is needed
before somebody connects or listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.transport.ucx.dialer import LocalUcx
from barrage.transport.ucx.examination import examine
from barrage.transport.ucx.served_bodies import UcxBodies, UcxServerSettings, listen

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.bodies import ServeOptions
    from barrage.transport.findings import Finding


class UcxTransport:
    """The backend of the way ``ucx``."""

    settings = UcxServerSettings

    def dial(self, limits: Limits) -> LocalUcx:
        return LocalUcx(limits)

    async def serve(self, options: ServeOptions) -> UcxBodies:
        return await listen(options)

    def examine(self) -> list[Finding]:
        return examine()


UCX = UcxTransport()

"""An engine with a catalog, a session and a resolver, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.limits import DEFAULT_LIMITS
from barrage.server.access.resolver import TicketResolver
from barrage.server.access.session_store import ClientSession
from barrage.server.identity.caller import ANYBODY
from barrage.server.policy.access_gate import AccessGate
from barrage.server.runtime.catalog import Catalog
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.tables.table_lease import TableLease
from barrage.server.tables.table_service import TableRecipe, TableService

TIMEOUT_SECONDS = 180


class Bench:
    """What the services stand on. ``session`` belongs to the test."""

    def __init__(self) -> None:
        self.limits = DEFAULT_LIMITS
        self.catalog = Catalog()
        self.runtime = EngineRuntime(limits=self.limits, clock=SystemClock())
        self.tables = TableService(self.runtime, self.catalog, limits=self.limits)
        self.resolver = TicketResolver(self.catalog, self.tables, self.limits, gate=AccessGate())
        self.session = ClientSession(1, ANYBODY, "deephaven", limits=self.limits)

    def create(self, name: str, rows: pa.Table, **options: Any) -> Any:
        """Publish a table that holds ``rows``."""
        recipe = TableRecipe.checked(name, rows.schema, **options)
        return self.tables.create(recipe, rows).result().table

    def export(self, export_id: int, table: Any, *, is_input: bool = False) -> bytes:
        """Put a table under an export of the session; its ticket."""
        lease = TableLease(self.tables, table, input_target=table if is_input else None)
        self.session.exports.define(export_id).fulfil(lease)
        return b"e" + export_id.to_bytes(4, "little")

    def static(self, export_id: int, rows: pa.Table) -> bytes:
        """Put ``rows`` under an export; its ticket."""
        return self.export(export_id, self.tables.create_static(rows).result())

    def rows(self, table: Any) -> list[dict[str, Any]]:
        return self.tables.read(table).to_pylist()


class WrittenContext:
    """The side of a call behaviors write to."""

    def __init__(self, incoming: list[Any] | None = None) -> None:
        self.messages: list[bytes] = []
        self.has_headers = False
        self._incoming = list(incoming or [])
        self._has_more = asyncio.Event()

    async def send_initial_metadata(self, _: Any) -> None:
        self.has_headers = True

    async def write(self, message: bytes) -> None:
        self.messages.append(message)
        self._has_more.set()

    async def read(self) -> Any:
        return self._incoming.pop(0)

    async def wait_for(self, count: int) -> list[bytes]:
        """All messages, once there are ``count`` of them."""
        while len(self.messages) < count:
            self._has_more.clear()
            await self._has_more.wait()
        return self.messages


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def timed() -> Any:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await work

    return asyncio.run(timed())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.session.exports.close()
    made.tables.queries.close()
    made.runtime.stop()

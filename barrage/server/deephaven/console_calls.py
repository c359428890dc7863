"""ConsoleService without a console: tables can be bound to names, scripts cannot be run.

Source: deephaven-clients.md section 4.1. pydeephaven starts a console before it runs a script and
names it when it binds a table, so starting one succeeds; what stands under its export ticket is an
error that says what it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError, TicketError, TransportError, UnsupportedError
from barrage.server.access.call_guard import SessionUse, open_headers
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.session_end import until_session_ends
from barrage.server.policy.rules import Operation
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import CallContext


class ConsoleCalls:
    """The behaviors."""

    def __init__(
        self,
        resolver: TicketResolver,
        tables: TableService,
        *,
        gate: AccessGate,
        is_naming: bool = True,
    ) -> None:
        """``is_naming``: clients may give tables names, which they may not where names stand for
        tables of another server."""
        self._resolver = resolver
        self._gate = gate
        self._tables = tables
        self._is_naming = is_naming

    def methods(self) -> dict[str, MethodEntry]:
        unary = {
            "GetConsoleTypes": self.get_console_types,
            "StartConsole": self.start_console,
            "GetHeapInfo": self.get_heap_info,
            "ExecuteCommand": self.execute_command,
            "BindTableToVariable": self.bind_table_to_variable,
        }
        entries = {name: MethodEntry("unary", behavior) for name, behavior in unary.items()}
        logs = MethodEntry("server_stream", self.subscribe_to_logs, SessionUse.REQUIRED)
        return {**entries, "SubscribeToLogs": logs}

    async def get_console_types(
        self, request: bytes, _context: CallContext, _: ClientSession
    ) -> bytes:
        """None, so that a user interface offers no console."""
        MESSAGES.decode("GetConsoleTypesRequest", request)
        return MESSAGES.encode("GetConsoleTypesResponse")

    async def start_console(
        self, request: bytes, _context: CallContext, session: ClientSession
    ) -> bytes:
        """A console that can do nothing: its ticket can be named and released."""
        message = MESSAGES.decode("StartConsoleRequest", request)
        export = self._resolver.result_export(bytes(message.result_id.ticket), session)
        told = f"Could not resolve ticket: export {export.export_id} is a console, not a table"
        export.fail(TicketError(told))
        return MESSAGES.encode("StartConsoleResponse", result_id=message.result_id)

    async def execute_command(
        self, request: bytes, _context: CallContext, _: ClientSession
    ) -> bytes:
        MESSAGES.decode("ExecuteCommandRequest", request)
        raise UnsupportedError(
            "ConsoleService/ExecuteCommand: this server runs no scripts; "
            "use table operations, or its Python API in its own process"
        )

    async def bind_table_to_variable(
        self, request: bytes, _context: CallContext, session: ClientSession
    ) -> bytes:
        """Publish a table under a name, whatever the name stood for before."""
        message = MESSAGES.decode("BindTableToVariableRequest", request)
        if not message.variable_name:
            raise RemoteProtocolError("BindTableToVariable: no variable_name")
        if not self._is_naming:
            raise UnsupportedError(
                f"BindTableToVariable: {message.variable_name!r} would be a table of this relay "
                "alone; publish it at the server that owns the tables"
            )
        # It may take the place of another table.
        self._gate.check(message.variable_name, Operation.CREATE)
        self._gate.check(message.variable_name, Operation.DROP)
        lease = await self._resolver.resolve(bytes(message.table_id.ticket), session)
        # Another name is no way around the rule that a table is only to be read.
        bound = self._tables.bind(
            message.variable_name,
            lease.table,
            is_read_only=lease.input_target is None,
            is_of_peer=not self._gate.is_keeper,
        )
        await asyncio.wrap_future(bound)
        return MESSAGES.encode("BindTableToVariableResponse")

    async def get_heap_info(self, request: bytes, _context: CallContext, _: ClientSession) -> bytes:
        """This process's memory as a heap: all of the machine's could be used."""
        MESSAGES.decode("GetHeapInfoRequest", request)
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        free = max(0, total - peak_memory_bytes())
        return MESSAGES.encode(
            "GetHeapInfoResponse", max_memory=total, total_memory=total, free_memory=free
        )

    async def subscribe_to_logs(
        self, request: bytes, context: CallContext, session: ClientSession
    ) -> None:
        """No log of the server is for its clients: the stream stays open and silent."""
        MESSAGES.decode("LogSubscriptionRequest", request)
        await open_headers(context, session)
        ended = await until_session_ends(session, _silence())
        if isinstance(ended, TransportError):
            raise ended


async def _silence() -> None:
    await asyncio.Event().wait()


def peak_memory_bytes() -> int:
    """The most memory this process has had so far."""
    import resource  # Not on every platform.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

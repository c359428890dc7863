"""The services of Deephaven's own clients and their methods, put together for one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.server.deephaven.absent_calls import ObjectCalls, StorageCalls
from barrage.server.deephaven.application_calls import ApplicationCalls
from barrage.server.deephaven.config_calls import ConfigCalls
from barrage.server.deephaven.console_calls import ConsoleCalls
from barrage.server.deephaven.input_table_calls import InputTableCalls
from barrage.server.deephaven.session_calls import SessionCalls
from barrage.server.deephaven.table_calls import TableCalls
from barrage.server.deephaven.table_updates import TableUpdates
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONFIG_SERVICE,
    CONSOLE_SERVICE,
    INPUT_TABLE_SERVICE,
    OBJECT_SERVICE,
    SESSION_SERVICE,
    STORAGE_SERVICE,
    TABLE_SERVICE,
)

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.access.method_table import MethodEntry
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import SessionStore
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.tables.table_service import TableService


class DeephavenServices:
    """All of them."""

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: SessionStore,
        resolver: TicketResolver,
        *,
        tables: TableService,
        gate: AccessGate,
        limits: Limits,
        clock: Clock,
        is_naming: bool = True,
    ) -> None:
        """``is_naming``: clients may give tables names."""
        self._config = ConfigCalls(authenticator, sessions)
        self._session = SessionCalls(sessions, resolver, limits)
        self._application = ApplicationCalls(tables, gate)
        self._tables = TableCalls(resolver, tables, limits=limits, clock=clock)
        self._updates = TableUpdates()
        self._inputs = InputTableCalls(resolver, tables, limits)
        self._console = ConsoleCalls(resolver, tables, gate=gate, is_naming=is_naming)

    def services(self) -> dict[str, dict[str, MethodEntry]]:
        """The methods of each service by its full name."""
        return {
            CONFIG_SERVICE: self._config.methods(),
            SESSION_SERVICE: self._session.methods(),
            APPLICATION_SERVICE: self._application.methods(),
            TABLE_SERVICE: {**self._tables.methods(), **self._updates.methods()},
            INPUT_TABLE_SERVICE: self._inputs.methods(),
            CONSOLE_SERVICE: self._console.methods(),
            STORAGE_SERVICE: StorageCalls().methods(),
            OBJECT_SERVICE: ObjectCalls().methods(),
        }

    def announce_stop(self, reason: str) -> None:
        """Tell the clients that asked to be told that the server is going away."""
        self._session.announce_stop(reason)

    def close(self) -> None:
        """End what works on its own; after the last call."""
        self._tables.close()

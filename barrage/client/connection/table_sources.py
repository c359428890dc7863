"""What a remote table stands for: a ticket on one connection, and how to get it again.

A name is its own ticket and is valid whenever the server runs. An export belongs to one session of
the server; its source knows how it was made and makes it again when that session is gone. Sources
are shared by handles, by queries that begin with them and by subscriptions, and are given back
when the last of these lets go.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from barrage.client.connection.reconnect import had_been_ended, was_ended
from barrage.client.connection.table_info import TableInfo, info_of_flight, info_of_schema
from barrage.errors import BarrageError, TicketError
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    import pyarrow as pa

    from barrage.client.connection.connection import Connection
    from barrage.client.connection.export_calls import ExportedTable
    from barrage.transport.base import Address


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """What a table is asked of."""

    server: Address
    ticket: bytes | None
    """Of its export, if it has one."""


class TableSource(ABC):
    """Base of all sources. ``label`` is the table's name in messages."""

    def __init__(self, connection: Connection, label: str) -> None:
        self.connection = connection
        self.label = label
        self._users = 0
        # Handles come and go on any thread, also in the middle of other work (garbage collection).
        self._lock = threading.RLock()

    @abstractmethod
    async def ticket(self) -> bytes:
        """A ticket that is valid now."""

    @abstractmethod
    async def info(self, timeout: float | None) -> TableInfo:
        """What the server says about the table; TableNotFoundError."""

    async def schema(self, timeout: float | None) -> pa.Schema:
        """The columns."""
        return (await self.info(timeout)).schema

    async def read(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """:meth:`Connection.read` of this table."""

        async def once() -> T:
            attempt = self.attempt()
            try:
                return await work()
            except BarrageError as error:
                if self.is_made_again(error):
                    self.note_failure(attempt, error)
                raise

        return await self.connection.read(once, is_ended=self.is_made_again)

    def attempt(self) -> TableAttempt:
        """Before the table is asked for."""
        return TableAttempt(server=self.connection.address, ticket=None)

    def is_made_again(self, error: BarrageError) -> bool:
        """Whether ``error`` says that the server has ended the table, and asking again helps."""
        return was_ended(error)

    def note_failure(self, attempt: TableAttempt, error: BarrageError) -> None:
        """``attempt`` has failed with ``error``, and another follows."""
        self.connection.leave(attempt.server, error)

    def retain(self) -> None:
        """One more user. Any thread."""
        with self._lock:
            self._users += 1
            is_first = self._users == 1
        if is_first:
            self.take()

    def release(self) -> None:
        """One user less; the last one gives back what the source holds. Any thread."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self.give_back()

    @property
    def is_used(self) -> bool:
        return self._users > 0

    def take(self) -> None:
        """Somebody begins to use the source. Any thread."""
        return

    def give_back(self) -> None:
        """Nobody uses the source any more: most hold nothing. Any thread."""
        return


class NamedSource(TableSource):
    """A published table of one of our servers, or a variable of a Deephaven server."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self.name = name

    async def ticket(self) -> bytes:
        return ticket_of_name(self.name)

    async def info(self, timeout: float | None) -> TableInfo:
        descriptor = flight_messages.Descriptor(path=("scope", self.name))
        return await flight_info(self.connection, descriptor, self.label, timeout=timeout)


class TicketSource(TableSource):
    """A table known by a ticket that somebody else keeps valid."""

    def __init__(self, connection: Connection, ticket: bytes) -> None:
        super().__init__(connection, label_of_ticket(ticket))
        self._ticket = ticket

    async def ticket(self) -> bytes:
        return self._ticket

    async def info(self, timeout: float | None) -> TableInfo:
        calls = self.connection.calls
        if calls is not None:
            return (await calls.describe(self._ticket, self.label, timeout)).info(self.label)
        descriptor = flight_messages.Descriptor(command=self._ticket)
        return await flight_info(self.connection, descriptor, self.label, timeout=timeout)


class ExportSource(TableSource):
    """A table the session exported, and how to export it again."""

    def __init__(
        self,
        connection: Connection,
        label: str,
        *,
        export: Callable[[], Coroutine[Any, Any, ExportedTable]] | None = None,
        exported: ExportedTable | None = None,
        needs: tuple[TableSource, ...] = (),
    ) -> None:
        """``export`` None: what was exported cannot be made again, as with uploaded rows. ``needs``
        are the sources ``export`` starts from."""
        super().__init__(connection, label)
        assert connection.calls is not None
        self.calls = connection.calls
        self._export = export
        self._exported = exported
        self._needs = needs
        self._exporting = asyncio.Lock()

    async def exported(self) -> ExportedTable:
        """The export of the present session; TicketError when it went with an earlier one."""
        async with self._exporting:
            found = self._exported
            if found is not None and found.generation == self.calls.generation:
                return found
            if self._export is None:
                raise TicketError(
                    f"table {self.label!r} is gone: it belonged to a session that the server has "
                    "ended or forgotten"
                )
            found = self._exported = await self._export()
        if not self.is_used:
            # Closed while it was being made.
            self._drop()
        return found

    async def ticket(self) -> bytes:
        return (await self.exported()).ticket

    async def schema(self, timeout: float | None) -> pa.Schema:
        async with asyncio.timeout(timeout):
            return (await self.exported()).schema

    async def info(self, timeout: float | None) -> TableInfo:
        async with asyncio.timeout(timeout):
            ticket = await self.ticket()
            return (await self.calls.describe(ticket, self.label, None)).info(self.label)

    def attempt(self) -> TableAttempt:
        exported = self._exported
        ticket = None if exported is None else exported.ticket
        return TableAttempt(server=self.connection.address, ticket=ticket)

    def is_made_again(self, error: BarrageError) -> bool:
        return was_ended(error) or (self._export is not None and had_been_ended(error))

    def note_failure(self, attempt: TableAttempt, error: BarrageError) -> None:
        super().note_failure(attempt, error)
        exported = self._exported
        if self._export is None or exported is None or not self.is_made_again(error):
            return
        # Another reader may have made it again already.
        if attempt.ticket in (None, exported.ticket):
            self._drop()

    def take(self) -> None:
        for source in self._needs:
            source.retain()

    def give_back(self) -> None:
        self._drop()
        for source in self._needs:
            source.release()

    def _drop(self) -> None:
        exported, self._exported = self._exported, None
        if exported is not None:
            self.calls.release_soon(exported)


def ticket_of_name(name: str) -> bytes:
    """The ticket of a published table or variable."""
    return b"s/" + name.encode()


def label_of_ticket(ticket: bytes) -> str:
    """How messages call a table that is known by its ticket only."""
    if ticket[:2] in (b"s/", b"a/"):
        return ticket.removeprefix(b"s/").decode(errors="replace")
    return f"ticket {ticket[:1].decode(errors='replace')}:{ticket[1:].hex()}"


async def flight_info(
    connection: Connection,
    descriptor: flight_messages.Descriptor,
    label: str,
    *,
    timeout: float | None,
) -> TableInfo:
    """GetFlightInfo; TableNotFoundError."""
    answer = await connection.channel.unary(
        FLIGHT + "GetFlightInfo", descriptor.encode(), timeout=timeout, table=label
    )
    info = info_of_flight(answer, label)
    if not connection.address.is_deephaven or info.is_ticking is not None:
        return info
    # A Deephaven server counts the rows of static tables only.
    return info_of_schema(
        label,
        info.schema,
        total_records=info.total_records,
        is_ticking=info.total_records is None,
    )

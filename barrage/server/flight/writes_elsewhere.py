"""Writes to tables that another server owns: what of a call says so, and who passes it on.

A call is passed on as bytes: nothing is decoded but the name of its table, and every answer is the
owner's. Only its first message is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from barrage.json_text import read_json
from barrage.server.ingest.export_upload import export_id_of_descriptor
from barrage.server.policy.rules import Operation
from barrage.server.tables.tickets import (
    SCOPE_ROUTE,
    table_name_of_descriptor,
    table_name_of_ticket,
)
from barrage.transport.flight_messages import Descriptor

if TYPE_CHECKING:
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.transport.base import CallContext


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """What a call wants to change."""

    name: str
    has_producer: bool = False
    """Whether its batches are numbered: then it stays open for as long as its client lives, and
    what was not acknowledged is sent again."""
    is_staged: bool = False
    """Whether they wait for a commit."""
    is_made: bool = False
    """Whether it makes the table."""


class WritesElsewhere(Protocol):
    """Passes calls on to the server that owns their table. On the event loop."""

    async def takes(self, name: str) -> bool:
        """Whether writes to the table of that name are passed on; False when they are this
        server's. UnsupportedError when they are refused."""
        ...

    def knows(self, name: str) -> bool:
        """Whether the owner has a table of that name, as far as it has said."""
        ...

    async def put(self, table: WrittenTable, first: bytes, context: CallContext) -> None:
        """Serve a DoPut call whose first message was read already. TransportError when the owner
        is lost, and whatever the owner answers."""
        ...

    async def act(self, kind: str, body: bytes, name: str) -> bytes:
        """The owner's answer to an action about a table; the same errors."""
        ...

    async def describe(self, method: str, request: bytes, name: str) -> bytes | None:
        """The owner's answer to GetFlightInfo or GetSchema (``method`` is the full name) about a
        table that is not here; None when the name has no owner elsewhere."""
        ...

    def begin_stop(self, reason: BarrageError) -> None:
        """The server stops: end calls that would stay open, once what they have passed on is
        answered."""
        ...


class _Command(msgspec.Struct, frozen=True):
    table: str | None = None
    mode: Any = None
    producer: Any = None
    stage: Any = None


class _Body(msgspec.Struct, frozen=True):
    table: str
    create: Any = False


def written_table(descriptor: bytes, limits: Limits) -> WrittenTable | None:
    """The table that the descriptor of an upload names; None for an export, and for what is no
    upload at all. RemoteProtocolError and TicketError as for uploads."""
    decoded = Descriptor.decode(descriptor)
    command = decoded.command
    if export_id_of_descriptor(decoded, limits) is not None:
        return None
    if command is None:
        return WrittenTable(name=table_name_of_descriptor(decoded, limits))
    if command.startswith(SCOPE_ROUTE):
        return WrittenTable(name=table_name_of_ticket(command, limits))
    try:
        told = msgspec.convert(read_json(command), _Command)
    except ValueError:
        return None
    if isinstance(told.stage, dict) and isinstance(told.stage.get("table"), str):
        return WrittenTable(name=told.stage["table"], is_staged=True)
    if told.table is None:
        return None
    return WrittenTable(
        name=told.table, has_producer=told.producer is not None, is_made=told.mode == "create"
    )


def acted_on(body: bytes) -> WrittenTable | None:
    """The table that the body of an action names; None when it names none."""
    try:
        told = msgspec.convert(read_json(body), _Body)
    except ValueError:
        return None
    return WrittenTable(name=told.table, is_made=told.create is True)


def needed_to_put(table: WrittenTable, *, is_known: bool) -> tuple[Operation, ...]:
    """Operations of which its caller must be allowed one."""
    if table.is_staged:
        return Operation.WRITE, Operation.CREATE
    return (Operation.WRITE if is_known and not table.is_made else Operation.CREATE,)

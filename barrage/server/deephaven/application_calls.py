"""ApplicationService: the list of tables, kept up to date while the client listens.

Source: deephaven-clients.md sections 4.1, 4.4 and trap 13. The first message names every published
table (also when there is none), later ones what was created, replaced or removed since. The stream
never ends by itself: JS clients take it for live and wait on it for names to appear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.errors import SubscriptionClosedError, TransportError
from barrage.server.access.call_guard import SessionUse, open_headers
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.session_end import until_session_ends
from barrage.server.tables.catalog_watch import CatalogWatch
from barrage.server.tables.tickets import ticket_of
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.server.access.session_store import ClientSession
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.tables.catalog_watch import CatalogChanges, CatalogFollower
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import CallContext


SCOPE_APPLICATION = "scope"
"""The application id of everything that has a ticket ``s/<name>``; its name is empty."""

TABLE_TYPE = "Table"


class ApplicationCalls:
    """The behaviors."""

    def __init__(self, tables: TableService, gate: AccessGate) -> None:
        self._gate = gate
        self._watch = CatalogWatch(tables)

    def methods(self) -> dict[str, MethodEntry]:
        return {"ListFields": MethodEntry("server_stream", self.list_fields, SessionUse.REQUIRED)}

    async def list_fields(
        self, request: bytes, context: CallContext, session: ClientSession
    ) -> None:
        """Tell all names, then follow them until the session ends."""
        MESSAGES.decode("ListFieldsRequest", request)
        await open_headers(context, session)
        with self._watch.follower() as follower:
            ended = await until_session_ends(session, _tell(follower, context, self._gate))
        if isinstance(ended, TransportError):
            raise ended
        # What the reference server says when the session is closed.
        raise SubscriptionClosedError("subscription cancelled")


async def _tell(follower: CatalogFollower, context: CallContext, gate: AccessGate) -> None:
    """The names the caller may read, which stay so for as long as the session lives."""
    is_first = True
    while True:
        changes = (await follower.changes()).of_names(gate.readable)
        if is_first or not changes.is_empty:
            await context.write(fields_change(changes))
        is_first = False


def fields_change(changes: CatalogChanges) -> bytes:
    """The FieldsChangeUpdate for these changes."""
    return MESSAGES.encode(
        "FieldsChangeUpdate",
        created=_fields(changes.created),
        updated=_fields(changes.updated),
        removed=_fields(changes.removed),
    )


def _fields(names: Sequence[str]) -> list[Any]:
    return [
        MESSAGES.new(
            "FieldInfo",
            typed_ticket=MESSAGES.new(
                "TypedTicket",
                ticket=MESSAGES.new("Ticket", ticket=ticket_of(name)),
                type=TABLE_TYPE,
            ),
            field_name=name,
            field_description="published table",
            application_id=SCOPE_APPLICATION,
        )
        for name in names
    ]

"""Calls within a session of a Deephaven server (or of ours): exports and what makes them.

The client chooses the number of an export; the server holds the table until the number is released
or the session ends (deephaven-clients.md section 2.5). Every method may be cancelled; what the
server then made for nobody is released.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barrage.client.connection.table_info import TableInfo, info_of_schema, schema_of_message
from barrage.errors import (
    BarrageError,
    ExpressionError,
    LimitExceededError,
    RemoteProtocolError,
    RequestRefusedError,
    StatusCode,
)
from barrage.supervision import Role, no_dependants, start_task
from barrage.transport.deephaven_messages import MESSAGES, SESSION_SERVICE, TABLE_SERVICE

RELEASE = Role("barrage-release", "nothing: the export goes with the session")

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.client.connection.login import DeephavenLogin
    from barrage.transport.base import FlightConnector, FrameStream

logger = logging.getLogger(__name__)

EXPORT_ID_MAX = 2**31 - 1
"""Export numbers of clients are positive 32-bit numbers (deephaven-clients.md section 2.4)."""

OPERATION_SECONDS_MAX = 60.0
"""How long the server may take to make a table, where the caller gave no limit."""

RELEASE_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """A table the server holds for the session."""

    ticket: bytes
    generation: int
    """The login it belongs to."""
    schema: pa.Schema
    is_static: bool
    size: int | None
    """Rows when it was made; None when the server did not count."""

    def info(self, name: str) -> TableInfo:
        return info_of_schema(
            name, self.schema, total_records=self.size, is_ticking=not self.is_static
        )


def ticket_message(ticket: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=ticket)


def reference(ticket: bytes) -> Any:
    """A TableReference to a ticket."""
    return MESSAGES.new("TableReference", ticket=ticket_message(ticket))


class DeephavenCalls:
    """The exports of one connection. Made on the connection's loop; belongs to it, but for
    :meth:`release_soon`."""

    def __init__(self, channel: FlightConnector, login: DeephavenLogin) -> None:
        self.channel = channel
        self._login = login
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def generation(self) -> int:
        """The session that exports belong to now."""
        return self._login.generation

    def new_ticket(self) -> bytes:
        """A ticket no other export of this connection had."""
        number = next(self._ids)
        if number > EXPORT_ID_MAX:
            raise LimitExceededError(
                "number of exports of one session",
                actual=number,
                maximum=EXPORT_ID_MAX,
                unit="exports",
            )
        return b"e" + number.to_bytes(4, "little")

    async def unary(
        self,
        service: str,
        method: str,
        request: Any,
        *,
        answer: str,
        timeout: float | None = OPERATION_SECONDS_MAX,
        table: str | None = None,
    ) -> Any:
        """One call; ``answer`` names the message that comes back."""
        buffer = await self.channel.unary(
            f"/{service}/{method}",
            bytes(request.SerializeToString()),
            timeout=timeout,
            table=table,
        )
        return MESSAGES.decode(answer, buffer)

    def open_put(self, label: str) -> FrameStream:
        """A DoPut stream. SubscriptionClosedError once the session is closed."""
        self._login.check_open()
        return self.channel.put(table=label)

    async def make(
        self, method: str, request: Any, *, label: str, timeout: float | None = None
    ) -> ExportedTable:
        """Call a method of the table service that makes one table. ``request`` lacks its
        ``result_id``."""
        ticket = self.new_ticket()
        request.result_id.CopyFrom(ticket_message(ticket))
        generation = self.generation
        try:
            answer = await self.unary(
                TABLE_SERVICE,
                method,
                request,
                answer="ExportedTableCreationResponse",
                timeout=timeout or OPERATION_SECONDS_MAX,
                table=label,
            )
            return self.exported(answer, ticket, generation)
        except BaseException:
            self.release_ticket_soon(ticket, generation)
            raise

    async def fetch(
        self, source: bytes, *, label: str, timeout: float | None = None
    ) -> ExportedTable:
        """Export what a ticket of any kind stands for; TableNotFoundError."""
        request = MESSAGES.new("FetchTableRequest", source_id=reference(source))
        return await self.make("FetchTable", request, label=label, timeout=timeout)

    async def describe(self, ticket: bytes, label: str, timeout: float | None) -> ExportedTable:
        """What a ticket stands for, without an export of its own."""
        generation = self.generation
        answer = await self.unary(
            TABLE_SERVICE,
            "GetExportedTableCreationResponse",
            ticket_message(ticket),
            answer="ExportedTableCreationResponse",
            timeout=timeout or OPERATION_SECONDS_MAX,
            table=label,
        )
        return self.exported(answer, ticket, generation)

    async def batch(
        self, operations: Sequence[Any], *, label: str, texts: Sequence[str]
    ) -> ExportedTable:
        """Run operations of which the last makes the table wanted; it gets its ``result_id`` here.

        ExpressionError names the one the server refused by its place in ``texts``.
        """
        ticket = self.new_ticket()
        last = operations[-1]
        getattr(last, last.WhichOneof("op")).result_id.CopyFrom(ticket_message(ticket))
        request = MESSAGES.encode("BatchTableRequest", ops=list(operations))
        generation = self.generation
        answers: list[Any] = []
        try:
            async for message in self.channel.results(
                f"/{TABLE_SERVICE}/Batch", request, timeout=OPERATION_SECONDS_MAX, table=label
            ):
                answers.append(MESSAGES.decode("ExportedTableCreationResponse", message))
                if len(answers) > len(operations):
                    raise RemoteProtocolError("more answers than operations")
            if len(answers) != len(operations) or not answers[-1].success:
                raise RemoteProtocolError(f"the server did not say what {label} has become")
        except BaseException as error:
            self.release_ticket_soon(ticket, generation)
            failed = [number for number, answer in enumerate(answers) if not answer.success]
            if failed and isinstance(error, RequestRefusedError):
                raise ExpressionError(
                    f"the server refused {texts[failed[0]]} ({error}); its log says why"
                ) from error
            raise
        return self.exported(answers[-1], ticket, generation)

    @staticmethod
    def exported(answer: Any, ticket: bytes, generation: int) -> ExportedTable:
        """An ExportedTableCreationResponse; RequestRefusedError when it says that there is none."""
        if not answer.success:
            raise RequestRefusedError(StatusCode.INVALID_ARGUMENT, str(answer.error_info))
        return ExportedTable(
            ticket=ticket,
            generation=generation,
            schema=schema_of_message(bytes(answer.schema_header)),
            is_static=bool(answer.is_static),
            size=int(answer.size) if answer.size >= 0 else None,
        )

    # --- giving back ----------------------------------------------------------------------------

    def release_soon(self, exported: ExportedTable) -> None:
        """Let the server forget the export; from any thread, without waiting."""
        self.release_ticket_soon(exported.ticket, exported.generation)

    def release_ticket_soon(self, ticket: bytes, generation: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin_release, ticket, generation)
        except RuntimeError:
            # The loop has ended, and with it the session and all its exports.
            return

    def _begin_release(self, ticket: bytes, generation: int) -> None:
        if not self._login.is_closed and generation == self.generation:
            task = start_task(RELEASE, self.release(ticket), on_death=no_dependants)
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def release(self, ticket: bytes) -> None:
        """Let the server forget an export. Quiet: what cannot be released goes with the session."""
        request = MESSAGES.new("ReleaseRequest", id=ticket_message(ticket))
        try:
            await self.unary(
                SESSION_SERVICE,
                "Release",
                request,
                answer="ReleaseResponse",
                timeout=RELEASE_SECONDS_MAX,
            )
        except BarrageError as error:
            logger.debug("export %s was not released: %s", ticket.hex(), error)

    async def close(self) -> None:
        """End the releases that are still under way: closing the session does the rest."""
        for task in list(self._releases):
            task.cancel()
        if self._releases:
            await asyncio.wait(self._releases)

    # --- sharing --------------------------------------------------------------------------------

    async def publish(self, exported: ExportedTable, shared: bytes) -> None:
        """Let other sessions find an export under a shared ticket; TableExistsError when that is
        taken."""
        request = MESSAGES.new(
            "PublishRequest",
            source_id=ticket_message(exported.ticket),
            result_id=ticket_message(shared),
        )
        await self.unary(
            SESSION_SERVICE,
            "PublishFromTicket",
            request,
            answer="PublishResponse",
            table=f"ticket h:{shared[1:].hex()}",
        )

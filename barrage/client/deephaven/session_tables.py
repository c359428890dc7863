"""What a session on a Deephaven server can do with tables: list, open, share, send and change
them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from barrage.client.connection.table_info import (
    TableInfo,
    info_of_flight,
    info_of_schema,
    is_input_table,
    key_columns,
)
from barrage.client.connection.table_sources import ExportSource, ticket_of_name
from barrage.client.deephaven.console import Console, check_variable_name
from barrage.client.deephaven.input_tables import add_rows, create_input_table, delete_rows
from barrage.client.deephaven.upload import plain_columns, upload_table
from barrage.client.writing.arrow_input import to_arrow_table
from barrage.client.writing.put import MODES
from barrage.errors import (
    BarrageError,
    ConfigError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.transport import flight_messages
from barrage.transport.deephaven_messages import APPLICATION_SERVICE, MESSAGES
from barrage.transport.flight_messages import FLIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from barrage.client.connection.connection import Connection
    from barrage.client.connection.export_calls import ExportedTable
    from barrage.client.connection.table_sources import TableSource
    from barrage.client.writing.put import PutProgress

logger = logging.getLogger(__name__)

FIELDS_SECONDS_MAX = 5.0
"""How long the list of a server's tables may take to begin. It has no end."""

DROP_ACTION = "barrage.drop_table"

DROP_SECONDS_MAX = 30.0

_SCOPE = "s/"


class DeephavenTables:
    """Everything here may fail with AuthenticationError when the session has ended; the caller
    tries again in a new one."""

    def __init__(self, connection: Connection) -> None:
        assert connection.calls is not None
        self.connection = connection
        self.calls = connection.calls
        self._console = Console(self.calls)
        self._published: list[ExportedTable] = []

    # --- finding --------------------------------------------------------------------------------

    async def tables(self) -> list[TableInfo]:
        """Variables and application fields that are tables; fields by their tickets."""
        infos = {}
        async for message in self.connection.channel.results(
            FLIGHT + "ListFlights", b"", timeout=None
        ):
            info = info_of_flight(message)
            if info.is_ticking is None:
                # Only the rows of static tables are counted.
                info = info_of_schema(
                    info.name,
                    info.schema,
                    total_records=info.total_records,
                    is_ticking=info.total_records is None,
                )
            infos[info.name] = info
        for ticket in await self.tickets():
            name = ticket.removeprefix(_SCOPE)
            if name not in infos and not ticket.startswith(_SCOPE):
                infos[name] = (await self.calls.describe(ticket.encode(), name, None)).info(name)
        return list(infos.values())

    async def tickets(self) -> list[str]:
        """Tickets of all tables that have a name, as text."""
        fields: list[Any] = []
        async for message in self.connection.channel.results(
            f"/{APPLICATION_SERVICE}/ListFields", b"", timeout=FIELDS_SECONDS_MAX
        ):
            fields = list(MESSAGES.decode("FieldsChangeUpdate", message).created)
            break
        return [
            bytes(field.typed_ticket.ticket.ticket).decode(errors="replace")
            for field in fields
            if field.typed_ticket.type == "Table"
        ]

    async def fetch(self, ticket: bytes, label: str) -> ExportedTable:
        """Export a table; TableNotFoundError with the nearest name there is."""
        try:
            return await self.calls.fetch(ticket, label=label)
        except TableNotFoundError as error:
            raise await self._with_near_name(error) from error

    async def _with_near_name(self, error: TableNotFoundError) -> TableNotFoundError:
        try:
            known = [ticket.removeprefix(_SCOPE) for ticket in await self.tickets()]
        except BarrageError as reason:
            logger.debug("the names of the server's tables are not known: %s", reason)
            return error
        return TableNotFoundError(error.name, known=known)

    async def open(self, ticket: bytes, label: str) -> ExportSource:
        """Export a table by its ticket, and again in later sessions."""

        async def export() -> ExportedTable:
            return await self.fetch(ticket, label)

        exported = await self.connection.call(export)
        return ExportSource(self.connection, label, export=export, exported=exported)

    async def open_input(self, name: str) -> ExportSource:
        """The same for an input table; UnsupportedError for others."""
        source = await self.open(ticket_of_name(name), name)
        if not is_input_table(await source.schema(None)):
            source.give_back()
            raise UnsupportedError(
                f"table {name!r} is no input table: rows cannot be written to it"
            )
        return source

    async def publish(self, source: TableSource, shared: bytes) -> None:
        """Share a table. The export it needs stays until the session ends."""
        exported = await self.calls.fetch(await source.ticket(), label=source.label)
        try:
            await self.calls.publish(exported, shared)
        except BaseException:
            self.calls.release_soon(exported)
            raise
        self._published.append(exported)

    # --- writing --------------------------------------------------------------------------------

    async def upload(
        self, data: Any, *, label: str, on_progress: Callable[[PutProgress], None] | None = None
    ) -> ExportSource:
        exported = await upload_table(self.calls, data, label=label, on_progress=on_progress)
        return ExportSource(self.connection, label, exported=exported)

    async def input_table(
        self, schema: pa.Schema, *, key: Sequence[str], kind: str | None, label: str
    ) -> ExportSource:
        exported = await create_input_table(self.calls, schema, key=key, kind=kind, label=label)
        return ExportSource(self.connection, label, exported=exported)

    async def create(
        self, name: str, schema: pa.Schema, *, key: Sequence[str], kind: str | None
    ) -> None:
        """A new input table with a name; TableExistsError."""
        check_variable_name(name)
        await self._check_free(name)
        await self._name_input(name, schema, key=key, kind=kind)

    async def drop(self, name: str) -> None:
        """Take a name back; TableNotFoundError."""
        check_variable_name(name)
        self.calls.release_soon(await self.fetch(ticket_of_name(name), name))
        try:
            await self._console.unbind(name)
        except UnsupportedError:
            # Our own servers run no scripts, but have an action for it.
            body = json.dumps({"table": name}).encode()
            async for _ in self.connection.channel.results(
                FLIGHT + "DoAction",
                flight_messages.encode_action(DROP_ACTION, body),
                timeout=DROP_SECONDS_MAX,
                table=name,
            ):
                pass

    async def put(
        self, name: str, data: Any, *, key: Sequence[str] = (), mode: str | None = None
    ) -> int:
        """Rows for the table ``name``: how many. Input tables take them, other names are given to a
        new table; see :meth:`barrage.client.AsyncSession.put`."""
        if mode is not None and mode not in MODES:
            raise ConfigError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        check_variable_name(name)
        table = plain_columns(to_arrow_table(data))
        if mode == "create":
            await self._check_free(name)
        if mode in ("create", "replace"):
            return await self._put_new(name, table, key)
        try:
            target = await self.calls.fetch(ticket_of_name(name), label=name)
        except TableNotFoundError as error:
            if mode is not None:
                raise await self._with_near_name(error) from error
            return await self._put_new(name, table, key)
        try:
            if is_input_table(target.schema):
                return await self._put_rows(name, target, table, mode=mode)
        finally:
            self.calls.release_soon(target)
        if mode is not None:
            raise UnsupportedError(
                f"table {name!r} is no input table: rows cannot be written to it"
            )
        return await self._put_new(name, table, key)

    async def _put_rows(
        self, name: str, target: ExportedTable, table: pa.Table, *, mode: str | None
    ) -> int:
        if mode == "delete":
            key = key_columns(target.schema)
            return await delete_rows(self.calls, target, table, key=key, label=name)
        return await add_rows(self.calls, target, table, label=name)

    async def _put_new(self, name: str, table: pa.Table, key: Sequence[str]) -> int:
        """Bind the name to a new table: static, or an input table when it has a key."""
        if key:
            await self._name_input(name, table.schema, key=key, kind=None, rows=table)
        else:
            uploaded = await upload_table(self.calls, table, label=name)
            try:
                await self._console.bind(name, uploaded.ticket)
            finally:
                self.calls.release_soon(uploaded)
        return int(table.num_rows)

    async def _name_input(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        kind: str | None,
        rows: pa.Table | None = None,
    ) -> None:
        exported = await create_input_table(self.calls, schema, key=key, kind=kind, label=name)
        try:
            if rows is not None and rows.num_rows:
                await add_rows(self.calls, exported, rows, label=name)
            await self._console.bind(name, exported.ticket)
        finally:
            self.calls.release_soon(exported)

    async def _check_free(self, name: str) -> None:
        try:
            found = await self.calls.fetch(ticket_of_name(name), label=name)
        except TableNotFoundError:
            return
        self.calls.release_soon(found)
        raise TableExistsError(name)

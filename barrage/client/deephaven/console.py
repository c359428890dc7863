"""The console of a Deephaven server, as far as names for tables need it.

Tables get a name by binding them to a variable of the console's scripting language. One console per
session, started when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.connection.export_calls import ticket_message
from barrage.errors import RequestRefusedError, SchemaError, StatusCode, UnsupportedError
from barrage.transport.deephaven_messages import CONSOLE_SERVICE, MESSAGES

if TYPE_CHECKING:
    from barrage.client.connection.export_calls import DeephavenCalls

PYTHON = "python"


class Console:
    """Lazily started; starts again in a new session."""

    def __init__(self, calls: DeephavenCalls) -> None:
        self._calls = calls
        self._ticket = b""
        self._generation = 0
        self._language = ""

    async def bind(self, name: str, table: bytes) -> None:
        """Give the export ``table`` a name, also when another has it; SchemaError for what cannot
        be one."""
        check_variable_name(name)
        request = MESSAGES.new(
            "BindTableToVariableRequest",
            console_id=ticket_message(await self._started()),
            variable_name=name,
            table_id=ticket_message(table),
        )
        await self._call("BindTableToVariable", request, "BindTableToVariableResponse")

    async def unbind(self, name: str) -> None:
        """Take a name back. UnsupportedError where the console does not speak Python."""
        check_variable_name(name)
        ticket = await self._started()
        if self._language != PYTHON:
            raise UnsupportedError(f"a {self._language} console cannot drop a table")
        request = MESSAGES.new(
            "ExecuteCommandRequest", console_id=ticket_message(ticket), code=f"del {name}"
        )
        answer = await self._call("ExecuteCommand", request, "ExecuteCommandResponse")
        if answer.error_message:
            last_line = str(answer.error_message).strip().splitlines()[-1]
            raise RequestRefusedError(StatusCode.INVALID_ARGUMENT, last_line)

    async def _started(self) -> bytes:
        if self._generation == self._calls.generation:
            return self._ticket
        generation = self._calls.generation
        types = await self._call(
            "GetConsoleTypes", MESSAGES.new("GetConsoleTypesRequest"), "GetConsoleTypesResponse"
        )
        # A server that runs no scripts may give names all the same.
        known = [str(name) for name in types.console_types] or [PYTHON]
        language = PYTHON if PYTHON in known else known[0]
        ticket = self._calls.new_ticket()
        request = MESSAGES.new(
            "StartConsoleRequest", result_id=ticket_message(ticket), session_type=language
        )
        await self._call("StartConsole", request, "StartConsoleResponse")
        self._ticket, self._generation, self._language = ticket, generation, language
        return ticket

    async def _call(self, method: str, request: Any, answer: str) -> Any:
        return await self._calls.unary(CONSOLE_SERVICE, method, request, answer=answer)


def check_variable_name(name: str) -> None:
    """SchemaError for what no scripting language takes as the name of a variable."""
    if not isinstance(name, str) or not name.isidentifier():
        raise SchemaError(
            f"{name!r} cannot be the name of a table here: use letters, digits and underscores"
        )

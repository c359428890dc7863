"""The Deephaven side of the client against a channel made of functions: sessions, exports, names
for tables, types of columns."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from barrage.client.connection import login as login_module
from barrage.client.connection.address import Handler, parse_address
from barrage.client.connection.login import DeephavenLogin
from barrage.client.connection.table_sources import ExportSource
from barrage.client.deephaven.console import Console
from barrage.client.deephaven.input_tables import fit_rows
from barrage.client.deephaven.java_types import schema_with_java_types
from barrage.client.deephaven.session_tables import DeephavenTables
from barrage.client.session import AsyncSession
from barrage.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    LimitExceededError,
    RequestRefusedError,
    RowError,
    SchemaError,
    StatusCode,
    SubscriptionClosedError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.transport.deephaven_messages import MESSAGES
from barrage.transport.status import DeadlineError

SCHEMA = pa.schema([("a", pa.int64())])


class FakeServer:
    """Answers unary calls by their short names; remembers them."""

    def __init__(self):
        self.authorization = "Anonymous"
        self.calls = []
        self.sessions = 0
        self.valid = None
        self.tables = {"t": SCHEMA, "trades": SCHEMA}
        self.exports = {}
        self.console_types = ["groovy", "python"]
        self.failures = {}
        self.is_closed = False

    async def unary(self, method, request, *, timeout, table=None):
        name = method.rpartition("/")[2]
        if name == "TerminationNotification":
            await asyncio.sleep(1000)
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]
        if name == "GetConfigurationConstants" and not self.authorization.startswith("Bearer "):
            self.sessions += 1
            self.valid = self.authorization = f"Bearer {self.sessions}"
            self.exports.clear()
        if self.authorization != self.valid:
            raise AuthenticationError("no such session")
        return getattr(self, f"answer_{name}", lambda request, table: b"")(request, table)

    async def results(self, method, request, *, timeout, table=None):
        if method.endswith("ListFields"):
            info = [
                MESSAGES.new(
                    "FieldInfo",
                    typed_ticket=MESSAGES.new(
                        "TypedTicket",
                        ticket=MESSAGES.new("Ticket", ticket=b"s/" + name.encode()),
                        type="Table",
                    ),
                )
                for name in self.tables
            ]
            yield MESSAGES.encode("FieldsChangeUpdate", created=info)

    def answer_FetchTable(self, request, table):
        message = MESSAGES.decode("FetchTableRequest", request)
        source = message.source_id.ticket.ticket
        schema = self.exports.get(source) or self.tables.get(source[2:].decode(errors="replace"))
        if schema is None:
            raise TableNotFoundError(table)
        self.exports[message.result_id.ticket] = schema
        return self.created(message.result_id.ticket, schema)

    def answer_Release(self, request, table):
        self.exports.pop(MESSAGES.decode("ReleaseRequest", request).id.ticket, None)
        return b""

    def answer_GetConsoleTypes(self, request, table):
        return MESSAGES.encode("GetConsoleTypesResponse", console_types=self.console_types)

    def answer_ExecuteCommand(self, request, table):
        return MESSAGES.encode("ExecuteCommandResponse", error_message="Trace\nNameError: x")

    def created(self, ticket, schema):
        return MESSAGES.encode(
            "ExportedTableCreationResponse",
            result_id=MESSAGES.new(
                "TableReference", ticket=MESSAGES.new("Ticket", ticket=bytes(ticket))
            ),
            success=True,
            schema_header=schema.serialize().to_pybytes(),
            is_static=True,
            size=3,
        )

    def exchange(self, *, headers=None, table=None):
        raise ConnectionLostError("not here")

    put = exchange

    async def close(self):
        self.is_closed = True


def with_session(test):
    async def run():
        server = FakeServer()
        async with AsyncSession(parse_address("dh://nowhere:1"), connector=server) as session:
            await session.open()
            await test(server, session)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    asyncio.run(run())


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_closing_logs_out():
    servers = []

    async def test(server, session):
        servers.append(server)

    with_session(test)
    assert servers[0].calls == ["GetConfigurationConstants", "CloseSession"]
    assert servers[0].is_closed


def test_logging_out_fails_quietly():
    async def test(server, session):
        server.failures["CloseSession"] = ConnectionLostError("gone")

    with_session(test)


def test_a_handle_is_released_when_it_is_closed_or_collected():
    async def test(server, session):
        one = await session.open_table("t")
        two = await session.open_table("t")
        assert await one.schema() == SCHEMA
        assert len(server.exports) == 2
        await one.close()
        await one.close()
        await settle()
        assert len(server.exports) == 1
        del two
        await settle()
        assert not server.exports
        with pytest.raises(SubscriptionClosedError, match="'t' is closed"):
            await one.schema()

    with_session(test)


def test_a_failed_export_is_given_back_and_a_near_name_told():
    async def test(server, session):
        with pytest.raises(TableNotFoundError, match="did you mean 'trades'"):
            await session.open_table("trade")
        await settle()
        assert server.calls[-1] == "Release"
        server.tables.clear()
        with pytest.raises(TableNotFoundError, match=r"not found$"):
            await session.open_table("trade")

    with_session(test)


def test_a_table_is_exported_again_in_a_new_session():
    async def test(server, session):
        table = await session.open_table("t")
        server.valid = None
        server.exports.clear()
        assert await table.schema() == SCHEMA, "the columns do not change"
        await session.open_table("trades")
        assert server.sessions == 2
        await table.schema()
        assert len(server.exports) == 2

    with_session(test)


def test_what_cannot_be_made_again_says_so():
    async def test(server, session):
        calls = session._connection.calls
        exported = await calls.fetch(b"s/t", label="t")
        source = ExportSource(session._connection, "mine", exported=exported)
        source.retain()
        assert await source.ticket() == exported.ticket
        server.valid = None
        await session.open_table("t")
        with pytest.raises(TicketError, match="'mine' is gone"):
            await source.ticket()

    with_session(test)


def test_refusals_that_are_no_lost_sessions_are_not_tried_again():
    async def test(server, session):
        server.failures["FetchTable"] = AuthenticationError("not for you")
        with pytest.raises(AuthenticationError, match="not for you"):
            await session.open_table("t")
        assert server.sessions == 1
        assert server.calls.count("FetchTable") == 1

    with_session(test)


def test_one_attempt_to_renew_serves_all_who_wait():
    async def test(server, session):
        server.valid = None
        login = session._connection.login
        ended = []
        login.on_end(ended.append)
        await asyncio.gather(*(login.renew() for _ in range(20)))
        assert server.sessions == 2
        assert ended == [1]

    with_session(test)


def test_keep_alive_notices_the_end(monkeypatch):
    monkeypatch.setattr(login_module, "LIFETIME_MS_DEFAULT", 20)

    async def test(server, session):
        ended = asyncio.Event()
        session._connection.login.on_end(lambda generation: ended.set())
        server.valid = None
        async with asyncio.timeout(60):
            await ended.wait()

    with_session(test)


def test_nobody_who_answers_in_time_is_a_lost_connection():
    server = FakeServer()
    server.failures["GetConfigurationConstants"] = DeadlineError("slow")
    with pytest.raises(ConnectionLostError, match="within 1 seconds"):
        asyncio.run(DeephavenLogin(server).open(1))


def test_export_numbers_end(monkeypatch):
    async def test(server, session):
        calls = session._connection.calls
        monkeypatch.setattr("barrage.client.connection.export_calls.EXPORT_ID_MAX", 2)
        assert [calls.new_ticket(), calls.new_ticket()] == [b"e\1\0\0\0", b"e\2\0\0\0"]
        with pytest.raises(LimitExceededError):
            calls.new_ticket()

    with_session(test)


def test_the_console_starts_once_per_session():
    async def test(server, session):
        console = Console(session._connection.calls)
        await console.bind("x", b"e\1\0\0\0")
        await console.bind("y", b"e\1\0\0\0")
        assert server.calls.count("StartConsole") == 1
        with pytest.raises(RequestRefusedError, match=r"NameError: x$"):
            await console.unbind("x")
        with pytest.raises(SchemaError, match="'a b'"):
            await console.bind("a b", b"e\1\0\0\0")

    with_session(test)


def test_a_console_of_another_language_cannot_drop():
    async def test(server, session):
        server.console_types = ["groovy"]
        with pytest.raises(UnsupportedError, match="groovy"):
            await Console(session._connection.calls).unbind("x")

    with_session(test)


def test_modes_of_put_that_do_not_exist():
    async def test(server, session):
        tables = DeephavenTables(session._connection)
        with pytest.raises(ConfigError, match="mode"):
            await tables.put("t", {"a": [1]}, mode="sideways")
        with pytest.raises(SchemaError, match="twice"):
            await tables.put("t", pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))

    with_session(test)


def test_a_refused_creation_is_typed():
    async def test(server, session):
        server.failures["CreateInputTable"] = RequestRefusedError(
            StatusCode.INVALID_ARGUMENT, "logged"
        )
        with pytest.raises(SchemaError, match="i cannot be the name of a key"):
            await session.input_table(pa.schema([("i", pa.int64())]), key="i")
        with pytest.raises(ConfigError, match="kind"):
            await session.input_table(SCHEMA, kind="heap")
        with pytest.raises(ConfigError, match="needs a key"):
            await session.input_table(SCHEMA, kind="keyed")
        with pytest.raises(SchemaError, match="'z' is no column"):
            await session.input_table(SCHEMA, key="z")

    with_session(test)


@pytest.mark.parametrize(
    ("kind", "plain", "java"),
    [
        (pa.int8(), pa.int8(), "byte"),
        (pa.uint8(), pa.int16(), "short"),
        (pa.uint16(), pa.uint16(), "char"),
        (pa.date32(), pa.date64(), "java.time.LocalDate"),
        (pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), "java.time.Instant"),
        (pa.time32("s"), pa.time64("ns"), "java.time.LocalTime"),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), "java.lang.String"),
        (pa.list_(pa.int32()), pa.list_(pa.int32()), "int[]"),
        (pa.large_list(pa.large_string()), pa.list_(pa.string()), "java.lang.String[]"),
    ],
)
def test_columns_say_their_java_types(kind, plain, java):
    field = schema_with_java_types(pa.schema([("x", kind)])).field(0)
    assert field.type == plain
    assert field.metadata[b"deephaven:type"] == java.encode()


@pytest.mark.parametrize("kind", [pa.struct([("a", pa.int8())]), pa.list_(pa.list_(pa.int8()))])
def test_columns_without_a_java_type_are_named(kind):
    with pytest.raises(SchemaError, match="'x'"):
        schema_with_java_types(pa.schema([("x", kind)]))


def test_rows_are_fitted_to_the_table():
    schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
    rows = pa.table({"v": pa.array(["a"]).dictionary_encode(), "k": [1]})
    assert fit_rows(rows, schema, names=["k", "v"]).schema == schema
    assert fit_rows(rows, schema, names=["k"], ignores_more=True).column_names == ["k"]
    with pytest.raises(SchemaError, match="no column 'v'"):
        fit_rows(rows, schema, names=["k"])
    with pytest.raises(SchemaError, match="lack column 'w'"):
        fit_rows(rows, schema, names=["w"])
    with pytest.raises(RowError, match="'k'"):
        fit_rows(pa.table({"k": [2**40]}), schema, names=["k"])
    with pytest.raises(SchemaError, match="'k'"):
        fit_rows(pa.table({"k": [{"a": 1}]}), schema, names=["k"])


def test_handlers_of_other_kinds():
    assert Handler("com.acme.Login", "word").header == "com.acme.Login word"
    assert Handler("com.acme.Login").header == "com.acme.Login"
    assert "word" not in repr(Handler("com.acme.Login", "word"))
    with pytest.raises(ConfigError):
        _ = Handler("two words", "x").header

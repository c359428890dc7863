"""Several addresses of one session: how they are read, and which server is in use when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from barrage.cli.command_errors import CommandError
from barrage.cli.target import parse_server, parse_table
from barrage.client.bodies.bodies import BodyChoice
from barrage.client.connection.address import parse_address, parse_addresses
from barrage.client.connection.connection import Connection
from barrage.client.connection.failover import FailoverConnector
from barrage.client.connection.login import METHOD
from barrage.client.connection.reconnect import ENDED_MAX, was_ended
from barrage.client.session import aconnect
from barrage.clock import SystemClock
from barrage.errors import (
    MUST_RESTART,
    BarrageError,
    ConfigError,
    ConnectionLostError,
    CycleTooLongError,
    RequestRefusedError,
    ServerFailedError,
    StatusCode,
    SubscriptionClosedError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.status import DeadlineError, error_from_status
from barrage.wire.revision import WireRevision

LIST = FLIGHT + "ListFlights"


def targets(addresses) -> list[str]:
    return [address.target for address in addresses]


# --- reading addresses ----------------------------------------------------------------------------


def test_a_list_is_text_with_commas_or_a_sequence() -> None:
    assert targets(parse_addresses("grpc://a:1, b:2,unix:///c")) == ["a:1", "b:2", "unix:///c"]
    assert targets(parse_addresses(["grpc://a:1", "b"])) == ["a:1", "b:10000"]
    assert targets(parse_addresses(("dh://localhost", "dhs://b"))) == ["localhost:10000", "b:10000"]
    assert targets(parse_addresses("a:1,a:1,b,a:1")) == ["a:1", "b:10000"]


@pytest.mark.parametrize(
    "wrong", ["a,", ",a", "a,,b", "", [], ["a", ""], ["a", None], "a,nope://b"]
)
def test_what_is_no_list(wrong) -> None:
    with pytest.raises(ConfigError):
        parse_addresses(wrong)


@pytest.mark.parametrize(
    "wrong",
    ["grpcs://a,b:1", "b:1,grpc+tls://a", ["grpcs://a", "localhost", "b:1"], "dhs://a,dh://b:1"],
)
def test_what_is_told_through_tls_is_not_told_in_the_clear(wrong) -> None:
    with pytest.raises(ConfigError, match="b:1 would be told in the clear"):
        parse_addresses(wrong)


def test_what_stays_on_this_machine_needs_no_tls() -> None:
    told = "grpcs://a,localhost,127.0.0.2:1,[::1]:2,unix:///c,inproc://d,grpc+unix:///e"
    assert len(parse_addresses(told)) == 7


def test_servers_are_of_one_kind() -> None:
    with pytest.raises(ConfigError, match="of both kinds"):
        parse_addresses("dh://a:1,grpc://b:2")
    with pytest.raises(ConfigError, match="of both kinds"):
        aconnect(["a", "dhs://b"])


def test_the_number_of_addresses_has_a_limit() -> None:
    limits = replace(DEFAULT_LIMITS, client_addresses_max=3)
    assert len(parse_addresses("a,b,c", limits=limits)) == 3
    with pytest.raises(ConfigError, match="4 addresses, there must be 1 to 3"):
        parse_addresses("a,b,c,d", limits=limits)


def test_orders() -> None:
    listed = targets(parse_addresses("a,b,c"))
    seen = {tuple(targets(parse_addresses("a,b,c", order="random"))) for _ in range(200)}
    assert seen == {tuple(listed[i:] + listed[:i]) for i in range(3)}
    with pytest.raises(ConfigError, match="'shuffled'"):
        parse_addresses("a,b", order="shuffled")


def test_lists_on_the_command_line() -> None:
    address = parse_server("a:1, grpcs://b,unix:///run/c")
    assert address.uri == "grpc://a:1,grpcs://b:10000,unix:///run/c"
    assert str(address) == "a:1,b:10000,unix:///run/c"
    found = parse_table("a:1,b:2/my,table")
    assert (str(found.server), found.table) == ("a:1,b:2", "my,table")
    found = parse_table("a:1/my,table")
    assert (str(found.server), found.table) == ("a:1", "my,table")
    found = parse_table("unix:///run/a,grpc://b:2/t")
    assert (found.server.uri, found.table) == ("unix:///run/a,grpc://b:2", "t")
    for wrong in ("a:1,,b:2", "a:1,b:2/t,", ","):
        with pytest.raises(CommandError) as caught:
            parse_server(wrong)
        assert caught.value.exit_code == 2


# --- which server is in use -----------------------------------------------------------------------


class Server:
    """Answers with its name, or fails as it is told."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.authorization: str | None = "Bearer mine"
        self.error: Exception | None = None
        self.calls = 0
        self.is_closed = False
        self.streams: list[Stream] = []

    def exchange(self, **_):
        return self._stream()

    def put(self, **_):
        return self._stream()

    def get(self, _ticket, **_):
        return self._stream()

    def _stream(self):
        self.streams.append(Stream(self))
        return self.streams[-1]

    async def unary(self, *_, **__):
        self.calls += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return self.target.encode()

    async def results(self, *_, **__):
        yield await self.unary()

    async def close(self):
        self.is_closed = True


class Stream:
    def __init__(self, server: Server) -> None:
        self.server = server

    async def read(self):
        return await self.server.unary()

    async def headers(self):
        await self.server.unary()
        return {}

    async def write(self, _frame):
        await self.server.unary()

    async def half_close(self):
        await self.server.unary()

    def cancel(self):
        self.server.error = ConnectionLostError("the call was cancelled")


def scene(count: int = 3) -> tuple[FailoverConnector, dict[str, Server]]:
    servers: dict[str, Server] = {}

    def connect(address):
        return servers.setdefault(address.target, Server(address.target))

    names = [f"inproc://{name}" for name in "abcdef"[:count]]
    return FailoverConnector([parse_address(name) for name in names], connect), servers


def lost(text: str = "gone") -> ConnectionLostError:
    return ConnectionLostError(text)


def ended() -> BarrageError:
    """What a server says of a derived table that it has ended for the sake of all others."""
    return error_from_status(StatusCode.ABORTED, str(CycleTooLongError()))


async def call(connector: FailoverConnector, method: str = LIST) -> bytes:
    return await connector.unary(method, b"", timeout=1)


def test_servers_are_connected_to_when_they_are_used_and_all_are_closed() -> None:
    async def test():
        connector, servers = scene()
        assert await call(connector) == b"inproc://a"
        assert list(servers) == ["inproc://a"]
        servers["inproc://a"].error = lost()
        with pytest.raises(ConnectionLostError):
            await call(connector)
        assert connector.target == "inproc://b"
        assert targets(connector.addresses) == ["inproc://b", "inproc://c", "inproc://a"]
        assert await call(connector) == b"inproc://b"
        await connector.close()
        assert [server.is_closed for server in servers.values()] == [True, True]
        with pytest.raises(SubscriptionClosedError):
            await call(connector)
        with pytest.raises(SubscriptionClosedError):
            connector.exchange()

    asyncio.run(test())


@pytest.mark.parametrize("step", ["read", "headers", "half_close", "write"])
def test_a_lost_stream_moves_on_once_for_all_of_its_server(step) -> None:
    async def test():
        connector, servers = scene()
        moves = []
        connector.on_move(lambda: moves.append(connector.target))
        streams = [connector.exchange(), connector.put(), connector.get(b"t")]
        servers["inproc://a"].error = lost()
        arguments = (b"",) if step == "write" else ()
        for stream in streams:
            with pytest.raises(ConnectionLostError):
                await getattr(stream, step)(*arguments)
        assert moves == ["inproc://b"]

    asyncio.run(test())


def test_what_is_cancelled_from_here_says_nothing_about_the_server() -> None:
    async def test():
        connector, _ = scene()
        stream = connector.exchange()
        stream.cancel()
        with pytest.raises(ConnectionLostError):
            await stream.read()
        assert connector.target == "inproc://a"

    asyncio.run(test())


@pytest.mark.parametrize(
    ("method", "error", "moves"),
    [
        (LIST, lost(), True),
        (LIST, DeadlineError("late"), False),
        (FLIGHT + "ListActions", DeadlineError("late"), True),
        (METHOD, DeadlineError("late"), True),
        (METHOD, RequestRefusedError(StatusCode.INTERNAL, "no"), False),
    ],
)
def test_which_failures_mean_that_the_server_is_lost(method, error, moves) -> None:
    async def test():
        for calls in ("unary", "results"):
            connector, servers = scene()
            await call(connector)
            servers["inproc://a"].error = error
            with pytest.raises(type(error)):
                if calls == "unary":
                    await call(connector, method)
                else:
                    [_ async for _ in connector.results(method, b"", timeout=1)]
            assert (connector.target == "inproc://b") is moves

    asyncio.run(test())


@pytest.mark.parametrize("step", ["unary", "results", "read", "headers", "half_close", "write"])
def test_a_server_that_has_ended_a_table_is_there(step) -> None:
    """What else the session has open stays where it is, and who reads is told as it was."""

    async def test():
        connector, servers = scene()
        await call(connector)
        stream = connector.exchange()
        servers["inproc://a"].error = told = ended()
        with pytest.raises(ConnectionLostError) as caught:
            if step == "unary":
                await call(connector)
            elif step == "results":
                [_ async for _ in connector.results(LIST, b"", timeout=1)]
            else:
                await getattr(stream, step)(*((b"",) if step == "write" else ()))
        assert caught.value is told
        assert connector.target == "inproc://a"

    asyncio.run(test())


def test_a_server_that_has_ended_a_table_need_not_be_restarted() -> None:
    async def test():
        connector, servers = scene(2)
        await call(connector)
        servers["inproc://a"].error = ServerFailedError(MUST_RESTART)
        with pytest.raises(ConnectionLostError):
            await call(connector)
        stream = connector.exchange()
        connector.leave(connector.address, lost())
        servers["inproc://a"].error = ended()
        with pytest.raises(ConnectionLostError):
            await call(connector)
        servers["inproc://b"].error = ServerFailedError(MUST_RESTART)
        with pytest.raises(ConnectionLostError) as caught:
            await stream.read()
        assert type(caught.value) is ConnectionLostError

    asyncio.run(test())


@pytest.mark.parametrize(("times", "is_answered"), [(ENDED_MAX, True), (ENDED_MAX + 1, False)])
def test_a_table_that_was_ended_is_asked_for_again_of_the_same_server(times, is_answered) -> None:
    async def test():
        connector, servers = scene(2)
        connection = Connection(
            connector.address,
            connector,
            tls=None,
            revision=WireRevision.R1_0_0,
            limits=DEFAULT_LIMITS,
            clock=SystemClock(),
            bodies=BodyChoice.INLINE,
        )
        await call(connector)
        asked = []

        async def read():
            servers["inproc://a"].error = ended() if len(asked) < times else None
            asked.append(connector.target)
            return await call(connector)

        if is_answered:
            assert await connection.read(read) == b"inproc://a"
        else:
            with pytest.raises(ConnectionLostError, match="ask for it again") as caught:
                await connection.read(read)
            assert was_ended(caught.value)
        assert asked == ["inproc://a"] * (ENDED_MAX + 1)
        connection.leave(connection.address, ended())
        assert connector.target == "inproc://a"
        await connection.close()

    asyncio.run(test())


def test_a_question_is_asked_of_each() -> None:
    async def test():
        connector, servers = scene()
        for _ in range(2):
            connector.leave(connector.address, lost())
        for name in ("inproc://c", "inproc://a"):
            connector._connector.authorization = "Bearer mine"
            servers.setdefault(name, Server(name)).error = lost(f"no {name}")
        assert await connector.ask_each(lambda: call(connector)) == b"inproc://b"
        servers["inproc://b"].error = ServerFailedError(f"b {MUST_RESTART}")
        with pytest.raises(ConnectionLostError) as caught:
            await connector.ask_each(lambda: call(connector))
        assert type(caught.value) is ConnectionLostError
        text = str(caught.value)
        assert text.startswith("none of 3 servers can be reached: inproc://b: b ")
        assert "inproc://c: no inproc://c" in text
        assert "inproc://a: no inproc://a" in text

    asyncio.run(test())


def test_servers_that_must_all_be_restarted_say_so() -> None:
    async def test():
        connector, servers = scene(2)

        async def ask():
            await call(connector)

        servers |= {name: Server(name) for name in ("inproc://a", "inproc://b")}
        for server in servers.values():
            server.error = ServerFailedError(MUST_RESTART)
        with pytest.raises(ServerFailedError, match="none of 2"):
            await connector.ask_each(ask)

    asyncio.run(test())


def test_a_server_that_must_be_restarted_is_lost_while_there_are_others() -> None:
    async def test():
        connector, servers = scene(2)
        stream = connector.exchange()
        servers["inproc://a"].error = ServerFailedError(MUST_RESTART)
        with pytest.raises(ConnectionLostError) as caught:
            await stream.read()
        assert type(caught.value) is ConnectionLostError
        assert MUST_RESTART in str(caught.value)
        assert await call(connector) == b"inproc://b"
        servers["inproc://b"].error = ServerFailedError(MUST_RESTART)
        with pytest.raises(ServerFailedError):
            await call(connector)
        # One that works again is somewhere to go.
        servers["inproc://a"].error = None
        assert await connector.exchange().read() == b"inproc://a"
        with pytest.raises(ConnectionLostError) as caught:
            connector.leave(connector.address, lost())
            await call(connector)
        assert type(caught.value) is ConnectionLostError

    asyncio.run(test())


def test_a_list_that_nobody_reads_to_its_end_is_ended() -> None:
    async def test():
        connector, servers = scene(2)
        await call(connector)
        ended = []

        async def results(*_, **__):
            try:
                while True:
                    yield b"x"
            finally:
                ended.append(True)

        servers["inproc://a"].results = results
        found = connector.results(LIST, b"", timeout=None)
        assert await anext(found) == b"x"
        await found.aclose()
        assert ended == [True]
        assert connector.target == "inproc://a"

    asyncio.run(test())


def test_questions_beside_each_other_end_and_find_the_one_that_is_there() -> None:
    async def test():
        connector, servers = scene(6)
        for name in "abcdef":
            servers[f"inproc://{name}"] = Server(f"inproc://{name}")
            if name != "d":
                servers[f"inproc://{name}"].error = lost(name)
        answers = await asyncio.gather(
            *(connector.ask_each(lambda: call(connector)) for _ in range(50))
        )
        assert set(answers) == {b"inproc://d"}
        assert connector.target == "inproc://d"
        assert all(server.calls <= 50 for server in servers.values())
        servers["inproc://d"].error = lost()
        failures = await asyncio.gather(
            *(connector.ask_each(lambda: call(connector)) for _ in range(50)),
            return_exceptions=True,
        )
        assert all(isinstance(failure, ConnectionLostError) for failure in failures)

    asyncio.run(test())


def test_a_cancelled_question_moves_nobody() -> None:
    async def test():
        connector, _ = scene()
        asking = asyncio.ensure_future(connector.ask_each(lambda: call(connector)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert connector.target == "inproc://a"

    asyncio.run(test())


def test_the_token_goes_along() -> None:
    async def test():
        connector, servers = scene()
        connector.authorization = "Bearer of a session"
        connector.leave(connector.address, lost())
        assert connector.authorization == "Bearer of a session"
        assert servers["inproc://b"].authorization == "Bearer of a session"

    asyncio.run(test())

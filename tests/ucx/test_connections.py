"""How connections begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pyarrow as pa
import pytest

from barrage.errors import (
    ConnectionLostError,
    TransportError,
)
from barrage.transport.ucx import (
    ConnectionState,
    ErrorMode,
    UcxConnection,
    UcxContext,
    UcxLibrary,
    UcxListener,
    UcxSettings,
    connection,
)
from tests.ucx.pair import Inbox, ends, pair, until

MODES = pytest.mark.parametrize("error_mode", list(ErrorMode))


# --- connecting -----------------------------------------------------------------------------------


@MODES
def test_a_port_nobody_listens_on_is_reported_at_once(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def scenario() -> None:
            context = UcxContext(library, UcxSettings())
            try:
                with pytest.raises(TransportError, match=f"cannot connect.*127.0.0.1:{port}"):
                    await asyncio.wait_for(
                        UcxConnection.connect(
                            context, "127.0.0.1", port, timeout=90, error_mode=error_mode
                        ),
                        30,
                    )
            finally:
                context.close()

        asyncio.run(scenario())


@MODES
def test_a_listener_that_never_answers_ends_in_the_timeout(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def scenario() -> None:
            context = UcxContext(library, UcxSettings())
            try:
                with pytest.raises(TransportError, match=r"no answer in 0\.3 s"):
                    await UcxConnection.connect(
                        context,
                        "127.0.0.1",
                        silent.getsockname()[1],
                        timeout=0.3,
                        error_mode=error_mode,
                    )
                is_lingering = library.is_asserting and error_mode is ErrorMode.NONE
                assert bool(context.workers) == is_lingering
            finally:
                context.close()

        asyncio.run(scenario())


@pytest.mark.parametrize("host", ["::1", "[::1]", "fe80::1"])
def test_ipv6_is_refused(library: UcxLibrary, host: str) -> None:
    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            with pytest.raises(TransportError, match="IPv4 only"):
                await UcxConnection.connect(context, host, 1, timeout=1)
            with pytest.raises(TransportError, match="IPv4 only"):
                UcxListener(context, host, 0, on_connection=lambda _: None)
        finally:
            context.close()

    asyncio.run(scenario())


def test_names_are_resolved_to_ipv4_and_unknown_ones_reported(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            port = both.listener.port
            connection = await UcxConnection.connect(both.context, "localhost", port, timeout=30)
            await connection.close()
            with pytest.raises(TransportError, match="no IPv4 address"):
                await UcxConnection.connect(both.context, "no.such.invalid", port, timeout=30)
            with pytest.raises(TransportError, match="needs an IPv4 address"):
                UcxListener(both.context, "no.such.invalid", 0, on_connection=lambda _: None)

    asyncio.run(scenario())


def test_a_port_in_use_is_refused(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            with pytest.raises(TransportError, match="cannot listen on 127"):
                UcxListener(
                    both.context, "127.0.0.1", both.listener.port, on_connection=lambda _: None
                )

    asyncio.run(scenario())


def test_connections_past_the_limit_are_rejected_until_one_is_closed(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library, connections_max=2) as both:
            await both.connect()
            await both.connect()
            with pytest.raises(TransportError, match="cannot connect"):
                await UcxConnection.connect(
                    both.context, "127.0.0.1", both.listener.port, timeout=30
                )
            assert both.listener.rejected_count == 1
            await both.accepted[0].close()
            assert both.listener.connection_count == 1
            client, server = await both.connect()
            inbox = Inbox(server)
            client.send_tagged(1, b"in")
            await until(lambda: inbox.tagged == [(1, b"in")])

    asyncio.run(scenario())


def test_many_connect_at_once(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            clients = await asyncio.gather(
                *(
                    UcxConnection.connect(both.context, "127.0.0.1", both.listener.port, timeout=60)
                    for _ in range(20)
                )
            )
            both.opened.extend(clients)
            await until(lambda: len(both.accepted) == 20)
            inboxes = [Inbox(server) for server in both.accepted]
            for client in clients:
                client.send_untagged(b"here")
            await until(lambda: all(inbox.untagged for inbox in inboxes))

    asyncio.run(scenario())


def test_an_owner_that_cannot_take_a_connection_loses_only_that_one(
    library: UcxLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[UcxConnection] = []

    def take(connection: UcxConnection) -> None:
        taken.append(connection)
        if len(taken) == 1:
            raise ValueError("not this one")

    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=take)
        try:
            for _ in range(2):
                with contextlib.suppress(TransportError):
                    await UcxConnection.connect(context, "127.0.0.1", listener.port, timeout=30)
            await until(lambda: len(taken) == 2)
            assert taken[0].state is ConnectionState.CLOSED
            assert taken[1].state is ConnectionState.OPEN
            assert listener.connection_count == 1
        finally:
            context.close()

    asyncio.run(scenario())
    assert "was not taken over" in caplog.text


def test_a_listener_that_is_closed_keeps_its_connections(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            client, server = await both.connect()
            both.listener.close()
            both.listener.close()
            inbox = Inbox(server)
            client.send_tagged(1, b"still")
            await until(lambda: inbox.tagged == [(1, b"still")])
            with pytest.raises(TransportError, match="cannot connect"):
                await UcxConnection.connect(
                    both.context, "127.0.0.1", both.listener.port, timeout=30
                )

    asyncio.run(scenario())


def test_looking_up_a_name_counts_for_the_timeout(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_host: str) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(connection, "ipv4_of", never)

    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            with pytest.raises(TransportError, match=r"no answer in 0\.05 s"):
                await UcxConnection.connect(context, "somewhere", 1, timeout=0.05)
        finally:
            context.close()

    asyncio.run(scenario())


def test_a_connection_that_is_called_off_in_the_moment_it_is_there_is_closed(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = UcxConnection._flushed

    def flushed_too_late(this: UcxConnection, done: asyncio.Future[None]) -> None:
        flushed(this, done)
        connecting[0].cancel()

    monkeypatch.setattr(UcxConnection, "_flushed", flushed_too_late)
    connecting: list[asyncio.Task[UcxConnection]] = []

    async def scenario() -> None:
        async with ends(library) as both:
            port = both.listener.port
            connecting.append(
                asyncio.create_task(
                    UcxConnection.connect(both.context, "127.0.0.1", port, timeout=30)
                )
            )
            with pytest.raises(asyncio.CancelledError):
                await connecting[0]
            await until(lambda: len(both.context.workers) == 1 + len(both.accepted))

    asyncio.run(scenario())


def test_a_listener_that_cannot_be_made_holds_no_port(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            listener = UcxListener(context, "127.0.0.1", 0, on_connection=lambda _: None)
            listener.close()

            def refuse(_: UcxListener) -> int:
                raise TransportError("no port to be had")

            with monkeypatch.context() as patch:
                patch.setattr(UcxListener, "_query_port", refuse)
                with pytest.raises(TransportError, match="no port"):
                    UcxListener(context, "127.0.0.1", listener.port, on_connection=lambda _: None)
            assert not context.workers
            UcxListener(context, "127.0.0.1", listener.port, on_connection=lambda _: None).close()
        finally:
            context.close()

    asyncio.run(scenario())


def test_who_waits_to_be_accepted_when_a_listener_is_closed_is_rejected(
    library: UcxLibrary,
) -> None:
    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        try:
            listener = UcxListener(context, "127.0.0.1", 0, on_connection=lambda _: None)
            listener._worker.deliver = lambda: None
            connecting = asyncio.create_task(
                UcxConnection.connect(context, "127.0.0.1", listener.port, timeout=90)
            )
            await until(lambda: listener._worker.requests_to_connect)
            listener.close()
            assert listener.rejected_count == 1
            with pytest.raises(TransportError, match="cannot connect"):
                await asyncio.wait_for(connecting, 30)
        finally:
            context.close()

    asyncio.run(scenario())


# --- ending ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("size", [8, 100_000, 4_000_000])
def test_what_was_sent_before_a_graceful_close_arrives_before_the_loss(
    library: UcxLibrary, error_mode: ErrorMode, size: int
) -> None:
    async def scenario() -> None:
        async with pair(library, error_mode=error_mode) as (client, server):
            inbox = Inbox(server)
            for tag in range(10):
                client.send_tagged(tag, bytes(size))
                client.send_untagged(b"metadata")
            await client.close(force=False)
            await until(lambda: inbox.lost)
            assert len(inbox.tagged) == 10
            assert len(inbox.untagged) == 10
            assert inbox.story.index("lost") == 20
            await asyncio.sleep(0.05)
            assert len(inbox.lost) == 1
            assert server.state is ConnectionState.LOST
            assert server.lost is inbox.lost[0]

    asyncio.run(scenario())


def test_what_lies_in_the_socket_when_a_connection_fails_is_still_told_first(
    library: UcxLibrary,
) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            inbox = Inbox(server)
            client.send_tagged(0, b"first")  # Before it is there, nothing goes without the server.
            await until(lambda: inbox.tagged)
            for tag in range(10):
                client.send_tagged(tag, b"late")
            for _ in range(20):
                client._worker._pump()
                time.sleep(0.02)  # noqa: ASYNC251 - the kernel goes on, the server does not
            server._worker.failure = -25
            server._deliver()
            await until(lambda: inbox.lost)
            assert inbox.story == ["tagged"] * 11 + ["lost"]

    asyncio.run(scenario())


def test_a_forced_close_waits_for_nothing_and_fails_what_is_under_way(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_SECONDS_MAX", 90)

    async def scenario() -> None:
        async with pair(library) as (client, server):
            inbox = Inbox(server, takes_tagged=False)
            waiting = client.send_tagged(1, bytes(4_000_000))
            unmatched = client.send_tagged(2, b"x", synchronous=True)
            await asyncio.sleep(0.02)
            await asyncio.wait_for(client.close(), 30)
            for future in (waiting, unmatched):
                with pytest.raises(ConnectionLostError):
                    await future
            assert client.state is ConnectionState.CLOSED
            await until(lambda: inbox.lost)
            await client.close()

    asyncio.run(scenario())


@MODES
def test_a_graceful_close_does_not_wait_for_a_peer_that_takes_nothing(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario() -> None:
        async with pair(library, error_mode=error_mode) as (client, server):
            Inbox(server, takes_tagged=False)
            for _ in range(10):
                client.send_tagged(1, bytes(4_000_000))
            await asyncio.wait_for(client.close(force=False), 30)
            assert client.state is ConnectionState.CLOSED

    asyncio.run(scenario())


def test_everything_is_refused_after_the_end_and_closing_twice_is_fine(
    library: UcxLibrary,
) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, _):
            await asyncio.gather(client.close(), client.close(force=False))
            calls = [
                lambda: client.send_untagged(b"x"),
                lambda: client.send_tagged(1, b"x"),
                lambda: client.probe(),
                lambda: client.flush(),
                lambda: client.receive_posted(1, 1, pa.allocate_buffer(1)),
            ]
            for call in calls:
                with pytest.raises(ConnectionLostError):
                    call()

    asyncio.run(scenario())


def test_a_loss_is_told_to_who_asks_afterwards(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            await server.close()
            await until(lambda: client.lost is not None)
            told: list[TransportError] = []
            client.on_lost = told.append
            await until(lambda: told)
            client.on_lost = told.append
            await asyncio.sleep(0.01)
            assert told == [client.lost]
            with pytest.raises(ConnectionLostError, match="lost"):
                client.send_tagged(1, b"x")

    asyncio.run(scenario())


def test_an_owner_that_fails_loses_its_connection_and_nothing_else(
    library: UcxLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ValueError("cannot read this")

    async def scenario() -> None:
        async with ends(library) as both:
            client, server = await both.connect()
            other_client, other_server = await both.connect()
            inbox, other = Inbox(server), Inbox(other_server)
            server.on_untagged = fail
            await client.send_untagged(b"x")
            await until(lambda: inbox.lost)
            assert "cannot read this" in str(inbox.lost[0])
            other_client.send_untagged(b"fine")
            await until(lambda: other.untagged == [b"fine"])

    asyncio.run(scenario())
    assert "given up" in caplog.text


def test_a_connection_may_be_closed_from_its_own_callback(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            tasks: list[asyncio.Task[None]] = []
            server.on_untagged = lambda _: tasks.append(asyncio.ensure_future(server.close()))
            for _ in range(3):
                client.send_untagged(b"x")
            await until(lambda: tasks)
            await asyncio.gather(*tasks)
            await until(lambda: client.lost is not None)

    asyncio.run(scenario())


def test_a_context_takes_what_is_left_with_it(library: UcxLibrary) -> None:
    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        accepted: list[UcxConnection] = []
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=accepted.append)
        client = await UcxConnection.connect(context, "127.0.0.1", listener.port, timeout=30)
        pending = client.send_tagged(1, bytes(4_000_000))
        context.close()
        context.close()
        with pytest.raises(ConnectionLostError, match="closed"):
            await pending
        with pytest.raises(TransportError, match="closed"):
            await UcxConnection.connect(context, "127.0.0.1", listener.port, timeout=30)
        await client.close()

    asyncio.run(scenario())


@MODES
def test_a_context_is_closed_after_its_loop_with_all_that_was_left_under_way(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario() -> tuple[UcxContext, UcxConnection]:
        context = UcxContext(library, UcxSettings())
        accepted: list[UcxConnection] = []
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=accepted.append)
        client = await UcxConnection.connect(
            context, "127.0.0.1", listener.port, timeout=30, error_mode=error_mode
        )
        await until(lambda: accepted)
        sending = client.send_tagged(1, bytes(4_000_000))
        coming = accepted[0].receive_posted(9, 2**64 - 1, pa.allocate_buffer(8))
        client.send_untagged(bytes(1_000_000))
        closed = asyncio.shield(client._closed)  # as one who waits for the end has it
        for future in (sending, coming, closed):
            future.add_done_callback(lambda _: None)
        return context, client

    context, client = asyncio.run(scenario())
    context.close()
    assert client.state is ConnectionState.CLOSED
    assert not context.workers

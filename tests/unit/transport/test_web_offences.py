"""What peers of a page's port do over HTTP/1.1 that no browser does, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import h11
import pytest

from barrage.errors import StatusCode
from barrage.transport.over_http2.http2_stream import MESSAGE_OVERHEAD_BYTES
from barrage.transport.over_websocket import web_connection
from tests.helpers.fetching import Browser, framed
from tests.unit.transport.contract import TOLD_SECONDS, until
from tests.unit.transport.grpc_web_served import LIMITS, method, web_listener


@pytest.fixture
def scene(tmp_path):
    """Runs a scene with a listener in the clear."""

    def run(play):
        async def main():
            async with (
                asyncio.timeout(TOLD_SECONDS),
                web_listener(tmp_path, is_tls=False) as (listener, behaviors, site),
                contextlib.AsyncExitStack() as ends,
            ):

                async def connect(**options):
                    made = await asyncio.open_connection("127.0.0.1", listener.port, **options)
                    ends.push_async_callback(_closed, made[1])
                    return made

                await play(connect, listener, behaviors, site)

        asyncio.run(main())

    return run


async def _closed(writer):
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def call(name, body, *lines):
    """A whole request."""
    return opened(name, f"Content-Length: {len(body)}", *lines) + body


def opened(name, *lines):
    fields = "".join(f"{line}\r\n" for line in lines)
    head = f"POST {method(name)} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}"
    return f"{head}Content-Type: application/grpc-web+proto\r\n\r\n".encode()


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


async def everything(reader):
    """What comes until the other side ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            found += data
    return found


def only_connection(listener):
    [connection] = listener._connections
    return connection


@pytest.mark.parametrize("more", [(), ("Connection: Upgrade", "Upgrade: websocket")])
def test_a_call_that_its_own_body_ends_has_one_answer(more, scene):
    """Two would make who sends on a connection for others take the second for the next one's."""

    async def play(connect, listener, behaviors, site):
        reader, writer = await connect()
        writer.write(call("Reversed", framed(b"abc", 1), *more))
        writer.write(b"GET /next HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        found = await everything(reader)
        assert found.count(b"HTTP/1.1 ") == 2
        first, _, second = found.partition(b"HTTP/1.1 200 ")[2].partition(b"HTTP/1.1 ")
        assert b"grpc-status: %d" % StatusCode.INVALID_ARGUMENT.value in first
        assert second.endswith(b"/next")
        assert [request.path for request in site.asked] == ["/next"]

    scene(play)


def test_a_call_of_http_1_0_ends_with_its_connection(scene):
    async def play(connect, listener, behaviors, site):
        reader, writer = await connect()
        writer.write(call("Echo", framed(b"abc")).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert framed(b"abc") in await everything(reader)

    scene(play)


def test_messages_without_bytes_are_bounded_too(scene):
    async def play(connect, listener, behaviors, site):
        _, writer = await connect()
        writer.write(opened("Wait", "Transfer-Encoding: chunked") + chunk(framed(b"")))
        await until(lambda: behaviors.started == 1)
        connection = only_connection(listener)
        many = LIMITS.web_requests_bytes_max // MESSAGE_OVERHEAD_BYTES
        for _ in range(40):
            writer.write(chunk(framed(b"") * many))
        await until(lambda: not connection._transport.is_reading())
        # It is looked at whether that lasts.
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(connection._call._requests) < 3 * many + 65_536

    scene(play)


def test_reading_goes_on_when_half_is_read_and_not_for_each_message(scene):
    async def play(connect, listener, behaviors, site):
        gate = asyncio.Semaphore(0)
        taken = 0

        async def slow(requests, context):
            nonlocal taken
            async for _ in requests:
                taken += 1
                await gate.acquire()
            yield b"whole"

        behaviors.reversed = slow
        listener._handlers[:] = [behaviors.handler()]
        reader, writer = await connect()
        writer.write(opened("Reversed", "Transfer-Encoding: chunked"))
        writer.write(chunk(framed(b"x") * 20_000))
        await until(lambda: taken == 1)
        transport = only_connection(listener)._transport
        assert not transport.is_reading()
        for _ in range(10):
            gate.release()
        await until(lambda: taken == 11)
        assert not transport.is_reading()
        for _ in range(20_000):
            gate.release()
        writer.write(chunk(b""))
        assert b"whole" in await reader.readuntil(b"grpc-status: 0\r\n")

    scene(play)


def test_a_client_that_goes_is_noticed_though_nobody_reads_its_messages(scene):
    async def play(connect, listener, behaviors, site):
        _, writer = await connect()
        writer.write(call("Wait", framed(b"x" * 1000) * 64))
        await until(lambda: behaviors.started == 1)
        await until(lambda: only_connection(listener)._http.their_state is h11.DONE)
        writer.transport.abort()
        await until(lambda: behaviors.cancelled == 1)

    scene(play)


def test_the_system_sees_whether_a_silent_client_is_there(scene):
    async def play(connect, listener, behaviors, site):
        _, writer = await connect()
        writer.write(call("Wait", framed(b"")))
        await until(lambda: behaviors.started == 1)
        sock = only_connection(listener)._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30

    scene(play)


def test_a_body_has_a_length_or_an_encoding(scene):
    async def play(connect, listener, behaviors, site):
        reader, writer = await connect()
        both = ("Content-Length: 3", "Transfer-Encoding: chunked")
        writer.write(opened("Echo", *both) + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
        found = await everything(reader)
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.count(b"HTTP/1.1 ") == 1
        assert (behaviors.seen, site.asked) == ({}, [])

    scene(play)


def test_a_connection_that_ends_waits_for_who_goes_on_reading(scene, monkeypatch):
    monkeypatch.setattr(web_connection, "_LAST_WORDS_SECONDS", 3600)

    async def play(connect, listener, behaviors, site):
        site.long = b"x" * 32 * 1024 * 1024
        reader, writer = await connect(limit=1024)
        writer.write(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        await until(lambda: listener._connections and only_connection(listener)._is_over)
        connection = only_connection(listener)
        transport = connection._transport
        before = transport.get_write_buffer_size()
        while transport.get_write_buffer_size() == before:
            assert await reader.read(65_536)
        connection._await_taken(transport, before)
        for _ in range(10):
            await asyncio.sleep(0)
        assert listener._connections
        # Nothing was taken since then.
        connection._await_taken(transport, transport.get_write_buffer_size())
        await until(lambda: not listener._connections)

    scene(play)


def test_a_connection_under_tls_ends_once(tmp_path):
    async def main():
        async with (
            asyncio.timeout(TOLD_SECONDS),
            web_listener(tmp_path, is_tls=True) as (listener, behaviors, _),
            Browser(listener.port, http="1.1") as browser,
        ):
            await browser.call(method("Wait"), b"", ends=False)
            await until(lambda: behaviors.started == 1)
            connection = only_connection(listener)
            connection.end_calls(StatusCode.UNAVAILABLE, "the server stops")
            assert connection.eof_received() is False
            connection.close()
            await until(lambda: not listener._connections)

    asyncio.run(main())


def test_what_is_sent_behind_a_request_that_would_switch_is_bounded(scene):
    async def play(connect, listener, behaviors, site):
        reader, writer = await connect()
        writer.write(call("Wait", framed(b""), "Connection: Upgrade", "Upgrade: other"))
        await until(lambda: behaviors.started == 1)
        writer.write(bytes(128 * 1024))
        assert await everything(reader) == b""
        await until(lambda: behaviors.cancelled == 1)

    scene(play)


def test_requests_wait_while_their_answers_are_not_read(scene):
    async def play(connect, listener, behaviors, site):
        reader, writer = await connect(limit=1024)
        count = 500
        writer.write(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * count)
        await until(lambda: site.asked and only_connection(listener).is_clogged)
        asked = -1
        while asked < len(site.asked):
            asked = len(site.asked)
            for _ in range(100):
                await asyncio.sleep(0)
        transport = only_connection(listener)._transport
        assert transport.get_write_buffer_size() < 1_000_000
        assert len(site.asked) < count
        # All are answered as soon as they are.
        left = count * 300_000
        while left > 0:
            data = await reader.read(65_536)
            assert data
            left -= len(data)
        await until(lambda: len(site.asked) == count)

    scene(play)

"""Where pages that call come from, what goes beside their calls, and calls by HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
from functools import partial
from http import HTTPStatus

import h2.connection
import pytest

from barrage.errors import StatusCode
from tests.helpers.fetching import GRPC_WEB, Browser, framed
from tests.unit.transport.contract import TOLD_SECONDS, until
from tests.unit.transport.grpc_web_served import (
    LIMITS,
    OF_PAGES,
    OTHER,
    UPLOAD_BYTES_MAX,
    calls,
    method,
    played,
    web_listener,
)


@pytest.fixture
def scene(tmp_path):
    return partial(played, tmp_path)


# --- origins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", OF_PAGES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "nonsense"])
def test_foreign_pages_call_nothing(way, origin, scene):
    async def play(browser, listener, behaviors, site):
        browser.origin = origin
        answer = await calls(browser, "Echo", b"x")
        await answer.whole()
        assert answer.status == HTTPStatus.FORBIDDEN
        assert b"web_origins" in answer.body
        assert "access-control-allow-origin" not in answer.headers
        asking = {"origin": origin, "access-control-request-method": "POST"}
        answer = await browser.request("OPTIONS", method("Echo"), asking)
        assert (await answer.whole()).status == HTTPStatus.FORBIDDEN
        assert behaviors.seen == {}
        assert site.asked == []

    scene(play, way)


@pytest.mark.parametrize("way", OF_PAGES)
def test_pages_of_allowed_origins_may_read_answers(way, scene):
    async def play(browser, listener, behaviors, site):
        browser.origin = OTHER
        asking = {
            "origin": OTHER,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-grpc-web",
        }
        answer = await (await browser.request("OPTIONS", method("Echo"), asking)).whole()
        assert answer.status == HTTPStatus.NO_CONTENT
        assert answer.headers["access-control-allow-origin"] == OTHER
        assert answer.headers["access-control-allow-methods"] == "POST"
        asked = asking["access-control-request-headers"]
        assert answer.headers["access-control-allow-headers"] == asked
        assert "access-control-allow-credentials" not in answer.headers
        for name in ("Echo", "Nothing"):
            answer = await calls(browser, name, b"x")
            await answer.messages()
            assert answer.headers["access-control-allow-origin"] == OTHER
            assert answer.headers["access-control-expose-headers"] == "*"
            assert answer.headers["vary"] == "origin"
        # Nothing else is for them.
        answer = await browser.request("OPTIONS", "/session", asking)
        assert "access-control-allow-origin" not in (await answer.whole()).headers

    scene(play, way)


def test_the_other_port_has_no_pages(scene):
    async def play(browser, listener, behaviors, site):
        browser.origin = f"https://localhost:{browser.port}"
        answer = await calls(browser, "Echo", b"x")
        assert (await answer.whole()).status == HTTPStatus.FORBIDDEN
        assert behaviors.seen == {}
        native = {"content-type": "application/grpc", "te": "trailers"}
        answer = await calls(browser, "Echo", b"x", metadata=native)
        await answer.whole()
        assert behaviors.seen

    scene(play, "HTTP/2 on the other port")


# --- what goes beside calls -----------------------------------------------------------------------


@pytest.mark.parametrize("way", OF_PAGES)
def test_the_page_is_beside_its_calls(way, scene):
    async def play(browser, listener, behaviors, site):
        waiting = await calls(browser, "Wait", b"")
        answer = await (await browser.request("GET", "/long?x=1", {"cookie": "a=b"})).whole()
        assert answer.status == 200
        assert answer.body == b"x" * 300_000
        assert answer.headers["content-length"] == "300000"
        request = site.asked[-1]
        assert (request.path, request.target) == ("/long", "/long?x=1")
        assert request.cookie("a") == "b"
        assert request.header("host") == f"localhost:{browser.port}"
        assert request.is_tls == browser.is_tls
        answer = await (await browser.request("HEAD", "/long")).whole()
        assert answer.body == b""
        assert answer.headers["content-length"] == "300000"
        answer = await (await browser.request("POST", "/x", {}, b"y" * 1000)).whole()
        assert answer.body == b"/x"
        answer = await (await browser.request("GET", "/fails")).whole()
        assert answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
        waiting.cancel()
        await until(lambda: behaviors.cancelled == 1)

    scene(play, way)


@pytest.mark.parametrize(
    "wrong", [{"connection": "close"}, {"Upper": "x"}, {":path": "nowhere"}, {"x": "a\r\nb"}]
)
def test_what_is_no_request_of_http2_is_told_so(wrong, scene):
    async def play(browser, listener, behaviors, site):
        answer = await browser.request("GET", "/", wrong)
        assert (await answer.whole()).status == HTTPStatus.BAD_REQUEST
        assert site.asked == []
        assert (await (await browser.request("GET", "/")).whole()).status == HTTPStatus.OK

    scene(play, "HTTP/2 under TLS")


def test_requests_that_wait_are_counted_and_forgotten_with_their_connection(scene):
    async def play(browser, listener, behaviors, site):
        site.is_held.clear()
        waiting = [await browser.request("GET", f"/{each}") for each in range(2)]
        await until(lambda: len(site.asked) == 2)
        answer = await (await browser.request("GET", "/2")).whole()
        assert answer.status == HTTPStatus.TOO_MANY_REQUESTS
        waiting[0].cancel()
        third = await browser.request("GET", "/3")
        await until(lambda: len(site.asked) == 3)
        site.is_held.set()
        assert (await third.whole()).body == b"/3"
        assert (await waiting[1].whole()).body == b"/1"

    scene(play, "HTTP/2 under TLS")


def test_a_call_of_http1_is_followed_by_the_next_request(scene):
    async def play(browser, listener, behaviors, site):
        reader, writer = await browser.connect()
        head = (
            f"POST {method('Echo')} HTTP/1.1\r\nhost: localhost:{browser.port}\r\n"
            "content-type: application/grpc-web+proto\r\ncontent-length: 6\r\n\r\n"
        )
        second = f"GET /next HTTP/1.1\r\nhost: localhost:{browser.port}\r\n\r\n"
        writer.write(head.encode() + framed(b"x") + second.encode())
        found = b""
        while not found.endswith(b"/next"):
            more = await reader.read(65_536)
            assert more
            found += more
        assert found.count(b"HTTP/1.1 200") == 2
        assert behaviors.seen

    scene(play, "HTTP/1.1")


@pytest.mark.parametrize("way", ["HTTP/1.1", "HTTP/1.1 under TLS"])
def test_who_still_writes_sees_the_answer(way, scene):
    async def play(browser, listener, behaviors, site):
        reader, writer = await browser.connect()
        head = (
            f"POST {method('Nothing')} HTTP/1.1\r\nhost: localhost:{browser.port}\r\n"
            "content-type: application/grpc-web+proto\r\n"
            f"content-length: {UPLOAD_BYTES_MAX}\r\n\r\n"
        )
        writer.write(head.encode() + bytes(5))
        found = await reader.readuntil(b"\r\n\r\n")
        assert b"grpc-status: 12" in found
        writer.write(bytes(UPLOAD_BYTES_MAX - 5))
        second = f"GET /next HTTP/1.1\r\nhost: localhost:{browser.port}\r\n\r\n"
        writer.write(second.encode())
        await reader.readuntil(b"/next")
        assert [request.path for request in site.asked] == ["/next"]

    scene(play, way)


@pytest.mark.parametrize("way", ["HTTP/1.1", "HTTP/1.1 under TLS"])
def test_what_nobody_reads_is_not_taken(way, scene):
    async def play(browser, listener, behaviors, site):
        begin, messages = asyncio.Event(), []

        async def reversed_later(requests, context):
            await begin.wait()
            async for request in requests:
                messages.append(len(request))
            yield b"read"

        behaviors.reversed = reversed_later
        listener._handlers[:] = [behaviors.handler()]
        answer = await calls(browser, "Reversed", ends=False)
        await until(lambda: listener.calls_count == 1)
        [connection] = listener._connections
        frame, sent = framed(bytes(8 * 1024)), 0
        while connection._transport.is_reading():
            answer.send(frame, False)
            sent += 1
            await asyncio.sleep(0)
        assert UPLOAD_BYTES_MAX < connection._unread_bytes <= UPLOAD_BYTES_MAX + 256 * 1024
        begin.set()
        answer.send(b"", True)
        assert await answer.messages() == [b"read"]
        assert messages == [8 * 1024] * sent
        assert connection._unread_bytes == 0

    scene(play, way)


def test_the_system_looks_whether_the_peer_of_a_long_call_is_there(scene):
    async def play(browser, listener, behaviors, site):
        await calls(browser, "Wait", b"")
        await until(lambda: behaviors.started == 1)
        [connection] = listener._connections
        made = connection._transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30

    scene(play, "HTTP/1.1 under TLS")


@pytest.mark.parametrize("way", ["HTTP/1.1", "HTTP/2 in the clear"])
def test_garbage_harms_nobody(way, scene, caplog):
    """Bytes of good calls, changed and cut at random."""

    async def play(browser, listener, behaviors, site):
        for seed in range(60):
            chance = random.Random(seed)
            told = bytearray(recorded(browser, chance))
            for _ in range(chance.randint(1, 6)):
                at = chance.randrange(len(told))
                told[at : at + chance.choice([0, 1, 4])] = chance.randbytes(
                    chance.choice([0, 1, 9])
                )
            reader, writer = await browser.connect()
            writer.write(bytes(told[: chance.choice([len(told), chance.randrange(len(told) + 1)])]))
            writer.write_eof()
            with contextlib.suppress(OSError):
                await reader.read(1 << 20)
            writer.close()
        await until(lambda: listener.calls_count == 0)
        answer = await calls(browser, "Echo", b"still here")
        assert await answer.messages() == [b"still here"]

    scene(play, way)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def recorded(browser, chance):
    """What a good client sends for a call."""
    body = framed(chance.randbytes(20)) * chance.randint(1, 3)
    if browser.http == "2":
        client = h2.connection.H2Connection()
        client.initiate_connection()
        pseudo = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": "localhost",
            ":path": method("Reversed"),
        }
        client.send_headers(1, [*pseudo.items(), *GRPC_WEB.items()])
        client.send_data(1, body, end_stream=True)
        return client.data_to_send()
    head = (
        f"POST {method('Reversed')} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    )
    lines = "".join(f"{name}: {text}\r\n" for name, text in GRPC_WEB.items())
    return f"{head}{lines}\r\n".encode() + body


def test_a_call_whose_body_stops_is_ended(tmp_path):
    """Half a message, and nothing after it."""

    async def main():
        short = dataclasses.replace(LIMITS, web_idle_ns_max=50_000_000)
        async with (
            asyncio.timeout(TOLD_SECONDS),
            web_listener(tmp_path, is_tls=False, limits=short) as (listener, behaviors, _),
            Browser(listener.port, http="1.1", is_tls=False) as browser,
        ):
            answer = await calls(browser, "Echo", ends=False)
            answer.send(framed(b"abc")[:6], False)
            await answer.until(lambda: answer.is_lost)
            await until(lambda: listener.calls_count == 0)
            assert behaviors.seen == {}

    asyncio.run(main())


def test_what_comes_behind_a_call_is_bounded(scene):
    async def play(browser, listener, behaviors, site):
        _, writer = await browser.connect()
        head = (
            f"POST {method('Wait')} HTTP/1.1\r\nhost: localhost:{browser.port}\r\n"
            "content-type: application/grpc-web+proto\r\ncontent-length: 5\r\n\r\n"
        )
        writer.write(head.encode() + framed(b""))
        await until(lambda: behaviors.started == 1)
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
                await asyncio.sleep(0)
        await until(lambda: behaviors.cancelled == 1)

    scene(play, "HTTP/1.1")


@pytest.mark.parametrize("way", ["HTTP/1.1", "HTTP/1.1 under TLS"])
def test_a_listener_that_stops_tells_its_calls(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Wait", b"")
        await until(lambda: behaviors.started == 1)
        await listener.stop(0)
        await answer.messages()
        assert answer.code == StatusCode.UNAVAILABLE.value

    scene(play, way)


@pytest.mark.parametrize("way", OF_PAGES)
def test_a_listener_that_stops_answers_what_it_was_asked(way, scene):
    async def play(browser, listener, behaviors, site):
        site.is_held.clear()
        asked = await browser.request("GET", "/long")
        await until(lambda: len(site.asked) == 1)
        stopping = asyncio.create_task(listener.stop(TOLD_SECONDS))
        await asyncio.sleep(0)
        assert not stopping.done()
        site.is_held.set()
        answer = await asked.whole()
        assert (answer.status, answer.body) == (HTTPStatus.OK, site.long)
        await stopping

    scene(play, way)


@pytest.mark.parametrize("way", OF_PAGES)
def test_a_listener_waits_no_longer_than_it_was_told(way, scene):
    async def play(browser, listener, behaviors, site):
        site.is_held.clear()
        asked = await browser.request("GET", "/long")
        await until(lambda: len(site.asked) == 1)
        await listener.stop(0)
        await asked.until(lambda: asked.is_whole or asked.is_lost)
        assert asked.status in (0, HTTPStatus.SERVICE_UNAVAILABLE)
        assert asked.body == b""

    scene(play, way)


def test_a_listener_that_stops_waits_for_no_page_that_does_not_read(scene):
    async def play(browser, listener, behaviors, site):
        asked = await browser.request("GET", "/long")
        await until(lambda: asked.body)
        await listener.stop(TOLD_SECONDS)
        await until(lambda: listener.connections_count == 0)
        await asked.until(lambda: asked.is_lost)

    scene(play, "HTTP/2 under TLS", reads=False)

"""Calls of gRPC-web by every HTTP they come by, those that are none, and what goes beside them."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus

import pytest

from barrage.errors import LimitExceededError, RemoteProtocolError, StatusCode
from barrage.limits import Limits
from barrage.transport.base import ListenOptions
from barrage.transport.over_http2.grpc_web import PartialMessage, message_head
from barrage.transport.over_websocket.http_messages import WebAnswer
from barrage.transport.over_websocket.origins import OriginRule
from barrage.transport.over_websocket.web_listener import WebListener
from tests.helpers.fetching import GRPC_WEB, Browser, framed
from tests.unit.transport.contract import TOLD_SECONDS, until
from tests.unit.transport.http2_served import SERVICE, Behaviors, listener_on
from tests.unit.transport.tls_scene import server_tls

OTHER = "https://dashboards.example"
UPLOAD_BYTES_MAX = 32 * 1024
LIMITS = Limits(
    web_upload_bytes_max=UPLOAD_BYTES_MAX,
    web_requests_bytes_max=UPLOAD_BYTES_MAX,
    web_streams_max=2,
    http2_preface_ns_max=60 * 10**9,
)


class Site:
    """What is served beside calls; notes who asks."""

    def __init__(self):
        self.asked = []
        self.long = b"x" * 300_000
        self.is_held = asyncio.Event()
        self.is_held.set()

    async def answer(self, request):
        self.asked.append(request)
        await self.is_held.wait()
        if request.path == "/fails":
            raise ValueError("the site is broken")
        body = self.long if request.path == "/long" else request.path.encode()
        return WebAnswer(headers=(("content-type", "text/plain"),), body=body)


@contextlib.asynccontextmanager
async def web_listener(folder, *, is_tls):
    behaviors, site = Behaviors(), Site()
    options = ListenOptions(
        port=0,
        message_bytes_max=UPLOAD_BYTES_MAX,
        keepalive_ms=30_000,
        limits=LIMITS,
        tls=server_tls(folder) if is_tls else None,
    )
    listener = WebListener("127.0.0.1", options, site=site, origins=OriginRule([OTHER]))
    listener.add_generic_rpc_handlers((behaviors.handler(),))
    listener.bind()
    await listener.start()
    try:
        yield listener, behaviors, site
    finally:
        await listener.stop(0)
        assert listener.connections_count == 0
        assert listener.calls_count == 0


@contextlib.asynccontextmanager
async def other_listener(folder, *, is_tls):
    """That of native clients, which has no pages."""
    behaviors = Behaviors()
    listener = listener_on(tls=server_tls(folder) if is_tls else None)
    listener.add_generic_rpc_handlers((behaviors.handler(),))
    listener.bind()
    await listener.start()
    try:
        yield listener, behaviors, None
    finally:
        await listener.stop(0)
        assert listener.calls_count == 0


WAYS = {
    "HTTP/1.1": (web_listener, "1.1", False),
    "HTTP/1.1 under TLS": (web_listener, "1.1", True),
    "HTTP/2 under TLS": (web_listener, "2", True),
    "HTTP/2 on the other port": (other_listener, "2", True),
    "HTTP/2 in the clear": (other_listener, "2", False),
}
OF_PAGES = [name for name, (listener, _, _) in WAYS.items() if listener is web_listener]


@pytest.fixture
def scene(tmp_path):
    """Runs a scene with a browser, by one of the ways."""

    def run(play, way, **browser):
        listen, http, is_tls = WAYS[way]

        async def main():
            async with (
                asyncio.timeout(TOLD_SECONDS),
                listen(tmp_path, is_tls=is_tls) as (listener, behaviors, site),
                Browser(listener.port, http=http, is_tls=is_tls, **browser) as made,
            ):
                if listen is other_listener:
                    made.origin = ""
                await play(made, listener, behaviors, site)

        asyncio.run(main())

    return run


def method(name):
    return f"/{SERVICE}/{name}"


async def calls(browser, name, *messages, metadata=(), **options):
    """Without an origin where there are no pages."""
    headers = {**GRPC_WEB, **({"origin": browser.origin} if browser.origin else {})}
    headers |= dict(metadata)
    body = b"".join(map(framed, messages))
    return await browser.request("POST", method(name), headers, body, **options)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_messages_go_both_ways_and_metadata_with_them(way, scene):
    async def play(browser, listener, behaviors, site):
        sent = {"authorization": "Bearer x", "x-bytes-bin": "AP8", "cookie": "barrage-session=1"}
        answer = await calls(browser, "Echo", b"hello", metadata=sent)
        assert await answer.messages() == [b"hello"]
        assert (answer.status, answer.code) == (200, 0)
        assert answer.headers["content-type"] == "application/grpc-web+proto"
        seen = dict(behaviors.seen["metadata"])
        assert seen["authorization"] == "Bearer x"
        assert seen["x-bytes-bin"] == b"\0\xff"
        assert not seen.keys() & {"cookie", "x-grpc-web", "content-type", "host", "te"}
        assert behaviors.seen["peer"].startswith("ipv4:127.0.0.1:")
        answer = await calls(browser, "Count", b"3000")
        assert await answer.messages() == [b"%d" % number for number in range(3000)]
        answer = await calls(browser, "Reversed", b"ab", b"cd")
        assert await answer.messages() == [b"ba", b"dc"]

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_may_go_on_while_it_is_answered(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Reversed", b"ab", ends=False)
        assert await answer.message() == b"ba"
        first, second = framed(b"cd")[:3], framed(b"cd")[3:]
        answer.send(first, False)
        answer.send(second, False)
        assert await answer.message() == b"dc"
        answer.send(b"", True)
        assert await answer.message() is None
        assert answer.code == 0

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_errors_are_in_the_headers_or_in_the_last_frame(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Nothing", b"")
        assert await answer.messages() == []
        assert answer.headers["grpc-status"] == str(StatusCode.UNIMPLEMENTED.value)
        answer = await calls(browser, "Refuse", b"")
        assert await answer.messages() == []
        assert "grpc-status" not in answer.headers
        assert answer.code == StatusCode.NOT_FOUND.value
        assert answer.trailers["grpc-message"] == "100 %25 na%C3%AFve%0A%7F%E2%86%92"
        assert answer.trailers["x-trailer"] == "end"

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_deadline_ends_a_call(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Wait", b"", metadata={"grpc-timeout": "50m"})
        await answer.messages()
        assert answer.code == StatusCode.DEADLINE_EXCEEDED.value
        await until(lambda: behaviors.cancelled == 1)
        answer = await calls(browser, "Echo", b"", metadata={"grpc-timeout": "soon"})
        await answer.messages()
        assert answer.code == StatusCode.INTERNAL.value

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_fetch_that_is_cancelled_ends_its_call(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Wait", b"")
        await until(lambda: behaviors.started == 1)
        answer.cancel()
        await until(lambda: behaviors.cancelled == 1)
        await until(lambda: listener.calls_count == 0)

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_read_is_not_written_for(way, scene):
    async def play(browser, listener, behaviors, site):
        sent = 0

        async def flood(request, context):
            nonlocal sent
            while True:
                await context.write(bytes(16 * 1024))
                sent += 1

        behaviors.flood = flood
        listener._handlers[:] = [behaviors.handler()]
        answer = await calls(browser, "Flood", b"")
        await until(lambda: sent > 0)
        quiet = 0
        while quiet < 50:
            before = sent
            await asyncio.sleep(0.01)
            quiet = quiet + 1 if sent == before else 0
        # What the system keeps for sockets of this machine, both ways, and a window.
        assert sent * 16 * 1024 < 32 * 1024 * 1024
        answer.cancel()
        await until(lambda: listener.calls_count == 0)

    scene(play, way, reads=False)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (framed(b"abc", 1), StatusCode.INTERNAL),
        (framed(b"abc", 0x80), StatusCode.INTERNAL),
        (message_head(2**32 - 1) + b"abc", StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_frames_that_cannot_be_taken_end_their_call(way, frame, code, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Reversed", ends=False)
        answer.send(frame, False)
        await answer.messages()
        is_by_fetch = browser.http == "1.1" and code is StatusCode.INTERNAL
        assert answer.code == (StatusCode.INVALID_ARGUMENT if is_by_fetch else code).value
        answer = await calls(browser, "Echo", b"still here")
        assert await answer.messages() == [b"still here"]

    scene(play, way)


@pytest.mark.parametrize("way", OF_PAGES)
def test_messages_are_as_long_as_they_may_be(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Echo", bytes(UPLOAD_BYTES_MAX))
        assert await answer.messages() == [bytes(UPLOAD_BYTES_MAX)]
        answer = await calls(browser, "Echo", ends=False)
        answer.send(framed(bytes(UPLOAD_BYTES_MAX + 1))[:100], False)
        await answer.messages()
        assert answer.code == StatusCode.RESOURCE_EXHAUSTED.value

    scene(play, way)


def test_what_a_page_has_under_way_is_bounded_for_its_connection(scene):
    async def play(browser, listener, behaviors, site):
        whole = framed(bytes(UPLOAD_BYTES_MAX))
        first = await calls(browser, "Reversed", ends=False)
        first.send(whole[: UPLOAD_BYTES_MAX // 2], False)
        second = await calls(browser, "Reversed", ends=False)
        second.send(whole[: UPLOAD_BYTES_MAX // 2 + 5], False)
        third = await calls(browser, "Reversed", ends=False)
        third.send(whole[:1], False)
        await third.messages()
        assert third.code == StatusCode.RESOURCE_EXHAUSTED.value
        first.send(whole[UPLOAD_BYTES_MAX // 2 :], True)
        assert await first.messages() == [bytes(UPLOAD_BYTES_MAX)]
        second.cancel()

    scene(play, "HTTP/2 under TLS")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/grpc-web", 200),
        ("application/grpc-web;charset=utf-8", 200),
        ("application/grpc-web-text", None),
        ("text/plain", None),
    ],
)
def test_what_is_no_call_is_none(way, content_type, status, scene):
    async def play(browser, listener, behaviors, site):
        answer = await calls(browser, "Echo", b"x", metadata={"content-type": content_type})
        await answer.whole()
        if status is None:
            assert behaviors.seen == {}
            assert len(site.asked) == 1 if site else answer.status == 415
        else:
            assert answer.status == status
            assert behaviors.seen

    scene(play, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_a_post(way, scene):
    async def play(browser, listener, behaviors, site):
        answer = await browser.request("GET", method("Echo"), GRPC_WEB)
        assert (await answer.whole()).status == 405

    scene(play, way)


def test_a_part_of_a_message_is_kept_and_counted():
    partial = PartialMessage("a call")
    whole = framed(b"abc") + framed(b"") + framed(b"defg")
    found = []
    for at in range(len(whole)):
        found += partial.take(whole[at : at + 1], 4)
    assert found == [b"abc", b"", b"defg"]
    assert partial.take(whole[:6], 4) == []
    assert len(partial) == 6
    with pytest.raises(LimitExceededError, match="a message of a call is 5 bytes"):
        PartialMessage("a call").take(message_head(5), 4)
    with pytest.raises(RemoteProtocolError, match="compressed"):
        PartialMessage("a call").take(b"\1" + bytes(4), 4)


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

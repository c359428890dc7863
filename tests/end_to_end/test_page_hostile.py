"""Pages and others that do what they should not: a typed close, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

import barrage
from barrage import wire
from barrage.errors import ConfigError
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.proto.client_exchange import ClientExchange
from barrage.server.identity.users_file import changing_users
from barrage.server.settings.config import ServerConfig
from barrage.wire.messages import NewSessionRequest
from tests.helpers.frame_factory import metadata_frame
from tests.helpers.page_client import PageTable, on_a_loop, page_at
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file

SCHEMA = {"k": "int64", "v": "float64"}
LIMITS = Limits(
    http2_preface_ns_max=1_000_000_000,
    web_streams_max=4,
    web_calls_max=2,
    web_message_bytes_max=64 * 1024,
    web_requests_bytes_max=64 * 1024,
    web_window_bytes=256 * 1024,
    login_failures_max=10_000,
)


@pytest.fixture(scope="module")
def server():
    config = ServerConfig(host="inproc://", web=True, limits=LIMITS)
    with barrage.Server(config=config) as made:
        made.create_table("t", SCHEMA, key=["k"]).upsert(rows(0, 100))
        yield made
        # Whatever the tests did: it serves.
        assert health(made) == (200, {"status": "SERVING"})
        wait_until(lambda: made.stream_count == 0)


def rows(start, stop):
    return {"k": list(range(start, stop)), "v": [float(k) for k in range(start, stop)]}


def connection(server):
    parts = urlsplit(server.web_uri)
    return contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=60))


def asked(server, method, path, body=None, headers=()):
    with connection(server) as made:
        made.request(method, path, body=body, headers=dict(headers))
        answer = made.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def health(server):
    status, _, body = asked(server, "GET", "/healthz")
    return status, json.loads(body)


def subscription(name="t"):
    return ClientExchange().subscribe(f"s/{name}".encode(), viewport=Viewport.of(0, 5))


# --- who may come ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://localhost:1", "nonsense"]
)
@on_a_loop
async def test_a_foreign_page_is_told_why(server, origin):
    async with page_at(server.web_uri, origin=origin) as page:
        assert await page.closed() == 4403
        assert "web_origins" in page.close_reason
        assert page.order == []


@on_a_loop
async def test_a_name_that_leads_here_is_not_ours(server):
    port = urlsplit(server.web_uri).port
    name = f"evil.example:{port}"
    parts = urlsplit(server.web_uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(handshake(name, origin=f"http://{name}"))
    await reader.readuntil(b"\r\n\r\n")
    assert int.from_bytes((await reader.readexactly(4))[2:], "big") == 4403
    writer.close()
    status, _, body = asked(server, "GET", "/", headers={"Host": name})
    assert status == 403
    assert b"web_origins" in body


@on_a_loop
async def test_who_says_nothing_is_not_waited_for(server):
    async with page_at(server.web_uri) as page:
        assert await page.closed() == 4408


BAD_MESSAGES = {
    "no JSON": "{",
    "no object": "[]",
    "no type": "{}",
    "unknown type": '{"type": "conquer"}',
    "hello again": '{"type": "hello"}',
    "a stream of nobody": '{"type": "half_close", "stream": 7}',
    "cancel of nobody": '{"type": "cancel", "stream": 7}',
    "an acknowledgement of nobody": '{"type": "ack", "streams": {"7": 1}}',
    "a number that is none": '{"type": "open", "stream": 0, "method": "DoExchange"}',
    "another method": '{"type": "open", "stream": 1, "method": "DoAction"}',
    "a window of nothing": '{"type": "open", "stream": 1, "method": "DoGet", "window": 0}',
    "a window of everything": '{"type": "open", "stream": 1, "method": "DoGet", "window": 65}',
    "deep": '{"type": "call", "call": 1, "action": "x", "body": ' + "[" * 20_000,
    "binary of nobody": b"\x07data",
    "an empty binary": b"",
    "a varint without end": b"\xff" * 6,
}


@pytest.mark.parametrize("what", BAD_MESSAGES)
@on_a_loop
async def test_a_message_that_is_none_closes_the_socket(server, what):
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.socket.send(BAD_MESSAGES[what])
        assert await page.closed() == 4400
        assert page.close_reason


@on_a_loop
async def test_the_first_message_is_hello(server):
    for message in ('{"type": "pause"}', b"\x01x"):
        async with page_at(server.web_uri) as page:
            await page.socket.send(message)
            assert await page.closed() == 4400
            assert "hello" in page.close_reason


@on_a_loop
async def test_stream_numbers_grow(server):
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.say(type="open", stream=5, method="DoExchange")
        await page.say(type="open", stream=5, method="DoExchange")
        assert await page.closed() == 4400


@on_a_loop
async def test_messages_have_a_length(server):
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.say(type="open", stream=1, method="DoPut")
        await page.send(1, bytes(LIMITS.web_message_bytes_max - 1))  # The number is one byte.
        assert (await page.text("error", stream=1))["code"] == "INVALID_ARGUMENT"
        with contextlib.suppress(Exception):
            await page.send(1, bytes(LIMITS.web_message_bytes_max))
        assert await page.closed() == 1009
    async with page_at(server.web_uri) as page:
        # Who has not said who it is has less room.
        with contextlib.suppress(Exception):
            await page.say(type="hello", authorization="x" * 40_000)
        assert await page.closed() == 1009


@on_a_loop
async def test_acknowledging_what_was_never_sent(server):
    async with page_at(server.web_uri) as page:
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 5))
        await page.messages(1, 2)
        await page.acknowledge(1, 2)
        await page.acknowledge(1, 1)  # One that was overtaken is none.
        await page.call(1, "barrage.tables")
        await page.acknowledge(1, 3)
        assert await page.closed() == 4400


@on_a_loop
async def test_garbage_frames_close_the_socket(server):
    parts = urlsplit(server.web_uri)
    for garbage in (
        b"\xff" * 64,
        b"\x81\x05hello",
        b"\x83\x80abcd",
        b"\xc1\x80abcd",
        b"\x09\x80abcd",
    ):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(handshake(parts.netloc) + garbage)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        rest = await reader.read()
        assert rest[:1] == b"\x88", garbage
        assert int.from_bytes(rest[2:4], "big") == 1002
        writer.close()


def handshake(
    host, *, origin=None, protocol="barrage-flight.v1", key="dGhlIHNhbXBsZSBub25jZQ==", version="13"
):
    lines = [
        "GET /socket HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        f"Sec-WebSocket-Version: {version}",
        f"Sec-WebSocket-Protocol: {protocol}",
    ]
    lines += [] if origin is None else [f"Origin: {origin}"]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"protocol": "chat"}, b"barrage-flight.v1"),
        ({"key": "short"}, b"16 bytes"),
        ({"version": "8"}, b"must be 13"),
    ],
    ids=["protocol", "key", "version"],
)
@on_a_loop
async def test_a_wrong_handshake_is_told_why(server, wrong, expected):
    parts = urlsplit(server.web_uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(handshake(parts.netloc, **wrong))
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert expected in answer
    writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"\0" * 100,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
    ],
    ids=["TLS", "HTTP/2", "no request", "zeros", "endless headers"],
)
@on_a_loop
async def test_what_is_no_http_is_refused(server, garbage):
    parts = urlsplit(server.web_uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(garbage)
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    # Whatever is left of a request that was too long may take the answer with it.
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    writer.close()


# --- streams --------------------------------------------------------------------------------------


@on_a_loop
async def test_streams_of_a_socket_are_bounded(server):
    async with page_at(server.web_uri) as page:
        await page.hello()
        for stream in range(1, LIMITS.web_streams_max + 2):
            await page.say(type="open", stream=stream, method="DoExchange")
        told = await page.text("error", stream=LIMITS.web_streams_max + 1)
        assert told["code"] == "RESOURCE_EXHAUSTED"
        await page.say(type="cancel", stream=1)
        await page.say(type="open", stream=100, method="DoExchange")
        await page.send(100, subscription())
        await page.messages(100, 2)


@on_a_loop
async def test_calls_of_a_socket_are_bounded(server):
    async with page_at(server.web_uri) as page:
        await page.hello()
        for number in range(1, 12):
            await page.say(type="call", call=number, action="barrage.tables")
        codes = []
        for number in range(1, 12):
            told = await page.until(
                lambda number=number: next((m for m in page.texts if m.get("call") == number), None)
            )
            codes.append(told.get("code"))
        assert codes[:2] == [None, None]
        assert set(codes) <= {None, "RESOURCE_EXHAUSTED"}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer x"},
        {"x-barrage-bodies": "1"},
        {"x-barrage-cursor": "a\r\nb"},
        {"X-Barrage-Cursor": "x"},
    ],
)
@on_a_loop
async def test_headers_of_a_stream_are_those_that_are_known(server, headers):
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.say(type="open", stream=1, method="DoExchange", headers=headers)
        assert (await page.text("error", stream=1))["code"] == "INVALID_ARGUMENT"


@on_a_loop
async def test_a_page_gets_no_token_by_its_streams(server):
    """Its script could read one, where the cookie it has come by is none of its business."""
    asked = wire.encode_wrapper(NewSessionRequest(protocol_version=1), wire.WireRevision.DRAFT_2020)
    async with page_at(server.web_uri) as page:
        await page.hello()
        headers = {"x-barrage-revision": "2020"}
        await page.say(type="open", stream=1, method="DoExchange", headers=headers)
        await page.send(1, metadata_frame(asked))
        told = await page.text("error", stream=1)
        assert (told["code"], "no token" in told["message"]) == ("PERMISSION_DENIED", True)
        assert not page.received[1]


@on_a_loop
async def test_a_request_that_is_none_ends_its_stream_alone(server):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        good = PageTable(page, 1)
        await good.open(b"s/t", viewport=Viewport.of(0, 2))
        for stream, garbage in enumerate(
            (b"\xff" * 50, b"", b"\x1a\x05nope!", subscription()[:-9]), 2
        ):
            await page.say(type="open", stream=stream, method="DoExchange")
            await page.send(stream, garbage)
            if garbage:
                assert (await page.text("error", stream=stream))["code"] == "INVALID_ARGUMENT"
            else:
                await page.say(type="cancel", stream=stream)
        await good.shows([{"k": 0, "v": 0.0}, {"k": 1, "v": 1.0}])


@on_a_loop
async def test_a_storm_of_viewports_hurts_nobody(server):
    async with page_at(server.web_uri) as stormy, page_at(server.web_uri) as calm:
        for page in (stormy, calm):
            page.acknowledges = True
            await page.hello()
        shown, other = PageTable(stormy, 1), PageTable(calm, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 5))
        await other.open(b"s/t", viewport=Viewport.of(0, 1))
        await other.shows([{"k": 0, "v": 0.0}])
        for number in range(3000):
            await shown.change(number % 90, number % 90 + 5)
        await shown.change(7, 9, b"last")
        await calm.call(1, "barrage.tables")
        await shown.shows([{"k": 7, "v": 7.0}, {"k": 8, "v": 8.0}])
        assert len(stormy.received[1]) < 3000


@on_a_loop
async def test_a_socket_that_never_reads_costs_its_windows(server):
    """What is sent to it is bounded by its windows and by what the system buffers."""
    name = "large"
    table = server.create_table(name, {"k": "int64", "s": "string"}, key=["k"])
    table.upsert({"k": list(range(2000)), "s": ["x" * 1000] * 2000})
    parts = urlsplit(server.web_uri)
    made = socket.create_connection((parts.hostname, parts.port))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader, writer = await asyncio.open_connection(sock=made, limit=2**10)
    writer.write(handshake(parts.netloc))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(masked(0x81, b'{"type": "hello"}'))
    for stream in range(1, 5):
        opened = {"type": "open", "stream": stream, "method": "DoExchange"}
        writer.write(masked(0x81, json.dumps(opened).encode()))
        request = ClientExchange().subscribe(b"s/large")
        writer.write(masked(0x82, bytes([stream]) + request))
    await writer.drain()
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/large", viewport=Viewport.of(0, 1))
        for number in range(30):
            table.upsert({"k": [0], "s": [f"{number}"]})
        await shown.shows([{"k": 0, "s": "29"}])
    made.close()
    writer.close()
    server.drop_table(name)


def masked(kind, data):
    head = (
        bytes([kind, 0x80 | len(data)])
        if len(data) < 126
        else bytes([kind, 0xFE]) + len(data).to_bytes(2, "big")
    )
    return head + b"\0\0\0\0" + data


# --- who is somebody ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory):
    users = users_file(tmp_path_factory.mktemp("users") / "users.jsonl")
    config = ServerConfig(
        host="inproc://",
        web=True,
        users=str(users),
        token="the-key",
        anonymous=False,
        limits=LIMITS,
    )
    with barrage.Server(config=config) as made:
        made.create_table("t", SCHEMA, key=["k"]).upsert(rows(0, 10))
        made.users = users
        yield made


@pytest.mark.parametrize(
    "shown", [None, "Bearer wrong", "Basic eDp5", "Anonymous", "", "Bearer bt_" + "x" * 43]
)
@on_a_loop
async def test_who_is_nobody_is_not_let_in(closed_server, shown):
    async with page_at(closed_server.web_uri) as page:
        await page.say(type="hello", **({} if shown is None else {"authorization": shown}))
        # What is sent right behind it is not answered either.
        with contextlib.suppress(Exception):
            await page.say(type="call", call=1, action="barrage.tables")
        assert await page.closed() == 4401
        assert page.close_reason
        assert "welcome" not in [m["type"] for m in page.texts]
        assert "result" not in [m["type"] for m in page.texts]


@on_a_loop
async def test_a_token_in_the_address_is_not_looked_at(closed_server):
    own = closed_server.web_uri.rstrip("/")
    status, _, _ = asked(closed_server, "GET", "/session?authorization=Bearer%20the-key")
    assert status in (401, 405)
    async with page_at(own, query="?authorization=Bearer%20the-key&token=the-key") as page:
        await page.say(type="hello")
        assert await page.closed() == 4401


@on_a_loop
async def test_a_cookie_lets_in_until_it_is_taken_away(closed_server):
    basic = basic_header("alice", ALICE_PASSWORD)
    own = closed_server.web_uri.rstrip("/")
    status, headers, _ = asked(
        closed_server, "POST", "/session", headers={"authorization": basic, "origin": own}
    )
    assert status == 204
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = cookie.partition(";")[0]
    async with page_at(closed_server.web_uri, headers={"Cookie": f"a=b; {token}"}) as page:
        welcome = await page.hello()
        assert welcome["caller"]["name"] == "alice"
        assert welcome["caller"]["proof"] == "password"
        page.acknowledges = True
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 1))
        await shown.shows([{"k": 0, "v": 0.0}])
        with changing_users(closed_server.users) as users:
            del users["alice"]
        told = await page.text("error", stream=1)
        assert told["code"] == "UNAUTHENTICATED"
        assert await page.closed() == 4401
    async with page_at(closed_server.web_uri, headers={"Cookie": token}) as page:
        await page.say(type="hello")
        assert await page.closed() == 4401
    status, headers, _ = asked(closed_server, "DELETE", "/session", headers={"origin": own})
    assert status == 204
    assert "Max-Age=0" in headers["set-cookie"]


def basic_header(user, password):
    import base64

    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_logging_in_from_another_page_or_wrongly_gives_no_cookie(closed_server):
    good = basic_header("bob", ALICE_PASSWORD)
    cases = [
        ({"authorization": good, "origin": "http://evil.example"}, 403),
        ({"authorization": basic_header("bob", "wrong")}, 401),
        ({}, 401),
    ]
    for headers, expected in cases:
        status, answered, _ = asked(closed_server, "POST", "/session", headers=headers)
        assert status == expected
        assert "set-cookie" not in answered


@on_a_loop
async def test_the_key_is_as_good_in_the_first_message(closed_server):
    async with page_at(closed_server.web_uri) as page:
        welcome = await page.hello("Bearer the-key")
        assert welcome["caller"]["proof"] == "key"


# --- HTTP -----------------------------------------------------------------------------------------


def test_every_answer_has_the_headers_of_a_careful_site(server):
    for method, path, expected in (
        ("GET", "/healthz", 200),
        ("GET", "/no/such", 404),
        ("GET", "/../../etc/passwd", 404),
        ("POST", "/", 405),
        ("PUT", "/session", 405),
    ):
        status, headers, _ = asked(server, method, path)
        assert status == expected, path
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_requests_follow_each_other_on_a_connection(server):
    with connection(server) as made:
        for path in ("/healthz", "/no/such", "/healthz"):
            made.request("GET", path)
            answer = made.getresponse()
            answer.read()
        made.request("HEAD", "/healthz")
        answer = made.getresponse()
        assert answer.status == 200
        assert answer.read() == b""
        made.request("POST", "/session", body=b"x" * 70_000)
        assert made.getresponse().status == 413


def test_connections_are_bounded():
    config = ServerConfig(host="inproc://", web=True, limits=Limits(web_connections_max=3))
    with barrage.Server(config=config) as server:
        parts = urlsplit(server.web_uri)
        held = [socket.create_connection((parts.hostname, parts.port)) for _ in range(3)]
        wait_until(lambda: refused(parts))
        held[0].close()
        wait_until(lambda: not refused(parts))
        for each in held:
            each.close()


def refused(parts):
    made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        made.request("GET", "/healthz")
        return made.getresponse().status != 200
    except (ConnectionError, http.client.HTTPException):
        return True
    finally:
        made.close()


@on_a_loop
async def test_a_server_that_stops_says_so():
    server = barrage.Server(config=ServerConfig(host="inproc://", web=True)).start()
    server.create_table("t", SCHEMA, key=["k"])
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 1))
        await shown.shows([])
        await asyncio.to_thread(server.stop)
        told = await page.text("error", stream=1)
        assert told["code"] == "UNAVAILABLE"
        assert await page.closed() == 1001


def test_a_port_that_is_taken_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = barrage.Server(config=ServerConfig(host="inproc://", web=True, web_port=port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.start()
        server.stop()

"""What pages fetch under TLS: the page itself, calls of gRPC-web, and streams whose messages come
by calls of their own."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.errors import StatusCode
from barrage.limits import Limits
from barrage.model.replica import ViewReplica
from barrage.model.viewport import Viewport
from barrage.proto.client_events import SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange
from barrage.server.settings.config import ServerConfig
from barrage.wire.messages import SubscriptionOptions
from tests.helpers.certificates import authority
from tests.helpers.fetching import Browser, framed
from tests.helpers.page_client import HANG_S, on_a_loop
from tests.unit.transport.contract import until

LOGIN = "/io.deephaven.proto.backplane.grpc.ConfigService/GetConfigurationConstants"
CLOSE = "/io.deephaven.proto.backplane.grpc.SessionService/CloseSession"
FLIGHT = "/arrow.flight.protocol.FlightService"
PIECED = "/io.deephaven.flightjs.protocol.BrowserFlightService"

SCHEMA = {"k": "int64", "v": "float64"}
LIMITS = Limits(
    browser_streams_max=3,
    browser_stream_messages_max=4,
    browser_stream_wait_ns_max=60_000_000_000,
    web_upload_bytes_max=64 * 1024,
)
HASTY = Limits(browser_streams_max=3, browser_stream_wait_ns_max=50_000_000)
PATIENT = Limits(login_failures_max=10_000)


def shown(start, stop):
    return [{"k": k, "v": float(k)} for k in range(start, stop)]


def served(folder, **config):
    certificate, key = authority().for_localhost().write(folder, "server")
    return barrage.Server(
        config=ServerConfig(host="localhost", web=True, tls_cert=certificate, tls_key=key, **config)
    )


def with_rows(tmp_path_factory, **config):
    server = served(tmp_path_factory.mktemp("tls"), **config)
    rows = {"k": list(range(100)), "v": [float(k) for k in range(100)]}
    server.create_table("t", SCHEMA, key=["k"]).upsert(rows)
    return server


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server with the usual limits, and a key."""
    with with_rows(tmp_path_factory, limits=PATIENT, token="the-key") as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One that takes few messages at a time."""
    with with_rows(tmp_path_factory, limits=LIMITS) as server:
        yield server
        assert server.stream_count == 0


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """One that does not wait long for those that are missing."""
    with with_rows(tmp_path_factory, limits=HASTY) as server:
        yield server


@contextlib.asynccontextmanager
async def browser_at(server, http="2"):
    async with (
        asyncio.timeout(HANG_S),
        Browser(urlsplit(server.web_uri).port, http=http) as browser,
    ):
        yield browser


class Session:
    """Somebody who has logged in, and the streams of theirs."""

    def __init__(self, browser, headers):
        self.browser = browser
        self.headers = headers

    @classmethod
    async def of(cls, browser, authorization="Anonymous"):
        _, answer = await browser.unary(LOGIN, b"", {"authorization": authorization})
        assert answer.code == 0
        return cls(browser, {"authorization": answer.headers["authorization"]})

    def _place(self, ticket, sequence, is_last):
        last = {"x-deephaven-stream-halfclose": "true"} if is_last else {}
        return {
            **self.headers,
            "x-deephaven-stream-ticket": str(ticket),
            "x-deephaven-stream-sequence": str(sequence),
            **last,
        }

    async def open(self, ticket, sequence, message, *, method="DoExchange"):
        return await self.browser.call(
            f"{PIECED}/Open{method}", message, metadata=self._place(ticket, sequence, False)
        )

    async def next(self, ticket, sequence, message=b"", *, method="DoExchange", is_last=False):
        """The status of the call."""
        _, answer = await self.browser.unary(
            f"{PIECED}/Next{method}", message, self._place(ticket, sequence, is_last)
        )
        return StatusCode(answer.code) if answer.code else None


class Shown:
    """A view, as its page has it."""

    def __init__(self):
        self.exchange = ClientExchange()
        self.replica = None

    def begin(self, start, stop):
        options = SubscriptionOptions(min_update_interval_ms=10)
        return self.exchange.subscribe(b"s/t", viewport=Viewport.of(start, stop), options=options)

    def change(self, start, stop):
        return self.exchange.change(columns=None, viewport=Viewport.of(start, stop), token=None)

    async def until(self, answer, expected):
        while self.replica is None or self.replica.to_arrow().to_pylist() != expected:
            message = await answer.message()
            assert message is not None, answer.trailers
            for event in self.exchange.receive_frame(message):
                if isinstance(event, SchemaArrived):
                    self.replica = ViewReplica(event.schema)
                elif isinstance(event, UpdateArrived):
                    self.replica.apply(event.message)


def code_of(answer):
    return StatusCode(answer.code)


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("http", ["1.1", "2"])
@on_a_loop
async def test_the_page_its_session_and_its_health_come_by_either_http(patient, http):
    async with browser_at(patient, http) as browser:
        page = await (await browser.request("GET", "/")).whole()
        assert page.status == 200
        assert page.body.startswith(b"<!doctype html>")
        assert "unsafe" not in page.headers["content-security-policy"]
        again = {"if-none-match": page.headers["etag"]}
        unchanged = await (await browser.request("GET", "/", again)).whole()
        assert unchanged.status == 304
        assert http == "1.1" or "content-length" not in unchanged.headers
        health = await (await browser.request("GET", "/healthz")).whole()
        assert health.body == b'{"status":"SERVING"}'
        headers = {"authorization": "Bearer the-key", "origin": browser.origin}
        made = await (await browser.request("POST", "/session", headers)).whole()
        assert made.status == 204
        assert "; HttpOnly; SameSite=Strict; Secure" in made.headers["set-cookie"]
        wrong = {**headers, "authorization": "Bearer another"}
        assert (await (await browser.request("POST", "/session", wrong)).whole()).status == 401
        foreign = {**headers, "origin": "https://evil.example"}
        assert (await (await browser.request("POST", "/session", foreign)).whole()).status == 403


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("http", ["1.1", "2"])
@on_a_loop
async def test_a_page_shows_who_calls_by_a_header_and_by_nothing_else(patient, http):
    async with browser_at(patient, http) as browser:
        for metadata in ({}, {"authorization": "Bearer another"}):
            _, answer = await browser.unary(LOGIN, b"", metadata)
            assert code_of(answer) is StatusCode.UNAUTHENTICATED
        headers = {"authorization": "Bearer the-key", "origin": browser.origin}
        made = await (await browser.request("POST", "/session", headers)).whole()
        cookie = made.headers["set-cookie"].partition(";")[0]
        _, answer = await browser.unary(LOGIN, b"", {"cookie": cookie})
        assert code_of(answer) is StatusCode.UNAUTHENTICATED
        session = await Session.of(browser, "Bearer the-key")
        assert session.headers["authorization"].startswith("Bearer ")


@pytest.mark.parametrize("http", ["1.1", "2"])
@on_a_loop
async def test_an_exchange_may_stream_both_ways(patient, http):
    async with browser_at(patient, http) as browser:
        session = await Session.of(browser, "Bearer the-key")
        view = Shown()
        answer = await browser.call(
            f"{FLIGHT}/DoExchange", view.begin(0, 3), metadata=session.headers, ends=False
        )
        await view.until(answer, shown(0, 3))
        answer.send(framed(view.change(50, 53)), False)
        await view.until(answer, shown(50, 53))
        answer.send(b"", True)
        assert await answer.message() is None
        assert answer.code == 0


@on_a_loop
async def test_a_session_that_is_closed_ends_its_streams(patient):
    async with browser_at(patient) as browser:
        session = await Session.of(browser, "Bearer the-key")
        view = Shown()
        answer = await session.open(1, 0, view.begin(0, 3))
        await view.until(answer, shown(0, 3))
        await browser.unary(CLOSE, b"", session.headers)
        await answer.messages()
        assert code_of(answer) is StatusCode.UNAUTHENTICATED


@on_a_loop
async def test_an_upload_ends_with_its_session(patient):
    async with browser_at(patient) as browser:
        session = await Session.of(browser, "Bearer the-key")
        place = session._place(1, 1, False)
        waiting = await browser.call(f"{PIECED}/OpenDoPut", b"", metadata=place, ends=False)
        waiting.send(b"", True)
        assert await session.next(1, 2, method="DoPut") is None
        await browser.unary(CLOSE, b"", session.headers)
        await waiting.messages()
        assert code_of(waiting) is StatusCode.UNAUTHENTICATED


# --- streams in pieces ----------------------------------------------------------------------------


@pytest.mark.parametrize("http", ["1.1", "2"])
@on_a_loop
async def test_messages_may_overtake_each_other(server, http):
    async with browser_at(server, http) as browser:
        session = await Session.of(browser)
        view = Shown()
        first, second, third = view.begin(0, 3), view.change(10, 13), view.change(20, 24)
        assert await session.next(7, 2, third) is None
        assert await session.next(7, 1, second) is None
        answer = await session.open(7, 0, first)
        await view.until(answer, shown(20, 24))
        assert await session.next(7, 4, is_last=True) is None
        assert await session.next(7, 3, view.change(30, 31)) is None
        await answer.messages()
        assert answer.code == 0


@pytest.mark.parametrize("method", ["DoExchange", "DoPut"])
@on_a_loop
async def test_a_message_that_is_missing_ends_its_stream(hasty, method):
    async with browser_at(hasty) as browser:
        session = await Session.of(browser)
        answer = await session.open(1, 1, b"", method=method)
        await answer.messages()
        assert code_of(answer) is StatusCode.INVALID_ARGUMENT
        assert "message 0" in answer.trailers["grpc-message"]
        assert "message 1 has come" in answer.trailers["grpc-message"]


@on_a_loop
async def test_a_message_comes_once(server):
    async with browser_at(server) as browser:
        session = await Session.of(browser)
        view = Shown()
        answer = await session.open(1, 0, view.begin(0, 3))
        assert await session.next(1, 0, b"again") is StatusCode.INVALID_ARGUMENT
        assert await session.next(1, 2, view.change(4, 6)) is None
        assert await session.next(1, 2, b"again") is StatusCode.INVALID_ARGUMENT
        twice = await session.open(1, 3, b"")
        await twice.messages()
        assert "open already" in twice.trailers["grpc-message"]
        # None of that has harmed the stream.
        assert await session.next(1, 1, view.change(2, 3)) is None
        await view.until(answer, shown(4, 6))
        answer.cancel()
        await gone(server)


@on_a_loop
async def test_a_stream_is_its_sessions(server):
    async with browser_at(server) as browser:
        mine, other = await Session.of(browser), await Session.of(browser)
        view = Shown()
        answer = await mine.open(1, 0, view.begin(0, 3))
        await view.until(answer, shown(0, 3))
        assert await other.next(1, 1, b"garbage") is None
        assert await other.next(1, 2, is_last=True) is None
        assert await mine.next(1, 1, view.change(3, 5)) is None
        await view.until(answer, shown(3, 5))
        assert await Session(browser, {}).next(1, 2) is StatusCode.UNAUTHENTICATED
        answer.cancel()
        await gone(server)


async def gone(server):
    await until(lambda: server.stream_count == 0)


@pytest.mark.parametrize("http", ["1.1", "2"])
@on_a_loop
async def test_a_page_that_vanishes_leaves_nothing(server, http):
    async with browser_at(server, http) as browser:
        session = await Session.of(browser)
        view = Shown()
        answer = await session.open(1, 0, view.begin(0, 3))
        await view.until(answer, shown(0, 3))
        assert server.stream_count == 1
        answer.cancel()
        await gone(server)
        # Its number is free again, as soon as its call has ended.
        answer = await session.open(1, 0, Shown().begin(0, 3))
        while await answer.message() is None:
            assert "open already" in answer.trailers["grpc-message"]
            answer = await session.open(1, 0, Shown().begin(0, 3))
    await gone(server)


@on_a_loop
async def test_streams_that_nobody_opens_are_forgotten(hasty):
    async with browser_at(hasty) as browser:
        session = await Session.of(browser)
        for ticket in range(HASTY.browser_streams_max):
            await session.next(ticket, 1)
        while await session.next(100, 1) is StatusCode.RESOURCE_EXHAUSTED:
            pass
        while await session.next(0, 1) is not None:
            pass


@on_a_loop
async def test_a_session_has_so_many_streams_and_no_more(server):
    async with browser_at(server) as browser:
        session = await Session.of(browser)
        for ticket in range(LIMITS.browser_streams_max):
            assert await session.next(ticket, 1) is None
        assert await session.next(100, 1) is StatusCode.RESOURCE_EXHAUSTED
        assert await session.next(0, 2) is None


@on_a_loop
async def test_what_waits_is_bounded_in_number_and_in_bytes(server):
    async with browser_at(server) as browser:
        session = await Session.of(browser)
        for sequence in range(1, 1 + LIMITS.browser_stream_messages_max):
            assert await session.next(1, sequence) is None
        assert await session.next(1, 50) is StatusCode.RESOURCE_EXHAUSTED
        half = bytes(LIMITS.web_upload_bytes_max // 2)
        assert await session.next(2, 1, half) is None
        assert await session.next(2, 2, half) is None
        assert await session.next(2, 3, b"x") is StatusCode.RESOURCE_EXHAUSTED
        assert await session.next(2, 3) is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", str(2**31), "9" * 5000])
@on_a_loop
async def test_places_are_numbers(server, text):
    async with browser_at(server, "1.1") as browser:
        session = await Session.of(browser)
        for name in ("ticket", "sequence"):
            place = {**session._place(1, 0, False), f"x-deephaven-stream-{name}": text}
            _, answer = await browser.unary(f"{PIECED}/NextDoExchange", b"", place)
            assert code_of(answer) is StatusCode.INVALID_ARGUMENT
            assert name in answer.trailers["grpc-message"]

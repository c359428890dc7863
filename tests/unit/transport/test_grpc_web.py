"""Calls of gRPC-web by every HTTP they come by, and those that are none."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from barrage.errors import LimitExceededError, RemoteProtocolError, StatusCode
from barrage.transport.over_http2.grpc_web import PartialMessage, message_head
from tests.helpers.fetching import GRPC_WEB, framed
from tests.unit.transport.contract import until
from tests.unit.transport.grpc_web_served import (
    OF_PAGES,
    UPLOAD_BYTES_MAX,
    WAYS,
    calls,
    method,
    played,
)


@pytest.fixture
def scene(tmp_path):
    return partial(played, tmp_path)


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

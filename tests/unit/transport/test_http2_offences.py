"""Peers that flood, lie or break the rules: only their connection ends, or only their call."""

from __future__ import annotations

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from barrage.transport.over_http2.http2_frames import FRAME_HEAD, PREFACE
from tests.unit.transport.http2_peer import (
    NOW_NS,
    RawClient,
    connection,
    frames_of,
    goaway_of,
    grpc_message,
)

CALM = ErrorCodes.ENHANCE_YOUR_CALM
PROTOCOL = ErrorCodes.PROTOCOL_ERROR
SIZE = ErrorCodes.FRAME_SIZE_ERROR


def frame(kind: int, payload: bytes = b"", *, stream_id: int = 0, flags: int = 0) -> bytes:
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


@pytest.mark.parametrize(
    ("offence", "code"),
    [
        (frame(0, b"x"), PROTOCOL),  # DATA of the connection
        (frame(0, b"x", stream_id=2), PROTOCOL),  # of a stream no client has
        (frame(0, b"x", stream_id=9), PROTOCOL),  # of an idle one
        (frame(0, b"", stream_id=1, flags=8), SIZE),  # padding without a length
        (frame(0, b"\x05xxxx", stream_id=1, flags=8), PROTOCOL),  # all of it and more padding
        (frame(1, b"\xff" * 20, stream_id=3, flags=4), PROTOCOL),  # no headers
        (frame(1, b"", stream_id=0, flags=4), PROTOCOL),
        (frame(1, b"", stream_id=4, flags=4), PROTOCOL),
        (frame(2, bytes(4), stream_id=1), SIZE),
        (frame(2, bytes(5)), PROTOCOL),
        (frame(3, bytes(3), stream_id=1), SIZE),
        (frame(3, bytes(4), stream_id=9), PROTOCOL),
        (frame(3, bytes(4)), PROTOCOL),
        (frame(4, bytes(6), stream_id=1), PROTOCOL),
        (frame(4, bytes(5)), SIZE),
        (frame(4, b"\0\4\xff\xff\xff\xff"), ErrorCodes.FLOW_CONTROL_ERROR),  # a window too large
        (frame(4, b"\0\5\0\0\0\1"), PROTOCOL),  # frames of one byte
        (frame(4, bytes(6 * 65)), CALM),
        (frame(5, bytes(8), stream_id=1), PROTOCOL),
        (frame(6, bytes(7)), SIZE),
        (frame(6, bytes(8), stream_id=1), PROTOCOL),
        (frame(8, bytes(3)), SIZE),
        (frame(8, bytes(4)), PROTOCOL),
        (frame(8, bytes(4), stream_id=9), PROTOCOL),
        (frame(8, b"\x7f\xff\xff\xff"), ErrorCodes.FLOW_CONTROL_ERROR),
        (frame(9, b"x", stream_id=1), PROTOCOL),  # CONTINUATION of nothing
        (FRAME_HEAD.pack((256 * 1024 + 1) << 8, 0, 1), SIZE),
    ],
)
def test_an_offence_ends_the_connection(offence, code):
    client = RawClient()
    stream = client.open()
    assert client.ending(offence)[0] == code
    assert client.was_cut(stream)
    assert client.give(client.request(3)) == []


@pytest.mark.parametrize(
    "beginning", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSX", PREFACE + frame(6, bytes(8))]
)
def test_who_speaks_something_else_is_told_so(beginning):
    server = connection()
    server.receive(beginning, NOW_NS)
    assert server.is_over
    assert goaway_of(server.bytes_to_send())[0] == PROTOCOL


@pytest.mark.parametrize(
    "update", [WindowUpdateFrame(1, window_increment=2**31 - 1), frame(8, bytes(4), stream_id=1)]
)
def test_a_wrong_window_of_a_stream_cuts_that_stream(update):
    client = RawClient()
    stream, other = client.open(1), client.open(3)
    client.give(update)
    assert client.was_cut(stream)
    assert not client.was_cut(other)
    assert not client.server.is_over


def test_a_window_may_be_as_large_as_there_is():
    client = RawClient()
    stream = client.open(1)
    client.give(
        WindowUpdateFrame(1, window_increment=2**31 - 1 - 65_535),
        WindowUpdateFrame(0, window_increment=2**31 - 1 - 65_535),
    )
    assert stream.send_window == client.server._send_window == 2**31 - 1
    settings = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 65_536})
    assert client.ending(settings)[0] == ErrorCodes.FLOW_CONTROL_ERROR


def test_data_after_the_end_cuts_the_stream():
    client = RawClient()
    stream = client.open()
    client.give(client.data(1, b"", ends=True))
    client.give(client.data(1, b"more"))
    assert client.was_cut(stream)
    assert not client.server.is_over


# --- floods: at the limit, and one past it --------------------------------------------------------


def ping(client: RawClient, _: int) -> list[object]:
    return [PingFrame(0, bytes(8))]


def settings(client: RawClient, _: int) -> list[object]:
    return [SettingsFrame(0)]


def empty_data(client: RawClient, _: int) -> list[object]:
    return [client.data(1, b"")]


def priority(client: RawClient, _: int) -> list[object]:
    return [PriorityFrame(1)]


def goaway(client: RawClient, _: int) -> list[object]:
    return [GoAwayFrame(0)]


def unknown(client: RawClient, _: int) -> list[object]:
    return [frame(0xFA, b"what", flags=0xFF)]


def reset(client: RawClient, number: int) -> list[object]:
    return [client.request(2 * number + 3), RstStreamFrame(2 * number + 3)]


FLOODS = [
    (ping, "http2_pings_per_s_max", 0),
    (settings, "http2_settings_per_s_max", 1),
    (empty_data, "http2_idle_frames_per_s_max", 0),
    (priority, "http2_idle_frames_per_s_max", 0),
    (goaway, "http2_idle_frames_per_s_max", 0),
    (unknown, "http2_idle_frames_per_s_max", 0),
    (reset, "http2_resets_per_s_max", 0),
]


@pytest.mark.parametrize(("flood", "limit", "already"), FLOODS)
def test_a_flood_ends_the_connection_one_past_the_limit(flood, limit, already):
    client = RawClient(**{limit: 20})
    client.open()
    for number in range(20 - already):
        client.give(*flood(client, number))
    assert not client.server.is_over
    # A second later it counts anew.
    client.now_ns += 1_000_000_000
    for number in range(20, 40):
        client.give(*flood(client, number))
    assert not client.server.is_over
    code, text = client.ending(*flood(client, 40))
    assert code == CALM
    assert "more than 20" in text


def test_resets_of_calls_that_were_answered_are_no_flood():
    client = RawClient(http2_resets_per_s_max=5)
    for number in range(20):
        stream = client.open(2 * number + 1)
        client.server.respond(stream, [(b":status", b"200")])
        client.give(RstStreamFrame(stream.stream_id))
    assert not client.server.is_over


def test_calls_that_were_refused_count_as_resets():
    client = RawClient(http2_resets_per_s_max=5, http2_streams_max=1)
    for number in range(6):
        client.give(client.request(2 * number + 1))
    assert not client.server.is_over
    assert client.ending(client.request(13))[0] == CALM


def test_headers_that_unpack_to_more_than_the_limit_end_the_connection():
    client = RawClient(http2_header_bytes_max=4096)
    client.give(client.request(1, ("a", "b" * 3000)))
    assert not client.server.is_over
    # A long field that is said once and named a hundred times.
    client = RawClient(http2_header_bytes_max=4096)
    bomb = [("a", "b" * 1000)] * 100
    packed = client.request(1, *bomb)
    assert len(packed.data) < 4096
    code, text = client.ending(packed)
    assert code == CALM
    assert text


@pytest.mark.parametrize("excess", [0, 1])
def test_a_block_of_headers_is_bounded_however_it_is_cut(excess):
    client = RawClient(http2_header_bytes_max=1000)
    parts = [HeadersFrame(1, bytes(500)), ContinuationFrame(1, bytes(500 + excess))]
    client.give(*parts)
    assert client.server.is_over == bool(excess)


def test_continuations_without_end_end_the_connection():
    client = RawClient()
    client.give(HeadersFrame(1, b""))
    for _ in range(1000):
        client.give(ContinuationFrame(1, b""))
    assert client.server.is_over
    assert len(client.server._h2.streams) == 0


@pytest.mark.parametrize(
    "between", [PingFrame(0, bytes(8)), WindowUpdateFrame(0, window_increment=1), b"?"]
)
def test_nothing_comes_between_the_parts_of_a_block(between):
    client = RawClient()
    client.give(HeadersFrame(1, b""))
    if between == b"?":
        between = client.data(1, b"x")
    assert client.ending(between)[0] == PROTOCOL


def test_a_block_in_parts_is_a_request():
    client = RawClient()
    block = client.request(1).data
    middle = len(block) // 2
    client.give(
        HeadersFrame(1, block[:middle]),
        ContinuationFrame(1, block[middle:], flags=["END_HEADERS"]),
        client.data(1, grpc_message(b"x")),
    )
    assert client.server.take(client.server.streams[1]) == b"x"


def test_a_peer_that_makes_us_answer_and_reads_nothing_ends():
    client = RawClient(http2_replies_bytes_max=1700)
    client.server.is_paused = True
    client.give(*[PingFrame(0, bytes(8))] * 100)
    assert not client.server.is_over
    assert client.ending(PingFrame(0, bytes(8)))[0] == CALM


def test_answers_that_are_read_do_not_add_up():
    client = RawClient(http2_replies_bytes_max=1700)
    for _ in range(10):
        client.give(*[PingFrame(0, b"abcdefgh")] * 100)
        answers = frames_of(client.server.bytes_to_send())
        assert [answer.opaque_data for answer in answers] == [b"abcdefgh"] * 100
    assert not client.server.is_over


# --- bytes of any kind ----------------------------------------------------------------------------


@given(pieces=st.lists(st.binary(max_size=200), max_size=8), is_greeted=st.booleans())
def test_bytes_never_raise(pieces, is_greeted):
    client = RawClient()
    server = client.server if is_greeted else connection()
    for piece in pieces:
        server.receive(piece, NOW_NS)
        server.bytes_to_send()
        server.take_events()
    if server.is_over:
        assert not server.streams


_FRAMES = st.builds(
    lambda kind, payload, stream_id, flags: frame(kind, payload, stream_id=stream_id, flags=flags),
    st.integers(0, 11),
    st.binary(max_size=40) | st.just(bytes(4)) | st.just(bytes(8)),
    st.integers(0, 9),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF]),
)


@given(st.lists(_FRAMES, min_size=1, max_size=20), st.data())
def test_frames_of_any_kind_never_raise(frames, data):
    client = RawClient()
    streams = [client.open(1), client.open(3)]
    server = client.server
    for each in frames:
        server.receive(each, NOW_NS)
        stream = data.draw(st.sampled_from(streams))
        action = data.draw(st.sampled_from(["take", "send", "queue", "end", "want", "flush"]))
        if action == "take":
            server.take(stream)
        elif action == "want":
            server.want(stream)
        elif action == "flush":
            server.bytes_to_send()
        elif action == "end":
            server.end(stream, [(b":status", b"200"), (b"grpc-status", b"0")])
        else:
            if not stream.is_answered:
                server.respond(stream, [(b":status", b"200")])
            if action == "queue" or not server.try_send(stream, bytes(5)):
                server.queue(stream, bytes(20_000), 1)
        server.take_events()
    if server.is_over:
        assert not server.streams
    assert server.queued_bytes >= 0

"""HTTP/2 of the server without sockets: what a peer may do, at every cut, and windows to the
byte."""

from __future__ import annotations

import h2.events
import h2.settings
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from barrage.errors import StatusCode
from barrage.transport.over_http2.grpc_headers import answer_headers, status_trailers
from barrage.transport.over_http2.http2_events import (
    CallOpened,
    CallReadable,
    CallRefused,
    MessageTaken,
)
from barrage.transport.over_http2.http2_frames import PREFACE
from tests.unit.transport.http2_peer import (
    HEAD,
    MESSAGE_BYTES_MAX,
    NOW_NS,
    REQUEST,
    H2Client,
    RawClient,
    connection,
    frames_of,
    grpc_message,
    messages_of,
    readable,
)

WINDOW = 4 * 1024 * 1024


def taken(client: H2Client) -> list[object]:
    return [event.ticket for event in client.events if isinstance(event, MessageTaken)]


# --- what comes -----------------------------------------------------------------------------------


def conversation() -> bytes:
    client = RawClient()
    frames = (
        client.request(1, ("content-length", "999")),
        client.data(1, grpc_message(b"one") + grpc_message(b"")[:3]),
        WindowUpdateFrame(0, window_increment=5),
        client.data(1, grpc_message(b"")[3:] + grpc_message(b"three")[:7]),
        DataFrame(1, grpc_message(b"three")[7:], pad_length=9, flags=["PADDED"]),
        PriorityFrame(1, depends_on=0),
        WindowUpdateFrame(1, window_increment=5),
        PingFrame(0, b"12345678"),
        client.data(1, grpc_message(bytes(400)), ends=True),
        RstStreamFrame(1),
    )
    return PREFACE + SettingsFrame(0).serialize() + b"".join(f.serialize() for f in frames[:-1])


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 13, 100, 10_000])
def test_bytes_mean_the_same_however_they_are_cut(step):
    server = connection()
    data, events = conversation(), []
    for at in range(0, len(data), step):
        events += server.receive(data[at : at + step], NOW_NS)
    stream = server.streams[1]
    assert messages_of(server, stream) == [b"one", b"", b"three", bytes(400)]
    assert stream.is_remote_ended
    assert stream.send_window == 65_535 + 5
    assert isinstance(events[0], CallOpened)


def test_bytes_mean_the_same_at_every_cut_in_two():
    data = conversation()
    for at in range(len(data)):
        server = connection()
        server.receive(data[:at], NOW_NS)
        server.receive(data[at:], NOW_NS)
        stream = server.streams[1]
        assert messages_of(server, stream) == [b"one", b"", b"three", bytes(400)], at
        assert stream.is_remote_ended


def test_of_very_many_frames_a_part_is_read_at_a_time():
    client = RawClient()
    ids = range(1, 401, 2)
    sent = [frame for each in ids for frame in (client.request(each), client.data(each, b""))]
    cut = client.data(1, grpc_message(b"cut")).serialize()
    first = client.give(*sent[:-1], sent[-1].serialize() + cut[:3])
    opened = [len([event for event in first if isinstance(event, CallOpened)])]
    while client.server.is_behind:
        opened.append(len([e for e in client.give(b"") if isinstance(e, CallOpened)]))
    assert opened == [64, 64, 64, 8]
    client.give(cut[3:])
    assert messages_of(client.server, client.server.streams[1]) == [b"cut"]


@pytest.mark.parametrize("number", [128, 129])
def test_so_many_frames_are_read_at_once(number):
    client = RawClient()
    client.give(*(client.request(2 * each + 1) for each in range(number)))
    assert client.server.is_behind == (number > 128)
    assert len(client.server.streams) == 128


def test_a_connection_that_ends_leaves_nothing_to_be_read():
    client = RawClient()
    client.give(*(client.request(2 * each + 1) for each in range(300)))
    assert client.server.is_behind
    client.server.cut_all()
    assert not client.server.is_behind
    assert len(client.server.take_events()) == 128
    assert client.server.receive(b"", NOW_NS) == []


def test_what_is_not_read_gets_no_new_window():
    client = RawClient()
    stream = client.open()
    piece = grpc_message(bytes(16_000))
    for _ in range(WINDOW // len(piece)):
        client.give(client.data(1, piece))
    assert stream.receive_window == WINDOW - WINDOW // len(piece) * len(piece)
    before = stream.receive_window
    for _ in range(WINDOW // len(piece) // 2 + 1):
        client.server.take(stream)
    assert stream.receive_window > before
    updates = [f for f in frames_of(client.server.bytes_to_send()) if f.stream_id == 1]
    assert sum(f.window_increment for f in updates) == stream.receive_window - before


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_message_longer_than_the_window_comes_to_who_waits_for_it(is_wanted):
    client = RawClient(http2_stream_window_bytes=70_000)
    stream = client.open()
    content = grpc_message(bytes(range(256)) * 1000)
    if is_wanted:
        client.server.want(stream)
    sent = 0
    while sent < len(content) and stream.receive_window:
        step = min(16_384, stream.receive_window, len(content) - sent)
        client.give(client.data(1, content[sent : sent + step]))
        sent += step
    assert sent == (len(content) if is_wanted else 70_000)
    if not is_wanted:
        client.server.want(stream)
        assert stream.receive_window == 70_000


def test_a_connection_whose_calls_read_nothing_takes_no_more():
    limit = 100_000
    client = RawClient(http2_requests_bytes_max=limit, http2_connection_window_bytes=65_535)
    stream = client.open()
    while client.server._receive_window >= 10_005:
        client.give(client.data(1, grpc_message(bytes(10_000))))
    assert limit <= client.server.queued_bytes <= limit + 65_535
    messages_of(client.server, stream)
    assert client.server.queued_bytes == 0
    assert client.server._receive_window > 60_000


@pytest.mark.parametrize("excess", [0, 1])
def test_a_stream_is_cut_one_byte_past_its_window(excess):
    client = RawClient(http2_stream_window_bytes=10_000)
    stream = client.open()
    client.give(client.data(1, grpc_message(bytes(10_000 - 5))[: 10_000 - 1]))
    client.give(client.data(1, bytes(1 + excess)))
    assert client.was_cut(stream) == bool(excess)
    assert not client.server.is_over


@pytest.mark.parametrize("excess", [0, 1])
def test_a_connection_ends_one_byte_past_its_window(excess):
    client = RawClient(http2_connection_window_bytes=65_535, http2_requests_bytes_max=0)
    client.open()
    client.give(*(client.data(1, bytes(16_384)) for _ in range(3)), client.data(1, bytes(16_383)))
    assert not client.server.is_over
    if excess:
        assert client.ending(client.data(1, bytes(1)))[0] == ErrorCodes.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("excess", [0, 1])
def test_a_message_is_refused_by_its_prefix(excess):
    client = RawClient()
    stream = client.open()
    prefix = b"\0" + (MESSAGE_BYTES_MAX + excess).to_bytes(4, "big")
    events = client.give(client.data(1, prefix))
    refused = [event for event in events if isinstance(event, CallRefused)]
    assert bool(refused) == bool(excess)
    if excess:
        assert refused[0].is_too_long
        assert "larger than max (1048577 vs. 1048576)" in refused[0].text
        # What follows is thrown away, and the others go on.
        assert client.give(client.data(1, bytes(1000))) == []
        assert stream.messages == type(stream.messages)()
        client.open(3)


@pytest.mark.parametrize("excess", [0, 1])
def test_messages_that_never_become_whole_are_bounded_together(excess):
    client = RawClient(http2_partial_bytes_max=20_000)
    streams = [client.open(number) for number in (1, 3)]
    message = grpc_message(bytes(50_000))
    client.give(client.data(1, message[:10_000]))
    events = client.give(client.data(3, message[: 10_000 + excess]))
    refused = [event.stream for event in events if isinstance(event, CallRefused)]
    assert refused == streams[2 - excess :]
    client.give(client.data(1, message[10_000 : 20_000 - 1]) if excess else RstStreamFrame(3))
    assert not client.server.is_over
    client.give(RstStreamFrame(1))
    if excess:
        client.give(RstStreamFrame(3))
    assert client.server._partial == 0


def test_a_compressed_message_is_refused():
    client = RawClient()
    client.open()
    (event,) = client.give(client.data(1, grpc_message(b"x", flag=1)))
    assert isinstance(event, CallRefused)
    assert "compressed" in event.text


def test_small_pieces_do_not_pile_up():
    client = RawClient(http2_idle_frames_per_s_max=10)
    stream = client.open()
    content = grpc_message(bytes(12_000))
    for at in range(0, len(content) - 1):
        client.give(client.data(1, content[at : at + 1]))
    assert len(stream._pieces) < 10
    client.give(client.data(1, content[-1:]))
    assert messages_of(client.server, stream) == [bytes(12_000)]


def test_late_frames_of_a_call_that_has_ended_are_no_offence():
    client = RawClient()
    stream = client.open()
    client.server.end(stream, status_trailers(None, "", ahead=HEAD.answer))
    assert not client.server.streams
    client.give(
        client.data(1, b"late"),
        WindowUpdateFrame(1, window_increment=9),
        client.data(1, b"", ends=True),
        RstStreamFrame(1),
        PriorityFrame(1),
        GoAwayFrame(0),
    )
    client.open(3)


def test_a_thousand_calls_that_are_reset_leave_nothing():
    client = RawClient()
    for number in range(1000):
        stream = client.open(2 * number + 1)
        client.give(client.data(stream.stream_id, grpc_message(bytes(100))))
        client.server.queue(stream, bytes(100_000), None)
        client.give(RstStreamFrame(stream.stream_id))
        assert client.was_cut(stream)
        client.events.clear()
    server = client.server
    assert server.streams == {}
    assert server.queued_bytes == 0
    assert not server._turns
    assert len(server._h2.streams) <= 64


def test_calls_past_the_limit_are_refused_until_one_ends():
    client = RawClient(http2_streams_max=2)
    first = client.open(1)
    client.open(3)
    assert client.give(client.request(5)) == []
    (refusal,) = frames_of(client.server.bytes_to_send())
    assert (refusal.stream_id, refusal.error_code) == (5, ErrorCodes.REFUSED_STREAM)
    client.server.end(first, status_trailers(None, "", ahead=HEAD.answer))
    client.open(7)


def test_a_connection_that_drains_finishes_what_it_has():
    client = RawClient()
    stream = client.open()
    client.server.drain()
    client.server.drain()
    assert client.give(client.request(3)) == []
    client.server.respond(stream, answer_headers(HEAD, ()))
    assert client.server.try_send(stream, b"still")
    client.give(client.data(1, grpc_message(b"here"), ends=True))
    assert client.server.take(stream) == b"here"
    client.server.end(stream, status_trailers(None, "", ahead=[]))
    goaway, refusal, *answer = frames_of(client.server.bytes_to_send())
    assert (goaway.last_stream_id, goaway.error_code) == (1, ErrorCodes.NO_ERROR)
    assert (refusal.stream_id, refusal.error_code) == (3, ErrorCodes.REFUSED_STREAM)
    assert [type(frame).__name__ for frame in answer] == [
        "HeadersFrame",
        "DataFrame",
        "HeadersFrame",
    ]
    assert answer[1].data == grpc_message(b"still")


def test_the_length_of_a_request_is_not_held_against_what_h2_sees():
    client = RawClient()
    client.give(client.request(1, ("content-length", "6")))
    events = client.give(client.data(1, grpc_message(b"x"), ends=True))
    assert readable(events)
    assert client.server.streams[1].is_remote_ended


# --- what goes ------------------------------------------------------------------------------------


def test_a_client_of_h2_sees_a_whole_answer():
    client = H2Client()
    stream = client.open(ends=True)
    client.respond(stream)
    assert client.server.try_send(stream, b"hello")
    client.end(stream)
    client.pump()
    assert client.received[1] == grpc_message(b"hello")
    (trailers,) = client.of(h2.events.TrailersReceived)
    assert (b"grpc-status", b"0") in trailers.headers
    assert not client.server.streams


def test_an_answer_without_messages_is_trailers_only():
    client = H2Client()
    stream = client.open(ends=True)
    client.end(stream)
    client.pump()
    (answer,) = client.of(h2.events.ResponseReceived)
    assert answer.stream_ended is not None
    assert (b"grpc-status", b"0") in answer.headers


def test_a_message_goes_at_once_if_both_windows_have_room_to_the_byte():
    client = H2Client(window=100)
    stream = client.open()
    client.respond(stream)
    assert not client.server.try_send(stream, bytes(96))
    assert client.server.try_send(stream, bytes(95))
    assert not client.server.try_send(stream, b"")
    client.credit(5, 1)
    client.pump()
    assert client.server.try_send(stream, b"")
    client.pump()
    assert len(client.received[1]) == 105


def test_a_message_that_waits_goes_as_far_as_the_window_does():
    client = H2Client(window=100)
    stream = client.open()
    client.respond(stream)
    content = bytes(range(256))
    client.server.queue(stream, content, "a")
    client.server.queue(stream, b"next", "b")
    client.end(stream)
    client.pump()
    expected = grpc_message(content) + grpc_message(b"next")
    seen = 100
    assert client.received[1] == expected[:100]
    for more in (1, 2, 99, 63):
        client.credit(more, 1)
        client.pump()
        seen += more
        assert client.received[1] == expected[:seen]
        assert taken(client) == ([] if seen < 261 else ["a"])
        assert not client.of(h2.events.TrailersReceived)
    client.credit(5, 1)
    client.pump()
    assert client.received[1] == expected
    assert taken(client) == ["a", "b"]
    assert client.of(h2.events.TrailersReceived)
    assert not client.server.streams


def test_the_connections_window_bounds_all_streams_together():
    client = H2Client(window=1 << 20)
    streams = [client.open(1), client.open(3)]
    for stream in streams:
        client.respond(stream)
        client.server.queue(stream, bytes(60_000), stream.stream_id)
    client.pump()
    assert sum(map(len, client.received.values())) == 65_535
    assert client.server.bytes_to_send() == b""
    client.credit(54_475)
    client.pump()
    assert {number: len(data) for number, data in client.received.items()} == {1: 60_005, 3: 60_005}


def test_a_peer_does_not_say_how_much_is_kept_of_what_it_was_sent():
    client = H2Client()
    for size in (1 << 30, 0, 1 << 31, 4096):
        client.client.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
        client.pump()
    for number in range(1, 400, 2):
        stream = client.open(number, ends=True)
        details = f"call {number} " + "x" * 500
        client.server.end(stream, status_trailers(StatusCode.UNKNOWN, details, ahead=HEAD.answer))
        client.pump()
        assert (b"grpc-message", details.encode()) in client.told[-2].headers
    assert client.server._h2.encoder.header_table._current_size <= 4096


def test_streams_take_turns():
    client = H2Client(window=1 << 20)
    client.credit(1 << 20)
    for stream in [client.open(number) for number in (1, 3, 5)]:
        client.respond(stream)
        client.server.queue(stream, bytes(60_000), stream.stream_id)
    sent = frames_of(client.server.bytes_to_send())
    order = [frame.stream_id for frame in sent if isinstance(frame, DataFrame)]
    assert order[:6] == [1, 3, 5, 1, 3, 5]
    assert max(len(frame.data) for frame in sent if isinstance(frame, DataFrame)) == 16_384


def test_a_window_may_become_negative_by_settings():
    client = H2Client(window=1000)
    stream = client.open()
    client.respond(stream)
    assert client.server.try_send(stream, bytes(895))
    client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100})
    client.pump()
    assert stream.send_window == -800
    assert not client.server.try_send(stream, b"")
    client.server.queue(stream, bytes(10), 1)
    client.credit(800, 1)
    client.pump()
    assert len(client.received[1]) == 900
    client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 107})
    client.pump()
    assert len(client.received[1]) == 907
    client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 5000})
    client.pump()
    assert len(client.received[1]) == 915
    assert taken(client) == [1]


@pytest.mark.parametrize(
    ("told", "longest"), [(1 << 17, 1 << 17), (1 << 18, 1 << 18), (1 << 20, 1 << 18)]
)
def test_longer_frames_are_used_when_the_peer_takes_them_up_to_a_bound(told, longest):
    client = H2Client(window=1 << 20, frame_bytes=told)
    client.credit(1 << 20)
    stream = client.open()
    client.respond(stream)
    client.server.queue(stream, bytes(600_000), 1)
    lengths = []
    while data := client.server.bytes_to_send():
        lengths += [len(each.data) for each in frames_of(data) if isinstance(each, DataFrame)]
    whole, rest = divmod(600_005, longest)
    assert lengths == [longest] * whole + [rest]


def test_a_socket_that_takes_nothing_lets_messages_wait():
    client = H2Client()
    stream = client.open()
    client.respond(stream)
    client.pump()
    client.server.is_paused = True
    assert not client.server.try_send(stream, b"x")
    client.server.queue(stream, b"x", 1)
    assert client.server.bytes_to_send() == b""
    client.server.is_paused = False
    client.pump()
    assert client.received[1] == grpc_message(b"x")


def test_what_waits_can_be_withdrawn_until_it_has_begun():
    client = H2Client(window=10)
    stream = client.open()
    client.respond(stream)
    for ticket in ("begun", "never", "last"):
        client.server.queue(stream, bytes(20), ticket)
    client.pump()
    client.server.withdraw(stream, "never")
    client.server.withdraw(stream, "begun")
    client.end(stream)
    client.credit(1000, 1)
    client.pump()
    assert client.received[1] == grpc_message(bytes(20)) * 2
    assert taken(client) == ["begun", "last"]
    assert not client.server.streams


def test_an_end_drops_what_has_not_begun_and_cuts_no_message():
    client = H2Client(window=10)
    stream = client.open()
    client.respond(stream)
    for ticket in ("begun", "never"):
        client.server.queue(stream, bytes(20), ticket)
    client.pump()
    client.server.forget_queued(stream)
    client.server.end(stream, status_trailers(None, "", ahead=[]))
    client.credit(1000, 1)
    client.pump()
    assert client.received[1] == grpc_message(bytes(20))
    assert client.of(h2.events.TrailersReceived)
    assert not client.server.streams


def test_messages_and_answers_cross_at_every_step():
    for step in (1, 7, 1000):
        client = H2Client(window=1000)
        stream = client.open()
        client.respond(stream)
        client.client.send_data(1, grpc_message(b"there") * 100)
        for number in range(50):
            client.server.queue(stream, b"%d" % number, number)
        client.pump(step)
        assert messages_of(client.server, stream) == [b"there"] * 100
        assert client.received[1] == b"".join(grpc_message(b"%d" % n) for n in range(50))


def test_an_event_tells_that_something_has_come():
    client = RawClient()
    stream = client.open()
    (event,) = client.give(client.data(1, grpc_message(b"x")))
    assert isinstance(event, CallReadable)
    assert event.stream is stream
    assert client.give(client.request(3, *REQUEST[:0]))

"""The other side of a server's HTTP/2 connection: frames made by hyperframe and read by h2's
client, between which there is no socket."""

from __future__ import annotations

from struct import pack
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    SettingsFrame,
)

from barrage.limits import Limits
from barrage.transport.over_http2.grpc_headers import RequestHead, answer_headers, status_trailers
from barrage.transport.over_http2.http2_connection import Http2Connection
from barrage.transport.over_http2.http2_events import CallCut, CallOpened, CallReadable
from barrage.transport.over_http2.http2_frames import PREFACE

MESSAGE_BYTES_MAX = 1 << 20
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/m"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
NOW_NS = 5_000_000_000
HEAD = RequestHead(method="/s/m", metadata=(), timeout_s=None)


def grpc_message(content: bytes, flag: int = 0) -> bytes:
    return pack(">BI", flag, len(content)) + content


def connection(**limits: Any) -> Http2Connection:
    made = Http2Connection(Limits(**limits), message_bytes_max=MESSAGE_BYTES_MAX)
    made.begin()
    return made


def goaway_of(sent: bytes) -> tuple[int, str]:
    """Code and text of the last frame, a GOAWAY."""
    last = frames_of(sent)[-1]
    return last.error_code, last.additional_data.decode()


def frames_of(sent: bytes) -> list[Any]:
    found = []
    while sent:
        frame, length = Frame.parse_frame_header(memoryview(sent[:9]))
        frame.parse_body(memoryview(sent[9 : 9 + length]))
        found.append(frame)
        sent = sent[9 + length :]
    return found


class RawClient:
    """Sends what it likes: frames of one connection that has been greeted."""

    def __init__(self, **limits: Any) -> None:
        self.server = connection(**limits)
        self.encoder = Encoder()
        self.now_ns = NOW_NS
        self.events: list[Any] = []
        self.give(PREFACE + SettingsFrame(0).serialize())
        self.server.bytes_to_send()

    def give(self, *parts: Any) -> list[Any]:
        """Bytes or frames, in one read; the events they cause."""
        data = b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts)
        events = self.server.receive(data, self.now_ns)
        self.events += events
        return events

    def request(
        self, stream_id: int = 1, *more: tuple[str, str], flags: tuple[str, ...] = ()
    ) -> HeadersFrame:
        block = self.encoder.encode([*REQUEST, *more])
        return HeadersFrame(stream_id, block, flags=["END_HEADERS", *flags])

    def open(self, stream_id: int = 1) -> Any:
        """A new stream, as the server knows it."""
        (event,) = self.give(self.request(stream_id))
        assert isinstance(event, CallOpened)
        return event.stream

    def data(self, stream_id: int, content: bytes, *, ends: bool = False) -> DataFrame:
        return DataFrame(stream_id, content, flags=["END_STREAM"] if ends else [])

    def ending(self, *parts: Any) -> tuple[int, str]:
        """How the connection ends by this."""
        self.give(*parts)
        assert self.server.is_over
        assert not self.server.streams
        return goaway_of(self.server.bytes_to_send())

    def was_cut(self, stream: Any) -> bool:
        return any(isinstance(each, CallCut) and each.stream is stream for each in self.events)


class H2Client:
    """A client by h2, which complains when the server breaks a rule."""

    def __init__(self, *, window: int = 65_535, frame_bytes: int = 16_384, **limits: Any) -> None:
        self.server = connection(**limits)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.client.update_settings(
            {
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_bytes,
            }
        )
        self.told: list[Any] = []
        """What the client has seen."""
        self.events: list[Any] = []
        """What the server has."""
        self.received: dict[int, bytes] = {}
        self.pump()

    def pump(self, step: int = 1 << 30) -> None:
        """Carry bytes both ways, ``step`` at a time, until there are none."""
        while True:
            up, down = self.client.data_to_send(), self.server.bytes_to_send()
            if not up and not down:
                break
            for at in range(0, len(up), step):
                self.events += self.server.receive(up[at : at + step], NOW_NS)
            for at in range(0, len(down), step):
                self._see(self.client.receive_data(down[at : at + step]))
        self.events += self.server.take_events()

    def _see(self, told: list[Any]) -> None:
        self.told += told
        for event in told:
            if isinstance(event, h2.events.DataReceived):
                self.received[event.stream_id] = (
                    self.received.get(event.stream_id, b"") + event.data
                )

    def open(self, stream_id: int = 1, *, ends: bool = False) -> Any:
        self.client.send_headers(stream_id, REQUEST, end_stream=ends)
        self.pump()
        return self.server.streams[stream_id]

    def credit(self, size: int, stream_id: int | None = None) -> None:
        self.client.increment_flow_control_window(size, stream_id)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def respond(self, stream: Any) -> None:
        self.server.respond(stream, answer_headers(HEAD, ()))

    def end(self, stream: Any) -> None:
        trailers = status_trailers(None, "", ahead=[] if stream.is_answered else HEAD.answer)
        self.server.end(stream, trailers)


def messages_of(server: Http2Connection, stream: Any) -> list[bytes]:
    found = []
    while (message := server.take(stream)) is not None:
        found.append(message)
    return found


def readable(events: list[Any]) -> bool:
    return any(isinstance(event, CallReadable) for event in events)

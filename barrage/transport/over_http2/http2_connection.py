"""One HTTP/2 connection of a server, without IO: bytes in, events and bytes out.

h2 keeps the protocol: settings, header compression, the states of streams. What there is much of
never gets to it: DATA, WINDOW_UPDATE and PING are read here, DATA is written here, and flow control
is ours both ways. h2 hears of DATA only that a stream has ended. It never hears of GOAWAY, after
which it would neither send nor take anything.

A message that fits costs one ``pack`` and two appends (about a microsecond); what has been written
in one turn of the loop leaves together (:meth:`Http2Connection.parts_to_send`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes
from h2.events import (
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from barrage.transport.over_http2 import http2_frames as frames
from barrage.transport.over_http2.frame_reader import FrameReader
from barrage.transport.over_http2.h2_state import FRAME_BYTES_MAX, state_of_h2
from barrage.transport.over_http2.http2_events import (
    CallCut,
    CallOpened,
    CallReadable,
    CallRefused,
    MessageTaken,
)
from barrage.transport.over_http2.http2_frames import (
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    MESSAGE_HEAD,
    PREFIX_BYTES,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Http2Error,
    Rate,
    goaway,
    window_update,
)
from barrage.transport.over_http2.http2_stream import (
    MESSAGE_OVERHEAD_BYTES,
    Http2Stream,
    MessageRefusedError,
    OutgoingMessage,
)

if TYPE_CHECKING:
    from h2.events import Event

    from barrage.limits import Limits
    from barrage.transport.over_http2.http2_events import Headers, Http2Event
    from barrage.wire.message_parts import MessageParts

_OUT_FRAME_BYTES_MAX = 256 * 1024
"""Longest frame that is made, so that streams take turns. Clients take fewer frames sooner."""

_HEADER_TABLE_BYTES_MAX = 4096
"""What is kept of headers that were sent, whatever the peer would have us keep."""

_CHUNK_BYTES = 512 * 1024
"""What one write to the socket may have of messages that waited."""

_OUT_BYTES_MAX = 1024 * 1024
"""Bytes made and not written to the socket, past which messages wait."""

_DIRECT_BYTES_MAX = 64 * 1024
"""Longest message that does not wait for its turn."""

log = logging.getLogger(__name__)


class Http2Connection:
    """The server's side of one connection. Every method may add to :meth:`bytes_to_send`."""

    def __init__(self, limits: Limits, *, message_bytes_max: int) -> None:
        """``message_bytes_max``: longest gRPC message that is taken."""
        self._limits = limits
        self._message_bytes_max = message_bytes_max
        self.streams: dict[int, Http2Stream] = {}
        """Those that are open either way, by number."""
        self.is_over = False
        """Whether nothing is taken any more: once what is to be sent has been, it can be closed."""
        self.is_paused = False
        """Whether the socket takes nothing now. Set by who writes to it."""
        self.is_draining = False
        self.out_bytes = 0
        """What :meth:`bytes_to_send` has at least."""
        self._out: list[bytes | memoryview] = []
        self._control_bytes = 0
        self._events: list[Http2Event] = []
        self._turns: OrderedDict[int, Http2Stream] = OrderedDict()
        self._now_ns = 0
        self._highest_id = 0
        self._last_id = frames.ID_MAX
        self._send_window = WINDOW_DEFAULT
        self._initial_window = WINDOW_DEFAULT
        self._frame_bytes = frames.FRAME_BYTES_DEFAULT
        self._receive_window = limits.http2_connection_window_bytes
        self._uncredited = 0
        self._queued = self._partial = 0
        self._resets = Rate("calls that are reset at once", limits.http2_resets_per_s_max)
        self._settings = Rate("SETTINGS", limits.http2_settings_per_s_max)
        self._h2 = state_of_h2(limits)
        self._reader = FrameReader(self, limits=limits, frame_bytes_max=FRAME_BYTES_MAX)

    def begin(self) -> None:
        """Say what is ours, before anything has come."""
        self._h2.initiate_connection()
        self._take_h2()
        self._put(window_update(0, self._receive_window - WINDOW_DEFAULT))

    # --- what comes -------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ns: int) -> list[Http2Event]:
        """Take what the peer sent; of very many frames a part, and the next with the next call
        (:attr:`is_behind`). Raises nothing: a peer that does wrong is told so, its streams are cut,
        and the connection is over."""
        if self.is_over:
            return []
        self._now_ns = now_ns
        try:
            self._reader.read(data, now_ns)
            if self._control_bytes > self._limits.http2_replies_bytes_max:
                raise frames.too_much("answers that the peer does not read")
        except Http2Error as error:
            self.fail(error)
        return self.take_events()

    def take_events(self) -> list[Http2Event]:
        """What has happened since this was asked last."""
        events, self._events = self._events, []
        return events

    def fail(self, error: Http2Error) -> None:
        """The peer has done wrong; everything it has here ends. Idempotent."""
        if self.is_over:
            return
        log.info("a connection ends: %s (%s)", error, error.code.name)
        self.is_over = True
        self._out.append(goaway(self._highest_id, error.code, str(error)))
        self.cut_all()

    @property
    def is_open(self) -> bool:
        """Whether the peer has said that it speaks HTTP/2."""
        return self._reader.is_open

    @property
    def is_behind(self) -> bool:
        """Whether something has come that :meth:`receive` is to be called for again."""
        return self._reader.is_behind and not self.is_over

    @property
    def queued_bytes(self) -> int:
        """What the messages cost that nobody has read."""
        return self._queued

    def cut_all(self) -> None:
        """The connection is lost."""
        self.is_over = True
        for stream in list(self.streams.values()):
            self._forget(stream)
            self._events.append(CallCut(stream))

    def is_known(self, stream_id: int) -> bool:
        """Whether a stream of that number is, or was. Http2Error when there cannot be one."""
        if stream_id == 0 or not stream_id & 1:
            raise frames.broken(f"a frame on stream {stream_id}, which no client can have")
        return stream_id <= self._highest_id

    def open_data(self, stream_id: int, length: int) -> Http2Stream | None:
        """The stream of a DATA frame of ``length`` bytes, which is charged now; None for one that
        has ended, whose frame is thrown away. Http2Error."""
        if not self.is_known(stream_id):
            raise frames.broken(f"DATA on stream {stream_id}, which is idle")
        self._receive_window -= length
        if self._receive_window < 0:
            raise Http2Error(ErrorCodes.FLOW_CONTROL_ERROR, "more DATA than the window allows")
        self._uncredited += length
        stream = self.streams.get(stream_id)
        if stream is None:
            self._credit_connection()
            return None
        stream.receive_window -= length
        stream.uncredited += length
        if stream.receive_window < 0 or stream.is_remote_ended:
            self._cut(
                stream,
                ErrorCodes.STREAM_CLOSED
                if stream.is_remote_ended
                else ErrorCodes.FLOW_CONTROL_ERROR,
            )
            stream = None
        self._credit_connection()
        return stream

    def receive_payload(self, stream: Http2Stream, piece: memoryview) -> None:
        """Part of a DATA frame, or all of it."""
        if stream.is_closed or stream.is_refused:
            return
        before, partial = _held(stream), stream.partial
        try:
            count = stream.feed(piece, self._message_bytes_max)
            self._partial += stream.partial - partial
            partial = stream.partial
            if self._partial > self._limits.http2_partial_bytes_max:
                raise MessageRefusedError(
                    is_too_long=True, text="its connection has too many messages under way"
                )
        except MessageRefusedError as error:
            stream.is_refused = True
            self._queued -= before
            self._partial -= partial
            stream.drop_received()
            self._events.append(CallRefused(stream, error.is_too_long, str(error)))
            return
        if count:
            self._queued += _held(stream) - before
            self._events.append(CallReadable(stream))
        self._credit(stream)

    def end_data(self, stream: Http2Stream) -> None:
        """The stream's last DATA frame is through. Told to h2 by an empty one, or, where it would
        compare lengths, by empty trailers."""
        if stream.is_closed:
            return
        if stream.has_length:
            flags, kind = frames.END_STREAM | frames.END_HEADERS, frames.HEADERS
        else:
            flags, kind = frames.END_STREAM, frames.DATA
        self.receive_control(FRAME_HEAD.pack(kind, flags, stream.stream_id))

    def receive_window_update(self, stream_id: int, increment: int) -> None:
        """More may be sent. Http2Error."""
        if stream_id == 0:
            if increment == 0:
                raise frames.broken("a WINDOW_UPDATE of nothing")
            self._send_window += increment
            if self._send_window > WINDOW_MAX:
                raise Http2Error(ErrorCodes.FLOW_CONTROL_ERROR, "a window past 2^31-1")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self.is_known(stream_id):
                raise frames.broken(f"WINDOW_UPDATE on stream {stream_id}, which is idle")
            return
        stream.send_window += increment
        if increment == 0:
            self._cut(stream, ErrorCodes.PROTOCOL_ERROR)
        elif stream.send_window > WINDOW_MAX:
            self._cut(stream, ErrorCodes.FLOW_CONTROL_ERROR)
        elif stream.pending:
            self._turns[stream.stream_id] = stream

    def receive_ping(self, payload: bytes) -> None:
        """Answer it."""
        self._put(frames.PING_FRAME.pack(8 << 8 | frames.PING, frames.ACK, payload))

    def receive_reset(self, stream_id: int, frame: bytes) -> None:
        """A client ends a call; of one that has ended here this is no news. Http2Error."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            if not stream.is_answered:
                self._resets.count(self._now_ns)
            self.receive_control(frame)
        elif not self.is_known(stream_id):
            raise frames.broken(f"RST_STREAM on stream {stream_id}, which is idle")

    def receive_control(self, frame: bytes) -> None:
        """Any frame that is a matter for h2, or the preface. Http2Error."""
        try:
            events = self._h2.receive_data(frame)
        except ProtocolError as error:
            code = ErrorCodes(error.error_code)
            # What h2 has to say is said by us.
            self._h2.clear_outbound_data_buffer()
            raise Http2Error(code, " ".join(str(error).split())[:200]) from error
        except Exception as error:
            # What it did not think of, or leaves to the libraries beneath it.
            log.warning("h2 could not read a frame", exc_info=True)
            self._h2.clear_outbound_data_buffer()
            raise frames.broken("a frame that could not be read") from error
        for event in events:
            self._heard(event)
        self._take_h2()

    def receive_settings(self, frame: bytes) -> None:
        """Http2Error when there are too many of them, too."""
        self._settings.count(self._now_ns)
        self.receive_control(frame)

    def _heard(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, StreamEnded):
            stream = self.streams.get(event.stream_id or 0)
            if stream is not None:
                stream.is_remote_ended = True
                self._events.append(CallReadable(stream))
        elif isinstance(event, StreamReset):
            stream = self.streams.get(event.stream_id or 0)
            if stream is not None:
                self._forget(stream)
                self._events.append(CallCut(stream))
        elif isinstance(event, RemoteSettingsChanged):
            self._set(event)

    def _open(self, event: RequestReceived) -> None:
        stream_id = event.stream_id or 0
        self._highest_id = stream_id
        is_refused = len(self.streams) >= self._limits.http2_streams_max
        if is_refused or stream_id > self._last_id:
            if is_refused:
                self._resets.count(self._now_ns)
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = Http2Stream(
            stream_id,
            receive_window=self._limits.http2_stream_window_bytes,
            send_window=self._initial_window,
        )
        headers: Headers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        stream.has_length = any(name == b"content-length" for name, _ in headers)
        self.streams[stream_id] = stream
        self._events.append(CallOpened(stream, headers))

    def _set(self, event: RemoteSettingsChanged) -> None:
        changed = event.changed_settings.get(SettingCodes.INITIAL_WINDOW_SIZE)
        if changed is not None:
            more = changed.new_value - self._initial_window
            self._initial_window = changed.new_value
            for stream in self.streams.values():
                stream.send_window += more
                if stream.send_window > WINDOW_MAX:
                    raise Http2Error(ErrorCodes.FLOW_CONTROL_ERROR, "a window past 2^31-1")
                if stream.pending:
                    self._turns[stream.stream_id] = stream
        changed = event.changed_settings.get(SettingCodes.MAX_FRAME_SIZE)
        if changed is not None:
            self._frame_bytes = min(changed.new_value, _OUT_FRAME_BYTES_MAX)
        encoder = self._h2.encoder
        encoder.header_table_size = min(encoder.header_table_size, _HEADER_TABLE_BYTES_MAX)

    # --- reading ----------------------------------------------------------------------------------

    def take(self, stream: Http2Stream) -> bytes | None:
        """The next message of the stream, if it is there."""
        if not stream.messages:
            return None
        message = stream.messages.popleft()
        size = len(message) + PREFIX_BYTES
        stream.queued -= size
        self._queued -= size + MESSAGE_OVERHEAD_BYTES
        self._credit(stream)
        self._credit_connection()
        return message

    def want(self, stream: Http2Stream) -> None:
        """Somebody waits for a message that is not there yet; until the next one is."""
        stream.is_wanted = True
        self._credit(stream)

    def _credit(self, stream: Http2Stream) -> None:
        """Let more come, half a window at a time."""
        if stream.messages:
            stream.is_wanted = False
        size = stream.creditable
        if size * 2 >= self._limits.http2_stream_window_bytes and not stream.is_remote_ended:
            stream.uncredited -= size
            stream.receive_window += size
            self._put(window_update(stream.stream_id, size))

    def _credit_connection(self) -> None:
        """The same for the connection, while its calls read what comes."""
        size = self._uncredited
        if (
            size * 2 >= self._limits.http2_connection_window_bytes
            and self._queued < self._limits.http2_requests_bytes_max
        ):
            self._uncredited = 0
            self._receive_window += size
            self._put(window_update(0, size))

    # --- sending ----------------------------------------------------------------------------------

    def respond(self, stream: Http2Stream, headers: Headers) -> None:
        """Send the headers of the answer; once."""
        if not stream.is_closed:
            stream.is_answered = True
            self._h2.send_headers(stream.stream_id, headers)
            self._take_h2()

    def try_send(self, stream: Http2Stream, message: bytes) -> bool:
        """Send a message if it can leave now; False when it must wait."""
        size = len(message) + PREFIX_BYTES
        if (
            size > self._send_window
            or size > stream.send_window
            or size > self._frame_bytes
            or self.is_paused
            or stream.pending
            or stream.is_closed
            or self.out_bytes > _OUT_BYTES_MAX
        ):
            return self._try_send_long(stream, message)
        self._send_window -= size
        stream.send_window -= size
        out = self._out
        out.append(MESSAGE_HEAD.pack(size << 8, 0, stream.stream_id, 0, len(message)))
        out.append(message)
        self.out_bytes += size + FRAME_HEAD_BYTES
        return True

    def _try_send_long(self, stream: Http2Stream, message: bytes) -> bool:
        """The same for a message of several frames."""
        size = len(message) + PREFIX_BYTES
        room = min(self._send_window, stream.send_window, _DIRECT_BYTES_MAX)
        is_free = not (self.is_paused or stream.pending or stream.is_closed)
        if not is_free or size > room or self.out_bytes > _OUT_BYTES_MAX:
            return False
        waiting = OutgoingMessage(message, None)
        while waiting.parts:
            self._put_frame(stream, waiting, min(self._frame_bytes, room))
        return True

    def queue(self, stream: Http2Stream, message: bytes | MessageParts, ticket: object) -> None:
        """Send a message when its turn comes, of which MessageTaken tells."""
        if stream.is_closed:
            return
        stream.pending.append(OutgoingMessage(message, ticket))
        self._turns[stream.stream_id] = stream

    def withdraw(self, stream: Http2Stream, ticket: object) -> None:
        """Do not send it after all, unless part of it is out already."""
        for waiting in stream.pending:
            if waiting.ticket is ticket and not waiting.is_begun:
                stream.pending.remove(waiting)
                break
        self._end_if_sent(stream)

    def end(self, stream: Http2Stream, trailers: Headers) -> None:
        """End the call with these, once what is queued has been sent; they are all there is when
        nothing was sent before, and without any the answer ends with its body."""
        if stream.is_closed or stream.trailers is not None:
            return
        stream.trailers = trailers
        stream.is_refused = True
        self._end_if_sent(stream)

    def end_with(self, stream: Http2Stream, data: bytes) -> None:
        """End the answer with the last bytes of its body, behind what is queued: it has no
        trailers."""
        if stream.is_closed or stream.trailers is not None:
            return
        if data:
            stream.pending.append(OutgoingMessage(data, None, is_framed=False))
            self._turns[stream.stream_id] = stream
        self.end(stream, [])

    def forget_queued(self, stream: Http2Stream) -> None:
        """Send nothing of what is queued and has not begun to be sent. A message of which part is
        out goes on: the client could not tell what follows from a message that is cut short."""
        while stream.pending and not stream.pending[-1].is_begun:
            stream.pending.pop()

    def ping(self, payload: bytes) -> None:
        """Ask whether the peer is there. ``payload``: eight bytes."""
        self._put(frames.PING_FRAME.pack(8 << 8 | frames.PING, 0, payload))

    def drain(self) -> None:
        """Take no more calls. Idempotent."""
        if not self.is_draining and not self.is_over:
            self.is_draining = True
            self._last_id = self._highest_id
            self._put(goaway(self._last_id, ErrorCodes.NO_ERROR, "the server stops"))

    @property
    def has_whole_answers(self) -> bool:
        """Whether calls have ended here of whose answers part is still to be sent."""
        return any(stream.trailers is not None for stream in self.streams.values())

    def parts_to_send(self) -> list[bytes | memoryview]:
        """What is to be written to the socket now; messages that wait fill it up to a bound, each
        stream in its turn. Ask again while there is something and the socket takes it."""
        if self._turns and not self.is_paused and not self.is_over:
            self._take_turns()
        out, self._out = self._out, []
        self.out_bytes = self._control_bytes = 0
        return out

    def bytes_to_send(self) -> bytes:
        """The same in one piece."""
        return frames.joined(self.parts_to_send())

    def _take_turns(self) -> None:
        while self._turns and self._send_window > 0 and self.out_bytes < _CHUNK_BYTES:
            _, stream = self._turns.popitem(last=False)
            room = min(self._frame_bytes, self._send_window, stream.send_window)
            if room > 0 and stream.pending:
                waiting = stream.pending[0]
                self._put_frame(stream, waiting, room)
                if not waiting.parts:
                    stream.pending.popleft()
                    if waiting.ticket is not None:
                        self._events.append(MessageTaken(waiting.ticket))
            if stream.pending and stream.send_window > 0:
                self._turns[stream.stream_id] = stream
            else:
                self._end_if_sent(stream)

    def _put_frame(self, stream: Http2Stream, waiting: OutgoingMessage, room: int) -> None:
        parts, size = waiting.cut(room)
        self._out.append(FRAME_HEAD.pack(size << 8, 0, stream.stream_id))
        self._out += parts
        self.out_bytes += size + FRAME_HEAD_BYTES
        self._send_window -= size
        stream.send_window -= size

    def _end_if_sent(self, stream: Http2Stream) -> None:
        if stream.trailers is None or stream.pending or stream.is_closed:
            return
        if stream.trailers:
            self._h2.send_headers(stream.stream_id, stream.trailers, end_stream=True)
        else:
            self._h2.end_stream(stream.stream_id)
        if not stream.is_remote_ended:
            # The answer is whole; what the client still sends is of no use (RFC 9113, 8.1).
            self._h2.reset_stream(stream.stream_id, ErrorCodes.NO_ERROR)
        self._take_h2()
        self._forget(stream)

    def _cut(self, stream: Http2Stream, code: ErrorCodes) -> None:
        """A stream on which the peer has done wrong."""
        self._resets.count(self._now_ns)
        self._h2.reset_stream(stream.stream_id, code)
        self._take_h2()
        self._forget(stream)
        self._events.append(CallCut(stream))

    def _forget(self, stream: Http2Stream) -> None:
        stream.is_closed = True
        self.streams.pop(stream.stream_id, None)
        self._queued -= _held(stream)
        self._partial -= stream.partial
        stream.drop_received()
        stream.pending.clear()
        self._turns.pop(stream.stream_id, None)
        self._credit_connection()

    # --- bytes ------------------------------------------------------------------------------------

    def _take_h2(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._put(data)

    def _put(self, frame: bytes) -> None:
        """Anything but messages."""
        self._out.append(frame)
        self.out_bytes += len(frame)
        self._control_bytes += len(frame)


def _held(stream: Http2Stream) -> int:
    """What the messages cost that nobody has read."""
    return stream.queued + len(stream.messages) * MESSAGE_OVERHEAD_BYTES

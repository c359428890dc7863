"""A worker's side of one connection, without IO: bytes in, bytes out (docs/connector-protocol.md).

Rows go to the :class:`~barrage.proto.connector.stream_desk.StreamDesk` of the program, and come
back from it as acknowledgements. An offence of the connector is told it by an ERROR; then the
session is FAILING, and its caller sends :meth:`WorkerSession.data_to_send` and ends the
connection.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.proto.connector.session_states import (
    INPUT_OF_FRAME,
    WORKER_TRANSITIONS,
    WorkerInput,
    WorkerState,
)
from barrage.proto.connector.stream_desk import StreamSpan
from barrage.wire.connector.codec import encode_frame, failure_reason
from barrage.wire.connector.frame_reader import ConnectorFrames, UnknownDialectError
from barrage.wire.connector.frame_values import (
    DRAFT_VERSION,
    MESSAGE_ID_MAX,
    NONE_SEEN,
    PUBLISHED_VERSION,
    Ack,
    Dialect,
    EndedByError,
    EndOfStream,
    Frame,
    Hello,
    MessageFlag,
    Nack,
    Notify,
    NotifyAck,
    Restart,
    SentMessage,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barrage.limits import Limits
    from barrage.proto.connector.stream_desk import Stream, StreamDesk
    from barrage.wire.connector.message_run import MessageRun

VERSIONS = {Dialect.PUBLISHED: PUBLISHED_VERSION, Dialect.DRAFT: DRAFT_VERSION}
DEBT_MIN = 64
"""Messages without credit that are forgiven at least: published sources announce their streams
without looking at their credits."""

_BOUNDARY, _EOS = MessageFlag.BOUNDARY.value, MessageFlag.EOS.value
_EPHEMERAL, _UNSTABLE = (
    MessageFlag.EPHEMERAL.value,
    MessageFlag.UNSTABLE_REFERENCE.value,
)


@dataclass(slots=True, eq=False)
class _Link:
    """A stream in this session."""

    stream: Stream
    last: int | None
    """The last stable id that this session has sent or was told."""
    acknowledged: int | None
    is_ending: bool = False
    unstable: list[SentMessage] = field(default_factory=list)


class WorkerSession:
    """One connection. ``cookie`` is what HELLO must bring, None when it is for others to look at
    before they welcome; ``on_change`` is called when there is something to send or the session has
    ended, by whatever of its desk that was; ``turn_frames``: how many frames are looked at before
    the rest waits for :meth:`read_on`, None for all."""

    def __init__(
        self,
        *,
        limits: Limits,
        cookie: str | None = "",
        on_change: Callable[[], object] | None = None,
        turn_frames: int | None = None,
    ) -> None:
        self._turn_frames = turn_frames
        self.has_unread = False
        """Whether there may be whole frames that were left for :meth:`read_on`."""
        self._on_change = on_change
        self._limits = limits
        self._cookie = cookie
        self._reader = ConnectorFrames(None, limits.connector_hello_bytes_max)
        self._state = WorkerState.CONNECTED
        self._outgoing = bytearray()
        self._desk: StreamDesk | None = None
        self._links: dict[int, _Link] = {}
        self._rewound: dict[int, int] = {}
        """Stream to how many times it was told to begin again and has not."""
        self._held_places: set[int] = set()
        """Those of them that the desk does not know."""
        self._balance = 0
        self._due = 0
        """Credits to give back."""
        self._under_way = 0
        """Messages that are received and not safe."""
        self.unsafe_bytes = 0
        self.message_count = 0
        """Messages that were taken."""
        self._unstable_bytes = 0
        self.has_refused = False
        """Whether a stream was refused since the session began. Published sources ask again when
        the next ACK comes."""
        self.hello: Hello | None = None
        self.peer_failure: str | None = None
        """What the connector's own ERROR said."""
        self.failure: str | None = None
        """What the connector was told by ERROR."""

    @property
    def state(self) -> WorkerState:
        return self._state

    @property
    def dialect(self) -> Dialect | None:
        """None until the connection has said."""
        return self._reader.dialect

    @property
    def credits(self) -> int:
        """What the connector may still send; below 0 what it owes."""
        return self._balance

    @property
    def under_way(self) -> int:
        """Messages that are received and not safe."""
        return self._under_way

    @property
    def stream_count(self) -> int:
        """Streams this session owns."""
        return len(self._links)

    def data_to_send(self) -> bytes:
        """What is to be sent, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # --- what comes ---

    def receive_data(self, data: bytes | memoryview) -> None:
        """Bytes of the connector. Never raises for what they say."""
        if self._state in (WorkerState.FAILING, WorkerState.CLOSED):
            return
        self._reader.feed(data)
        if self._state is WorkerState.GREETED:
            if len(self._reader) > self._limits.connector_unsafe_bytes_max:
                self.fail("too much was sent before OK")
            return
        self._read_frames()

    def read_on(self) -> None:
        """A further turn for what was left."""
        if self.has_unread:
            self._read_frames()

    def _read_frames(self) -> None:
        self.has_unread = False
        left = self._turn_frames
        try:
            while self._state in (WorkerState.CONNECTED, WorkerState.STREAMING):
                if left is not None:
                    if not left:
                        self.has_unread = len(self._reader) > 0
                        break
                    left -= 1
                if self._state is WorkerState.STREAMING:
                    run = self._reader.next_run()
                    if run is not None:
                        self._take_run(run)
                        continue
                frame = self._reader.next_frame()
                if frame is None:
                    break
                self._receive(frame)
        except UnknownDialectError:
            self.close()
        except RemoteProtocolError as error:
            self.fail(str(error))
        if self._state is WorkerState.STREAMING:
            self.give_credits()

    def _receive(self, frame: Frame) -> None:
        happened = INPUT_OF_FRAME[type(frame)]
        if (self._state, happened) not in WORKER_TRANSITIONS:
            raise RemoteProtocolError(
                f"{happened.name} is not for a worker whose session is {self._state.name}"
            )
        if isinstance(frame, SentMessage):
            self._spend()
            self._take_message(frame)
        elif isinstance(frame, Notify):
            self._spend()
            self._due += 1
            self._take_notify(frame)
        elif isinstance(frame, EndOfStream):
            self._end_stream(self._open_link(frame.stream, None))
        elif isinstance(frame, Hello):
            self._take_hello(frame)
        elif isinstance(frame, EndedByError):
            self.peer_failure = frame.message
            self.close()

    def _take_hello(self, hello: Hello) -> None:
        assert self.dialect is not None
        if hello.version != VERSIONS[self.dialect]:
            raise RemoteProtocolError("unknown protocol version")
        if self._cookie is not None and not hmac.compare_digest(
            hello.cookie.encode(), self._cookie.encode()
        ):
            raise RemoteProtocolError("bad cookie")
        self.hello = hello
        self._move(WorkerInput.HELLO)

    def _take_notify(self, notify: Notify) -> None:
        assert self._desk is not None
        if len(notify.name) > self._limits.connector_name_bytes_max:
            raise RemoteProtocolError(
                f"the name of a stream has {len(notify.name)} bytes, at most "
                f"{self._limits.connector_name_bytes_max} are taken"
            )
        name = notify.name.decode("utf-8", "backslashreplace") or str(notify.stream)
        if self.dialect is Dialect.DRAFT:
            self._take_draft_notify(notify, name)
            return
        link = None
        if notify.stream not in self._links:
            link = self._claim(notify.stream, name)
        if link is None:
            self.has_refused = True
            answer = NotifyAck(is_accepted=False, stream=notify.stream, point=notify.point)
        else:
            point = NONE_SEEN if link.last is None else link.last
            answer = NotifyAck(is_accepted=True, stream=notify.stream, point=point)
        self._send(answer)

    def _take_draft_notify(self, notify: Notify, name: str) -> None:
        assert self._desk is not None
        waiting = self._rewound.get(notify.stream, 0)
        if waiting > 1:
            self._rewound[notify.stream] = waiting - 1
            return
        safe = self._desk.last_safe(notify.stream)
        if notify.point > (safe or 0):
            # Something would be missing between the two.
            self._drop_link(notify.stream)
            self._rewind(notify.stream)
            self._send(Nack(credits=0, stream=notify.stream, point=safe or 0))
            return
        if self._rewound.pop(notify.stream, None) is not None:
            self._give_place_back(notify.stream)
        if notify.stream not in self._links and self._claim(notify.stream, name) is None:
            raise RemoteProtocolError(f"stream {notify.stream} is in use, or there are too many")

    def _rewind(self, number: int) -> None:
        """The stream is to begin again; until then it is counted as if it had."""
        assert self._desk is not None
        if number not in self._rewound and not self._desk.knows(number):
            if not self._desk.has_place:
                raise RemoteProtocolError(
                    f"stream {number} is one too many: there are at most "
                    f"{self._limits.connector_streams_max}"
                )
            self._desk.hold_places(1)
            self._held_places.add(number)
        self._rewound[number] = 1

    def _give_place_back(self, number: int) -> None:
        assert self._desk is not None
        if number in self._held_places:
            self._held_places.remove(number)
            self._desk.hold_places(-1)

    def _claim(self, number: int, name: str) -> _Link | None:
        assert self._desk is not None
        stream = self._desk.claim(self, number, name)
        if stream is None:
            return None
        link = _Link(stream, last=stream.last_safe, acknowledged=stream.last_safe)
        self._links[number] = link
        return link

    def _open_link(self, number: int, message: int | None) -> _Link:
        link = self._links.get(number)
        if link is None or link.is_ending:
            of = "" if message is None else f" with message_id {message}"
            raise RemoteProtocolError(f"Bad/unregistered stream_id {number}{of}")
        return link

    def _take_message(self, message: SentMessage) -> None:
        assert self._desk is not None
        if message.stream in self._rewound:
            self._due += 1
            return
        link = self._open_link(message.stream, message.id)
        if message.id > MESSAGE_ID_MAX:
            raise RemoteProtocolError(f"message id {message.id} stands for none at all")
        flags = message.flags
        if flags & _EPHEMERAL:
            self._count(message)
            self._desk.take_ephemeral(self, link.stream, message)
        elif link.stream.last_seen is not None and message.id <= link.stream.last_seen:
            self._due += 1
            if not flags & _UNSTABLE:
                link.last = message.id if link.last is None else max(link.last, message.id)
                self._drop_unstable(link)
        elif flags & _UNSTABLE and not flags & _EOS:
            self._keep_unstable(link, message)
        else:
            self._count(message)
            self._desk.take_unstable(link.stream, self._drop_unstable(link))
            self._desk.take_message(self, link.stream, message)
            link.last = message.id
        if flags & _EOS:
            self._end_stream(link)

    def _take_run(self, run: MessageRun) -> None:
        """Many messages of the published dialect. What is not plain about them is done one by
        one."""
        spans = self._spans(run)
        room = self._balance + self._debt_max
        if spans is None or len(run) > room:
            for message in run.messages():
                self._spend()
                self._take_message(message)
                if self._state is not WorkerState.STREAMING:
                    return
            return
        assert self._desk is not None
        self._balance -= len(run)
        self._under_way += len(run)
        self.message_count += len(run)
        self._add_unsafe(run.byte_count)
        self._desk.take_run(self, run, spans)
        for span in spans:
            self._links[span.stream.id].last = span.last

    def _spans(self, run: MessageRun) -> list[StreamSpan] | None:
        """The streams of a run; None when one is not open, or has a message that was seen."""
        streams, ids = run.streams, run.ids
        if (streams == streams[0]).all():
            bounds = [(0, len(ids))]
        else:
            order = np.argsort(streams, kind="stable")
            streams, ids = streams[order], ids[order]
            edges = [0, *(np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist(), len(ids)]
            bounds = list(pairwise(edges))
        grows = ids[1:] > ids[:-1]
        if len(bounds) > 1:
            grows[[stop - 1 for _, stop in bounds[:-1]]] = True
        if not grows.all():
            return None
        spans = []
        for start, stop in bounds:
            link = self._links.get(int(streams[start]))
            first, last = int(ids[start]), int(ids[stop - 1])
            if link is None or link.is_ending or last > MESSAGE_ID_MAX:
                return None
            seen = link.stream.last_seen
            if seen is not None and first <= seen:
                return None
            spans.append(StreamSpan(link.stream, first, last, stop - start))
        return spans

    def _keep_unstable(self, link: _Link, message: SentMessage) -> None:
        """Its credit comes back at once: what it waits for may be further away than all credits."""
        self._due += 1
        if not message.payload:
            return
        self._unstable_bytes += len(message.payload) + 64
        if self._unstable_bytes > self._limits.connector_unstable_bytes_max:
            raise RemoteProtocolError(
                f"more than {self._limits.connector_unstable_bytes_max} bytes of messages wait for "
                "a stable one"
            )
        link.unstable.append(message)

    def _drop_unstable(self, link: _Link) -> list[SentMessage]:
        waiting, link.unstable = link.unstable, []
        self._unstable_bytes -= sum(len(each.payload) + 64 for each in waiting)
        return waiting

    def _end_stream(self, link: _Link) -> None:
        """No more of the stream comes. Nothing will be sent again, so that the last unstable id is
        a place to go on from after all."""
        assert self._desk is not None
        waiting = self._drop_unstable(link)
        if waiting:
            self._desk.take_unstable(link.stream, waiting[:-1])
            last = waiting[-1]
            self._due -= 1
            self._under_way += 1
            self.unsafe_bytes += len(last.payload)
            self._desk.take_message(self, link.stream, last)
            link.last = last.id
        link.is_ending = True
        acknowledged = self._ended(link)
        if acknowledged is not None:
            self._send_ack(acknowledged)

    def _ended(self, link: _Link) -> tuple[tuple[int, int], ...] | None:
        """The acknowledgement that lets an ending stream go; None while it is not safe."""
        assert self._desk is not None
        stream, last = link.stream, link.last
        if last is not None and (stream.last_safe is None or stream.last_safe < last):
            return None
        self._links.pop(stream.id, None)
        self._desk.release(self, stream)
        return () if last is None else ((stream.id, last),)

    # --- credits ---

    def _spend(self) -> None:
        self._balance -= 1
        if self._balance < -self._debt_max:
            raise RemoteProtocolError("credits exceeded")

    @property
    def _debt_max(self) -> int:
        return max(DEBT_MIN, self._limits.connector_credits_max)

    def _count(self, message: SentMessage) -> None:
        self._under_way += 1
        self.message_count += 1
        self._add_unsafe(len(message.payload) + len(message.key or b""))

    def _add_unsafe(self, byte_count: int) -> None:
        self.unsafe_bytes += byte_count
        if self.unsafe_bytes > self._limits.connector_unsafe_bytes_max:
            raise RemoteProtocolError(
                f"more than {self._limits.connector_unsafe_bytes_max} bytes are under way"
            )

    def _credits_now(self) -> int:
        """How many credits are given back now; the rest stays due."""
        assert self._desk is not None
        if not self._desk.gives_credits:
            return 0
        room = self._desk.credits_per_session - self._under_way - self._balance
        given = max(0, min(self._due, room))
        self._due -= given
        self._balance += given
        return given

    def give_credits(self) -> None:
        if self._state is WorkerState.STREAMING and self._due:
            given = self._credits_now()
            if given:
                self._send(Ack(credits=given))

    def remind(self) -> None:
        """An ACK, be it without credits, so that a source whose stream was refused asks again."""
        if self._state is WorkerState.STREAMING:
            self._send_ack(())

    def _send_ack(self, positions: tuple[tuple[int, int], ...]) -> None:
        self._send(Ack(credits=self._credits_now(), positions=positions))

    # --- what the desk says ---

    def settle(
        self,
        *,
        credits: int,
        byte_count: int,
        streams: Iterable[Stream],
        ephemeral: Mapping[int, int],
    ) -> None:
        """See :class:`~barrage.proto.connector.stream_desk.StreamOwner`."""
        self._under_way -= credits
        self._due += credits
        self.unsafe_bytes -= byte_count
        if self._state is not WorkerState.STREAMING:
            return
        positions = list(ephemeral.items()) if self.dialect is Dialect.DRAFT else []
        for stream in streams:
            link = self._links.get(stream.id)
            if link is None or link.last is None or stream.last_safe is None:
                continue
            if link.is_ending:
                positions += self._ended(link) or ()
                continue
            point = min(stream.last_safe, link.last)
            if link.acknowledged is None or point > link.acknowledged:
                link.acknowledged = point
                positions.append((stream.id, point))
        given = self._credits_now()
        if given or positions:
            self._send(Ack(credits=given, positions=tuple(positions)))

    def stream_taken(self, stream: Stream) -> None:
        """See :class:`~barrage.proto.connector.stream_desk.StreamOwner`."""
        self._links.pop(stream.id, None)
        self.fail(f"stream {stream.id} belongs to a newer connection")

    # --- our own ---

    def welcome(self, desk: StreamDesk) -> None:
        """Answer HELLO, and read what came after it."""
        self._move(WorkerInput.WELCOME)
        self._desk = desk
        desk.join(self)
        self._reader.frame_bytes_max = self._limits.connector_frame_bytes_max
        self._due = self._limits.connector_credits_max
        is_draft = self.dialect is Dialect.DRAFT
        positions = desk.safe_positions() if is_draft else ()
        self._send(Welcome(credits=self._credits_now(), positions=positions))
        self._read_frames()

    def fail(self, reason: str) -> None:
        """Say ERROR and end. Does nothing once that is under way."""
        if self._state in (WorkerState.FAILING, WorkerState.CLOSED):
            return
        self.failure = reason
        if self.dialect is None:
            self.close()
            return
        self._send(EndedByError(failure_reason(reason)))
        self._move(WorkerInput.FAIL)
        self._leave()

    def restart(self, address: str = "") -> None:
        """Have the connector connect again, and end. The draft has no word for that."""
        if self._state is WorkerState.STREAMING and self.dialect is Dialect.PUBLISHED:
            self._send(Restart(address))
            self._move(WorkerInput.FAIL)
            self._leave()
        else:
            self.close()

    def close(self) -> None:
        """The connection has ended or is to end without a word. Idempotent."""
        self._move(WorkerInput.CLOSE)
        self._leave()

    def _leave(self) -> None:
        links, self._links = self._links, {}
        self._rewound.clear()
        if self._desk is not None:
            self._desk.hold_places(-len(self._held_places))
            self._held_places.clear()
            self._desk.leave(self, [link.stream for link in links.values()])

    def _drop_link(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None and self._desk is not None:
            self._drop_unstable(link)
            self._desk.release(self, link.stream)

    def _send(self, frame: Frame) -> None:
        assert self.dialect is not None
        self._outgoing += encode_frame(frame, self.dialect)
        if self._on_change is not None:
            self._on_change()

    def _move(self, happened: WorkerInput) -> None:
        state = WORKER_TRANSITIONS.get((self._state, happened))
        if state is None:
            raise LocalProtocolError(f"{happened.name} is not for a session {self._state.name}")
        self._state = state
        if happened is WorkerInput.CLOSE and self._on_change is not None:
            self._on_change()

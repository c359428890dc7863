"""The streams of one program: who owns each, how far it has come, and the rows that are to be
written next.

A desk is shared by all sessions of its program and outlives them, so that what a lost connection
has sent is not taken again from the next one. It gathers what all of them send into one
:class:`StreamBatch` at a time; whoever writes that says :meth:`StreamDesk.settle` once it is as
safe as it gets, and only then are positions acknowledged and credits given back.

Batches are settled in the order in which they were taken. When one cannot be written, the desk is
:meth:`closed <StreamDesk.close>`: every session ends without a word, as connectors then connect
again, and the next desk begins with the positions that were committed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from barrage.proto.connector.batch_moves import BatchMoves
from barrage.wire.payloads.payload_batch import PayloadBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from barrage.limits import Limits
    from barrage.proto.connector.batch_moves import Int64Array
    from barrage.wire.connector.frame_values import SentMessage
    from barrage.wire.connector.message_run import MessageRun, UInt64Array

REPEATS_MIN = 16
"""Messages of one stream that follow each other, on average, from which on it is cheaper to repeat
its name than to look each up."""


class StreamOwner(Protocol):
    """What a desk knows of a session."""

    def stream_taken(self, stream: Stream) -> None:
        """A newer connection owns the stream now."""
        ...

    def settle(
        self,
        *,
        credits: int,
        byte_count: int,
        streams: Iterable[Stream],
        ephemeral: Mapping[int, int],
    ) -> None:
        """Of what this session sent so many messages and bytes are safe; of ``streams``, which it
        owns, the positions have moved."""
        ...

    def give_credits(self) -> None:
        """Give back what may be given back by now."""
        ...

    def fail(self, reason: str) -> None:
        """Say ERROR and end."""
        ...

    def close(self) -> None:
        """End without a word."""
        ...


@dataclass(slots=True, eq=False)
class Stream:
    """One stream. Ids are those of messages a stream can go on from."""

    id: int
    name: str
    last_seen: int | None = None
    """The last that was taken, safe or not."""
    last_safe: int | None = None
    """The last whose rows are safe."""
    owner: StreamOwner | None = None
    message_count: int = 0
    """That were taken since the desk began."""
    last_error: str | None = None
    """Why a message of it could not be decoded, the last time."""


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """A stream in a run of messages, and its first and last id there."""

    stream: Stream
    first: int
    last: int
    count: int


@dataclass(slots=True)
class _Share:
    """What one session has in a batch."""

    credits: int = 0
    byte_count: int = 0
    ephemeral: dict[int, int] = field(default_factory=dict)
    """Stream to its last id that is no place to go on from."""


@dataclass(slots=True)
class _Singles:
    """Messages that came one by one, as columns."""

    streams: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    event_times: list[int | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def columns(self) -> PayloadBatch:
        return PayloadBatch.of(
            streams=self.streams,
            ids=self.ids,
            event_times=self.event_times,
            keys=self.keys,
            payloads=self.payloads,
        )


@dataclass(slots=True, eq=False)
class StreamBatch:
    """Messages as columns, and the positions that go with them in one durable record."""

    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Stream to the first and the last id that it moves to."""
    byte_count: int = 0
    message_count: int = 0
    """That are in the columns: those without payload and key only move their stream."""
    shares: dict[StreamOwner, _Share] = field(default_factory=dict)
    _parts: list[PayloadBatch] = field(default_factory=list)
    _singles: _Singles = field(default_factory=_Singles)
    _moves: BatchMoves = field(default_factory=BatchMoves)

    def messages(self) -> PayloadBatch | None:
        """All messages, in the order in which they came; None when there is nothing but
        positions."""
        parts = [*self._parts, *([self._singles.columns()] if self._singles.ids else [])]
        return PayloadBatch.concatenated(parts) if parts else None

    def add_message(self, name: str, message: SentMessage) -> None:
        singles = self._singles
        singles.streams.append(name)
        singles.ids.append(message.id)
        singles.event_times.append(message.event_time)
        singles.keys.append(message.key)
        singles.payloads.append(message.payload)
        self.message_count += 1

    def add_run(self, names: pa.StringArray, run: MessageRun) -> None:
        """Many messages, each with the name of its stream."""
        if self._singles.ids:
            self._parts.append(self._singles.columns())
            self._singles = _Singles()
        self._parts.append(
            PayloadBatch(
                streams=names,
                ids=pa.array(run.ids),
                event_times=pa.array(run.event_times),
                keys=run.keys,
                payloads=run.payloads,
            )
        )
        self._moves.add_run(self.message_count, run.streams, run.ids)
        self.message_count += len(run)

    def move(self, stream: int, number: int) -> None:
        """The position of a stream becomes ``number``, with the message added last."""
        self.widen(stream, number)
        self._moves.add(self.message_count, stream, number)

    def widen(self, stream: int, number: int) -> None:
        """The same for what :meth:`add_run` has added."""
        before = self.positions.get(stream)
        self.positions[stream] = (number if before is None else before[0], number)

    def rest(self) -> None:
        """Between the message added last and the next one the batch may be cut."""
        self._moves.rest(self.message_count)

    def stops(self) -> Int64Array:
        """Counts of messages behind which the batch may be cut, ascending, the last all of them:
        what has no position of its own stays with the message that has it."""
        return self._moves.stops(self.message_count)

    def positions_between(self, start: int, stop: int) -> dict[int, tuple[int, int]]:
        """The positions that go with the messages of a part of the batch, as those of the whole."""
        if not start and stop == self.message_count:
            return self.positions
        return self._moves.between(start, stop)

    def count(self, owner: StreamOwner, byte_count: int, messages: int = 1) -> _Share:
        """So many messages of ``owner`` are in the batch."""
        share = self.shares.get(owner)
        if share is None:
            share = self.shares[owner] = _Share()
        share.credits += messages
        share.byte_count += byte_count
        self.byte_count += byte_count
        return share


class StreamDesk:
    """See the module. ``positions`` are those that were committed."""

    def __init__(
        self,
        program: str,
        positions: Mapping[int, int],
        *,
        limits: Limits,
        newest_owns: bool = True,
        takes: Callable[[str], bool] | None = None,
    ) -> None:
        """``takes``: whether a stream of this name may be announced."""
        self._takes = takes
        self.program = program
        self.limits = limits
        self.newest_owns = newest_owns
        """Whether a connection that announces a stream takes it from the one that has it, which may
        be dead without anybody's knowledge; else it is refused."""
        self.is_open = True
        self.is_full = False
        """Whether no credits are given because there is no room; set by whoever writes."""
        self.unsafe_bytes = 0
        self._under_way: deque[StreamBatch] = deque()
        """Batches that were taken and are neither settled nor let go, in that order."""
        self._safe: set[StreamBatch] = set()
        """Those of them that wait for the ones before."""
        self._places_held = 0
        self._sessions: set[StreamOwner] = set()
        self._batch = StreamBatch()
        self._streams = {
            number: Stream(number, "", last_seen=last, last_safe=last)
            for number, last in positions.items()
        }

    # --- sessions ---

    def join(self, session: StreamOwner) -> None:
        self._sessions.add(session)

    def leave(self, session: StreamOwner, streams: Iterable[Stream]) -> None:
        """A session ends and owns nothing any more. What it sent is still written."""
        self._sessions.discard(session)
        for stream in streams:
            self.release(session, stream)

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def credits_per_session(self) -> int:
        """How many messages each session may have under way."""
        share = self.limits.connector_source_credits_max // max(1, len(self._sessions))
        return max(self.limits.connector_credits_min, min(self.limits.connector_credits_max, share))

    @property
    def gives_credits(self) -> bool:
        """Whether there is room for more than is under way."""
        return not self.is_full and self.unsafe_bytes < self.limits.connector_room_bytes

    def close(self, reason: str | None = None) -> None:
        """Nothing more of this desk can be written. Sessions end without a word, or with a
        reason. Idempotent."""
        self.is_open = False
        self.unsafe_bytes -= self._batch.byte_count
        self._batch = StreamBatch()
        sessions, self._sessions = self._sessions, set()
        for session in sessions:
            if reason is None:
                session.close()
            else:
                session.fail(reason)

    # --- streams ---

    def safe_positions(self) -> tuple[tuple[int, int], ...]:
        """Every stream that has something safe, with the id of it, in order of the streams."""
        return tuple(
            (stream.id, stream.last_safe)
            for _, stream in sorted(self._streams.items())
            if stream.last_safe is not None
        )

    def streams(self) -> Iterable[Stream]:
        """All that are known."""
        return self._streams.values()

    def last_safe(self, number: int) -> int | None:
        """The last safe id of a stream; None when it has none, or is not known."""
        stream = self._streams.get(number)
        return None if stream is None else stream.last_safe

    @property
    def has_place(self) -> bool:
        """Whether there may be a further stream."""
        count = len(self._streams) + self._places_held
        return count < self.limits.connector_streams_max

    def knows(self, number: int) -> bool:
        """Whether the stream is one of those that are counted."""
        return number in self._streams

    def hold_places(self, count: int) -> None:
        """So many places more (fewer, below 0) are for streams that were told to begin again and
        are not claimed yet."""
        self._places_held += count

    def claim(self, session: StreamOwner, number: int, name: str) -> Stream | None:
        """The stream, owned by ``session`` from here on; None when somebody else keeps it, there
        are too many, or it is none of this program."""
        if self._takes is not None and not self._takes(name):
            return None
        stream = self._streams.get(number)
        if stream is None:
            if not self.has_place:
                return None
            stream = self._streams[number] = Stream(number, name)
        before = stream.owner
        if before is not None and before is not session:
            if not self.newest_owns:
                return None
            stream.owner = session
            before.stream_taken(stream)
        stream.owner = session
        stream.name = stream.name or name
        return stream

    def release(self, session: StreamOwner, stream: Stream) -> None:
        """A session owns the stream no more. One that never had a row is forgotten."""
        if stream.owner is not session:
            return
        stream.owner = None
        if stream.last_seen is None:
            self._streams.pop(stream.id, None)

    # --- rows ---

    def take_message(self, session: StreamOwner, stream: Stream, message: SentMessage) -> None:
        """A message whose id is a place to go on from, and larger than the last one. Without a
        payload and a key only the position moves."""
        size = len(message.payload) + len(message.key or b"")
        self._count(session, size)
        if message.payload or message.key:
            self._batch.add_message(stream.name, message)
        self._batch.move(stream.id, message.id)
        stream.last_seen = message.id
        stream.message_count += 1

    def take_run(self, session: StreamOwner, run: MessageRun, spans: Sequence[StreamSpan]) -> None:
        """The same for many: ``spans`` are the streams of the run, each with its first and last id
        in it, ids growing between them."""
        size = run.byte_count
        self.unsafe_bytes += size
        self._batch.count(session, size, len(run))
        self._batch.add_run(_names(run.streams, spans), run)
        for span in spans:
            self._batch.widen(span.stream.id, span.first)
            self._batch.widen(span.stream.id, span.last)
            span.stream.last_seen = span.last
            span.stream.message_count += span.count

    def take_ephemeral(self, session: StreamOwner, stream: Stream, message: SentMessage) -> None:
        """A message that leaves the position where it is."""
        share = self._count(session, len(message.payload))
        share.ephemeral[stream.id] = message.id
        if message.payload:
            self._batch.add_message(stream.name, message)
            self._batch.rest()

    def take_unstable(self, stream: Stream, messages: Iterable[SentMessage]) -> None:
        """Messages that waited for the one that comes next, in the same batch; their credits have
        been given back."""
        for message in messages:
            self._batch.add_message(stream.name, message)
            self._batch.byte_count += len(message.payload)
            self.unsafe_bytes += len(message.payload)

    def _count(self, session: StreamOwner, size: int) -> _Share:
        self.unsafe_bytes += size
        return self._batch.count(session, size)

    def take_batch(self) -> StreamBatch | None:
        """What has come since the last one; None when that is nothing."""
        batch = self._batch
        if not batch.shares:
            return None
        self._batch = StreamBatch()
        self._under_way.append(batch)
        return batch

    @property
    def batches_under_way(self) -> int:
        """Batches that were taken and are neither settled nor let go."""
        return len(self._under_way)

    def settle(self, batch: StreamBatch) -> None:
        """The rows and positions of a batch are safe. What it acknowledges waits for the batches
        before it: those may have rows in other tables, which become safe in their own time."""
        self._safe.add(batch)
        self._settle_first()

    def let_go(self, batch: StreamBatch) -> None:
        """Nothing of a batch is under way any more, and it is not safe."""
        self._under_way.remove(batch)
        self.unsafe_bytes -= batch.byte_count
        self._settle_first()

    def _settle_first(self) -> None:
        while self._under_way and self._under_way[0] in self._safe:
            batch = self._under_way.popleft()
            self._safe.remove(batch)
            self.unsafe_bytes -= batch.byte_count
            if self.is_open:
                self._acknowledge(batch)

    def _acknowledge(self, batch: StreamBatch) -> None:
        owned: dict[StreamOwner, list[Stream]] = {session: [] for session in batch.shares}
        for number, (_, last) in batch.positions.items():
            stream = self._streams[number]
            stream.last_safe = last
            if stream.owner is not None:
                owned.setdefault(stream.owner, []).append(stream)
        nothing = _Share()
        for session, streams in owned.items():
            share = batch.shares.get(session, nothing)
            session.settle(
                credits=share.credits,
                byte_count=share.byte_count,
                streams=streams,
                ephemeral=share.ephemeral,
            )

    def note_rejected(self, rejected: pa.Table) -> None:
        """Messages that could not be decoded, with ``stream`` (its name) and ``reason``."""
        reasons = dict(
            zip(rejected["stream"].to_pylist(), rejected["reason"].to_pylist(), strict=True)
        )
        for stream in self._streams.values():
            if stream.name in reasons:
                stream.last_error = reasons[stream.name]

    def give_credits(self) -> None:
        """There may be room again: give back what was held back."""
        for session in self._sessions:
            session.give_credits()

    def fail(self, batch: StreamBatch, reason: str | None = None) -> None:
        """A batch could not be written: nor can what came after it. ``reason`` is for sources that
        cannot help it by sending it again."""
        self.close(reason)
        self.let_go(batch)


def _names(streams: UInt64Array, spans: Sequence[StreamSpan]) -> pa.StringArray:
    """The name of each message's stream."""
    stops = [*(np.flatnonzero(streams[1:] != streams[:-1]) + 1).tolist(), len(streams)]
    if len(stops) > len(streams) // REPEATS_MIN:
        places = np.argsort([span.stream.id for span in spans])
        numbers = np.array([spans[at].stream.id for at in places], np.uint64)
        found = places[np.searchsorted(numbers, streams)]
        return pa.array([span.stream.name for span in spans], pa.string()).take(pa.array(found))
    names = {span.stream.id: pa.scalar(span.stream.name, pa.string()) for span in spans}
    starts = [0, *stops[:-1]]
    parts = [
        pa.repeat(names[int(streams[start])], stop - start)
        for start, stop in zip(starts, stops, strict=True)
    ]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

"""The watch: an endless stream of tiny batches that tell how far a table's history has got.

One batch comes at once, one at each durable version (several in short order are told as the last of
them), and one at least every :data:`HEARTBEAT_S`. Each one written keeps the consumer's lease: a
client that is gone, or takes nothing, loses it.

A client that watches by DoExchange may ask whether it has been told all there is: its question
comes back behind the version that was durable when it came.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import LimitExceededError
from barrage.proto.read_exchange import encode_answer
from barrage.server.history.journal_access import EPOCH, lost
from barrage.server.history.journal_reading import FeedEncoder

if TYPE_CHECKING:
    from barrage.errors import BarrageError
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.server.history.journal_access import JournalAccess
    from barrage.server.history.journal_leases import Consumer, JournalLeases
    from barrage.server.history.journal_tickets import WatchTicket
    from barrage.transport.base import CallContext


HEARTBEAT_S = 5.0
"""Longest time between two batches."""

BYTES_INTERVAL_S = 1.0
"""How old the number of bytes may be that is told."""

WATCH_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("timestamp_us", pa.int64(), nullable=False),
    ]
)
"""``rows`` are those of the history so far (changes, not rows of the table), ``bytes`` those the
journal keeps, ``timestamp_us`` the time of the version, 0 when it is not known."""


class WatchQuestions:
    """What one client has asked. Of several questions that wait the last is answered, which answers
    all of them."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when there is something to tell."""
        self._question: bytes | None = None

    def put(self, question: bytes) -> None:
        """One has come."""
        self._question = question
        self.news.set()

    def take(self) -> bytes | None:
        """What is to be answered now."""
        question, self._question = self._question, None
        return question


class WatchCalls:
    """All watches of one server. Runs on the event loop."""

    def __init__(self, access: JournalAccess, leases: JournalLeases, limits: Limits) -> None:
        self._access = access
        self._watches_max = limits.journal_consumers_max
        self._leases = leases
        self._encoder = FeedEncoder(WATCH_SCHEMA, limits)
        self._told: dict[TableJournal, tuple[int, bytes]] = {}
        """The last frame of each journal that is watched, which its watches share."""
        self._byte_counts: dict[TableJournal, tuple[float, int]] = {}
        self._watches: dict[TableJournal, list[asyncio.Event]] = {}
        self._ended: BarrageError | None = None

    async def run(
        self,
        ticket: WatchTicket,
        context: CallContext,
        questions: WatchQuestions | None = None,
    ) -> None:
        """Serve one watch until its client has gone. Errors: those of the table's journal, when it
        goes away as well; LimitExceededError. ``questions``: where they come, if any can."""
        self._check_room()
        journal = self._access.journal(ticket.table)
        if ticket.version is not None:
            self._access.check_state(journal, ticket.version)
        consumer = self._leases.renew(
            journal,
            ticket.consumer,
            lease_ns=ticket.lease_ms * 1_000_000,
            version=ticket.version,
        )
        questions = questions or WatchQuestions()
        news = questions.news
        loop = asyncio.get_running_loop()
        stop = journal.on_durable(lambda _: _wake(loop, news))
        consumer.watch_count += 1
        self._watches.setdefault(journal, []).append(news)
        try:
            await context.write(self._encoder.schema_frame())
            await self._tell(journal, consumer, questions, context=context)
        finally:
            stop()
            consumer.watch_count -= 1
            self._end(journal, news)

    async def _tell(
        self,
        journal: TableJournal,
        consumer: Consumer,
        questions: WatchQuestions,
        *,
        context: CallContext,
    ) -> None:
        pause_s = min(HEARTBEAT_S, consumer.lease_ns / 3e9)
        told = b""
        while True:
            questions.news.clear()
            self._check_alive(journal)
            # First the question: what is durable by then is told before it is answered.
            question = questions.take()
            frame = self._frame(journal)
            if question is None or frame is not told:
                await context.write(frame)
                told = frame
            if question is not None:
                await context.write(encode_answer(question))
            self._leases.keep(consumer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await questions.news.wait()

    def _check_room(self) -> None:
        if self.watch_count >= self._watches_max:
            raise LimitExceededError(
                "number of watches",
                actual=self.watch_count + 1,
                maximum=self._watches_max,
                unit="watches",
            )

    def _check_alive(self, journal: TableJournal) -> None:
        """Whether the server serves, and the name still stands for this history."""
        if self._ended is not None:
            raise self._ended
        name = journal.identity.name
        found = self._access.journal(name)
        if found is not journal:
            raise lost(found, f"epoch {journal.epoch}", EPOCH)

    def _frame(self, journal: TableJournal) -> bytes:
        version, rows, wall_ns = newest(journal)
        told = self._told.get(journal)
        if told is not None and told[0] == version:
            return told[1]
        values = (journal.epoch, version, rows, self._byte_count(journal), wall_ns // 1000)
        batch = pa.record_batch([[value] for value in values], schema=WATCH_SCHEMA)
        frame = b"".join(self._encoder.rows([batch]))
        self._told[journal] = (version, frame)
        return frame

    def _byte_count(self, journal: TableJournal) -> int:
        """What the journal keeps. It adds up every entry, so it is asked once a second at most."""
        now_s = asyncio.get_running_loop().time()
        known = self._byte_counts.get(journal)
        if known is None or now_s - known[0] >= BYTES_INTERVAL_S:
            known = self._byte_counts[journal] = (now_s, journal.byte_count)
        return known[1]

    def _end(self, journal: TableJournal, news: asyncio.Event) -> None:
        self._watches[journal].remove(news)
        if not self._watches[journal]:
            del self._watches[journal]
            self._told.pop(journal, None)
            self._byte_counts.pop(journal, None)

    def finish(self, reason: BarrageError) -> None:
        """End all watches: the server stops."""
        self._ended = reason
        for watches in self._watches.values():
            for news in watches:
                news.set()

    @property
    def watch_count(self) -> int:
        """Open watches."""
        return sum(map(len, self._watches.values()))


def newest(journal: TableJournal) -> tuple[int, int, int]:
    """The durable version, the rows of the history up to it, and its wall time in nanoseconds (0
    when the journal no longer knows it)."""
    version = journal.durable_version
    last = journal.history.index.last
    if last is None:
        return version, journal.next_offset, 0
    if last.step == version:
        return version, last.first_offset + last.row_count, last.wall_ns
    return version, journal.next_offset, last.wall_ns


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """On the journal's thread. The loop may have ended with the server."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(news.set)

"""One table of the upstream server: followed, told on, resumed.

::

    WAITING ──state──► LIVE ──stream broken──► PAUSED ──resumed──► LIVE
                        │                        ├──other history──► LIVE (a new table)
                        └──dropped──► WAITING ◄──┘ missing for too long

A table that begins in the past, so that it has a history, is served once it has come to the
present: nobody who changes to this server sees the rows of before again.

While it is paused its subscribers see the rows of before and nothing else. They are told only when
the history itself cannot go on: their streams end with UNAVAILABLE, and when they come back they
get what there is then.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from barrage.client.connection.reconnect import Backoff
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    TableFailedError,
    TableNotFoundError,
    TransportError,
)
from barrage.limits import NANOS_PER_MS
from barrage.model.cursor import Cursor
from barrage.relay.past_state import past_state
from barrage.relay.told import FirstState, form_of, form_served, told_update
from barrage.server.runtime.failure import unexpected_failure
from barrage.server.tables.query_tables import TableDroppedError
from barrage.server.tables.relayed_tables import RelayedState
from barrage.wire.messages import SubscriptionOptions

if TYPE_CHECKING:
    from barrage.client.session import AsyncSession
    from barrage.client.subscriptions.followed_stream import FollowedStream, StreamBeginning
    from barrage.clock import Clock
    from barrage.engine.resume.relayed import RelayedForm, RelayedTable
    from barrage.model.update import FullUpdate
    from barrage.relay.listing import TableTold
    from barrage.relay.past_state import PastState
    from barrage.relay.upstream_link import UpstreamLink
    from barrage.server.tables.relayed_tables import RelayedTables

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 10

TOLD_MAX: Final = 64
"""Updates of one table that wait for their cycle; meanwhile no more are read, and the upstream
server merges."""

DRAIN_SECONDS: Final = 0.005

PAST_SECONDS: Final = 30.0
"""How far back the history of a table begins that is served anew, where the upstream server has
one: who comes from another relay, or from this one before it was started again, resumes."""

PAST_STEPS_MAX: Final = 2000
"""The most steps it begins in the past. Each takes the two servers about a millisecond, and nothing
is served before the last of them."""

MISSING_SECONDS_MAX: Final = 30.0
"""How long a table may be missing from a server that has just come up, perhaps a relay that waits
for its own upstream server, before it counts as dropped."""

BEHIND_ATTEMPTS_MAX: Final = 5
"""How often a server that is behind us is asked again before its state is taken as it is."""


class FollowerState(Enum):
    """Where a follower stands."""

    WAITING = "waiting"
    """Nothing is served."""
    LIVE = "live"
    PAUSED = "paused"
    """What is served stands still: the upstream server is lost."""


class UpstreamBehindError(ConnectionLostError):
    """The server knows less of the table than we do."""


class RelayLagError(ConnectionLostError):
    """A relayed table is further behind than it may be."""


class RelayFollower:
    """Runs on the event loop; one task calls :meth:`run`."""

    def __init__(
        self,
        name: str,
        link: UpstreamLink,
        tables: RelayedTables,
        *,
        clock: Clock,
        lag_ns_max: int | None = None,
    ) -> None:
        """``lag_ns_max``: further behind, the table is not served until it has caught up."""
        self.name = name
        self._lag_ns_max = lag_ns_max
        self._paused_at_ns: int | None = None
        self._link = link
        self._tables = tables
        self._clock = clock
        self._backoff = Backoff(seconds_max=2.0)
        self._table: RelayedTable | None = None
        self._cursor: Cursor | None = None
        self._step = -1
        self._missing_since_ns: int | None = None
        self._behind_count = 0
        self._serial: tuple[str, int] | None = None
        self._stream: FollowedStream | None = None
        self._state = FollowerState.WAITING
        self._changes = asyncio.Event()
        self._looked = asyncio.Event()
        self.error: BarrageError | None = None
        """Why the last stream broke; None while one is live."""
        self.updates = 0
        self.merged_count = 0
        """Updates that covered several steps: nobody resumes from those in between."""
        self.resumes = 0
        """Streams that went on from where the one before had broken."""
        self.snapshots = 0
        """Whole states taken."""
        self.kept_step: int | None = None
        """Step of the state that is kept for the next start; None where none is."""
        self.kept_epoch: str | None = None
        """Its history: one of another history may be at the same step."""
        self._offered: PastState | None = None
        self._is_idle = False
        self.lag_ns: int | None = None
        """From the commit at the upstream server to the one here, of the newest update."""

    @property
    def state(self) -> FollowerState:
        """Where it stands."""
        return self._state

    async def changed(self) -> None:
        """Until the state is another one."""
        await self._changes.wait()

    def _set_state(self, state: FollowerState) -> None:
        if state is not self._state:
            self._state = state
            is_paused = state is FollowerState.PAUSED
            self._paused_at_ns = self._clock.monotonic_ns() if is_paused else None
            changes, self._changes = self._changes, asyncio.Event()
            changes.set()

    @property
    def table(self) -> RelayedTable | None:
        """What is served; None while nothing is."""
        return self._table

    def adopt(self, table: RelayedTable, cursor: Cursor) -> None:
        """Go on with a table that is served already, at this cursor. Before :meth:`run`."""
        self._table = table
        self._note_step(cursor.version, cursor.epoch)
        self._set_state(FollowerState.PAUSED)

    def offer(self, state: PastState) -> None:
        """Begin with this state, if the upstream server can go on from it. Before :meth:`run`."""
        self._offered = state

    @property
    def step(self) -> int:
        """Step of the newest update taken; -1 before the first state."""
        return self._step

    async def check_pause(self) -> None:
        """Take the table back when it has stood still for longer than it may lag."""
        paused_at_ns, most = self._paused_at_ns, self._lag_ns_max
        if paused_at_ns is None or most is None:
            return
        paused_ns = self._clock.monotonic_ns() - paused_at_ns
        if paused_ns > most:
            await self._withdraw(self._too_late(paused_ns, most))

    def _too_late(self, lag_ns: int, most: int) -> RelayLagError:
        return RelayLagError(
            f"table {self.name!r} is {lag_ns // NANOS_PER_MS} ms behind its upstream server, "
            f"the limit of this relay is {most // NANOS_PER_MS} ms"
        )

    def note_kept(self, kept: Cursor | None) -> None:
        """This state is kept for the next start; None for none."""
        self.kept_step = None if kept is None else kept.version
        self.kept_epoch = None if kept is None else kept.epoch

    @property
    def is_idle(self) -> bool:
        """Nothing is served or kept, and there is no such table: nobody misses this follower."""
        return self._is_idle and self._table is None and self.kept_step is None

    def let_go(self) -> None:
        """It is not run any more: tell those who wait for its state."""
        self._changes.set()

    def check_upstream(self) -> None:
        """The server's tables have been looked at: begin again when the name stands for another
        table of the same server, or when ours has failed."""
        self._looked.set()
        if self._has_failed and self._stream is not None:
            self._stream.cancel()
        listing, known, told = self._link.listing, self._serial, self._told
        if listing is None or told is None or known is None:
            return
        if listing.server == known[0] and told.serial != known[1] and self._stream is not None:
            self._stream.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            session = await self._link.session()
            while self._table is None and self._told is None:
                # There is no such table: look again when the server's tables have been.
                self._looked.clear()
                self._is_idle = self._offered is None
                await self._looked.wait()
                self._is_idle = False
            try:
                await self._follow(session)
            except BarrageError as error:
                await self._broken(session, error)
            except Exception:  # One table that nobody can follow must not stop the others.
                failure = unexpected_failure(log, f"table {self.name!r} could not be followed")
                await self._broken(session, failure)

    async def _broken(self, session: AsyncSession, error: BarrageError) -> None:
        was_live = self.state is FollowerState.LIVE
        if was_live:
            self._set_state(FollowerState.PAUSED)
        if self.error is None or str(error) != str(self.error):
            log.info("table %s: %s", self.name, error)
        self.error = error
        if isinstance(error, TableNotFoundError):
            await self._missing(was_live=was_live)
        elif isinstance(error, TableFailedError) or self._has_failed:
            # What was told does not fit, or the table has failed there: begin anew.
            await self._withdraw(error)
        self._link.note_lost(session)
        await asyncio.sleep(self._backoff.next_delay())

    @property
    def _told(self) -> TableTold | None:
        """What the server said last of the table; None when it has none."""
        listing = self._link.listing
        return None if listing is None else listing.tables.get(self.name)

    @property
    def _has_failed(self) -> bool:
        return self._table is not None and self._table.failure is not None

    async def _missing(self, *, was_live: bool) -> None:
        """The server has no such table: at once after its drop, else after a while, it is gone."""
        now_ns = self._clock.monotonic_ns()
        if self._missing_since_ns is None:
            self._missing_since_ns = now_ns
        waited_s = (now_ns - self._missing_since_ns) / 1e9
        if self._table is not None and (was_live or waited_s >= MISSING_SECONDS_MAX):
            await self._withdraw(TableDroppedError(self.name))

    async def _withdraw(self, error: BarrageError) -> None:
        table, self._table = self._table, None
        self._cursor, self._step, self._serial = None, -1, None
        self._set_state(FollowerState.WAITING)
        if table is not None:
            log.info("table %s: not served any more: %s", self.name, error)
            try:
                await asyncio.wrap_future(self._tables.withdraw(self.name, table, error))
            except BarrageError as failure:
                # The next state that is served takes its place.
                log.warning("table %s: could not be taken back: %s", self.name, failure)

    # --- one stream -------------------------------------------------------------------------------

    async def _follow(self, session: AsyncSession) -> None:
        """Take what one stream tells until it breaks, which is an error."""
        listing, told = self._link.listing, self._told
        if listing is None or told is None:
            raise TableNotFoundError(self.name)
        form = form_of(told, (await session.info(self.name)).schema)
        past = None
        if self._cursor is None and self._offered is not None:
            past = self._offered
        elif self._cursor is None and not (form.traits.is_blink or form.traits.is_static):
            past = await past_state(
                session, self.name, seconds=PAST_SECONDS, steps_max=PAST_STEPS_MAX
            )
        cursor = self._cursor if past is None else past.cursor
        options = SubscriptionOptions(min_update_interval_ms=INTERVAL_MS)
        async with session.follow(self.name, options, cursor) as stream:
            beginning = await stream.begin()
            # A name may come to stand for another table between any two of these questions.
            await self._check_is_the_same(listing.server, told)
            self._offered = None
            self._serial = listing.server, told.serial
            self._stream = stream
            table: RelayedTable | None = None
            try:
                table = await self._begin(stream, beginning, form, past=past)
                await self._take_updates(stream, table, missed=beginning.missed)
            except BaseException as error:
                if table is not None and table is not self._table:
                    self._forget(table, error)
                raise
            finally:
                self._stream = None

    async def _check_is_the_same(self, server: str, told: TableTold) -> None:
        """ConnectionLostError unless the name stands for the same table still: then it did all the
        time, and what was told of it, its state and its updates are of one table."""
        listing = await self._link.listing_from_now()
        now = listing.tables.get(self.name)
        if listing.server != server or now is None or now.serial != told.serial:
            raise ConnectionLostError(
                f"table {self.name!r} was replaced while it was taken; it is taken anew"
            )

    async def _begin(
        self,
        stream: FollowedStream,
        beginning: StreamBeginning,
        form: RelayedForm,
        *,
        past: PastState | None,
    ) -> RelayedTable:
        """A table of the state that the updates of a stream go on from."""
        if beginning.is_resumed and past is None:
            if self._table is None:
                raise ConnectionLostError("what was to be resumed is not served any more")
            if form != form_served(self._table):
                error = ConnectionLostError(f"table {self.name!r} is not what is served of it")
                await self._withdraw(error)
                raise error
            self.resumes += 1
            log.info("table %s: %s", self.name, beginning.outcome)
            return self._table
        if beginning.is_resumed and past is not None:
            keys, rows, step = past.keys, past.rows, past.cursor.version
        else:
            first = await self._first_state(stream, beginning)
            keys, rows, step = first.keys, first.rows(), first.step
        epoch = beginning.epoch
        state = RelayedState(form=form, keys=keys, rows=rows, step=step, epoch=epoch)
        return await self._prepare(state)

    async def _go_live(self, table: RelayedTable) -> None:
        """Everything that was missed has been told."""
        if table is not self._table:
            await self._drain(table, waiting_max=0)
            await asyncio.shield(asyncio.wrap_future(self._tables.show(table)))
            self._table = table
            log.info("table %s: served from step %d on", self.name, self._step)
        self.error = None
        self._set_state(FollowerState.LIVE)
        self._missing_since_ns = None
        self._behind_count = 0
        self._backoff.reset()

    async def _first_state(self, stream: FollowedStream, beginning: StreamBeginning) -> FirstState:
        first = FirstState(beginning.schema)
        is_whole = False
        while not is_whole:
            message, is_whole = await stream.next()
            first.take(message)
        known = self._cursor
        if known is not None and beginning.epoch == known.epoch and first.step < known.version:
            self._behind_count += 1
            if self._behind_count <= BEHIND_ATTEMPTS_MAX:
                raise UpstreamBehindError(
                    f"the server is at step {first.step}, this relay at {known.version}"
                )
        return first

    async def _prepare(self, state: RelayedState) -> RelayedTable:
        """A table of a whole state. Whoever reads the one of before is to come back for it."""
        reason = "the upstream server cannot go on from the state served here; subscribe again"

        def ended() -> BarrageError:
            return TransportError(f"table {self.name!r}: {reason}")

        table = await asyncio.wrap_future(self._tables.prepare(self.name, state, ended=ended))
        self._table = None
        self._set_state(FollowerState.WAITING)
        self.snapshots += 1
        self._note_step(state.step, state.epoch)
        log.info("table %s: %d rows at step %d", self.name, len(state.keys), state.step)
        return table

    def _forget(self, table: RelayedTable, error: BaseException) -> None:
        """A table that was never served comes to nothing."""
        self._note_step(-1, None)
        reason = error if isinstance(error, BarrageError) else ConnectionLostError("it was stopped")
        self._tables.forget(self.name, table, reason)

    def _note_step(self, step: int, epoch: str | None) -> None:
        self._step = step
        self._cursor = None if epoch is None or step < 0 else Cursor(epoch, step)

    async def _take_updates(
        self, stream: FollowedStream, table: RelayedTable, *, missed: int
    ) -> None:
        """``missed``: so many updates tell what happened before the stream, the first of them by
        position."""
        place = 0
        while True:
            if place == missed:
                await self._go_live(table)
            message, _ = await stream.next()
            is_first = place == 0 and missed > 0
            await self._take(table, message, is_by_position=is_first, is_missed=place < missed)
            place += 1

    async def _take(
        self,
        table: RelayedTable,
        message: FullUpdate,
        *,
        is_by_position: bool,
        is_missed: bool,
    ) -> None:
        told = told_update(message, step=self._step, is_by_position=is_by_position)
        update = told.update
        self.merged_count += update.first_step < update.last_step
        # Not cancelled in between: what was told is taken, and the cursor says so.
        waiting = await asyncio.shield(asyncio.wrap_future(self._tables.tell(table, told)))
        self._note_step(update.last_step, None if self._cursor is None else self._cursor.epoch)
        self.updates += 1
        # What was missed is old, and does not always say since when.
        if message.source_time_ns and not is_missed:
            self.lag_ns = max(0, self._clock.wall_ns() - message.source_time_ns)
            most = self._lag_ns_max
            if most is not None and self.lag_ns > most:
                late = self._too_late(self.lag_ns, most)
                await self._withdraw(late)
                raise late
        if waiting >= TOLD_MAX:
            await self._drain(table, waiting_max=TOLD_MAX - 1)

    async def _drain(self, table: RelayedTable, *, waiting_max: int) -> None:
        """Until no more updates than these wait for their cycle."""
        while True:
            waiting = await asyncio.wrap_future(self._tables.waiting(table))
            if waiting <= waiting_max:
                return
            await asyncio.sleep(DRAIN_SECONDS)

"""A subscription that keeps a table up to date: :class:`AsyncTickingTable`.

One task per subscription reads the stream, feeds the exchange, applies updates to the replica that
is shown and hands them to consumers without waiting for them: a slow one gets updates merged. A
lost connection starts a new stream after a jittered delay, which goes on from the rows shown where
the server keeps their history (``resume.py``); elsewhere they stay until the new snapshot is in.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from barrage.client.bodies.bodies import NO_STREAM, BodyStatus
from barrage.client.bodies.own_cells import LENT_SECONDS
from barrage.client.connection.reconnect import is_worth_retrying
from barrage.client.subscriptions.followers import Followers
from barrage.client.subscriptions.in_notebook import InNotebook
from barrage.client.subscriptions.resume import Resuming, Setting
from barrage.client.subscriptions.rows_argument import (
    RowsArgument,
    column_indices,
    column_names,
    viewport_of,
)
from barrage.client.subscriptions.shown_replica import ShownReplica
from barrage.client.subscriptions.state import TRANSITIONS, State, Stats, StatsRecorder
from barrage.client.updates.update_queue import UpdateIterator, UpdateQueue
from barrage.client.updates.waiting import Changes
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    BodyChannelError,
    ConnectionLostError,
    LocalProtocolError,
    SchemaError,
    ServerFailedError,
    SubscriptionClosedError,
)
from barrage.proto.client_events import ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange, ClientState
from barrage.supervision import Role, start_task
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from barrage.client.bodies.body_stream import BodyStream, OfferedChannel
    from barrage.client.subscriptions.callback_calls import SessionCallbacks
    from barrage.client.subscriptions.followers import OnError, OnState, OnUpdate
    from barrage.client.subscriptions.state import SubscriptionSettings
    from barrage.clock import Clock
    from barrage.model.cursor import Cursor

SUBSCRIPTION = Role("barrage-subscription", "the ticking table")

logger = logging.getLogger(__name__)


class AsyncTickingTable(InNotebook):
    """A live copy of a table, or of some of its rows and columns. Always one consistent state.

    Made by ``table.subscribe(...)`` on a running loop; close it or use it as an asynchronous
    context manager.
    """

    def __init__(
        self,
        settings: SubscriptionSettings,
        callbacks: SessionCallbacks,
        *,
        clock: Clock,
        on_end: Callable[[AsyncTickingTable], None],
    ) -> None:
        """``on_end`` is called once, when nothing comes any more."""
        self._clock = clock
        self._on_end = on_end
        self._settings = settings
        self._columns = settings.columns
        self._viewport = settings.viewport
        self._shown = ShownReplica(column_order=settings.columns)
        self._resuming = Resuming(settings.resume, settings.source.connection.revision)
        if settings.kept is not None:
            self._shown.keep(
                settings.kept.rows,
                is_view=settings.viewport is not None,
                cursor=settings.kept.cursor,
            )
        self._stats = StatsRecorder(clock)
        self._state = State.CONNECTING
        self._error: BarrageError | None = None
        self._lag_ns: int | None = None
        self._is_current = False
        self._changes = Changes()
        self._has_unsent_change = False
        self._refusals = 0
        self._followers = Followers(settings.source.label, self._stats, callbacks)
        self._bodies = NO_STREAM
        self._owning: asyncio.TimerHandle | None = None
        self._exchange: ClientExchange | None = None
        self._stream: BodyStream | None = None
        self._attempt = settings.source.attempt()
        self._schema: pa.Schema | None = None
        self._task: asyncio.Task[None] | None = None

    # --- reading --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._settings.source.label

    @property
    def state(self) -> State:
        return self._state

    @property
    def error(self) -> BarrageError | None:
        """Why the state is FAILED, or what the latest attempt to connect failed with."""
        return self._error

    @property
    def schema(self) -> pa.Schema:
        """Of the subscribed columns; BarrageError before the first state."""
        return self.to_arrow().schema

    @property
    def table_size(self) -> int:
        """Rows of the whole table on the server, as of the state shown."""
        return self._shown.table_size

    @property
    def nbytes(self) -> int:
        """Memory the copy takes."""
        return self._shown.nbytes

    @property
    def lag(self) -> float | None:
        """Seconds from the commit on the server to the application here, of the newest update that
        says when it was committed; needs synchronised clocks. None when the server does not say."""
        return None if self._lag_ns is None else self._lag_ns / 1e9

    @property
    def stats(self) -> Stats:
        return self._stats.read()

    @property
    def bodies(self) -> BodyStatus:
        """The way bodies of record batches may come on the latest stream, and why it is inline when
        it is. ``stats.bodies`` counts the ways they really came."""
        # Read once: other threads ask as well.
        stream = self._stream
        return self._bodies if stream is None else stream.status

    @property
    def _is_outside(self) -> bool:
        return self.bodies.way is not BodyWay.INLINE

    @property
    def cursor(self) -> Cursor | None:
        """The place of the state shown in the table's history; None where the server keeps none."""
        return self._shown.cursor

    @property
    def resumption(self) -> str | None:
        """How the latest stream went on from the state shown before: ``live``, ``replayed 17
        steps`` or ``resnapshot (reason)``. None as long as none had to."""
        outcome = self._resuming.outcome
        return None if outcome is None else str(outcome)

    def checkpoint(self) -> tuple[Cursor | None, pa.Table]:
        """The cursor and the rows it names, which belong together: to be given to
        ``subscribe(resume_from=cursor, rows=rows)`` in another process."""
        return self._shown.checkpoint()

    def __len__(self) -> int:
        return self._shown.row_count

    def to_arrow(self) -> pa.Table:
        """The rows now, as an immutable table."""
        return self._shown.read()[0]

    def to_pandas(self) -> pd.DataFrame:
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        import polars as pl

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} {self._state.value}, {len(self)} of "
            f"{self.table_size} rows>"
        )

    # --- waiting and following ------------------------------------------------------------------

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Until the state shown is that of the latest request. TimeoutError, ServerFailedError
        when only a restart of the server helps, or the error the subscription died of."""
        try:
            async with asyncio.timeout(timeout):
                await self._changes.until(lambda: self._is_current or self._server_failure)
        except TimeoutError:
            detail = f": {self._error}" if self._error else ""
            raise TimeoutError(
                f"table {self.name!r} is {self._state.value} after {timeout} seconds{detail}"
            ) from self._error
        self._raise_if_ended()
        if self._server_failure is not None:
            raise self._server_failure

    @property
    def _server_failure(self) -> BarrageError | None:
        """Why the server cannot go on, as it said when it was asked last."""
        is_lost = self._state is State.RECONNECTING
        return self._error if is_lost and isinstance(self._error, ServerFailedError) else None

    def updates(self) -> UpdateIterator:
        """Follow the table from now on. The first update is the whole state (``is_replacement``).

        Bounded: while the consumer is slow, what waits for it is merged; nobody else is held up.
        """
        return UpdateIterator(self.open_queue())

    def __aiter__(self) -> UpdateIterator:
        return self.updates()

    def on_update(self, callback: OnUpdate) -> Callable[[], None]:
        """Call ``callback(update)`` for every update, starting with the whole state. Returns what
        takes it back.

        What it raises is logged, counted and given to ``on_error``; the subscription lives on. If
        it returns an awaitable, that is awaited before the next update.
        """
        return self._followers.on_update(callback, self.open_queue())

    def on_state(self, callback: OnState) -> Callable[[], None]:
        """Call ``callback(state)`` at every change of state. Returns what takes it back."""
        return self._followers.on_state(callback)

    def on_error(self, callback: OnError) -> Callable[[], None]:
        """Call ``callback(error)`` for what callbacks raise, lost connections, and the final
        error. Returns what takes it back."""
        return self._followers.on_error(callback)

    def note_callback_error(self, error: Exception) -> None:
        """Count and log what a callback raised."""
        self._followers.note_callback_error(error)

    # --- changing -------------------------------------------------------------------------------

    async def set_viewport(self, rows: RowsArgument, *, reverse: bool = False) -> None:
        """Show other rows. The old rows stay until the new ones are in; ``wait_ready`` waits for
        them."""
        viewport = viewport_of(rows, reverse=reverse)
        if viewport is None or self._viewport is None:
            raise LocalProtocolError(
                "a subscription with a viewport keeps one, and one without never gets one; "
                "subscribe again"
            )
        self._viewport = viewport
        await self._send_change()

    async def set_columns(self, columns: Sequence[str] | None) -> None:
        """Show other columns; None for all. Needs a viewport, as only such subscriptions can
        change."""
        if self._viewport is None:
            raise LocalProtocolError("only a subscription with a viewport can change its columns")
        names = column_names(columns)
        if self._schema is not None:
            column_indices(self._schema, names)
        self._columns = names
        await self._send_change()

    async def _send_change(self) -> None:
        self._raise_if_ended()
        exchange, stream = self._exchange, self._stream
        if exchange is None or stream is None or exchange.state is ClientState.ENDED:
            # The next stream asks for it.
            return
        self._is_current = False
        if self._schema is None or exchange.state in _AWAITING:
            # Names become indices when the schema is here, and only a state that is complete can
            # change: one that is being resumed must be caught up first.
            self._has_unsent_change = True
            return
        frame = exchange.change(
            columns=column_indices(self._schema, self._columns), viewport=self._viewport
        )
        try:
            await stream.write(frame)
        except ConnectionLostError:
            # Who reads the stream finds that out as well, and the next stream asks for it.
            self._raise_if_ended()

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; the session does this. Ends with :meth:`finish`, whatever happens."""
        self._settings.source.retain()
        self._task = start_task(
            SUBSCRIPTION,
            self._run(),
            on_death=partial(self.finish, State.FAILED),
            name=f"barrage subscription {self.name}",
        )

    async def close(self) -> None:
        """End the subscription. Idempotent and quiet; the rows stay readable."""
        task, self._task = self._task, None
        if self._stream is not None:
            self._stream.cancel()
        # Before anything is waited for: whoever closes the table may be cancelled here.
        self.finish(State.CLOSED, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> AsyncTickingTable:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> None:
        source, backoff = self._settings.source, self._settings.backoff
        try:
            while not self._state.is_final:
                try:
                    if self._state is State.RECONNECTING:
                        await source.connection.renew()
                    await self._follow_one_stream()
                except BarrageError as error:
                    # The server is there after all, and the next stream takes bodies inline.
                    is_body_lost = isinstance(error, BodyChannelError) and self._is_outside
                    if self._state.is_final or not (is_body_lost or self._is_retried(error)):
                        raise
                    self._lost(error)
                    if not is_body_lost:
                        await asyncio.sleep(backoff.next_delay())
        except BarrageError as error:
            self.finish(State.FAILED, error)
        except Exception as error:
            logger.exception("table %s: the subscription stopped", self.name)
            self.finish(State.FAILED, BarrageError(f"{type(error).__name__}: {error}"))
        finally:
            self._drop_stream()

    def _is_retried(self, error: BarrageError) -> bool:
        if not self._settings.reconnects:
            return False
        if isinstance(error, AuthenticationError) and self._settings.source.connection.logs_in:
            # The session may have ended, or a token run out; who is refused twice is wrong.
            self._refusals += 1
            return self._refusals == 1
        is_there = self._settings.source.is_made_again(error)
        return is_there or is_worth_retrying(error, was_live=self._shown.has_state)

    def _lost(self, error: BarrageError) -> None:
        self._drop_stream()
        self._settings.source.note_failure(self._attempt, error)
        self._is_current = False
        self._error = error
        self._stats.reconnects += 1
        logger.info("table %s: connection lost (%s), trying again", self.name, error)
        self._set_state(State.RECONNECTING)
        self._followers.tell_error(error)
        self._changes.tell()

    async def _follow_one_stream(self) -> None:
        """Subscribe and apply what comes until the stream breaks, which is an error."""
        source, connection = self._settings.source, self._settings.source.connection
        self._attempt = source.attempt()
        schema = None if self._columns is None else await source.schema(None)
        ticket = await source.ticket()
        with await connection.body_channel() as channel:
            exchange, stream, setting, frame = self._open_stream(schema, ticket, channel)
        await stream.write(frame)
        self._set_state(State.SNAPSHOT)
        # A callback may close the table.
        while not self._state.is_final:
            if not await self._take_frame(exchange, stream, setting):
                for event in exchange.receive_end(None):
                    await self._handle(event, stream, setting)
                return

    def _open_stream(
        self, schema: pa.Schema | None, ticket: bytes, channel: OfferedChannel
    ) -> tuple[ClientExchange, BodyStream, Setting, bytes]:
        """A stream for what is wanted now, and the request to write on it. Nothing waits here: what
        the user changes later is asked for by a frame of its own."""
        connection = self._settings.source.connection
        columns = None if schema is None else column_indices(schema, self._columns)
        setting = wanted = Setting.of(schema, columns, self._viewport)
        if self._settings.kept is not None and self._resuming.setting is None:
            self._resuming.setting = wanted
        asked = self._resuming.begin(self._shown.cursor)
        if asked is not None and self._viewport is not None:
            setting = self._resuming.setting or wanted
        exchange = ClientExchange(revision=connection.revision, limits=connection.limits)
        self._schema = schema
        # The user may have chosen columns since the schema was not needed.
        is_unknown = schema is None and self._columns is not None
        self._has_unsent_change = setting != wanted or is_unknown
        frame = exchange.subscribe(
            ticket,
            columns=columns if setting == wanted else setting.columns,
            viewport=setting.viewport,
            options=self._settings.options,
        )
        stream = connection.open_bodies(
            self.name,
            channel,
            headers=None if asked is None else asked.headers(),
            counter=self._stats.bodies,
        )
        self._exchange, self._stream = exchange, stream
        return exchange, stream, setting, frame

    async def _take_frame(
        self, exchange: ClientExchange, stream: BodyStream, setting: Setting
    ) -> bool:
        """Take the next frame; False at the end. Nothing of it is kept while the next one is waited
        for: its body may be lent."""
        frame = await stream.read()
        if frame is None:
            return False
        self._stats.count_frame(stream.frame_bytes)
        for event in exchange.receive(frame):
            await self._handle(event, stream, setting)
        return True

    async def _handle(
        self,
        event: SchemaArrived | UpdateArrived | ExchangeEnded,
        stream: BodyStream,
        setting: Setting,
    ) -> None:
        if isinstance(event, SchemaArrived):
            await self._begin(event.schema, stream, setting)
        elif isinstance(event, UpdateArrived):
            await self._apply(event, stream, setting)
        elif event.error is not None:
            raise event.error

    async def _begin(self, schema: pa.Schema, stream: BodyStream, setting: Setting) -> None:
        """The stream's first frame is here: go on from the rows shown, or await others."""
        exchange, resuming = self._exchange, self._resuming
        assert exchange is not None
        outcome = resuming.answer(await stream.headers(), has_state=self._shown.has_state)
        self._schema = schema
        is_view = exchange.has_view_positions
        if outcome.is_resumed:
            try:
                self._shown.resume(schema, setting.columns, has_view_positions=is_view)
            except SchemaError as error:
                if self._stats.updates == 0:
                    # The rows are the user's.
                    raise
                resuming.distrust()
                raise ConnectionLostError(f"the table cannot be resumed: {error}") from error
            exchange.resume(outcome.updates)
            return
        self._shown.begin(schema, has_view_positions=is_view)
        if self._has_unsent_change:
            self._has_unsent_change = False
            await self._send_change()

    async def _apply(self, event: UpdateArrived, stream: BodyStream, setting: Setting) -> None:
        had_state = self._shown.has_state
        message = event.message
        lent = stream.lent_memory if stream.has_lent else None
        if message.is_snapshot and self._viewport is not None:
            self._shown.order_columns(self._columns)
        update = self._shown.apply(
            message,
            is_consistent=event.is_consistent,
            keeps_removed=self._followers.follow_updates,
            epoch=self._resuming.epoch,
            lent=lent,
        )
        if lent is not None:
            self._own_soon()
        if update is None:
            return
        self._resuming.settled(setting.after(message, self._schema))
        self._stats.count_update(update.row_count)
        if update.source_time_ns is not None:
            self._lag_ns = self._clock.wall_ns() - update.source_time_ns
        self._followers.publish(update)
        if event.is_current:
            await self._became_current(had_state=had_state)

    def _own_soon(self) -> None:
        """Rows that are kept for longer are copied out of the server's memory."""
        if self._owning is None:
            self._owning = asyncio.get_running_loop().call_later(LENT_SECONDS, self._own)

    def _own(self) -> None:
        if self._owning is not None:
            self._owning.cancel()
            self._owning = None
        self._shown.own()

    async def _became_current(self, *, had_state: bool) -> None:
        """The state shown is what the stream was asked for; there may be a later wish."""
        if self._state is State.SNAPSHOT:
            outcome = self._resuming.outcome
            if had_state:
                is_resumed = outcome is not None and outcome.is_resumed
                self._set_state(State.RESUMED if is_resumed else State.RESNAPSHOTTED)
            self._settings.backoff.reset()
            self._refusals = 0
            self._error = None
            self._set_state(State.LIVE)
        if self._has_unsent_change:
            self._has_unsent_change = False
            await self._send_change()
        else:
            self._is_current = True
            self._changes.tell()

    def _set_state(self, state: State) -> None:
        if state is self._state and state is not State.RECONNECTING:
            return
        if state not in TRANSITIONS[self._state]:
            raise LocalProtocolError(f"{self._state.value} cannot become {state.value}")
        is_new = state is not self._state
        self._state = state
        if is_new:
            self._followers.tell_state(state)

    def finish(self, state: State, error: BarrageError | None) -> None:
        if self._state.is_final:
            return
        self._state = state
        self._error = error
        self._drop_stream()
        self._followers.end(error)
        self._is_current = True
        self._changes.tell()
        self._on_end(self)
        self._settings.source.release()
        self._followers.tell_state(state)
        if error is not None:
            self._followers.tell_error(error)

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if self._exchange is not None:
            self._exchange.abandon()
            self._exchange = None
        if stream is not None:
            self._bodies = stream.status
            self._own()
            stream.cancel()

    def _raise_if_ended(self) -> None:
        if self._state is State.FAILED and self._error is not None:
            raise self._error
        if self._state.is_final:
            raise SubscriptionClosedError(f"the subscription of {self.name!r} is closed")

    # --- consumers ------------------------------------------------------------------------------

    def open_queue(self, updates_max: int | None = None) -> UpdateQueue:
        """A queue that starts with the state shown; bounded by the limits if not by the caller. On
        the loop."""
        limits = self._settings.source.connection.limits
        queue = UpdateQueue(
            updates_max or limits.client_updates_pending_max,
            bytes_max=limits.client_update_bytes_pending_max,
            whole=self._shown.replacement,
            trouble=lambda: self._error,
        )
        first = self._shown.replacement()
        if first is not None:
            queue.put(first)
        if self._state.is_final:
            queue.end(self._error)
        else:
            self._followers.add_queue(queue)
        return queue


_AWAITING = frozenset({ClientState.REQUESTED, ClientState.RESUMING})
"""While an exchange stands here a change has to wait."""

"""A server whose tables are those of other servers: :class:`Relay`.

::

    settings = RelaySettings(
        upstream=UpstreamSettings(addresses=("grpc://engine:10000",)),
        patterns=TablePatterns.parse("quotes,trades*"),
    )
    async with Relay(settings, config=relay_config(ServerConfig())) as relay:
        await relay.wait_live("quotes")

It is an ordinary server besides: views, queries and viewports are computed here. What peers write
is passed on to the server that owns the tables. Tables of its own are possible through the Python
API, under other names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from barrage.engine.resume.relayed import RelayedTable
from barrage.errors import (
    BarrageError,
    ConfigError,
    ConnectionLostError,
    LimitExceededError,
    TableAwaitedError,
)
from barrage.limits import NANOS_PER_MS
from barrage.model.cursor import Cursor
from barrage.relay.kept_states import KeptStates
from barrage.relay.passed_on import PassedOnWrites
from barrage.relay.past_state import PastState
from barrage.relay.relay_follower import FollowerState, RelayFollower
from barrage.relay.relay_statistics import RelayStatistics
from barrage.relay.state_keeping import StateKeeping
from barrage.relay.upstream_link import UpstreamLink
from barrage.server.api.publish_async import AsyncServer
from barrage.server.tables.relayed_tables import RelayedState, RelayedTables
from barrage.supervision import Role, in_thread, start_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.errors import WorkerDiedError
    from barrage.relay.kept_states import KeptTable
    from barrage.relay.listing import Listing
    from barrage.relay.settings import RelaySettings
    from barrage.server.serving.app import ServerApp
    from barrage.server.settings.config import ServerConfig

log = logging.getLogger(__name__)

LINK = Role("barrage-relay-link", "relayed tables: they stand still; health")
FOLLOWER = Role("barrage-relay-follower", "one relayed table: it stands still; health")

COUNTER = Role("barrage-relay-statistics", "subscriptions of the table of relayed tables")
KEEPER = Role("barrage-relay-keeper", "states kept for the next start of a relay; health")
LAGS = Role("barrage-relay-lags", "relayed tables: the limit of their lag; health")

TABLES_MAX: Final = 10_000
"""Tables one relay follows."""


class Relay(AsyncServer):
    """Follows the tables that match the patterns, on the running event loop; see
    :class:`barrage.server.AsyncServer`."""

    def __init__(self, settings: RelaySettings, *, config: ServerConfig) -> None:
        """``config`` is that of its own server (:func:`~barrage.relay.settings.relay_config`).
        ConfigError for what cannot be followed."""
        settings.check()
        self._settings = settings
        self._patterns = settings.patterns
        super().__init__(config=config)

    def _prepare(self) -> None:
        super()._prepare()
        self._followers: dict[str, RelayFollower] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._relay_lock = asyncio.Lock()
        self._too_many = False
        self._link: UpstreamLink | None = None
        self._linking: asyncio.Task[None] | None = None
        self._unmatched: list[str] = []
        self._has_changed = asyncio.Event()
        self._is_ending = False
        self._states: KeptStates | None = None
        self._keeping: StateKeeping | None = None

    @property
    def link(self) -> UpstreamLink:
        """The connection to the upstream servers; after :meth:`start`."""
        assert self._link is not None
        return self._link

    @property
    def followers(self) -> Mapping[str, RelayFollower]:
        """Tables that are followed, by name."""
        return self._followers

    async def start(self) -> Self:
        """Listen and begin to follow. Does not wait for the upstream server. ConfigError for a
        directory that cannot be had."""
        async with self._relay_lock:
            kept = await self._open_states()
            try:
                await super().start()
            except BaseException:
                self._close_states()
                raise
            try:
                await self._begin_to_follow(kept)
            except BaseException:
                await self._stop(grace=0)
                raise
        return self

    async def _begin_to_follow(self, kept: list[KeptTable]) -> None:
        parts = self._parts
        parts.catalog.absence = self._absence
        self._relayed = RelayedTables(
            parts.runtime, parts.catalog, tables=parts.tables, limits=self.config.limits
        )
        await self._begin_with(kept)
        self._linking = start_task(LINK, self.link.run(), on_death=self._died)
        counting = RelayStatistics(self.link, self._followers.values, parts.tables)
        self._tasks.append(start_task(COUNTER, counting.run(), on_death=counting.fail))
        self._running.operations.statistics.sources.append(counting.measures)
        if self._settings.lag_ms_max is not None:
            self._tasks.append(start_task(LAGS, self._watch_lags(), on_death=self._died))

    def _make_app(self) -> ServerApp:
        parts = self._parts
        self._link = UpstreamLink(
            self._settings.upstream, parts.tables.identity, on_listing=self._listed
        )
        self._passed_on = PassedOnWrites(
            self._link,
            self._patterns,
            limits=self.config.limits,
            is_read_only=self._settings.is_read_only,
            is_own=self._is_own,
            until_live=self.wait_live,
        )
        return parts.make_app(self._passed_on)

    async def _is_own(self, name: str) -> bool:
        """Whether a name stands for a table that is not relayed."""
        find = partial(self._parts.catalog.find, name)
        publication = await asyncio.wrap_future(self._parts.tables.run(find))
        return publication is not None and not isinstance(publication.table, RelayedTable)

    async def _watch_lags(self) -> None:
        """Take back what stands still for too long."""
        while True:
            await asyncio.sleep(self._settings.upstream.look_seconds)
            for follower in list(self._followers.values()):
                await follower.check_pause()

    async def stop(self, grace: float | None = None) -> None:
        """End following, then serving; the connection to the upstream server stays until what is
        passed on to it has been answered. Idempotent."""
        self._is_ending = True
        # What is being started by another task can be ended when it has been.
        async with self._relay_lock:
            await self._stop(grace)

    async def _stop(self, grace: float | None) -> None:
        self._is_ending = True
        tasks, self._tasks = [*self._tasks, *self._following.values()], []
        self._following = {}
        await _ended(tasks)
        try:
            if self._keeping is not None:
                self._keeping.end()
                await asyncio.wait([self._keeper])
            await super().stop(grace)
        finally:
            self._close_states()
            linking, self._linking = self._linking, None
            await _ended([] if linking is None else [linking])

    # --- states that are kept ---

    async def _open_states(self) -> list[KeptTable]:
        if self._settings.data is None or self._states is not None:
            return []
        states = KeptStates(self._settings.data)
        opening = asyncio.create_task(in_thread(states.open))
        try:
            kept = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on and takes the directory: it is given back when it has.
            with contextlib.suppress(ConfigError, OSError):
                await opening
                states.close()
            raise
        self._states = states
        return kept

    def _close_states(self) -> None:
        self._keeping = None
        if self._states is not None:
            self._states.close()
            self._states = None

    async def _begin_with(self, kept: list[KeptTable]) -> None:
        """Serve what was kept, unless it may not be old: then it waits for what came since."""
        states, parts = self._states, self._parts
        if states is None:
            return
        for each in kept:
            if not self._patterns.matches(each.name):
                await _forget(states, each.name)
                continue
            await self._begin_at(each, states)
        self._keeping = keeping = StateKeeping(
            states,
            self._followers.values,
            journals=parts.journals,
            clock=parts.clock,
            seconds=self._settings.keep_seconds,
        )
        self._keeper = start_task(KEEPER, keeping.run(self._present), on_death=self._died)

    async def _begin_at(self, kept: KeptTable, states: KeptStates) -> None:
        """Follow a table from the state that was kept of it."""
        follower = self._add_follower(kept.name)
        if follower is None:
            return
        state, cursor = kept.state, Cursor(kept.epoch, kept.state.version)
        follower.note_kept(cursor)
        if self._settings.lag_ms_max is not None:
            follower.offer(PastState(cursor=cursor, keys=state.keys, rows=state.rows))
        else:
            served = RelayedState(
                form=kept.form,
                keys=state.keys,
                rows=state.rows,
                step=state.version,
                epoch=kept.epoch,
            )
            try:
                publishing = self._relayed.publish(kept.name, served, ended=_never_ends)
                follower.adopt(await asyncio.wrap_future(publishing), cursor)
            except BarrageError as error:
                log.warning("table %s is fetched anew: %s", kept.name, error)
                await _forget(states, kept.name)
                follower.note_kept(None)
        self._run_follower(follower)

    def _present(self) -> Listing | None:
        """What the upstream server has, while there is one."""
        return None if self.link.address is None else self.link.listing

    def _absence(self, name: str) -> BarrageError | None:
        """Why a table is not served that may be soon; on any thread."""
        if not self._patterns.matches(name):
            return None
        listing = self.link.listing
        if listing is None:
            why = "this relay has not reached its upstream server yet"
        elif name in listing.tables:
            why = "this relay is about to serve it"
        else:
            return None
        return TableAwaitedError(name, why)

    async def wait_live(self, name: str) -> RelayFollower:
        """Until the table is served and follows its upstream server."""
        while True:
            follower = self._followers.get(name)
            if follower is not None and follower.state is FollowerState.LIVE:
                return follower
            if follower is None:
                await self._has_changed.wait()
            else:
                await follower.changed()

    def _listed(self, listing: Listing) -> None:
        """What tables the upstream server has, once more."""
        if self._is_ending:
            return
        for follower in list(self._followers.values()):
            if follower.is_idle and follower.name not in listing.tables:
                self._let_go(follower)
            follower.check_upstream()
        for name in listing.tables:
            if name not in self._followers and self._patterns.matches(name):
                self._begin(name)
        unmatched = self._patterns.unmatched(listing.tables)
        for pattern in unmatched:
            if pattern not in self._unmatched:
                log.warning("no table of the upstream server matches %r; waiting for one", pattern)
        self._unmatched = unmatched

    def _let_go(self, follower: RelayFollower) -> None:
        """Its table was dropped. When there is one of this name again, that has another."""
        del self._followers[follower.name]
        self._following.pop(follower.name).cancel()
        follower.let_go()

    def _begin(self, name: str) -> None:
        follower = self._add_follower(name)
        if follower is not None:
            self._run_follower(follower)

    def _add_follower(self, name: str) -> RelayFollower | None:
        """One that is to be run; None when there are too many."""
        if len(self._followers) >= TABLES_MAX:
            error = LimitExceededError(
                "number of relayed tables",
                actual=len(self._followers) + 1,
                maximum=TABLES_MAX,
                unit="tables",
            )
            if not self._too_many:
                self._too_many = True
                log.error(
                    "table %s, and whichever come after it, are not followed: %s", name, error
                )
            return None
        self._too_many = False
        lag_ms_max = self._settings.lag_ms_max
        follower = RelayFollower(
            name,
            self.link,
            self._relayed,
            clock=self._parts.clock,
            lag_ns_max=None if lag_ms_max is None else lag_ms_max * NANOS_PER_MS,
        )
        self._followers[name] = follower
        return follower

    def _run_follower(self, follower: RelayFollower) -> None:
        task = start_task(FOLLOWER, follower.run(), on_death=self._died)
        self._following[follower.name] = task
        changed, self._has_changed = self._has_changed, asyncio.Event()
        changed.set()

    def _died(self, error: WorkerDiedError) -> None:
        """Nothing brings its tables on any more: who asks for the relay's health is told."""
        self._running.fail(error)


def _never_ends() -> BarrageError:
    """Nothing was served before what was kept."""
    return ConnectionLostError("the relay has been started again")


async def _forget(states: KeptStates, name: str) -> None:
    """A disk that does not let go of it is logged; the next start tries again."""
    try:
        await in_thread(states.forget, name)
    except OSError as error:
        log.warning("table %s: its state could not be removed: %s", name, error)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel them and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)

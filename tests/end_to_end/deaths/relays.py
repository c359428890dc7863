"""Workers of a relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import barrage
from barrage.client.subscriptions.state import State
from barrage.client.synchronous.sync import Session
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.client.synchronous.sync_ticking import TickingTable
from barrage.errors import WorkerDiedError
from barrage.relay.relay_statistics import RELAYED_TABLE
from tests.end_to_end.deaths.killing import (
    HANG_SECONDS,
    NOT_SERVING,
    ROW,
    SCHEMA,
    Killing,
    health,
    kills,
)
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST
from tests.unit.relay.scene import relay_of


@dataclass(frozen=True)
class Relaying:
    """A server of two tables, and a session at a relay of it with a subscription to each."""

    server: barrage.Server
    session: Session
    live: TickingTable
    other: TickingTable

    def goes_on(self, table: TickingTable, name: str) -> None:
        count = len(table)
        self.server.table(name).add(ROW)
        wait_until(lambda: len(table) == count + 1, HANG_SECONDS)

    def is_not_serving(self) -> None:
        wait_until(lambda: health(self.session) == NOT_SERVING, HANG_SECONDS)


@contextmanager
def relaying(**settings: Any) -> Iterator[Relaying]:
    loop = LoopThread("test-relay")
    with barrage.Server(host=HOST, journal="memory") as server:
        for name in ("other", "t"):
            server.create_table(name, SCHEMA)
        relay = loop.call(_started(server.uri, **settings), HANG_SECONDS)
        try:
            with barrage.connect(relay.uri) as session:
                tables = [
                    session.table(name).subscribe(interval_ms=1).wait_ready(HANG_SECONDS)
                    for name in ("t", "other")
                ]
                yield Relaying(server, session, *tables)
        finally:
            loop.call(relay.stop(), HANG_SECONDS)
            loop.close()


async def _started(uri: str, **settings: Any) -> Any:
    relay = await relay_of(uri, **settings).start()
    for name in ("other", "t"):
        await relay.wait_live(name)
    return relay


@kills("barrage-relay-link")
def link(killing: Killing) -> None:
    with relaying() as s:
        s.goes_on(s.live, "t")
        killing.task()
        s.is_not_serving()
        assert s.live.state is State.LIVE, "what is there can still be read"


@kills("barrage-relay-follower")
def follower(killing: Killing) -> None:
    with relaying() as s:
        killing.task()
        s.is_not_serving()
        # Tables are followed in the order of their names.
        s.goes_on(s.other, "other")


@kills("barrage-relay-keeper")
def keeper(killing: Killing) -> None:
    with relaying(data=killing.directory) as s:
        killing.task()
        s.is_not_serving()
        s.goes_on(s.live, "t")
        s.goes_on(s.other, "other")


@kills("barrage-relay-lags")
def lags(killing: Killing) -> None:
    with relaying(lag_ms_max=60_000) as s:
        killing.task()
        s.is_not_serving()
        s.goes_on(s.live, "t")
        s.goes_on(s.other, "other")


@kills("barrage-relay-statistics")
def statistics(killing: Killing) -> None:
    with relaying() as s:
        wait_until(
            lambda: RELAYED_TABLE in [each.name for each in s.session.tables()], HANG_SECONDS
        )
        told = s.session.table(RELAYED_TABLE).subscribe(reconnect=False).wait_ready(HANG_SECONDS)
        killing.task()
        wait_until(lambda: told.state is State.FAILED, HANG_SECONDS)
        assert told.error is not None
        assert not isinstance(told.error, WorkerDiedError) or "relay" in str(told.error)
        s.goes_on(s.live, "t")
        s.goes_on(s.other, "other")

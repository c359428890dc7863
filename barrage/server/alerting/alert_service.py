"""The alerts of one server: declared by who starts it, watched, told, counted.

One task looks after what names stand for, one for each alert tells its receiver. Alerts run with
the rights of who keeps the server: no client can declare, change or remove one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from barrage.errors import BarrageError, ConfigError, LimitExceededError
from barrage.server.alerting.alert import AlertError
from barrage.server.alerting.alert_statistics import COUNTER, AlertStatistics
from barrage.server.alerting.alerts_file import read_alerts
from barrage.server.alerting.receiver_hosts import ReceiverHosts
from barrage.server.alerting.watched_alert import AlertPlace, AlertState, WatchedAlert
from barrage.server.alerting.webhook_post import WebhookPost
from barrage.server.runtime.query_dispatcher import THE_SERVER
from barrage.server.tables.catalog_watch import LOOK_INTERVAL_S, CatalogWatch
from barrage.supervision import Role, in_thread, start_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from barrage.errors import WorkerDiedError
    from barrage.server.alerting.alert import Alert
    from barrage.server.settings.config import ServerConfig
    from barrage.supervision import OnDeath

log = logging.getLogger(__name__)

KEEPER = Role("barrage-alerts", "alerts whose tables come and go; health")
DELIVERY = Role("barrage-alert-delivery", "the messages of one alert, whose state says so; health")

AGAIN_S = 1.0
"""How long a server that is too busy to look at a table is left alone."""

SETTLE_S = 0.02
"""Time between two looks at whether everything is told, when the server stops."""


class AlertNotFoundError(ConfigError):
    """No alert has that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no alert {name!r}")


class AlertService:
    """Made and used on the event loop."""

    def __init__(self, config: ServerConfig, place: AlertPlace) -> None:
        self._config = config
        self._place = place
        self._server = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._alerts: dict[str, WatchedAlert] = {}
        self._post = WebhookPost(ReceiverHosts())
        self._watch = CatalogWatch(place.tables)
        self._following = contextlib.ExitStack()
        self.statistics = AlertStatistics(self._alerts, place.tables)
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: set[asyncio.Task[None]] = set()
        """Of alerts that were removed."""
        self._on_death: OnDeath | None = None
        self._ends_at_s: float | None = None

    @property
    def alerts(self) -> Mapping[str, WatchedAlert]:
        """Those there are, by name."""
        return self._alerts

    # --- declaring ---

    async def prepare(self, declared: Iterable[Alert] = ()) -> None:
        """Read the file and check everything, before there is anything to be alerted of.
        ConfigError."""
        config = self._config
        hosts = ReceiverHosts.parse(filter(None, map(str.strip, config.alert_hosts.split(","))))
        alerts = [*declared]
        if config.alerts is not None:
            found, of_file = await in_thread(read_alerts, Path(config.alerts))
            alerts += found
            hosts |= of_file
        self._post.hosts = hosts
        for alert in alerts:
            await self._declare(alert)

    async def add(self, alert: Alert) -> None:
        """Watch one more from now on. ConfigError."""
        watched = await self._declare(alert)
        self._begin(watched)
        await self._look(watched)

    def remove(self, name: str) -> None:
        """Watch it no more; what waits for its receiver is not told. AlertNotFoundError."""
        watched = self._alerts.pop(name, None)
        if watched is None:
            raise AlertNotFoundError(name)
        watched.detach("it was removed", AlertState.REMOVED)
        if watched.task is not None:
            watched.task.cancel()
            self._ended.add(watched.task)
            watched.task.add_done_callback(self._ended.discard)

    async def _declare(self, alert: Alert) -> WatchedAlert:
        if alert.name in self._alerts:
            raise AlertError(alert.name, "name", "a name of its own: another alert has it")
        maximum = self._place.limits.alerts_max
        if len(self._alerts) >= maximum:
            raise LimitExceededError(
                "number of alerts", actual=len(self._alerts) + 1, maximum=maximum, unit="alerts"
            )
        if not self._post.hosts.names_host(alert.host):
            wanted = (
                "of a host among those of alert_hosts and the file, or, where none is named, of a "
                f"public address, not {alert.host!r}"
            )
            raise AlertError(alert.name, "url", wanted)
        watched = WatchedAlert(
            alert, self._place, server=self._server, ids=self._new_ids(), post=self._post
        )
        self._alerts[alert.name] = watched
        try:
            checked = self._place.tables.derive(watched.check, THE_SERVER)
            await asyncio.wrap_future(checked)
        except BaseException:
            self.remove(alert.name)
            raise
        return watched

    def _new_ids(self) -> Iterator[str]:
        """Of events: none is ever given twice, by this server or another one."""
        while True:
            yield f"{self._server}-{next(self._numbers)}"

    # --- life ---

    def start(self, *, on_death: OnDeath) -> None:
        """Begin to watch."""
        self._on_death = on_death
        for watched in self._alerts.values():
            self._begin(watched)

    def _begin(self, watched: WatchedAlert) -> None:
        assert self._on_death is not None
        if not self._tasks:
            self._following.enter_context(self._watch.follower())
            self._tasks = [
                start_task(KEEPER, self._keep(), on_death=self._on_death),
                start_task(COUNTER, self.statistics.run(), on_death=self._counter_died),
            ]
        died = partial(self._delivery_died, watched)
        watched.task = start_task(DELIVERY, watched.delivery.run(), on_death=died)

    def _delivery_died(self, watched: WatchedAlert, error: WorkerDiedError) -> None:
        watched.detach(str(error), AlertState.FAILED)
        if self._on_death is not None:
            self._on_death(error)

    def _counter_died(self, error: WorkerDiedError) -> None:
        self.statistics.fail(error)
        if self._on_death is not None:
            self._on_death(error)

    async def _keep(self) -> None:
        """Look at what the names stand for, for as long as the server runs."""
        while True:
            try:
                version, _ = await self._watch.listing()
                for watched in list(self._alerts.values()):
                    await self._look(watched)
            except BarrageError as error:
                log.debug("names were not looked at: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            await asyncio.sleep(LOOK_INTERVAL_S)
            if all(each.known is not None for each in self._alerts.values()):
                await self._watch.wait_past(version)
            else:
                await asyncio.sleep(AGAIN_S)

    async def _look(self, watched: WatchedAlert) -> None:
        """Have an alert look at other tables if the names stand for others than before."""
        async with watched.looking:
            _, listing = await self._watch.listing()
            known = {name: listing.get(name) for name in watched.alert.tables}
            if known != watched.known and not watched.has_ended:
                watched.known = known
                await watched.attach()

    def begin_stop(self, grace_s: float) -> None:
        """What waits is told without waiting for more, for so long."""
        self._ends_at_s = asyncio.get_running_loop().time() + grace_s
        for watched in self._alerts.values():
            watched.delivery.drain()

    async def close(self) -> None:
        """When what is left of that time has passed, or nothing waits any more. Idempotent."""
        loop = asyncio.get_running_loop()
        while self._ends_at_s is not None and loop.time() < self._ends_at_s:
            if all(each.is_settled for each in self._alerts.values()):
                break
            await asyncio.sleep(SETTLE_S)
        for watched in self._alerts.values():
            waiting = len(watched.queue)
            if waiting:
                log.warning("alert %r: %d events were not told", watched.alert.name, waiting)
        tasks, self._tasks = self._tasks, []
        tasks += [each.task for each in self._alerts.values() if each.task is not None]
        tasks += self._ended
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for watched in self._alerts.values():
            watched.let_go()
        self._following.close()
        self._post.close()

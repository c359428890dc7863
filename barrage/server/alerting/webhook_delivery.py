"""Gets the events of one alert to its receiver, at least once each, whatever the receiver does.

What could not be told is tried again, ever more seldom, with whatever has happened meanwhile.
No table waits for anything here: events stand in a queue that drops the oldest.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.limits import NANOS_PER_MS
from barrage.server.alerting.webhook_message import message_body, message_headers
from barrage.server.alerting.webhook_post import PostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.clock import Clock
    from barrage.server.alerting.alert import Alert
    from barrage.server.alerting.event_queue import EventQueue
    from barrage.server.alerting.firing_keys import AlertEvent, FiringKeys
    from barrage.server.alerting.webhook_post import PostAnswer, WebhookPost

log = logging.getLogger(__name__)

RETRY_FIRST_NS = 1000 * NANOS_PER_MS
RETRY_NS_MAX = 300 * 1000 * NANOS_PER_MS
RETRY_AFTER_NS_MAX = 3600 * 1000 * NANOS_PER_MS
"""Longest time a receiver may ask for."""

MESSAGE_BYTES_MAX = 1024 * 1024
"""Bytes of the events in one message, unless it is one that is longer."""

SLEEP_NS_MAX = 3600 * 1000 * NANOS_PER_MS
_NANOS_PER_S = 1_000_000_000
_TRY_AGAIN = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


@dataclass(slots=True)
class DeliveryCounts:
    """What has become of messages."""

    messages: int = 0
    events: int = 0
    retries: int = 0
    last_error: str | None = None
    last_sent_ns: int | None = None
    """By the wall clock."""


@dataclass(slots=True)
class _Trouble:
    """Messages fail."""

    begun_ns: int
    attempts: int = 0
    again_ns: int = 0


@dataclass(slots=True, kw_only=True)
class WebhookDelivery:
    """One receiver. Used on the event loop."""

    alert: Alert
    server: str
    keys: FiringKeys
    queue: EventQueue
    post: WebhookPost
    clock: Clock
    further_count: Callable[[], int]
    draw: random.Random = field(default_factory=random.Random)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    is_draining: bool = False
    _is_sending: bool = False
    _rest_until_ns: int = 0
    _trouble: _Trouble | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being told or waits for it."""
        return not self._is_sending and not len(self.queue)

    def wake(self) -> None:
        """Look at the queue and at the time."""
        self._woken.set()

    def drain(self) -> None:
        """Wait for no more events to come before a message is sent."""
        self.is_draining = True
        self.wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._woken.clear()
            now_ns = self.clock.monotonic_ns()
            self.queue.put(self.keys.due(now_ns=now_ns, wall_ns=self.clock.wall_ns()))
            key_due_ns = self.keys.next_due_ns
            if key_due_ns is not None and key_due_ns <= now_ns:
                # There are more; others have their turn first.
                await asyncio.sleep(0)
                continue
            due_ns = self._due_ns()
            if due_ns is not None and due_ns <= now_ns:
                await self._send()
                continue
            times = [each for each in (due_ns, self.keys.next_due_ns) if each is not None]
            await self._sleep(min(times, default=now_ns + SLEEP_NS_MAX) - now_ns)

    def _due_ns(self) -> int | None:
        """When the next message is to be sent."""
        if not len(self.queue):
            return None
        if self._trouble is not None:
            return self._trouble.again_ns
        return 0 if self.is_draining else self._rest_until_ns

    async def _sleep(self, sleep_ns: int) -> None:
        try:
            async with asyncio.timeout(min(sleep_ns, SLEEP_NS_MAX) / _NANOS_PER_S):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _send(self) -> None:
        """Tell the oldest events."""
        alert, queue = self.alert, self.queue
        events = queue.take(count_max=alert.batch, bytes_max=MESSAGE_BYTES_MAX)
        dropped, wall_ns = queue.untold_dropped, self.clock.wall_ns()
        attempt = 1 if self._trouble is None else self._trouble.attempts + 1
        body = message_body(
            alert,
            events,
            server=self.server,
            wall_ns=wall_ns,
            attempt=attempt,
            dropped=dropped,
            further_count=self.further_count(),
        )
        headers = message_headers(alert, body, wall_ns=wall_ns)
        self._is_sending = True
        try:
            timeout_s = alert.timeout_ms / 1000
            answer = await self.post.post(alert.url, headers, body, timeout_s=timeout_s)
        except PostError as error:
            self._failed(events, str(error), None)
            return
        except BaseException:
            queue.put_back(events)
            raise
        finally:
            self._is_sending = False
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            self._delivered(events, dropped)
        elif answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in _TRY_AGAIN:
            self._failed(events, f"the receiver answered {answer.status}", answer)
        else:
            self._refused(events, answer.status)

    def _delivered(self, events: Sequence[AlertEvent], dropped: int) -> None:
        counts, now_ns = self.counts, self.clock.monotonic_ns()
        counts.messages += 1
        counts.events += len(events)
        counts.last_sent_ns = self.clock.wall_ns()
        self.queue.told_dropped(dropped)
        self._rest_until_ns = now_ns + self.alert.interval_ms * NANOS_PER_MS
        if self._trouble is not None:
            log.info("alert %r: its receiver takes messages again", self.alert.name)
        self._trouble = None

    def _failed(self, events: Sequence[AlertEvent], why: str, answer: PostAnswer | None) -> None:
        """They are told again later, unless that was tried for long enough."""
        now_ns = self.clock.monotonic_ns()
        self.counts.last_error = why
        trouble = self._trouble
        if trouble is None:
            trouble = self._trouble = _Trouble(begun_ns=now_ns)
            log.warning("alert %r: a message to %s failed: %s", *self._shown(why))
        if now_ns - trouble.begun_ns >= self.alert.retry_ms * NANOS_PER_MS:
            log.error("alert %r: %d events for %s are dropped: %s", *self._shown(why, len(events)))
            self.queue.dropped(len(events))
            trouble.begun_ns = now_ns
        else:
            self.queue.put_back(events)
            self.counts.retries += 1
        ceiling_ns = min(RETRY_FIRST_NS * 2 ** min(trouble.attempts, 32), RETRY_NS_MAX)
        wait_ns = int(ceiling_ns * self.draw.uniform(0.5, 1.0))
        if answer is not None and answer.retry_after is not None:
            asked_ns = retry_after_ns(answer.retry_after, self.clock.wall_ns())
            wait_ns = max(wait_ns, asked_ns)
        trouble.attempts += 1
        trouble.again_ns = now_ns + wait_ns

    def _refused(self, events: Sequence[AlertEvent], status: int) -> None:
        """To send them again would not help."""
        why = f"the receiver answered {status}"
        self.counts.last_error = why
        self.queue.dropped(len(events))
        self._trouble = None
        now_ns = self.clock.monotonic_ns()
        self._rest_until_ns = now_ns + max(self.alert.interval_ms * NANOS_PER_MS, RETRY_FIRST_NS)
        log.error("alert %r: %d events for %s are dropped: %s", *self._shown(why, len(events)))

    def _shown(self, why: str, *count: int) -> tuple[object, ...]:
        return (self.alert.name, *count, self.alert.host, why)


def retry_after_ns(text: str, wall_ns: int) -> int:
    """How long Retry-After asks to wait: seconds, or a date; 0 when it is neither."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit():
        seconds = min(int(plain[:10]), RETRY_AFTER_NS_MAX // _NANOS_PER_S)
        return seconds * _NANOS_PER_S
    try:
        moment = parsedate_to_datetime(plain)
    except (ValueError, OverflowError):
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, min(int(moment.timestamp()) * _NANOS_PER_S - wall_ns, RETRY_AFTER_NS_MAX))

"""When messages are sent, and what becomes of those that fail: by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest

from barrage.server import Alert
from barrage.server.alerting.event_queue import EventQueue
from barrage.server.alerting.firing_keys import AlertEvent, FiringKeys
from barrage.server.alerting.webhook_delivery import (
    MESSAGE_BYTES_MAX,
    RETRY_AFTER_NS_MAX,
    RETRY_NS_MAX,
    WebhookDelivery,
    retry_after_ns,
)
from barrage.server.alerting.webhook_message import SIGNATURE_HEADER, TIMESTAMP_HEADER
from barrage.server.alerting.webhook_post import PostAnswer, PostError
from tests.helpers.virtual_clock import VirtualClock

SECOND = 1_000_000_000
HANG_SECONDS = 180
SECRET = "0123456789abcdef"


class Scene:
    """A delivery whose receiver is a list of what to answer."""

    def __init__(self, *, events_max=100, **options):
        self.clock = VirtualClock(1_000 * SECOND)
        self.alert = Alert(
            **{
                "name": "a",
                "table": "t",
                "where": "x > 1",
                "url": "https://example.org/hook",
                "interval_ms": 0,
                **options,
            }
        )
        self.queue = EventQueue(events_max=events_max, bytes_max=10 * MESSAGE_BYTES_MAX)
        ids = map(str, itertools.count(1))
        self.keys = FiringKeys(self.alert, ids, event_bytes_max=1000, held_bytes_max=1_000_000)
        self.sent: list[tuple[int, dict, dict]] = []
        self.answers: list[int | Exception | PostAnswer] = []
        self.delivery = WebhookDelivery(
            alert=self.alert,
            server="s",
            keys=self.keys,
            queue=self.queue,
            post=self,
            clock=self.clock,
            further_count=lambda: 3,
            draw=Random(1),
        )

    async def post(self, url, headers, body, *, timeout_s):
        assert (url, timeout_s) == (self.alert.url, self.alert.timeout_ms / 1000)
        self.sent.append((self.clock.monotonic_ns(), headers, json.loads(body)))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, PostAnswer) else PostAnswer(answer)

    def put(self, *names, size=0):
        self.queue.put(AlertEvent(json.dumps({"id": n, "x": "x" * size}).encode()) for n in names)
        self.delivery.wake()

    @property
    def told(self):
        return [[event["id"] for event in message["events"]] for _, _, message in self.sent]

    async def settle(self):
        """Until the delivery waits."""
        self.delivery.wake()
        for _ in range(30):
            await asyncio.sleep(0)

    async def move(self, seconds):
        self.clock.advance(int(seconds * SECOND))
        await self.settle()


def played(play, **options):
    """Run what plays with a scene whose delivery runs."""

    async def run():
        scene = Scene(**options)
        task = asyncio.create_task(scene.delivery.run())
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await play(scene)
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())


def test_events_are_told_at_once_and_then_after_the_interval():
    async def play(scene):
        scene.put("1", "2")
        await scene.settle()
        scene.put("3")
        await scene.move(1.9)
        assert scene.told == [["1", "2"]]
        scene.put("4")
        await scene.move(0.1)
        assert scene.told == [["1", "2"], ["3", "4"]]

    played(play, interval_ms=2_000)


def test_a_message_says_what_it_is_about_and_is_signed():
    async def play(scene):
        scene.put("1")
        await scene.settle()
        _, headers, message = scene.sent[0]
        told = [message[each] for each in ("version", "alert", "table", "where", "server")]
        assert told == [1, "a", "t", "x > 1", "s"]
        assert (message["attempt"], message["dropped"], message["further_keys"]) == (1, 0, 3)
        assert message["sent_at"] == "1970-01-01T00:16:40.000000000Z"
        body = json.dumps(message, separators=(",", ":")).replace('"id":"1","x"', '"id": "1", "x"')
        body = body.replace('"x":""', '"x": ""')
        assert headers[TIMESTAMP_HEADER] == "1000"
        digest = hmac.new(SECRET.encode(), b"1000." + body.encode(), hashlib.sha256)
        assert headers[SIGNATURE_HEADER] == f"v1={digest.hexdigest()}"
        assert headers["Authorization"] == "Bearer tok"

    played(play, secret=SECRET, headers={"Authorization": "Bearer tok"})


@pytest.mark.parametrize("trouble", [PostError("gone"), 500, 503, 429, 408, 425])
def test_what_failed_is_told_again_ever_more_seldom(trouble):
    async def play(scene):
        scene.answers = [trouble] * 12
        scene.put("1")
        await scene.settle()
        scene.put("2")
        for _ in range(3000):
            await scene.move(0.5)
        assert scene.told[0] == ["1"]
        assert scene.told[1:] == [["1", "2"]] * 12
        assert [message["attempt"] for _, _, message in scene.sent] == list(range(1, 14))
        times = [at for at, _, _ in scene.sent]
        for number, (one, other) in enumerate(itertools.pairwise(times)):
            ceiling = min(SECOND * 2**number, RETRY_NS_MAX)
            assert ceiling // 2 <= other - one <= ceiling + SECOND, number
        counts = scene.delivery.counts
        assert (counts.retries, counts.messages, counts.events) == (12, 1, 2)
        assert "secret" not in counts.last_error
        # The next trouble begins anew.
        scene.answers = [500]
        scene.put("3")
        await scene.settle()
        await scene.move(1)
        assert scene.told[-2:] == [["3"], ["3"]]

    played(play, url="https://example.org/secret", retry_ms=10_000_000)


@pytest.mark.parametrize("trouble", [301, 302, 307, 400, 401, 403, 404, 410])
def test_what_was_refused_is_dropped_and_told_with_the_next(trouble):
    async def play(scene):
        scene.answers = [trouble]
        scene.put("1", "2")
        await scene.settle()
        scene.put("3")
        await scene.move(1)
        await scene.move(1)
        assert scene.told == [["1", "2"], ["3"]]
        assert [message["dropped"] for _, _, message in scene.sent] == [0, 2]
        scene.put("4")
        await scene.move(1)
        assert scene.sent[-1][2]["dropped"] == 0
        assert scene.queue.dropped_in_all == 2

    played(play)


def test_a_receiver_may_say_when_to_come_again():
    async def play(scene):
        scene.answers = [PostAnswer(429, "100"), PostAnswer(503, "nonsense")]
        scene.put("1")
        await scene.settle()
        await scene.move(99)
        assert len(scene.sent) == 1
        await scene.move(1)
        assert len(scene.sent) == 2
        await scene.move(2)
        assert len(scene.sent) == 3

    played(play)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 7 ", 7),
        ("99999999999999999999", RETRY_AFTER_NS_MAX // SECOND),
        ("-1", 0),
        ("1.5", 0),
        ("", 0),
        ("soon", 0),
        ("Mon, 99 Xxx 2026", 0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0),
        ("Mon, 01 Jan 2026 00:00:00 +99999999999999", 0),
        (format_datetime(datetime.fromtimestamp(1_000, UTC) + timedelta(seconds=30)), 30),
        (format_datetime(datetime.fromtimestamp(0, UTC)), 0),
        (
            format_datetime(datetime.fromtimestamp(10**9, UTC), usegmt=True),
            RETRY_AFTER_NS_MAX // SECOND,
        ),
    ],
)
def test_what_retry_after_means(text, seconds):
    assert retry_after_ns(text, 1_000 * SECOND) == seconds * SECOND


def test_a_message_that_fails_for_too_long_is_dropped():
    async def play(scene):
        scene.answers = [PostError("gone")] * 6
        scene.put("1")
        await scene.settle()
        for _ in range(40):
            await scene.move(0.5)
        assert scene.queue.dropped_in_all == 1
        scene.put("2")
        for _ in range(1000):
            await scene.move(0.5)
        assert scene.told[-1] == ["2"]
        assert scene.sent[-1][2]["dropped"] == 1

    played(play, retry_ms=10_000)


def test_the_oldest_are_dropped_while_a_receiver_is_away_and_that_is_told():
    async def play(scene):
        scene.answers = [PostError("gone")]
        scene.put("0")
        await scene.settle()
        scene.put(*map(str, range(1, 6)))
        await scene.move(1)
        assert scene.told == [["0"], ["3", "4", "5"]]
        assert [message["dropped"] for _, _, message in scene.sent] == [0, 3]

    played(play, events_max=3)


@pytest.mark.parametrize("count", [2, 3])
def test_a_message_has_so_many_events_at_most(count):
    async def play(scene):
        scene.put(*map(str, range(count)))
        await scene.settle()
        assert scene.told == [["0", "1"], ["2"]][: count - 1]

    played(play, batch=2)


def test_a_message_has_so_many_bytes_at_most():
    async def play(scene):
        scene.put("1", "2", "3", size=MESSAGE_BYTES_MAX // 2 - 100)
        await scene.settle()
        assert scene.told == [["1", "2"], ["3"]]

    played(play)


def test_what_must_hold_is_told_when_its_time_has_come():
    async def play(scene):
        now = scene.clock.monotonic_ns()
        scene.keys.begin([1], [({}, {})], at_ns=now, wall_ns=now, is_initial=False)
        await scene.move(4.9)
        assert not scene.sent
        await scene.move(0.1)
        assert len(scene.sent) == 1

    played(play, for_ms=5_000)


def test_a_server_that_stops_does_not_wait_for_the_interval():
    async def play(scene):
        scene.put("1")
        await scene.settle()
        scene.put("2")
        await scene.settle()
        assert scene.told == [["1"]]
        assert not scene.delivery.is_idle
        scene.delivery.drain()
        await scene.settle()
        assert scene.told == [["1"], ["2"]]
        assert scene.delivery.is_idle

    played(play, interval_ms=60_000)

"""State machine: whatever happens to a table and its subscribers, a naive receiver that applies
what it is sent equals the table sliced by its effective viewport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from barrage.engine.changelog.making import Disconnect
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.producer import Producer
from barrage.errors import BarrageError, ReaderMemoryError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.fake_table import SCHEMA, FakeTable
from tests.helpers.receivers import KeyReceiver, ViewReceiver
from tests.helpers.told import each_told, views_together_from

LIMITS = Limits(delta_segments_max=2, stall_ns_max=10**15)
HELD_BYTES_MAX = [LIMITS.held_table_bytes_max, 4000, 1500, 0]
"""What the table may keep for slow readers: from more than it needs to nothing at all."""
INTERVALS_NS = [10 * NANOS_PER_MS, 20 * NANOS_PER_MS, 50 * NANOS_PER_MS]

SHAPES = {
    "full": lambda start, length: None,
    "header": lambda start, length: Viewport.of(0, length),
    "floating": lambda start, length: Viewport.of(start, start + length),
    "footer": lambda start, length: Viewport.of(0, length, is_reverse=True),
    "reverse floating": lambda start, length: Viewport.of(start, start + length, is_reverse=True),
    "swiss": lambda start, length: Viewport(positions=swiss(start, length)),
    "reverse swiss": lambda start, length: Viewport(
        positions=swiss(start, length), is_reverse=True
    ),
    "nothing": lambda start, length: Viewport(positions=RowSet.empty()),
}
"""The reference's seven subscription shapes, and the viewport without rows."""


@pytest.fixture(autouse=True, scope="module")
def _every_view_is_told_together() -> Iterator[None]:
    with views_together_from(1):
        yield


def swiss(start: int, length: int) -> RowSet:
    """Every second pair of positions."""
    return RowSet(p for p in range(start, start + 2 * length) if p // 2 % 2 == start // 2 % 2)


viewports = st.builds(
    lambda name, start, length: SHAPES[name](start, length),
    st.sampled_from([name for name in SHAPES if name != "full"]),
    st.integers(0, 12),
    st.integers(1, 8),
)
column_choices = st.sampled_from([None, (0, 1, 2), (0,), (1, 2), (), (2, 7)])
seeds = st.integers(0, 2**32 - 1)


class Subscriber:
    """A receiver and what its subscription is expected to look like."""

    def __init__(self, number: int, receiver) -> None:
        self.number = number
        self.receiver = receiver
        self.is_held = False
        self.is_caught_up = False


class ProducerMachine(RuleBasedStateMachine):
    """Rules change the table and the subscribers; :meth:`propagate` delivers and checks."""

    subscribers = Bundle("subscribers")

    @initialize(
        seed=seeds,
        size=st.integers(0, 12),
        held_bytes_max=st.sampled_from(HELD_BYTES_MAX),
        is_one_at_a_time=st.booleans(),
        turn_work_max=st.sampled_from([LIMITS.turn_work_max, 20, 0]),
    )
    def start(
        self,
        seed: int,
        size: int,
        held_bytes_max: int,
        is_one_at_a_time: bool,
        turn_work_max: int,
    ) -> None:
        keys = sorted(Random(seed).sample(range(40), size))
        self.table = FakeTable(keys)
        self.limits = replace(
            LIMITS, held_table_bytes_max=held_bytes_max, turn_work_max=turn_work_max
        )
        if is_one_at_a_time:
            self.limits = replace(self.limits, propagation_bytes_max=0)
        self.producer = Producer(self.table, self.limits)
        self.now_ns = 0
        self.live: dict[int, Subscriber] = {}
        self.numbers = 0

    @rule(
        target=subscribers,
        viewport=st.one_of(st.none(), viewports),
        columns=column_choices,
        interval_ns=st.sampled_from(INTERVALS_NS),
        is_draft=st.booleans(),
        encoding=st.sampled_from(["plain", "lists"]),
    )
    def subscribe(self, viewport, columns, interval_ns, is_draft, encoding):
        if len(self.live) >= 8:
            return multiple()
        is_key_space = viewport is None or (is_draft and not viewport.is_reverse)
        made = KeyReceiver(len(SCHEMA)) if is_key_space else ViewReceiver(len(SCHEMA))
        self.numbers += 1
        subscriber = Subscriber(self.numbers, made)
        self.live[subscriber.number] = subscriber
        spec = SubscriptionSpec(
            columns=columns,
            viewport=viewport,
            interval_ns=interval_ns,
            is_key_space=is_key_space,
            encoding=encoding,
        )
        self.producer.add(subscriber.number, spec, self.now_ns)
        return subscriber

    @rule(seed=seeds, kinds=st.sampled_from(["rsam", "a", "m", "r", "s", "ra", "rsa", "am"]))
    def change_table(self, seed: int, kinds: str) -> None:
        update = self.table.random_update(Random(seed), kinds=frozenset(kinds))
        if not update.is_empty:
            self.producer.record(update, self.now_ns)
            for subscriber in self.live.values():
                subscriber.is_caught_up = False

    @rule(seed=seeds)
    def reuse_keys(self, seed: int) -> None:
        """Remove rows and add others under the same keys in one step."""
        keys = sorted(self.table.rows)
        chosen = sorted(Random(seed).sample(keys, min(3, len(keys))))
        if chosen:
            self.producer.record(self.table.update(removed=chosen, added=chosen), self.now_ns)
            for subscriber in self.live.values():
                subscriber.is_caught_up = False

    @rule(subscriber=subscribers, viewport=viewports, columns=column_choices)
    def change_subscription(self, subscriber, viewport, columns) -> None:
        receiver = subscriber.receiver
        if subscriber.number not in self.live or receiver.viewport is None:
            return
        if isinstance(receiver, KeyReceiver):
            viewport = Viewport(positions=viewport.positions)
        self.producer.change(subscriber.number, columns, viewport, now_ns=self.now_ns)
        subscriber.is_caught_up = False

    @rule(subscriber=subscribers)
    def hold(self, subscriber) -> None:
        if subscriber.number in self.live:
            self.producer.hold(subscriber.number, self.now_ns)
            subscriber.is_held = True

    @rule(subscriber=subscribers)
    def release(self, subscriber) -> None:
        if subscriber.number in self.live:
            self.producer.release(subscriber.number)
            subscriber.is_held = False

    @rule(subscriber=consumes(subscribers))
    def unsubscribe(self, subscriber) -> None:
        self.producer.remove(subscriber.number)
        self.live.pop(subscriber.number, None)

    @rule(delta_ms=st.sampled_from([0, 3, 10, 60]))
    def propagate(self, delta_ms: int) -> None:
        self.now_ns += delta_ms * NANOS_PER_MS
        told = set()
        items = self.producer.propagate(self.now_ns)
        while (due := self.producer.next_due_ns()) is not None and due <= self.now_ns:
            again = self.producer.propagate(self.now_ns)
            assert again, "what is left for the next propagation is told by it"
            items += again
        for item in each_told(items):
            if isinstance(item, Disconnect):
                self.is_no_room_left_for(self.live.pop(item.subscription_id), item.error)
                continue
            for number in item.subscription_ids:
                assert not self.live[number].is_held
                self.live[number].receiver.receive(item.message)
                told.add(number)
        for number in told:
            self.check(self.live[number])
        if delta_ms == 60:
            self.check_everybody_is_up_to_date()

    def is_no_room_left_for(self, subscriber: Subscriber, error: BarrageError) -> None:
        """Only the keys a reader knows can be too much, never a view."""
        assert isinstance(error, ReaderMemoryError)
        assert error.nbytes > self.limits.held_table_bytes_max == error.nbytes_max
        assert isinstance(subscriber.receiver, KeyReceiver)

    def check(self, subscriber: Subscriber) -> None:
        receiver = subscriber.receiver
        subscriber.is_caught_up = True
        if isinstance(receiver, KeyReceiver):
            receiver.check(self.table.rows)
        else:
            receiver.check(self.table.row_list())

    def check_everybody_is_up_to_date(self) -> None:
        """60 ms are longer than any interval: whoever is not held must have everything."""
        for subscriber in self.live.values():
            if not subscriber.is_held:
                self.check(subscriber)

    @invariant()
    def is_valid(self) -> None:
        if hasattr(self, "producer"):
            self.producer.validate()

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        for subscriber in self.live.values():
            if subscriber.is_held:
                self.release(subscriber)
        self.propagate(60)
        for number in list(self.live):
            self.producer.remove(number)
        assert self.producer.subscription_count == 0
        assert self.producer.next_due_ns() is None
        self.producer.validate()


ProducerMachine.TestCase.settings = settings(stateful_step_count=40)
TestProducerMachine = ProducerMachine.TestCase


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("is_draft", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_each_subscription_shape_follows_a_busy_table(
    name: str, is_draft: bool, every: int
) -> None:
    """200 steps, propagated after each or after every third one."""
    draw = Random(f"{name} {is_draft} {every}")
    table = FakeTable(range(0, 60, 3))
    producer = Producer(table, Limits())
    viewport = SHAPES[name](4, 6)
    is_key_space = viewport is None or (is_draft and not viewport.is_reverse)
    receiver = KeyReceiver(len(SCHEMA)) if is_key_space else ViewReceiver(len(SCHEMA))
    spec = SubscriptionSpec(
        columns=None,
        viewport=viewport,
        interval_ns=10 * NANOS_PER_MS,
        is_key_space=is_key_space,
        encoding=None,
    )
    producer.add(1, spec, 0)
    for step in range(200):
        update = table.random_update(draw)
        if not update.is_empty:
            producer.record(update, step)
        if step % every:
            continue
        for item in each_told(producer.propagate(step * 20 * NANOS_PER_MS)):
            receiver.receive(item.message)
        if is_key_space:
            receiver.check(table.rows)
        else:
            receiver.check(table.row_list())

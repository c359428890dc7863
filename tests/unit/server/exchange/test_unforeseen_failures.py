"""A subscription that fails for a reason nobody thought of refuses itself and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import barrage
from barrage.engine.propagation.producer import Producer
from barrage.server.exchange.exchange_messages import (
    Refused,
    Subscribe,
    Subscribed,
    SubscribeTogether,
)
from barrage.server.exchange.subscription_dispatcher import SubscriptionDispatcher
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

BROKEN = 1002


@pytest.fixture
def scene(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[SubscriptionDispatcher, Subscribe]]:
    add = Producer.add

    def broken(self, stream_id, *arguments, **named):
        if stream_id == BROKEN:
            raise MemoryError
        return add(self, stream_id, *arguments, **named)

    monkeypatch.setattr(Producer, "add", broken)
    asked: list[Subscribe] = []
    with barrage.Server("inproc://") as server, barrage.connect(server.uri) as session:
        server.create_table("t", data={"x": range(10)})
        dispatcher = server._app._hub._engine._handlers[Subscribe].__self__
        subscribe = dispatcher.handlers[Subscribe]
        dispatcher.handlers[Subscribe] = lambda each: (asked.append(each), subscribe(each))[1]
        with session.table("t").subscribe() as live:
            live.wait_ready(timeout=HANG_SECONDS)
        wait_until(lambda: len(dispatcher._streams) == 0, HANG_SECONDS)
        yield dispatcher, asked[0]


def ask(dispatcher: SubscriptionDispatcher, message):
    handle = dispatcher.handlers[type(message)]
    return dispatcher._runtime.submit(lambda: handle(message)).result(HANG_SECONDS)


def test_one_failure_of_those_who_come_together_refuses_no_other(scene) -> None:
    dispatcher, asked = scene
    subscribes = tuple(replace(asked, stream_id=number) for number in (1001, BROKEN, 1003))
    answers = ask(dispatcher, SubscribeTogether(plan_id=5, subscribes=subscribes))
    assert [type(answer) for answer in answers] == [Subscribed, Refused, Subscribed]


def test_a_failed_first_subscription_leaves_no_producer(scene) -> None:
    dispatcher, asked = scene
    answer = ask(dispatcher, replace(asked, stream_id=BROKEN))
    assert isinstance(answer, Refused)
    assert len(dispatcher._streams) == 0
    assert len(dispatcher._runtime._producers) == 0

"""What the engine does for one subscription fails: its stream is told, and no other."""

from __future__ import annotations

from typing import Any

import pytest

import barrage
from barrage.clock import SystemClock
from barrage.engine.propagation.producer import Producer
from barrage.errors import BarrageError
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.server.exchange.exchange_messages import (
    ChangeViewport,
    Hold,
    Release,
    RenewHold,
    StreamEnded,
)
from barrage.server.exchange.subscription_dispatcher import SubscriptionDispatcher

HANG_SECONDS = 180
FATAL = [MemoryError(), KeyError("x"), SystemExit(3)]


class BrokenProducer:
    """Serves every subscription but number 1, which cannot even be removed."""

    subscription_count = 1

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.served: list[int] = []

    def change(self, subscription_id: int, *_: object, **__: object) -> None:
        if subscription_id == 1:
            raise self._error
        self.served.append(subscription_id)

    hold = release = change

    def remove(self, subscription_id: int) -> None:
        raise KeyError(subscription_id)


class FakeRuntime:
    def __init__(self, producer: BrokenProducer) -> None:
        self.producer = producer
        self.emitted: list[Any] = []

    def existing_producer(self, _: object) -> BrokenProducer:
        return self.producer

    def emit(self, items: list[Any]) -> None:
        self.emitted += items


def change(number: int) -> ChangeViewport:
    return ChangeViewport(stream_id=number, columns=None, viewport=Viewport.of(0, 1))


NOTICES = {
    "hold": [Hold(stream_ids=(1, 2))],
    "release": [Release(stream_ids=(1, 2))],
    "renew": [RenewHold(stream_id=1), RenewHold(stream_id=2)],
    "change": [change(1), change(2)],
}


@pytest.mark.parametrize("error", FATAL, ids=repr)
@pytest.mark.parametrize("notices", NOTICES.values(), ids=NOTICES)
def test_a_failure_ends_its_stream_and_no_other(notices, error):
    producer = BrokenProducer(error)
    runtime: Any = FakeRuntime(producer)
    dispatcher = SubscriptionDispatcher(
        runtime,
        None,  # type: ignore[arg-type]
        limits=Limits(),
        clock=SystemClock(),
    )
    table: Any = "t"
    for number in (1, 2):
        dispatcher._streams.add(number, table)
    for notice in notices:
        dispatcher.handlers[type(notice)](notice)
    [ended] = runtime.emitted
    assert isinstance(ended, StreamEnded)
    assert ended.stream_id == 1
    assert isinstance(ended.error, BarrageError)
    assert set(producer.served) == {2}


def test_a_viewport_that_cannot_be_changed_ends_its_subscription(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    with barrage.Server("inproc://") as server, barrage.connect(server.uri) as session:
        server.create_table("t", data={"x": range(10)})
        with session.table("t").subscribe(viewport=(0, 3)) as live:
            live.wait_ready(timeout=HANG_SECONDS)
            monkeypatch.setattr(Producer, "change", broken)
            live.set_viewport((2, 5))
            with pytest.raises(BarrageError, match="internal error"):
                live.wait_ready(timeout=HANG_SECONDS)

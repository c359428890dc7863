"""Results at one step: tickets, bytes, ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from barrage.errors import LimitExceededError, TicketError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.identity.caller import Caller, Proof
from barrage.server.results.pinned_results import (
    PinnedResult,
    PinnedResults,
    ResultCancelledError,
    ResultNotFoundError,
    ResultPart,
    place_of,
)
from tests.helpers.virtual_clock import VirtualClock

LIMITS = replace(
    DEFAULT_LIMITS,
    results_max=3,
    results_per_caller_max=2,
    result_bytes_max=300,
    result_bytes_per_caller_max=200,
    result_lifetime_ns=1000,
    result_age_ns_max=2500,
)
ALICE, BOB, EVE = (Caller(name=name, proof=Proof.PASSWORD) for name in ("alice", "bob", "eve"))
SHAPE: Any = SimpleNamespace(encoder=None, step=1, epoch=None, row_count=10)


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock(10_000)
        self.results = PinnedResults(LIMITS, self.clock)

    def opened(self, caller: Caller = ALICE, *sizes: int) -> PinnedResult:
        result = self.results.open(caller)
        result.shape = SHAPE
        for size in sizes:
            self.add(result, size)
        return result

    def add(self, result: PinnedResult, size: int) -> None:
        self.results.add(result, ResultPart(start=0, stop=1, updates=(), byte_count=size))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_bytes_at_the_limit_and_one_past_it(scene: Scene) -> None:
    mine, other = scene.opened(ALICE, 200), scene.opened(BOB, 100)
    for result in (mine, other):
        with pytest.raises(LimitExceededError, match="results"):
            scene.add(result, 1)
    assert scene.results.byte_count == 300
    scene.results.drop(mine)
    assert scene.results.byte_count == 100
    scene.add(other, 100)
    with pytest.raises(LimitExceededError, match="of one caller"):
        scene.add(other, 1)


def test_results_at_the_limit_and_one_past_it(scene: Scene) -> None:
    scene.opened()
    scene.opened()
    with pytest.raises(LimitExceededError, match="of one caller"):
        scene.opened()
    assert scene.results.is_full(ALICE)
    assert not scene.results.is_full(BOB)
    scene.opened(BOB)
    with pytest.raises(LimitExceededError, match="number of results is 4"):
        scene.opened(EVE)


def test_its_last_moment_and_the_one_after(scene: Scene) -> None:
    result = scene.opened(ALICE, 10)
    scene.clock.advance(999)
    with scene.results.reading(result.ticket(0), ALICE) as (shape, part):
        assert (shape, part.byte_count) == (SHAPE, 10)
        scene.clock.advance(1)
        with pytest.raises(ResultNotFoundError), scene.results.reading(result.ticket(0), ALICE):
            pass
        # What is read when the time is up is kept for its reader, and counts.
        assert result.parts
        assert scene.results.byte_count == 10
    assert not result.parts
    assert scene.results.byte_count == 0


def test_a_result_that_has_run_out_is_not_renewed(scene: Scene) -> None:
    result = scene.opened(ALICE, 10)
    scene.clock.advance(1000)
    with pytest.raises(ResultNotFoundError):
        scene.results.find(result.id, ALICE)
    assert scene.results.count == 0


def test_renewing_ends_with_the_greatest_age(scene: Scene) -> None:
    result = scene.opened()
    for after, ends in ((900, 11_900), (900, 12_500), (600, 12_500)):
        scene.clock.advance(after)
        scene.results.renew(scene.results.find(result.id, ALICE))
        assert result.expires_ns == ends
    scene.clock.advance(100)
    scene.results.sweep()
    assert scene.results.count == 0


def test_a_cancelled_one_keeps_its_name(scene: Scene) -> None:
    result = scene.opened(ALICE, 10)
    with scene.results.reading(result.ticket(0), ALICE):
        scene.results.clear(result)
        assert scene.results.byte_count == 10
    assert scene.results.byte_count == 0
    with pytest.raises(ResultCancelledError), scene.results.reading(result.ticket(0), ALICE):
        pass
    with pytest.raises(ResultNotFoundError):
        scene.add(result, 1)
    assert scene.results.find(result.id, ALICE) is result


def test_nobody_else_gets_it(scene: Scene) -> None:
    result = scene.opened(ALICE, 10)
    with pytest.raises(ResultNotFoundError, match="not yours"):
        scene.results.find(result.id, BOB)
    with pytest.raises(ResultNotFoundError), scene.results.reading(result.ticket(0), BOB):
        pass
    # The same name, shown in another manner, is another caller.
    other = Caller(name="alice", proof=Proof.JWT)
    with pytest.raises(ResultNotFoundError):
        scene.results.find(result.id, other)


def test_callers_that_are_none_any_more_lose_theirs(scene: Scene) -> None:
    scene.opened(ALICE, 10)
    kept = scene.opened(BOB, 20)
    scene.results.drop_all(lambda caller: caller.name == "alice")
    assert (scene.results.count, scene.results.byte_count) == (1, 20)
    assert scene.results.find(kept.id, BOB) is kept


@pytest.mark.parametrize("ticket", [b"f/", b"f/a", b"f/a/", b"f/a/-1", b"f/a/1/2", b"f/../1"])
def test_tickets_of_no_result(ticket: bytes) -> None:
    with pytest.raises(TicketError, match="f/<result>/<part>"):
        place_of(ticket)


def test_a_part_that_is_not_there(scene: Scene) -> None:
    result = scene.opened(ALICE, 10)
    with pytest.raises(ResultNotFoundError), scene.results.reading(result.ticket(1), ALICE):
        pass

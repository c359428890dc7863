"""Callers beside each other while the disk fails, gets full, and processes are killed and power
is cut: what each was told is there, once, whole, and of who was told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pytest

from barrage.server.ingest.commit_portions import CommitAttempt
from barrage.server.journaling.producer_positions import TablePositions
from tests.helpers.restless_server import Scene
from tests.sim.canaries import JOURNAL_CANARIES

SEEDS, LIVES = 3, 5
MANY_SEEDS, MANY_LIVES = 100, 10
CANARY_SEEDS, CANARY_LIVES = 20, 4


@pytest.mark.further
def test_what_callers_were_told_is_there() -> None:
    scenes = [Scene(seed) for seed in range(SEEDS)]
    for scene in scenes:
        scene.go_through(LIVES)
    assert sum(scene.books.acknowledged for scene in scenes) > 20
    assert sum(scene.kills for scene in scenes) > 3
    assert sum(scene.cuts for scene in scenes) > 3


@pytest.mark.slow
def test_what_callers_were_told_is_there_in_many_lives() -> None:
    for seed in range(SEEDS, MANY_SEEDS):
        Scene(seed).go_through(MANY_LIVES)


def go_through_seeds() -> None:
    for seed in range(CANARY_SEEDS):
        Scene(seed).go_through(CANARY_LIVES)


def no_fence() -> AbstractContextManager[object]:
    """Of two writers under one name both go on."""
    return mock.patch.object(TablePositions, "check_epoch", return_value=None)


def every_write_is_new() -> AbstractContextManager[object]:
    """What is sent again is applied again."""
    return mock.patch.object(TablePositions, "is_resend", return_value=False)


def number_the_first_portion() -> AbstractContextManager[object]:
    """A staged batch has its number before all of its rows are there."""
    honest = CommitAttempt._stage

    def stage(attempt, number, portion, taken, *, is_last):
        return honest(attempt, number, portion, taken, is_last=number == 0)

    return mock.patch.object(CommitAttempt, "_stage", stage)


@pytest.mark.parametrize(
    "broken",
    [
        no_fence,
        every_write_is_new,
        number_the_first_portion,
        JOURNAL_CANARIES["acknowledge_before_the_sync"],
    ],
)
def test_a_broken_server_is_found(broken: Callable[[], AbstractContextManager[object]]) -> None:
    with broken(), pytest.raises(AssertionError):
        go_through_seeds()

"""The collector is tuned while servers run, and by nobody else's leave."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from barrage.server.serving.collector import (
    INTERPRETER_THRESHOLDS,
    SERVER_THRESHOLDS,
    CollectorTuning,
)

PLAIN = (700, 10, 10)


@pytest.fixture(autouse=True)
def _as_the_interpreter_begins() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*PLAIN)
    yield
    gc.set_threshold(*before)


def test_it_is_rarer_from_the_first_server_to_the_last() -> None:
    tuning = CollectorTuning()
    tuning.begin_serving()
    tuning.begin_serving()
    assert gc.get_threshold() == SERVER_THRESHOLDS
    tuning.end_serving()
    assert gc.get_threshold() == SERVER_THRESHOLDS
    tuning.end_serving()
    assert gc.get_threshold() == PLAIN


def test_thresholds_of_the_program_are_kept() -> None:
    tuning = CollectorTuning()
    gc.set_threshold(1234, 5, 6)
    tuning.begin_serving()
    assert gc.get_threshold() == (1234, 5, 6)
    tuning.end_serving()
    assert gc.get_threshold() == (1234, 5, 6)


def test_what_the_program_sets_meanwhile_is_kept() -> None:
    tuning = CollectorTuning()
    tuning.begin_serving()
    gc.set_threshold(1234, 5, 6)
    tuning.end_serving()
    assert gc.get_threshold() == (1234, 5, 6)


def test_plain_is_what_an_interpreter_begins_with() -> None:
    assert PLAIN in INTERPRETER_THRESHOLDS

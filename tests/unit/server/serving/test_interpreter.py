"""Python's own settings are changed while servers run, and by nobody else's leave."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from barrage.server.serving import interpreter
from barrage.server.serving.interpreter import (
    INTERPRETER_SWITCH_SECONDS,
    INTERPRETER_THRESHOLDS,
    SERVER_SWITCH_SECONDS,
    SERVER_THRESHOLDS,
    InterpreterTuning,
)

PLAIN = ((700, 10, 10), INTERPRETER_SWITCH_SECONDS)
SERVED = (SERVER_THRESHOLDS, SERVER_SWITCH_SECONDS)
OF_THE_PROGRAM = ((1234, 5, 6), 0.25)


def settings() -> tuple[tuple[int, int, int], float]:
    return gc.get_threshold(), sys.getswitchinterval()


def set_to(wanted: tuple[tuple[int, int, int], float]) -> None:
    gc.set_threshold(*wanted[0])
    sys.setswitchinterval(wanted[1])


@pytest.fixture(autouse=True)
def _as_the_interpreter_begins() -> Iterator[None]:
    before = settings()
    set_to(PLAIN)
    yield
    set_to(before)


def test_they_are_a_servers_from_the_first_one_to_the_last() -> None:
    tuning = InterpreterTuning()
    tuning.begin_serving()
    tuning.begin_serving()
    assert settings() == SERVED
    tuning.end_serving()
    assert settings() == SERVED
    tuning.end_serving()
    assert settings() == PLAIN


def test_settings_of_the_program_are_kept() -> None:
    tuning = InterpreterTuning()
    set_to(OF_THE_PROGRAM)
    tuning.begin_serving()
    assert settings() == OF_THE_PROGRAM
    tuning.end_serving()
    assert settings() == OF_THE_PROGRAM


def test_what_the_program_sets_meanwhile_is_kept() -> None:
    tuning = InterpreterTuning()
    tuning.begin_serving()
    set_to(OF_THE_PROGRAM)
    tuning.end_serving()
    assert settings() == OF_THE_PROGRAM


def test_a_second_time_is_like_the_first() -> None:
    tuning = InterpreterTuning()
    for _ in range(2):
        tuning.begin_serving()
        assert settings() == SERVED
        tuning.end_serving()
        assert settings() == PLAIN


def test_plain_is_what_an_interpreter_begins_with() -> None:
    assert PLAIN[0] in INTERPRETER_THRESHOLDS


@pytest.mark.parametrize("error", [ValueError("numpy.dtype size changed"), AttributeError("x")])
def test_a_broken_pandas_is_no_reason_not_to_serve(error, monkeypatch, caplog):
    def broken(_):
        raise error

    monkeypatch.setattr(interpreter.pa, "array", broken)
    interpreter.import_for_arrow()
    assert str(error) in caplog.text

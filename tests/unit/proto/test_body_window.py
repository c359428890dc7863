"""The window of bodies outside a stream: admission, credit, waiting, and its end."""

from __future__ import annotations

from itertools import product

import pytest

from barrage.errors import LocalProtocolError
from barrage.limits import Limits
from barrage.proto.body_window import (
    TRANSITIONS,
    Admission,
    BodyWindow,
    WindowInput,
    WindowState,
)

LIMITS = Limits(
    body_inline_bytes_max=9,
    body_window_bytes=100,
    body_window_count=3,
    body_wait_ns_max=50,
    body_lease_ns_max=1000,
)
NOW, WAIT, INLINE = Admission.NOW, Admission.WAIT, Admission.INLINE


def full_window() -> BodyWindow:
    """100 bytes are out, since 0, as bodies 1 (60 bytes) and 2 (40)."""
    window = BodyWindow(LIMITS)
    window.sent(1, 60, 0)
    window.sent(2, 40, 0)
    return window


@pytest.mark.parametrize(
    ("size", "expected"), [(0, INLINE), (9, INLINE), (10, NOW), (100, NOW), (101, INLINE)]
)
def test_small_bodies_and_such_that_never_fit_go_inline(size: int, expected: Admission) -> None:
    window = BodyWindow(LIMITS)
    assert window.admit(size, 0) is expected
    assert window.state is WindowState.OPEN


def test_the_window_counts_bytes() -> None:
    window = BodyWindow(LIMITS)
    window.sent(1, 60, 0)
    assert (window.pending_bytes, window.pending_count, window.oldest_ns) == (60, 1, 0)
    assert window.admit(40, 0) is NOW
    assert window.admit(41, 0) is WAIT
    window.validate()


def test_the_window_counts_bodies() -> None:
    window = BodyWindow(LIMITS)
    for number in range(3):
        assert window.admit(10, 0) is NOW
        window.sent(number, 10, number)
    assert window.admit(10, 0) is WAIT
    assert window.oldest_ns == 0
    window.validate()


def test_what_was_not_admitted_cannot_be_sent() -> None:
    window = full_window()
    with pytest.raises(LocalProtocolError, match="body 3 was sent without being admitted"):
        window.sent(3, 10, 0)
    window.validate()


def test_a_full_window_waits_for_credit_and_then_goes_on() -> None:
    window = full_window()
    assert window.admit(50, 100) is WAIT
    assert (window.state, window.wait_until_ns) == (WindowState.WAITING, 150)
    assert window.admit(50, 149) is WAIT
    assert window.wait_until_ns == 150, "asking again does not move it"
    assert window.released([1], 149) == 1
    assert (window.state, window.wait_until_ns) == (WindowState.OPEN, None)
    assert window.admit(50, 149) is NOW


def test_credit_that_is_not_enough_starts_another_wait() -> None:
    window = full_window()
    assert window.admit(50, 100) is WAIT
    assert window.released([2], 140) == 1
    assert window.admit(50, 140) is WAIT
    assert window.wait_until_ns == 190


def test_without_credit_it_goes_on_inline_until_some_comes() -> None:
    window = full_window()
    assert window.admit(50, 100) is WAIT
    assert window.admit(50, 150) is INLINE
    assert (window.state, window.wait_until_ns) == (WindowState.STARVED, None)
    assert window.admit(50, 900) is INLINE, "nobody waits a second time"
    assert window.released([7], 900) == 0, "that is no credit"
    assert window.admit(50, 900) is INLINE
    assert window.released([2], 900) == 1
    assert window.state is WindowState.OPEN
    assert window.admit(40, 900) is NOW


def test_a_starved_window_sends_nothing_that_would_still_fit() -> None:
    window = BodyWindow(LIMITS)
    window.sent(1, 80, 0)
    assert window.admit(50, 0) is WAIT
    assert window.admit(20, 10) is NOW, "while waiting a smaller one may pass"
    assert window.admit(50, 60) is INLINE
    assert window.admit(20, 60) is INLINE


def test_unknown_and_repeated_ids_are_ignored() -> None:
    window = full_window()
    assert window.released([1, 1, 1, 99, 2**64 - 1], 5) == 1
    assert (window.pending_bytes, window.pending_count) == (40, 1)
    assert window.released([], 5) == 0
    window.validate()


def test_one_place_may_be_out_twice() -> None:
    window = BodyWindow(LIMITS)
    window.sent(64, 20, 1)
    window.sent(64, 20, 2)
    assert (window.pending_bytes, window.pending_count, window.oldest_ns) == (40, 2, 1)
    window.validate()
    assert window.released([64], 3) == 1
    assert (window.pending_bytes, window.pending_count) == (20, 1)
    window.validate()
    assert window.released([64, 64], 3) == 1
    assert (window.pending_bytes, window.pending_count, window.oldest_ns) == (0, 0, None)


def test_one_place_has_one_length() -> None:
    window = BodyWindow(LIMITS)
    window.sent(64, 20, 1)
    with pytest.raises(LocalProtocolError, match="another length"):
        window.sent(64, 21, 1)
    window.validate()


def test_the_oldest_body_is_known_whatever_order_they_come_back_in() -> None:
    window = BodyWindow(LIMITS)
    for number in range(3):
        window.sent(number, 10, 100 + number)
    window.released([1], 200)
    assert window.oldest_ns == 100
    window.released([0], 200)
    assert window.oldest_ns == 102


def test_a_body_kept_too_long_makes_the_stream_inline_for_good() -> None:
    window = full_window()
    assert window.admit(10, 1000) is WAIT
    window.released([2], 1000)
    assert window.admit(10, 1000) is NOW
    assert window.admit(10, 1001) is INLINE
    assert window.state is WindowState.ABANDONED
    assert window.released([1], 1002) == 1
    assert window.admit(10, 1003) is INLINE
    with pytest.raises(LocalProtocolError, match="without being admitted"):
        window.sent(9, 10, 1003)


def test_age_counts_from_when_a_body_went_out() -> None:
    window = BodyWindow(LIMITS)
    assert not window.is_overdue(10**18), "nothing is out"
    window.sent(1, 20, 5000)
    assert not window.is_overdue(6000)
    assert window.admit(20, 6000) is NOW
    assert window.is_overdue(6001)
    assert window.admit(20, 6001) is INLINE


def test_a_release_of_another_body_does_not_excuse_one_that_is_too_old() -> None:
    window = full_window()
    assert window.released([2], 1001) == 1
    assert window.state is WindowState.ABANDONED


def test_one_given_back_late_is_given_back() -> None:
    window = BodyWindow(LIMITS)
    window.sent(1, 60, 0)
    assert window.released([1], 5000) == 1
    assert window.admit(10, 5000) is NOW


def test_a_lost_way_is_inline_for_good_and_still_counts_what_is_out() -> None:
    window = full_window()
    assert window.admit(50, 0) is WAIT
    window.abandon()
    assert window.wait_until_ns is None
    assert window.admit(50, 0) is INLINE
    assert window.pending_bytes == 100
    assert window.released([1, 2], 0) == 2
    assert window.admit(50, 0) is INLINE
    window.abandon()
    assert window.state is WindowState.ABANDONED
    window.validate()


def in_state(state: WindowState) -> BodyWindow:
    window = full_window()
    if state in (WindowState.WAITING, WindowState.STARVED):
        window.admit(50, 0)
    if state is WindowState.STARVED:
        window.admit(50, 50)
    if state is WindowState.ABANDONED:
        window.abandon()
    assert window.state is state
    return window


@pytest.mark.parametrize(("state", "stimulus"), list(product(WindowState, WindowInput)), ids=str)
def test_every_pair_is_a_declared_step_or_cannot_happen(
    state: WindowState, stimulus: WindowInput
) -> None:
    window = in_state(state)
    declared = TRANSITIONS.get((state, stimulus), state)
    if stimulus is WindowInput.FULL:
        window.admit(50, 10)
    elif stimulus is WindowInput.CREDIT:
        window.released([1], 10)
    elif stimulus is WindowInput.TIMEOUT and state is not WindowState.OPEN:
        window.admit(50, 60)
    elif stimulus is WindowInput.ABANDON:
        window.abandon()
    assert window.state is declared
    window.validate()

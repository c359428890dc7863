"""How much a client may keep of what it is lent: half of its window, and not one body more."""

from __future__ import annotations

import pytest

from barrage.wire.dissociated.lending import Lending, Window


def lent(*sizes: int) -> Lending:
    lending = Lending()
    for size in sizes:
        lending.lend(size)
    return lending


@pytest.mark.parametrize(
    ("window", "sizes", "size", "can_lend"),
    [
        (Window(1000, 256), (), 500, True),
        (Window(1000, 256), (), 501, False),
        (Window(1000, 256), (300, 100), 100, True),
        (Window(1000, 256), (300, 100), 101, False),
        (Window(1000, 4), (1,), 1, True),
        (Window(1000, 4), (1, 1), 1, False),
        (Window(1000, 5), (1, 1), 1, False),
        (Window(1000, 1), (), 1, False),
    ],
)
def test_half_of_the_window_may_be_kept(
    window: Window, sizes: tuple[int, ...], size: int, can_lend: bool
) -> None:
    assert window.can_lend(lent(*sizes), size) is can_lend


def test_what_is_taken_back_may_be_lent_again() -> None:
    window, lending = Window(1000, 2), lent(500)
    assert not window.can_lend(lending, 1)
    lending.take_back(500)
    assert (lending.byte_count, lending.count) == (0, 0)
    assert window.can_lend(lending, 500)

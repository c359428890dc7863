"""When what a client has done with is told."""

from __future__ import annotations

import pytest

from barrage.proto.release_batch import NUMBERS_SOON, ReleaseBatch
from barrage.wire.dissociated.lending import Window
from barrage.wire.dissociated.ranges import decode_addresses
from barrage.wire.flight_data import decode_flight_data


@pytest.mark.parametrize(
    ("window", "size", "count"),
    [
        (Window(1 << 20, 256), 1, NUMBERS_SOON),
        (Window(1 << 20, 2 * NUMBERS_SOON), 1, NUMBERS_SOON),
        (Window(1 << 20, 8), 1, 4),
        (Window(1 << 20, 1), 1, 1),
        (Window(1000, 256), 100, 5),
        (Window(1000, 256), 99, 6),
    ],
)
def test_half_of_the_window_or_a_worthwhile_number_is_told_at_once(window, size, count):
    batch = ReleaseBatch(window)
    for number in range(count):
        assert not batch.is_urgent
        batch.add(number, size)
    assert batch.is_urgent
    message = decode_flight_data(batch.take())
    assert message.is_release_only
    assert decode_addresses(message.released) == tuple(range(count))
    assert (len(batch), batch.is_urgent) == (0, False)


def test_what_is_not_told_does_not_make_the_next_ones_urgent():
    batch = ReleaseBatch(Window(1000, 256))
    batch.add(1, 499)
    batch.clear()
    batch.add(2, 499)
    assert (len(batch), batch.is_urgent) == (1, False)

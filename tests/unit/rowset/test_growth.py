"""Room behind an array goes to whoever asks first, once."""

from __future__ import annotations

import numpy as np

from barrage.rowset.growth import Room, extended


def numbers(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64)


def test_short_arrays_get_no_room() -> None:
    grown, room = extended(numbers(3), None, numbers(2))
    assert grown.tolist() == [0, 1, 2, 0, 1]
    assert room is None


def test_only_the_array_that_ends_where_the_buffer_is_filled_grows_in_place() -> None:
    first, room = extended(numbers(5000), None, numbers(1))
    second, same_room = extended(first, room, numbers(2))
    assert same_room is room
    assert np.shares_memory(first, second)
    rival, other_room = extended(first, room, numbers(3))
    assert other_room is not room
    assert not np.shares_memory(first, rival)
    assert second[-3:].tolist() == [0, 0, 1]
    assert rival[-4:].tolist() == [0, 0, 1, 2]


def test_a_full_buffer_is_replaced() -> None:
    first, room = extended(numbers(5000), None, numbers(1))
    second, other_room = extended(first, room, numbers(5000))
    assert other_room is not room
    assert len(second) == 10_001


def test_a_room_in_use_is_left_alone() -> None:
    room = Room(numbers(10), 5)
    room._filled.pop()  # what another thread sees while one is filling
    assert room.extend(5, numbers(1)) is None

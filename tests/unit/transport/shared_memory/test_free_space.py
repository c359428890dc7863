"""The allocator of one segment against a set of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.transport.shared_memory.free_space import FreeSpace

START, STOP = 64, 64 + 100


def test_memory_used_before_is_given_out_first() -> None:
    space = FreeSpace(0, 1000)
    first = space.take(100)
    assert first == 0
    assert space.take(100) == 100
    space.give(0, 100)
    assert space.take(50) == 0, "not the untouched rest at 200"
    assert space.take(50) == 50
    assert space.take(50) == 200


def test_smallest_block_that_fits_is_cut() -> None:
    space = FreeSpace(0, 1000)
    starts = [space.take(size) for size in (100, 10, 30, 10, 60, 10)]
    assert starts == [0, 100, 110, 140, 150, 210]
    for start, size in ((0, 100), (110, 30), (150, 60)):
        space.give(start, size)
    assert space.take(25) == 110
    assert space.take(55) == 150
    assert space.take(100) == 0


def test_neighbours_become_one_block() -> None:
    space = FreeSpace(0, 40)
    for _ in range(4):
        space.take(10)
    for start in (0, 20, 30, 10):
        space.give(start, 10)
        space.validate()
    assert space.take(40) == 0


def test_last_block_grows_into_the_untouched_rest() -> None:
    space = FreeSpace(0, 100)
    space.take(60)
    space.give(0, 60)
    assert space.take(80) == 0
    assert space.take(20) == 80
    assert space.take(1) is None


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
def test_room_is_what_it_says(size: int, fits: bool) -> None:
    space = FreeSpace(START, STOP)
    assert (space.take(size) is not None) is fits


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=80))
def test_it_behaves_like_a_set_of_bytes(steps: list[tuple[bool, int]]) -> None:
    space = FreeSpace(START, STOP)
    used: dict[int, int] = {}
    free = set(range(START, STOP))
    for is_take, number in steps:
        if is_take:
            start = space.take(number)
            if start is None:
                assert not has_run(free, number), "there was room"
                continue
            part = set(range(start, start + number))
            assert part <= free, "given out twice, or outside"
            free -= part
            used[start] = number
        elif used:
            start = sorted(used)[number % len(used)]
            size = used.pop(start)
            space.give(start, size)
            free |= set(range(start, start + size))
        space.validate()
        assert space.bytes_free == len(free)
        assert space.is_empty is not bool(used)


def has_run(free: set[int], length: int) -> bool:
    """Whether ``length`` bytes in a row are free."""
    return any(all(at + more in free for more in range(length)) for at in free)

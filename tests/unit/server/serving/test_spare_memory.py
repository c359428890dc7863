"""When memory that nobody uses is given back."""

from __future__ import annotations

from dataclasses import dataclass

from barrage.server.serving.spare_memory import SpareMemory, allocator_here

BOUND = 100


@dataclass
class FakeAllocator:
    used: int = 500
    free: int = 0
    """Free and still occupied."""
    trimmed: int = 0
    trims: int = 0

    def resident_bytes(self) -> int:
        return self.used + self.free

    def free_bytes(self) -> int:
        return self.free + self.trimmed

    def trim(self) -> None:
        self.trims += 1
        self.trimmed, self.free = self.trimmed + self.free, 0


def test_memory_up_to_the_bound_is_kept_and_more_is_given_back() -> None:
    allocator = FakeAllocator()
    spare = SpareMemory(allocator, bytes_max=BOUND)
    allocator.free = BOUND
    assert not spare.look()
    allocator.free = BOUND + 1
    assert spare.look()
    assert allocator.resident_bytes() == 500


def test_memory_in_use_is_no_reason() -> None:
    allocator = FakeAllocator()
    spare = SpareMemory(allocator, bytes_max=BOUND)
    allocator.used += 10 * BOUND
    assert not spare.look()


def test_what_was_given_back_is_not_given_back_again() -> None:
    allocator = FakeAllocator()
    spare = SpareMemory(allocator, bytes_max=BOUND)
    allocator.free = 3 * BOUND
    assert spare.look()
    assert not spare.look()
    allocator.free = 2 * BOUND
    assert spare.look()
    assert allocator.trims == 2


def test_what_was_in_use_at_the_time_is_given_back_when_it_is_freed() -> None:
    """In the middle of a flood little is free, and after it the process does not grow any more."""
    allocator = FakeAllocator()
    spare = SpareMemory(allocator, bytes_max=BOUND)
    allocator.used, allocator.free = 500 + 5 * BOUND, 2 * BOUND
    assert spare.look()
    allocator.used, allocator.free = 500, 5 * BOUND
    assert spare.look()
    assert allocator.resident_bytes() == 500


def test_growth_counts_from_the_least_that_was_seen() -> None:
    allocator = FakeAllocator(used=5000)
    spare = SpareMemory(allocator, bytes_max=BOUND)
    allocator.used = 500
    assert not spare.look()
    allocator.free = BOUND + 1
    assert spare.look()


def test_the_allocator_of_this_process_can_be_asked() -> None:
    allocator = allocator_here()
    if allocator is not None:
        assert allocator.resident_bytes() > 1_000_000
        assert allocator.free_bytes() >= 0
        allocator.trim()

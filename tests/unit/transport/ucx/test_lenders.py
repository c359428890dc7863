"""How much of a server's memory one stream is lent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from barrage.errors import TransportUnavailableError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.transport.shared_memory import Arena
from barrage.transport.ucx.lenders import RemoteMemoryLender, SharedMemoryLender
from barrage.transport.ucx.sender import BodyLender, LentBody

LIMITS = replace(DEFAULT_LIMITS, body_arena_bytes=8 << 20, body_segment_bytes=4 << 20)
Make = Callable[[Limits], BodyLender]


class Memory:
    """Remote memory without a library: three places."""

    key = b"key"

    def __init__(self) -> None:
        self.free_places = {1 << 20, 2 << 20, 3 << 20}
        self.freed: list[tuple[int, int]] = []

    def place(self, parts: Sequence[Any], byte_count: int) -> int | None:
        return self.free_places.pop() if self.free_places else None

    def free(self, address: int, byte_count: int) -> None:
        self.free_places.add(address)
        self.freed.append((address, byte_count))


@pytest.fixture(params=["shm", "rma"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "rma":
        memory: Any = Memory()
        yield lambda limits: RemoteMemoryLender(memory, limits)
        return
    try:
        arena = Arena.create(LIMITS)
    except TransportUnavailableError as error:
        pytest.skip(str(error))
    yield lambda limits: SharedMemoryLender(arena, limits)
    arena.close()


def lend(lender: BodyLender, size: int) -> LentBody | None:
    return lender.lend([b"x" * size], size)


@pytest.mark.parametrize("limit", [{"body_window_count": 2}, {"body_window_bytes": 200}], ids=str)
def test_a_stream_is_lent_its_window_and_no_more(make: Make, limit: dict[str, int]) -> None:
    lender = make(replace(LIMITS, **limit))
    one, two = lend(lender, 100), lend(lender, 100)
    assert one is not None
    assert two is not None
    assert one.address != two.address
    assert not lender.has_room(1)
    assert lend(lender, 1) is None
    one.take_back()
    one.take_back()  # Only the first time counts.
    assert lender.has_room(100)
    assert lend(lender, 100) is not None
    assert lend(lender, 1) is None


def test_memory_that_is_full_lends_nothing() -> None:
    memory: Any = Memory()
    lender = RemoteMemoryLender(memory, LIMITS)
    lent = [lend(lender, 10) for _ in range(4)]
    assert [each is None for each in lent] == [False, False, False, True]


def test_what_a_client_did_not_give_back_is_free_when_it_is_gone() -> None:
    memory: Any = Memory()
    lender = RemoteMemoryLender(memory, LIMITS)
    one, two = lend(lender, 10), lend(lender, 20)
    assert one is not None
    assert two is not None
    one.take_back()
    lender.close()
    lender.close()
    assert memory.freed == [(one.address, 10), (two.address, 20)]

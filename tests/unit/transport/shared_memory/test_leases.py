"""What a stream has been lent, and what becomes of it when the stream ends."""

from __future__ import annotations

import pytest

from barrage.errors import BodyChannelError, LimitExceededError
from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable
from tests.unit.transport.shared_memory.bodies import KIB, SMALL, content, fill, placed


def test_lease_keeps_the_region_until_it_is_given_back(arena: Arena) -> None:
    leases = LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    address = region.address
    leases.grant(region, 7)
    del region
    assert (leases.count, leases.byte_count, leases.oldest_ns) == (1, KIB, 7)
    assert arena.statistics().bytes_in_use > 0
    assert leases.release([address]) == 1
    assert (leases.count, leases.byte_count, leases.oldest_ns) == (0, 0, None)
    assert arena.statistics().bytes_in_use == 0


def test_addresses_nobody_was_lent_are_ignored(arena: Arena) -> None:
    leases, others = LeaseTable(arena, SMALL), LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    leases.grant(region, 0)
    assert others.release([region.address]) == 0, "leases are a stream's own"
    assert leases.release([0, 2**64 - 1, region.address + 1]) == 0
    assert leases.release([region.address, region.address]) == 1
    assert leases.count == leases.byte_count == 0


def test_region_lent_twice_is_given_back_twice(arena: Arena) -> None:
    leases = LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    leases.grant(region, 1)
    leases.grant(region, 2)
    assert (leases.count, leases.byte_count, leases.oldest_ns) == (2, 2 * KIB, 1)
    address = region.address
    del region
    assert leases.release([address]) == 1
    assert arena.statistics().bytes_in_use > 0
    assert leases.release([address]) == 1
    assert arena.statistics().bytes_in_use == 0


def test_oldest_lease_is_that_of_those_left(arena: Arena) -> None:
    leases = LeaseTable(arena, SMALL)
    regions = [placed(arena, b"x") for _ in range(3)]
    for now_ns, region in enumerate(regions):
        leases.grant(region, now_ns)
    leases.release([regions[0].address])
    assert leases.oldest_ns == 1
    leases.release([regions[2].address])
    assert leases.oldest_ns == 1


@pytest.mark.parametrize("count", [3, 4])
def test_one_stream_is_lent_so_many_and_no_more(arena: Arena, count: int) -> None:
    leases = LeaseTable(arena, Limits(body_window_count=3))
    regions = [placed(arena, b"x") for _ in range(4)]
    for region in regions[:3]:
        leases.grant(region, 0)
    if count > 3:
        with pytest.raises(LimitExceededError, match="lent to one stream is 4"):
            leases.grant(regions[3], 0)
    assert leases.count == 3


def test_unread_leases_of_a_closed_stream_are_free_at_once(
    arena: Arena, mapping: ArenaMapping
) -> None:
    leases = LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    reference = region.reference()
    leases.grant(region, 0)
    del region
    leases.close()
    leases.close()
    assert leases.count == leases.byte_count == 0
    assert arena.statistics().bytes_in_use == 0
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(reference, lambda address: None)


def test_closed_stream_lends_nothing(arena: Arena) -> None:
    leases = LeaseTable(arena, SMALL)
    leases.close()
    leases.grant(placed(arena, b"x"), 0)
    assert leases.count == 0
    assert arena.statistics().bytes_in_use == 0


def test_body_somebody_still_reads_is_an_orphan(arena: Arena, mapping: ArenaMapping) -> None:
    leases = LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    leases.grant(region, 0)
    buffer = mapping.borrow(region.reference(), lambda address: None)
    del region
    leases.close()
    statistics = arena.statistics()
    assert statistics.orphan_count == 1
    assert statistics.bytes_orphaned == statistics.bytes_in_use == KIB + 64
    others = fill(arena, KIB)
    for other in others:
        other.view[:] = b"\xff" * KIB
    assert buffer.to_pybytes() == content(1, KIB)
    del buffer
    again = arena.allocate(KIB)
    assert again is not None, "found when memory is short, without being told"
    assert arena.statistics().orphan_count == 0


def test_lease_of_one_stream_outlives_the_end_of_another(
    arena: Arena, mapping: ArenaMapping
) -> None:
    first, second = LeaseTable(arena, SMALL), LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    reference = region.reference()
    first.grant(region, 0)
    second.grant(region, 0)
    del region
    first.close()
    assert arena.statistics().orphan_count == 0
    assert mapping.copy(reference).to_pybytes() == content(1, KIB)
    second.release([reference.address])
    assert arena.statistics().bytes_in_use == 0


def test_given_back_is_not_believed_while_somebody_reads(
    arena: Arena, mapping: ArenaMapping
) -> None:
    leases = LeaseTable(arena, SMALL)
    region = placed(arena, content(1, KIB))
    leases.grant(region, 0)
    buffer = mapping.borrow(region.reference(), lambda address: None)
    address = region.address
    del region
    assert leases.release([address]) == 1
    for other in fill(arena, KIB):
        other.view[:] = b"\xff" * KIB
    assert buffer.to_pybytes() == content(1, KIB)
    assert arena.statistics().orphan_count == 1


def test_many_orphans_are_found_little_by_little(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrage.transport.shared_memory.arena.ORPHANS_TRIED_MAX", 5)
    leases = LeaseTable(arena, SMALL)
    regions = fill(arena, 5 * KIB)
    count = len(regions)
    for region in regions:
        leases.grant(region, 0)
    buffers = [mapping.borrow(region.reference(), lambda address: None) for region in regions]
    del region
    regions.clear()
    leases.close()
    assert arena.statistics().orphan_count == count
    assert arena.allocate(5 * KIB) is None
    buffers.clear()
    held = [arena.allocate(5 * KIB) for _ in range(count)]
    assert None not in held


def test_one_large_body_takes_the_place_of_several_orphans(
    arena: Arena, mapping: ArenaMapping
) -> None:
    leases = LeaseTable(arena, SMALL)
    regions = fill(arena, 15 * KIB)
    for region in regions:
        leases.grant(region, 0)
    buffers = [mapping.borrow(region.reference(), lambda address: None) for region in regions]
    del region
    regions.clear()
    leases.close()
    assert arena.allocate(60 * KIB) is None
    buffers.clear()
    assert arena.allocate(60 * KIB) is not None

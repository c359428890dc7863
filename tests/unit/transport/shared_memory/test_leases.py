"""What a stream has been lent, and what becomes of it when the stream ends."""

from __future__ import annotations

import pytest

from barrage.errors import BodyChannelError
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable
from tests.unit.transport.shared_memory.bodies import KIB, content, fill, placed


def test_lease_keeps_the_region_until_it_is_given_back(arena: Arena) -> None:
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    address = region.address
    leases.grant(region)
    del region
    assert (leases.count, leases.byte_count) == (1, KIB)
    assert arena.statistics().bytes_in_use > 0
    assert leases.release([address]) == 1
    assert (leases.count, leases.byte_count) == (0, 0)
    assert arena.statistics().bytes_in_use == 0


def test_addresses_nobody_was_lent_are_ignored(arena: Arena) -> None:
    leases, others = LeaseTable(), LeaseTable()
    region = placed(arena, content(1, KIB))
    leases.grant(region)
    assert others.release([region.address]) == 0, "leases are a stream's own"
    assert leases.release([0, 2**64 - 1, region.address + 1]) == 0
    assert leases.release([region.address, region.address]) == 1
    assert leases.count == leases.byte_count == 0


def test_region_lent_twice_is_given_back_twice(arena: Arena) -> None:
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    leases.grant(region)
    leases.grant(region)
    assert (leases.count, leases.byte_count) == (2, 2 * KIB)
    address = region.address
    del region
    assert leases.release([address]) == 1
    assert arena.statistics().bytes_in_use > 0
    assert leases.release([address]) == 1
    assert arena.statistics().bytes_in_use == 0


def test_unread_leases_of_a_closed_stream_are_free_at_once(
    arena: Arena, mapping: ArenaMapping
) -> None:
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    reference = region.reference()
    leases.grant(region)
    del region
    leases.close()
    leases.close()
    assert leases.count == leases.byte_count == 0
    assert arena.statistics().bytes_in_use == 0
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(reference, lambda address: None)


def test_closed_stream_lends_nothing(arena: Arena) -> None:
    leases = LeaseTable()
    leases.close()
    leases.grant(placed(arena, b"x"))
    assert leases.count == 0
    assert arena.statistics().bytes_in_use == 0


def test_body_somebody_still_reads_is_an_orphan(arena: Arena, mapping: ArenaMapping) -> None:
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    leases.grant(region)
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


def test_body_a_client_knows_by_its_address_alone_is_kept_from_others(
    arena: Arena, mapping: ArenaMapping
) -> None:
    """Clients of the plain protocol are told no more."""
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    leases.grant(region)
    reference = mapping.reference_at(region.address, KIB)
    buffer = mapping.borrow(reference, lambda address: None)
    del region
    leases.close()
    assert arena.statistics().orphan_count == 1
    for other in fill(arena, KIB):
        other.view[:] = b"\xff" * KIB
    assert buffer.to_pybytes() == content(1, KIB)


def test_lease_of_one_stream_outlives_the_end_of_another(
    arena: Arena, mapping: ArenaMapping
) -> None:
    first, second = LeaseTable(), LeaseTable()
    region = placed(arena, content(1, KIB))
    reference = region.reference()
    first.grant(region)
    second.grant(region)
    del region
    first.close()
    assert arena.statistics().orphan_count == 0
    assert mapping.copy(reference).to_pybytes() == content(1, KIB)
    second.release([reference.address])
    assert arena.statistics().bytes_in_use == 0


def test_given_back_is_not_believed_while_somebody_reads(
    arena: Arena, mapping: ArenaMapping
) -> None:
    leases = LeaseTable()
    region = placed(arena, content(1, KIB))
    leases.grant(region)
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
    leases = LeaseTable()
    regions = fill(arena, 5 * KIB)
    count = len(regions)
    for region in regions:
        leases.grant(region)
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
    leases = LeaseTable()
    regions = fill(arena, 15 * KIB)
    for region in regions:
        leases.grant(region)
    buffers = [mapping.borrow(region.reference(), lambda address: None) for region in regions]
    del region
    regions.clear()
    leases.close()
    assert arena.allocate(60 * KIB) is None
    buffers.clear()
    assert arena.allocate(60 * KIB) is not None

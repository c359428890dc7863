"""Bodies of type 1 in shared memory: lent, given back, and lists that lie."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import BarrageError, TransportUnavailableError
from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping
from barrage.transport.ucx.range_readers import ReleaseSender, SharedMemoryReader
from barrage.transport.ucx.stream_server import new_tag
from barrage.transport.ucx.table_streams import BodyPlace, OfferedTable
from barrage.wire.dissociated.ranges import (
    BodyRange,
    decode_ranges,
    encode_addresses,
    encode_ranges,
)
from barrage.wire.dissociated.tags import BodyType, decode_tag, encode_tag
from barrage.wire.ipc import decode_batch_header
from tests.helpers.fake_ucx import FakeChannel
from tests.helpers.ucx_streams import (
    SMALL,
    Peer,
    Service,
    Taken,
    messages_of,
    quiet,
    receive_from,
    sample,
    settle,
    take,
    until,
)

LIMITS = replace(
    SMALL, body_arena_bytes=64 << 20, body_segment_bytes=8 << 20, body_inline_bytes_max=1024
)
LARGE = sample(20_000)
PLAIN = sample(500).drop_columns("word")
"""One batch, no dictionary."""


@pytest.fixture
def arena() -> Iterator[Arena]:
    try:
        arena = Arena.create(LIMITS)
    except TransportUnavailableError as error:
        pytest.skip(str(error))
    yield arena
    arena.close()


def reader_of(
    offered: OfferedTable, channel: FakeChannel, limits: Limits = LIMITS
) -> SharedMemoryReader:
    assert offered.bodies is not None
    assert offered.bodies.remote_handle is not None
    assert offered.bodies.free_data is not None
    mapping = ArenaMapping.open(offered.bodies.remote_handle.decode())
    return SharedMemoryReader(
        mapping, ReleaseSender(channel, offered.bodies.free_data, limits), limits
    )


def run(play: Any) -> None:
    asyncio.run(asyncio.wait_for(play, 60))


async def lent(service: Service, table: pa.Table) -> tuple[Taken, SharedMemoryReader]:
    offered = service.offer(table, place=BodyPlace.SHM)
    client = service.connect()
    reader = reader_of(offered, client, service.limits)
    return await take(offered, client, reader=reader), reader


def test_arrays_lie_in_the_servers_memory_until_nobody_has_them(arena: Arena) -> None:
    async def play() -> None:
        async with Service(replace(LIMITS, body_window_bytes=64 << 20), arena=arena) as service:
            table = sample(5000)
            taken, reader = await lent(service, table)
            await taken.batches.open()
            batches = [batch async for batch in taken.batches]
            assert pa.Table.from_batches(batches).equals(table)
            count = len(messages_of(table)) - 2  # but for the schema and the dictionary
            assert (reader.lent_count, reader.copied_count) == (min(count, 4), max(count - 4, 0))
            kinds = [decode_tag(tag).body_type for tag in taken.bodies.fetched_tags]
            assert kinds == [BodyType.PACKED] + [BodyType.RANGES] * count
            kept = batches[0].column("text").slice(3, 5)
            del batches
            gc.collect()
            await until(lambda: reader.lent_count == 1)
            await until(lambda: arena.statistics().bytes_in_use > 0)
            assert kept.to_pylist() == [f"row {n}" for n in range(3, 8)]
            del kept
            gc.collect()
            await until(lambda: arena.statistics().bytes_in_use == 0)
            await taken.close()

    run(play())


def test_who_keeps_everything_gets_copies_and_never_waits(arena: Arena) -> None:
    async def play() -> None:
        # So patient that one body that is not given back would take all the time of the test.
        async with Service(
            replace(LIMITS, body_wait_ns_max=60_000_000_000), arena=arena
        ) as service:
            taken, reader = await lent(service, LARGE)
            assert (await taken.table()).equals(LARGE)
            assert reader.copied_count > 0
            await until(lambda: service.tables.served_count == 1)
            assert decode_tag(taken.bodies.fetched_tags[-1]).body_type is BodyType.RANGES

    run(play())


def test_what_a_client_keeps_when_it_goes_is_not_used_again(arena: Arena) -> None:
    async def play() -> None:
        async with Service(LIMITS, arena=arena) as service:
            table = sample(1000)
            taken, _ = await lent(service, table)
            got = await taken.table()
            await until(lambda: not service.tables.running_count)
            for _ in range(3):  # The arena is busy with others.
                again, _ = await lent(service, sample(1000).slice(500))
                await again.table()
            assert got.equals(table)

    run(play())


def test_a_client_that_is_gone_gives_everything_back(arena: Arena) -> None:
    async def play() -> None:
        async with Service(LIMITS, arena=arena) as service:
            offered = service.offer(LARGE, place=BodyPlace.SHM, is_one_location=True)
            client = service.connect()
            assert offered.metadata is not None
            await client.send_tagged(offered.metadata.want_data, offered.ticket)
            await until(lambda: client.waiting_tags)
            assert arena.statistics().bytes_in_use > 0
            await client.close()
            await until(lambda: not service.tables.running_count)
            statistics = arena.statistics()
            assert statistics.bytes_in_use - statistics.bytes_orphaned <= 0

    run(play())


def test_a_client_that_keeps_a_body_too_long_is_cut_off(arena: Arena) -> None:
    async def play() -> None:
        limits = replace(LIMITS, body_lease_ns_max=1_000_000_000, stall_ns_max=10_000_000_000)
        async with Service(limits, arena=arena) as service:
            taken, reader = await lent(service, sample(100))
            await taken.batches.open()
            batches = [batch async for batch in taken.batches]
            assert reader.lent_count == 1
            # Giving back what is not lent does not help.
            for _ in range(10):
                assert reader._releases is not None
                reader._releases.release((12345,))
                await asyncio.sleep(0.03)
            await until(lambda: taken.bodies.lost)
            assert batches[0].num_rows == 100
            await taken.close()

    run(play())


def test_what_is_lent_may_be_kept_longer_than_a_client_may_take_nothing(arena: Arena) -> None:
    async def play() -> None:
        limits = replace(LIMITS, stall_ns_max=1_000_000_000)
        async with Service(limits, arena=arena) as service:
            taken, _ = await lent(service, sample(100))
            await taken.batches.open()
            batches = [batch async for batch in taken.batches]
            await asyncio.sleep(1.5)
            assert taken.bodies.lost is None
            del batches
            gc.collect()
            await until(lambda: taken.bodies.lost)  # it has everything and stays
            assert service.tables.served_count == 1
            await taken.close()

    run(play())


def test_what_is_given_back_by_strangers_to_it_does_not_matter(arena: Arena) -> None:
    async def play() -> None:
        async with Service(LIMITS, arena=arena) as service:
            offered = service.offer(sample(100), place=BodyPlace.SHM)
            client = service.connect()
            reader = reader_of(offered, client)
            taken = await take(offered, client, reader=reader)
            assert offered.bodies is not None
            assert offered.bodies.free_data is not None
            await taken.batches.open()
            await client.send_tagged(offered.bodies.free_data, encode_addresses([0, 7, 2**64 - 1]))
            batches = [batch async for batch in taken.batches]
            assert arena.statistics().bytes_in_use > 0
            assert len(batches) == 1
            await taken.close()

    run(play())


@pytest.mark.parametrize("junk", [b"", b"1234567", b"\0" * 9])
def test_a_release_that_is_none_closes_the_connection(arena: Arena, junk: bytes) -> None:
    async def play() -> None:
        async with Service(LIMITS, arena=arena) as service:
            offered = service.offer(LARGE, place=BodyPlace.SHM)
            client = service.connect()
            await take(offered, client, reader=reader_of(offered, client))
            assert offered.bodies is not None
            assert offered.bodies.free_data is not None
            quiet(client.send_tagged(offered.bodies.free_data, junk))
            await until(lambda: client.lost)

    run(play())


def test_a_release_past_the_limit_is_not_even_fetched(arena: Arena) -> None:
    async def play() -> None:
        async with Service(replace(LIMITS, body_ranges_max=100), arena=arena) as service:
            offered = service.offer(PLAIN, place=BodyPlace.SHM, is_one_location=True)
            client = service.connect()
            at = offered.metadata
            assert at is not None
            assert at.free_data is not None
            await client.send_tagged(at.want_data, offered.ticket)
            await until(lambda: client.waiting_tags)
            await client.send_tagged(at.free_data, encode_addresses([1] * 100))
            await settle()
            assert client.lost is None
            await client.send_tagged(at.free_data, encode_addresses([1] * 101))
            await until(lambda: client.lost)
            assert client.peer.discarded_tags == [at.free_data]

    run(play())


def test_a_client_that_takes_no_lists_is_cut_off(arena: Arena) -> None:
    """Long before the bodies behind them have been lent for too long."""

    async def play() -> None:
        limits = replace(LIMITS, stall_ns_max=200_000_000)
        async with Service(limits, arena=arena) as service:
            offered = service.offer(PLAIN, place=BodyPlace.SHM, is_one_location=True)
            client = service.connect()
            assert offered.metadata is not None
            await client.send_tagged(offered.metadata.want_data, offered.ticket)
            await until(lambda: client.waiting_tags)
            await until(lambda: client.lost)
            assert service.tables.served_count == 0
            await until(lambda: arena.statistics().bytes_in_use == 0)

    run(play())


def test_a_body_is_back_when_all_its_buffers_are(arena: Arena) -> None:
    async def play() -> None:
        async with Service(LIMITS, arena=arena) as service:
            offered = service.offer(PLAIN, place=BodyPlace.SHM, is_one_location=True)
            client = service.connect()
            at = offered.metadata
            assert at is not None
            assert at.free_data is not None
            await client.send_tagged(at.want_data, offered.ticket)
            await until(lambda: client.waiting_tags)
            listed = await client.receive(client.probe())
            ranges = decode_ranges(memoryview(listed)).ranges
            first, *others = sorted({each.address for each in ranges if each.length})
            assert others
            for _ in range(3):  # Only the first time counts.
                client.send_tagged(at.free_data, encode_addresses([first]))
            client.send_tagged(at.free_data, encode_addresses(others[:-1]))
            await settle()
            assert arena.statistics().bytes_in_use > 0
            client.send_tagged(at.free_data, encode_addresses(others[-1:]))
            await until(lambda: arena.statistics().bytes_in_use == 0)
            assert client.lost is None
            await client.close()

    run(play())


def test_an_arena_without_room_sends_the_bytes(arena: Arena) -> None:
    async def play() -> None:
        tiny = replace(LIMITS, body_arena_bytes=1 << 20, body_segment_bytes=1 << 20)
        small = Arena.create(tiny)
        try:
            blocked = small.allocate(900_000)
            assert blocked is not None
            async with Service(LIMITS, arena=small) as service:
                taken, _ = await lent(service, LARGE)
                assert (await taken.table()).equals(LARGE)
                kinds = {decode_tag(tag).body_type for tag in taken.bodies.fetched_tags}
                assert BodyType.PACKED in kinds
        finally:
            del blocked
            small.close()

    run(play())


def test_memory_that_is_not_ours_to_map_is_refused() -> None:
    for name in ("barrage-../../etc/passwd", "barrage-" + "0" * 32):
        with pytest.raises(TransportUnavailableError):
            ArenaMapping.open(name)


Lie = Callable[[list[BodyRange], int], bytes]

LIES: dict[str, Lie] = {
    "cut off": lambda ranges, total: encode_ranges(ranges, total)[:-8],
    "too long": lambda ranges, total: encode_ranges(ranges, total) + b"\0" * 8,
    "nothing": lambda ranges, total: b"",
    "fewer than the header has": lambda ranges, total: encode_ranges(ranges[:-1], total),
    "more than the header has": lambda ranges, total: encode_ranges(
        [*ranges, BodyRange(1 << 39, 8)], total + 8
    ),
    "total under the sum": lambda ranges, total: encode_ranges(ranges, 8),
    "total past the limit": lambda ranges, total: encode_ranges(ranges, 1 << 40),
    "overlapping": lambda ranges, total: encode_ranges(
        [BodyRange(ranges[1].address, each.length) for each in ranges], total
    ),
    "past the end of the address space": lambda ranges, total: encode_ranges(
        [BodyRange(2**64 - 4, each.length) for each in ranges], total
    ),
    "in a segment there is not": lambda ranges, total: _moved(ranges, total, 77 << 40),
    "behind the end of the segment": lambda ranges, total: _moved(ranges, total, 1 << 30),
    "not at the beginning of a body": lambda ranges, total: _moved(ranges, total, 64),
    "unaligned": lambda ranges, total: _moved(ranges, total, 4),
    "other lengths": lambda ranges, total: encode_ranges(
        [BodyRange(each.address, each.length // 2) for each in ranges], total
    ),
    "scattered": lambda ranges, total: encode_ranges(
        [BodyRange(each.address + (i << 20), each.length) for i, each in enumerate(ranges)], total
    ),
}


def _moved(ranges: list[BodyRange], total: int, by: int) -> bytes:
    return encode_ranges([BodyRange(each.address + by, each.length) for each in ranges], total)


@pytest.mark.parametrize("lie", LIES)
def test_lists_that_lie_end_the_stream(arena: Arena, lie: str) -> None:
    async def play() -> None:
        messages = messages_of(PLAIN)
        message = messages[1]
        assert message.parts is not None
        region = arena.place(message.parts, message.body_bytes)
        assert region is not None
        buffers = decode_batch_header(message.header, message.body_bytes).buffers
        ranges = [
            BodyRange(region.address + offset, length)
            for offset, length in zip(buffers[::2], buffers[1::2], strict=True)
        ]
        client, server = FakeChannel.pair()
        releases = ReleaseSender(client, new_tag(), LIMITS)
        reader = SharedMemoryReader(ArenaMapping.open(arena.name), releases, LIMITS)
        taken, peer = receive_from(client, reader=reader, limits=LIMITS), Peer(server, messages)
        peer.header(0)
        peer.header(1)
        body = LIES[lie](ranges, message.body_bytes)
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), body))
        with pytest.raises(BarrageError) as caught:
            await taken.table()
        assert "nothing came" not in str(caught.value)
        assert ("do not lie together" in str(caught.value)) == (lie == "scattered")
        assert reader.lent_count == 0
        await taken.close()

    run(play())


def test_the_truth_is_believed(arena: Arena) -> None:
    """The same message as above, as it should be: with its list before its header, too."""

    async def play(*, is_early: bool) -> None:
        messages = messages_of(PLAIN)
        message = messages[1]
        assert message.parts is not None
        region = arena.place(message.parts, message.body_bytes)
        assert region is not None
        buffers = decode_batch_header(message.header, message.body_bytes).buffers
        ranges = [
            BodyRange(region.address + offset, length)
            for offset, length in zip(buffers[::2], buffers[1::2], strict=True)
        ]
        client, server = FakeChannel.pair()
        releases = ReleaseSender(client, new_tag(), LIMITS)
        reader = SharedMemoryReader(ArenaMapping.open(arena.name), releases, LIMITS)
        taken, peer = receive_from(client, reader=reader, limits=LIMITS), Peer(server, messages)
        tag = encode_tag(BodyType.RANGES, 1)
        steps: list[Callable[[], object]] = [lambda: peer.header(1), lambda: peer.header(0)]
        steps.insert(
            0 if is_early else 2,
            lambda: server.send_tagged(tag, encode_ranges(ranges, message.body_bytes)),
        )
        for step in steps:
            step()
            await settle()
        peer.end(2)
        assert len(messages) == 2
        assert (await taken.table()).equals(PLAIN)

    run(play(is_early=True))
    run(play(is_early=False))

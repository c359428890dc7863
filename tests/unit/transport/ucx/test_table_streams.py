"""Tables served to clients of the protocol, over connections without a library."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import LimitExceededError, TransportError
from barrage.transport.ucx import StreamHalf, sender
from barrage.wire.dissociated.tags import BodyType, decode_tag
from barrage.wire.dissociated.untagged import EndMessage, HeaderMessage, decode_untagged
from tests.helpers.fake_ucx import FakeChannel
from tests.helpers.ucx_streams import (
    HASTY,
    SMALL,
    Service,
    messages_of,
    sample,
    settle,
    take,
    until,
)

LARGE = sample(20_000)


def run(play: Any) -> None:
    asyncio.run(asyncio.wait_for(play, 60))


async def gone(service: Service) -> None:
    """Until the server has nothing left of any stream."""
    await until(lambda: not service.server.connection_count + service.tables.running_count)


@pytest.mark.parametrize("arrangement", ["two connections", "one connection", "one location"])
@pytest.mark.parametrize("rows", [0, 1, 1000, 20_000])
def test_a_table_arrives_as_it_is(arrangement: str, rows: int) -> None:
    async def play() -> None:
        async with Service() as service:
            table = sample(rows)
            is_one = arrangement == "one location"
            offered = service.offer(table, is_one_location=is_one)
            assert (offered.metadata == offered.bodies) == is_one
            metadata = service.connect()
            bodies = service.connect() if arrangement == "two connections" else metadata
            taken = await take(offered, metadata, bodies)
            assert (await taken.table()).equals(table)
            await gone(service)
            assert service.tables.served_count == 1

    run(play())


def test_headers_and_bodies_from_two_servers() -> None:
    from barrage.transport.ucx.table_streams import StreamHalf

    async def play() -> None:
        ticket = b"agreed upon elsewhere"
        async with Service() as headers, Service() as bodies:
            told = headers.offer(LARGE, halves=(StreamHalf.METADATA,), ticket=ticket)
            sent = bodies.offer(LARGE, halves=(StreamHalf.BODIES,), ticket=ticket)
            assert told.bodies is None
            assert sent.metadata is None
            both = replace(told, bodies=sent.bodies)
            taken = await take(both, headers.connect(), bodies.connect())
            assert (await taken.table()).equals(LARGE)
            await gone(headers)
            await gone(bodies)

    run(play())


@pytest.mark.parametrize("first", [2**32 - 2, 2**32 - 1])
def test_numbers_roll_over(first: int) -> None:
    async def play() -> None:
        async with Service() as service:
            offered = service.offer(LARGE, first_sequence=first)
            client = service.connect()
            taken = await take(offered, client, first=first)
            assert (await taken.table()).equals(LARGE)
            assert (
                min(map(_number, client.fetched_tags))
                < 100
                < max(map(_number, [first, *client.fetched_tags]))
            )

    run(play())


def _number(tag: int) -> int:
    return decode_tag(tag).sequence


def test_two_streams_at_once_do_not_mix() -> None:
    async def play() -> None:
        async with Service() as service:
            tables = [sample(5000), sample(7000).slice(1000)]
            takings = [await take(service.offer(t), service.connect()) for t in tables]
            got = await asyncio.gather(*(taken.table() for taken in takings))
            assert [g.equals(t) for g, t in zip(got, tables, strict=True)] == [True, True]

    run(play())


async def claimed_by_hand(service: Service, table: pa.Table) -> tuple[FakeChannel, list[Any]]:
    offered = service.offer(table, is_one_location=True)
    client = service.connect()
    untagged: list[Any] = []
    client.on_untagged = lambda data: untagged.append(decode_untagged(bytes(data)))
    assert offered.metadata is not None
    await client.send_tagged(offered.metadata.want_data, offered.ticket, synchronous=True)
    return client, untagged


def test_bodies_under_way_are_bounded_by_the_window() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, body_wait_ns_max=1_000_000)) as service:
            client, _ = await claimed_by_hand(service, LARGE)
            messages = messages_of(LARGE)
            largest = max(message.body_bytes for message in messages)
            fetched = 0
            while fetched < len(messages) - 1:
                await asyncio.sleep(0.002)
                assert client.waiting_bytes_max <= SMALL.body_window_bytes + largest
                assert len(client.waiting_tags) <= SMALL.body_window_count
                await until(lambda: client.waiting_tags)
                client.receive(client.probe())
                fetched += 1
            await client.close()
            await gone(service)

    run(play())


def test_small_bodies_under_way_are_bounded_by_their_number() -> None:
    async def play() -> None:
        limits = replace(SMALL, body_wait_ns_max=1_000_000, message_bytes_target=512)
        async with Service(limits) as service:
            client, _ = await claimed_by_hand(service, sample(2000))
            assert len(messages_of(sample(2000), limits)) > 3 * limits.body_window_count
            await until(lambda: len(client.waiting_tags) == limits.body_window_count)
            await settle()
            assert len(client.waiting_tags) == limits.body_window_count
            await client.close()
            await gone(service)

    run(play())


@pytest.mark.parametrize("bound", ["bytes", "count"])
def test_headers_run_ahead_of_bodies_up_to_a_bound(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes that are kept back, and of messages; what is taken makes room for more."""
    limits = replace(SMALL, body_wait_ns_max=1_000_000, stall_ns_max=1_500_000_000)
    messages = messages_of(LARGE, limits)
    largest = max(message.body_bytes for message in messages)
    if bound == "bytes":
        limits = replace(limits, body_arena_bytes=3 * largest)
    else:
        monkeypatch.setattr(sender, "HEADERS_AHEAD_MAX", 3)

    async def play() -> None:
        async with Service(limits) as service:
            client, untagged = await claimed_by_hand(service, LARGE)
            await gone(service)  # it took nothing for too long
            in_window = len(client.waiting_tags)
            assert len(messages) > in_window + 10
            assert 2 < len(untagged) - in_window < 8

            client, untagged = await claimed_by_hand(service, LARGE)
            for _ in range(len(messages) - 1):
                await until(lambda: client.waiting_tags)
                client.receive(client.probe())
            await until(lambda: isinstance(untagged[-1], EndMessage))
            await client.close()

    run(play())


def test_a_client_may_want_all_headers_before_any_body() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, body_wait_ns_max=1_000_000)) as service:
            client, untagged = await claimed_by_hand(service, LARGE)
            count = len(messages_of(LARGE))
            await until(lambda: untagged and isinstance(untagged[-1], EndMessage))
            headers = [message for message in untagged if isinstance(message, HeaderMessage)]
            assert [header.sequence for header in headers] == list(range(count))
            assert untagged[-1] == EndMessage(count)
            numbers = []
            while len(numbers) < count - 1:
                probed = client.probe()
                if probed is None:
                    await asyncio.sleep(0)
                    continue
                client.receive(probed)
                numbers.append(_number(probed.tag))
            assert sorted(numbers) == list(range(1, count))
            await client.close()
            await gone(service)

    run(play())


def test_a_client_may_want_bodies_from_the_last_to_the_first() -> None:
    async def play() -> None:
        limits = replace(SMALL, body_wait_ns_max=1_000_000)
        async with Service(limits) as service:
            table = sample(4000)
            client, _ = await claimed_by_hand(service, table)
            count = len(messages_of(table))
            assert 3 < count <= limits.body_window_count
            for wanted in reversed(range(1, count)):
                await until(lambda n=wanted: n in map(_number, client.waiting_tags))
                client.receive(client.probe(wanted, 0xFFFFFFFF))
            await client.close()
            await gone(service)

    run(play())


def test_every_batch_has_a_body_message_also_when_it_has_no_bytes() -> None:
    async def play() -> None:
        async with Service() as service:
            table = pa.table({"nothing": pa.nulls(10)})
            client, untagged = await claimed_by_hand(service, table)
            await until(lambda: untagged and isinstance(untagged[-1], EndMessage))
            await until(lambda: client.waiting_tags)
            assert untagged[-1] == EndMessage(2)
            assert client.waiting_tags == [1]
            await client.close()

    run(play())


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, stall_ns_max=100_000_000)) as service:
            client, _ = await claimed_by_hand(service, LARGE)
            await gone(service)
            await until(lambda: client.lost)
            assert service.tables.served_count == 0

    run(play())


def test_a_client_that_has_everything_and_stays_is_cut_off() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, stall_ns_max=100_000_000)) as service:
            client, _ = await claimed_by_hand(service, sample(10))
            await until(lambda: client.waiting_tags)
            client.receive(client.probe())
            await gone(service)
            await until(lambda: client.lost)

    run(play())


def test_a_client_that_goes_in_the_middle_leaves_nothing_behind() -> None:
    async def play() -> None:
        async with Service() as service:
            client, _ = await claimed_by_hand(service, LARGE)
            await settle()
            await client.close()
            await gone(service)
            assert service.tables.served_count == 0

    run(play())


def test_closing_does_not_wait_for_clients_that_take_nothing() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, stall_ns_max=60_000_000_000)) as service:
            client, _ = await claimed_by_hand(service, LARGE)
            await until(lambda: service.tables.running_count == 1)
            await asyncio.wait_for(service.tables.close(), 60)
            assert service.tables.running_count == 0
            await until(lambda: client.lost)

    run(play())


def test_half_a_stream_is_not_waited_for_for_ever() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, body_ticket_ns=1_500_000_000)) as service:
            offered = service.offer(LARGE)
            client = service.connect()
            assert offered.metadata is not None
            await client.send_tagged(offered.metadata.want_data, offered.ticket)
            await settle()
            assert client.lost is None
            await gone(service)
            await until(lambda: client.lost)

    run(play())


def test_a_stream_that_is_whole_is_given_all_the_time_it_takes() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, body_ticket_ns=1_500_000_000)) as service:
            taken = await take(service.offer(LARGE), service.connect())
            await taken.batches.open()
            await asyncio.sleep(1.8)
            assert taken.metadata.lost is None
            batches = [batch async for batch in taken.batches]
            assert pa.Table.from_batches(batches).equals(LARGE)
            await taken.close()

    run(play())


def test_rows_that_cannot_be_had_close_the_stream() -> None:
    async def play() -> None:
        async def broken() -> Any:
            raise TransportError("the table is gone")

        async with Service() as service:
            offered = service.tables.offer(broken, is_one_location=True)
            client = service.connect()
            assert offered.metadata is not None
            await client.send_tagged(offered.metadata.want_data, offered.ticket)
            await settle()
            assert client.lost is not None
            await gone(service)

    run(play())


def test_rows_are_read_when_the_ticket_is_shown() -> None:
    async def play() -> None:
        async with Service() as service:
            asked = 0

            async def rows() -> Any:
                nonlocal asked
                asked += 1
                return iter(messages_of(sample(10)))

            offered = service.tables.offer(rows)
            await settle()
            assert asked == 0
            taken = await take(offered, service.connect())
            assert (await taken.table()).num_rows == 10
            assert asked == 1

    run(play())


def test_places_that_are_not_there_are_refused() -> None:
    from barrage.transport.ucx.table_streams import BodyPlace

    async def play() -> None:
        async with Service() as service:
            for place in (BodyPlace.SHM, BodyPlace.RMA):
                with pytest.raises(TransportError, match="leaves no bodies"):
                    service.offer(LARGE, place=place)
            assert service.server.offer_count == 0

    run(play())


def test_bodies_are_of_type_0_without_memory() -> None:
    async def play() -> None:
        async with Service() as service:
            client, _ = await claimed_by_hand(service, sample(10))
            await until(lambda: client.waiting_tags)
            assert decode_tag(client.waiting_tags[0]).body_type is BodyType.PACKED

    run(play())


def test_half_an_offer_is_taken_back_when_the_other_half_cannot_be_made() -> None:
    async def play() -> None:
        async with Service(replace(SMALL, body_channels_max=1)) as service:
            with pytest.raises(LimitExceededError):
                service.offer(sample(10))
            assert service.server.offer_count == 0
            service.offer(sample(10), is_one_location=True)

    run(play())


class Slow(FakeChannel):
    """A server's end whose messages wait in the socket, as those to a stopped client do."""

    def send_untagged(self, data: Any) -> asyncio.Future[None]:
        self.waiting_untagged = getattr(self, "waiting_untagged", 0) + 1
        return self._begin()


def test_headers_to_a_client_that_takes_none_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream whose bodies another server sends, too."""
    monkeypatch.setattr(sender, "HEADERS_AHEAD_MAX", 10)

    async def play() -> None:
        limits = replace(HASTY, body_wait_ns_max=1_000_000, message_bytes_target=512)
        async with Service(limits) as service:
            offered = service.offer(LARGE, halves=(StreamHalf.METADATA,))
            client, server = Slow.pair()
            service.listener._on_connection(server)
            assert offered.metadata is not None
            await client.send_tagged(offered.metadata.want_data, offered.ticket)
            await gone(service)
            most = limits.body_window_count + 10
            assert most // 2 < server.waiting_untagged <= most + 1
            assert service.tables.served_count == 0

    run(play())


class Storied(FakeChannel):
    """A server's end that remembers in which order it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[str] = []

    def send_untagged(self, data: Any) -> asyncio.Future[None]:
        self.story.append("end" if len(data) == 5 else "header")
        return super().send_untagged(data)

    def flush(self) -> asyncio.Future[None]:
        self.story.append("flush")
        return super().flush()


def test_the_end_waits_until_the_headers_have_left() -> None:
    async def play() -> None:
        async with Service() as service:
            offered = service.offer(sample(10), is_one_location=True)
            client, server = Storied.pair()
            service.listener._on_connection(server)
            taken = await take(offered, client)
            assert (await taken.table()).num_rows == 10
            assert server.story == ["header", "header", "header", "flush", "end"]

    run(play())


# --- what foreign clients see of a table ----------------------------------------------------------


async def fetched(service: Service, table: pa.Table) -> pa.Table:
    offered = service.offer(table)
    return await (await take(offered, service.connect(), service.connect())).table()


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("index", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_indexes_of_dictionaries_keep_their_type(index: str, rows: int) -> None:
    words = pa.array(["a", "b", None][:rows], pa.string()).dictionary_encode()
    kind = pa.dictionary(pa.type_for_alias(index), pa.string(), ordered=True)
    table = pa.table({"word": words.cast(pa.dictionary(kind.index_type, pa.string())).cast(kind)})

    async def play() -> None:
        async with Service() as service:
            got = await fetched(service, table)
            assert got.schema.equals(table.schema)
            assert got.equals(table)

    run(play())


def narrow(first: int, count: int) -> pa.Array:
    """Words from number ``first`` on, in a dictionary of their own."""
    indexes = pa.array(range(count), pa.int8())
    words = [f"word {number}" for number in range(first, first + count)]
    return pa.DictionaryArray.from_arrays(indexes, words)


@pytest.mark.parametrize("sizes", [[127, 1], [128, 1], [100, 100, 27, 1, 126], [128, 128]])
def test_dictionaries_that_do_not_fit_together_travel_one_by_one(sizes: list[int]) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    chunks = [narrow(*each) for each in zip(starts, sizes, strict=True)]
    table = pa.table({"word": pa.chunked_array(chunks), "number": range(sum(sizes))})

    async def play() -> None:
        async with Service() as service:
            got = await fetched(service, table)
            assert got.to_pylist() == table.to_pylist()
            assert got.schema.equals(table.schema)

    run(play())


def test_no_rows_are_one_batch_of_none() -> None:
    table = sample(0)
    schema, *batches = messages_of(table)
    assert schema.parts is None
    assert len(batches) == 2, "a dictionary, and a batch"

    async def play() -> None:
        async with Service() as service:
            taken = await take(service.offer(table), service.connect(), service.connect())
            await taken.batches.open()
            received = [batch async for batch in taken.batches]
            await taken.close()
            assert [batch.num_rows for batch in received] == [0]
            assert received[0].schema.equals(table.schema)

    run(play())


def test_bodies_are_counted_until_their_client_has_them() -> None:
    async def play() -> None:
        async with Service() as service:
            sent = service.tables.sent
            bodies = [each for each in messages_of(LARGE) if each.parts is not None]
            client, _ = await claimed_by_hand(service, LARGE)
            await until(lambda: sent.pending_bytes >= SMALL.body_window_bytes)
            assert sent.count == sent.pending_count
            assert 0 < sent.pending_bytes == sent.byte_count
            await client.close()
            await gone(service)
            assert (sent.pending_count, sent.pending_bytes) == (0, 0)
            before = (sent.count, sent.byte_count)
            await fetched(service, LARGE)
            await gone(service)
            assert sent.count == before[0] + len(bodies)
            assert sent.byte_count == before[1] + sum(each.body_bytes for each in bodies)
            assert (sent.pending_count, sent.pending_bytes) == (0, 0)

    run(play())

"""Messages of every kind between two ends of a connection."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import ConnectionLostError, LocalProtocolError
from barrage.transport.ucx import ErrorMode, Received, UcxLibrary, worker
from tests.ucx.pair import Inbox, ends, pair, until

MODES = pytest.mark.parametrize("error_mode", list(ErrorMode))
SIZES = (0, 1, 5, 8_000, 100_000, 3_000_000)


def content(size: int) -> bytes:
    return bytes(np.arange(size, dtype=np.uint32).astype(np.uint8))


@MODES
def test_untagged_messages_of_every_size_arrive_whole_both_ways(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario() -> None:
        async with pair(library, error_mode=error_mode) as connections:
            inboxes = [Inbox(connection) for connection in connections]
            for sender, inbox in zip(connections, reversed(inboxes), strict=True):
                for size in SIZES:
                    await sender.send_untagged(content(size))
                await until(lambda: len(inbox.untagged) == len(SIZES))  # noqa: B023
                assert sorted(inbox.untagged, key=len) == [content(size) for size in SIZES]

    asyncio.run(scenario())


@MODES
def test_tagged_messages_of_every_size_arrive_whole_both_ways(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario() -> None:
        async with pair(library, error_mode=error_mode) as connections:
            inboxes = [Inbox(connection) for connection in connections]
            for sender, inbox in zip(connections, reversed(inboxes), strict=True):
                sent = [sender.send_tagged(2**56 + size, content(size)) for size in SIZES]
                await asyncio.gather(*sent)
                await until(lambda: len(inbox.tagged) == len(SIZES))  # noqa: B023
                assert sorted(inbox.tagged) == [(2**56 + size, content(size)) for size in SIZES]

    asyncio.run(scenario())


def test_buffers_of_one_message_arrive_one_after_the_other(library: UcxLibrary) -> None:
    parts = [b"abc", b"", pa.py_buffer(content(200_000)), memoryview(b"xyz"), b"\0" * 61]
    whole = b"".join(bytes(part) for part in parts)

    async def scenario() -> None:
        async with pair(library) as (client, server):
            inbox = Inbox(server)
            await client.send_tagged(1, parts)
            await client.send_tagged(2, [])
            await client.send_tagged(3, [b"", b""])
            await client.send_tagged(4, (b"one",))
            await client.send_tagged(5, [bytes([number % 256]) * 100 for number in range(2_000)])
            await until(lambda: len(inbox.tagged) == 5)
            received = dict(inbox.tagged)
            assert received[1] == whole
            assert received[2] == received[3] == b""
            assert received[4] == b"one"
            assert received[5] == b"".join(bytes([number % 256]) * 100 for number in range(2_000))

    asyncio.run(scenario())


def test_a_probe_tells_tag_and_length_and_takes_only_what_agrees(library: UcxLibrary) -> None:
    tags = [0, 0xFFFF_FFFF, 2**56 | 0xFFFF_FFFF, 2**63 + 5]

    async def scenario() -> None:
        async with pair(library) as (client, server):
            for index, tag in enumerate(tags):
                client.send_tagged(tag, bytes(index))
            await client.flush()
            await asyncio.sleep(0.05)
            assert server.probe(1, 2**64 - 1) is None
            last = server.probe(2**63 + 5, 2**64 - 1)
            assert last is not None
            assert (last.tag, last.length) == (2**63 + 5, 3)
            wrapped = server.probe(0xFFFF_FFFF, 0xFFFF_FFFF)
            assert wrapped is not None
            assert (wrapped.tag, wrapped.length) == (0xFFFF_FFFF, 1)
            rest = [server.probe(), server.probe(), server.probe()]
            assert [each and (each.tag, each.length) for each in rest] == [
                (0, 0),
                (2**56 | 0xFFFF_FFFF, 2),
                None,
            ]
            for probed in (last, wrapped, *rest[:2]):
                assert (await server.receive(probed)).size == probed.length

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_what_is_discarded_takes_no_memory_and_lets_its_sender_go(
    library: UcxLibrary, size: int
) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            sent = client.send_tagged(1, bytes(size))
            probed = None
            while probed is None:
                await asyncio.sleep(0.002)
                probed = server.probe()
            allocated = pa.total_allocated_bytes()
            server.discard(probed)
            assert pa.total_allocated_bytes() == allocated
            await asyncio.wait_for(sent, 30)
            client.send_tagged(2, b"next")
            inbox = Inbox(server)
            await until(lambda: inbox.tagged == [(2, b"next")])

    asyncio.run(scenario())


def test_a_synchronous_send_is_done_when_the_peer_took_it(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            plain = client.send_tagged(1, b"ticket")
            sent = client.send_tagged(1, b"ticket", synchronous=True)
            await asyncio.wait_for(plain, 30)
            await asyncio.sleep(0.05)
            assert not sent.done()
            inbox = Inbox(server)
            await asyncio.wait_for(sent, 30)
            await until(lambda: len(inbox.tagged) == 2)

    asyncio.run(scenario())


def test_memory_of_a_send_lives_until_it_is_done_and_no_longer(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            values = np.full(4_000_000, 7, np.uint8)
            is_alive = weakref.ref(values)
            sent = client.send_tagged(1, pa.py_buffer(values))
            del values
            gc.collect()
            await asyncio.sleep(0.02)
            assert not sent.done()
            assert is_alive() is not None
            inbox = Inbox(server)
            await asyncio.wait_for(sent, 30)
            await until(lambda: inbox.tagged == [(1, b"\x07" * 4_000_000)])
            del sent
            gc.collect()
            assert is_alive() is None

    asyncio.run(scenario())


def test_a_receive_takes_given_memory_when_it_is_large_enough(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            await client.send_tagged(1, b"hello")
            await client.flush()
            await until(lambda: (probes.append(server.probe()) or probes[-1]) is not None)
            probed = probes[-1]
            assert probed is not None
            with pytest.raises(LocalProtocolError, match="5 bytes needs that much"):
                server.receive(probed, pa.allocate_buffer(4))
            with pytest.raises(LocalProtocolError, match="writable"):
                server.receive(probed, pa.py_buffer(b"12345"))
            target = pa.allocate_buffer(8)
            assert (await server.receive(probed, target)).address == target.address
            assert target.to_pybytes()[:5] == b"hello"

    probes: list = []
    asyncio.run(scenario())


def test_posted_receives_match_fail_and_are_called_off(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            buffers = [pa.allocate_buffer(8) for _ in range(4)]
            first = server.receive_posted(5, 0xFFFF_FFFF, buffers[0])
            short = server.receive_posted(6, 0xFFFF_FFFF, buffers[1])
            unwanted = server.receive_posted(7, 0xFFFF_FFFF, buffers[2])
            left = server.receive_posted(8, 0xFFFF_FFFF, buffers[3])
            unwanted.cancel()
            await asyncio.sleep(0.02)
            client.send_tagged(2**56 | 5, b"yes")
            client.send_tagged(6, bytes(9))
            client.send_tagged(7, b"late")
            assert await asyncio.wait_for(first, 30) == Received(2**56 | 5, 3)
            assert buffers[0].to_pybytes()[:3] == b"yes"
            with pytest.raises(ConnectionLostError, match="longer than its buffer"):
                await asyncio.wait_for(short, 30)
            inbox = Inbox(server)
            await until(lambda: inbox.tagged == [(7, b"late")])
            await server.close()
            with pytest.raises(ConnectionLostError, match="cancelled"):
                await left
            with pytest.raises(ConnectionLostError, match="closed"):
                server.receive_posted(8, 1, buffers[3])

    asyncio.run(scenario())


def test_connections_do_not_take_from_each_other(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            pairs = [await both.connect() for _ in range(3)]
            inboxes = [Inbox(server) for _, server in pairs]
            for index, (client, _) in enumerate(pairs):
                client.send_tagged(1, b"%d" % index)
                client.send_untagged(b"%d" % index)
            await until(lambda: all(each.tagged and each.untagged for each in inboxes))
            assert [inbox.tagged for inbox in inboxes] == [[(1, b"0")], [(1, b"1")], [(1, b"2")]]
            assert [inbox.untagged for inbox in inboxes] == [[b"0"], [b"1"], [b"2"]]

    asyncio.run(scenario())


def test_untagged_messages_wait_for_who_listens_late_up_to_a_bound(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            await client.send_untagged(b"early")
            await client.flush()
            await asyncio.sleep(0.05)
            inbox = Inbox(server)
            await until(lambda: inbox.untagged == [b"early"])

            server.on_untagged = None
            for _ in range(5):
                client.send_untagged(bytes(4 * 1024 * 1024))
            await until(lambda: inbox.lost)
            assert "the limit is 16777216 bytes" in str(inbox.lost[0])

    asyncio.run(scenario())


def test_an_untagged_message_past_the_limit_is_refused_before_memory_is_taken(
    library: UcxLibrary,
) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            inbox = Inbox(server)
            allocated = pa.total_allocated_bytes()
            sent = client.send_untagged(bytes(16 * 1024 * 1024 + 1))
            await until(lambda: inbox.lost)
            await asyncio.wait_for(sent, 30)  # its memory is not waited for any more
            assert pa.total_allocated_bytes() == allocated
            assert inbox.untagged == []
            with pytest.raises(ConnectionLostError, match="16777217 bytes wait"):
                server.send_untagged(b"x")

    asyncio.run(scenario())


def test_untagged_messages_without_a_byte_wait_up_to_a_bound_as_well(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "UNTAGGED_COUNT_MAX", 50)

    async def scenario() -> None:
        async with pair(library) as (client, server):
            lost: list[Exception] = []
            server.on_lost = lost.append
            for _ in range(51):
                client.send_untagged(b"")
            await until(lambda: lost)
            assert "the limit is 50 messages" in str(lost[0])

    asyncio.run(scenario())


def test_untagged_messages_that_are_taken_make_room_for_others(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            inbox = Inbox(server)
            for count in range(1, 11):
                await client.send_untagged(bytes(2 * 1024 * 1024))
                await until(lambda: len(inbox.untagged) == count)  # noqa: B023
            assert not inbox.lost

    asyncio.run(scenario())


class Counting:
    """The library, with a look at what becomes of requests."""

    def __init__(self, library: UcxLibrary) -> None:
        self.functions = library.functions
        self.freed: list[object] = []
        self.cancelled: list[object] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.functions, name)

    def ucp_request_free(self, request: object) -> None:
        self.freed.append(request)
        self.functions.ucp_request_free(request)

    def ucp_request_cancel(self, worker: object, request: object) -> None:
        self.cancelled.append(request)
        self.functions.ucp_request_cancel(worker, request)


def test_only_receives_that_were_posted_are_called_off_at_the_end(library: UcxLibrary) -> None:
    """The library does not know how to call off a send."""

    async def scenario() -> None:
        async with pair(library) as (client, _):
            client._worker._functions = counting = Counting(library)
            client.send_tagged(1, b"x", synchronous=True)
            client.send_tagged(1, bytes(4_000_000))
            client.receive_posted(9, 2**64 - 1, pa.allocate_buffer(1))
            await asyncio.wait_for(client.close(), 30)
            assert len(counting.cancelled) == 1

    asyncio.run(scenario())


def test_every_request_is_freed_once(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with pair(library) as (client, server):
            Inbox(server)
            client._worker._functions = counting = Counting(library)
            freed = counting.freed
            # Synchronous ones are never done at once, so each has a request.
            sent = [client.send_tagged(tag, b"x", synchronous=True) for tag in range(20)]
            await asyncio.wait_for(asyncio.gather(*sent), 30)
            assert len(freed) == 20
            left = client.receive_posted(9, 2**64 - 1, pa.allocate_buffer(1))
            left.cancel()
            await until(lambda: len(freed) == 21)
            assert not client._worker.operations

    asyncio.run(scenario())

"""Bodies of type 1 in memory of the server: which parts of it a client reads."""

from __future__ import annotations

import asyncio
import ctypes
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import ConnectionLostError, RemoteProtocolError
from barrage.transport.ucx import range_readers
from barrage.transport.ucx.range_readers import RemoteMemoryReader
from barrage.wire.dissociated.ranges import BodyRange, BodyRanges
from barrage.wire.ipc import decode_batch_header
from tests.helpers.arrow_stream import arrow_messages
from tests.helpers.ucx_streams import sample

TABLE = sample(500).select(["number", "text"])
MESSAGE = arrow_messages(TABLE.schema, TABLE.to_batches())[1]
BODY = b"".join(map(bytes, MESSAGE.parts or ()))
BUFFERS = decode_batch_header(MESSAGE.header, MESSAGE.body_bytes).buffers
PLACES = [(at, size) for at, size in zip(BUFFERS[::2], BUFFERS[1::2], strict=True)]
BASE = 1 << 40


class Remote:
    """A connection and memory behind it: the bytes of one body at every address that is known."""

    def __init__(self, where: dict[int, int]) -> None:
        self.where = where
        self.got: list[tuple[int, int]] = []
        self.released: list[int] = []

    def get(self, key: object, address: int, into: pa.Buffer) -> asyncio.Future[pa.Buffer]:
        self.got.append((address, into.size))
        done: asyncio.Future[pa.Buffer] = asyncio.get_running_loop().create_future()
        at = next((a + address - start for start, a in self.where.items()
                   if 0 <= address - start < 1 << 20), None)  # fmt: skip
        if at is None or at + into.size > len(BODY):
            done.set_exception(ConnectionLostError("remote access error"))
            return done
        ctypes.memmove(into.address, BODY[at : at + into.size], into.size)
        done.set_result(into)
        return done

    def release(self, addresses: Any) -> None:
        self.released += addresses


@pytest.fixture(autouse=True)
def memory_was_used_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read must not be what was there."""

    def used(size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        ctypes.memset(buffer.address, 0xAA, size)
        return buffer

    shim = SimpleNamespace(allocate_buffer=used, Buffer=pa.Buffer)
    monkeypatch.setattr(range_readers, "pa", shim)


def read(remote: Remote, ranges: list[BodyRange]) -> bytes:
    async def act() -> bytes:
        reader = RemoteMemoryReader(remote, object(), remote)  # type: ignore[arg-type]
        body = await reader.read(BodyRanges(MESSAGE.body_bytes, tuple(ranges)), MESSAGE.header)
        return bytes(body)

    return asyncio.run(act())


def test_a_packed_body_is_read_at_once_and_nothing_around_it() -> None:
    remote = Remote({BASE: 0})
    assert read(remote, [BodyRange(BASE + at, size) for at, size in PLACES]) == BODY
    last = max(at + size for at, size in PLACES)
    first = min(at for at, size in PLACES if size)
    assert last < MESSAGE.body_bytes, "the sample ends with padding"
    assert remote.got == [(BASE + first, last - first)]
    assert sorted(remote.released) == sorted(BASE + at for at, size in PLACES if size)


def test_scattered_buffers_are_read_one_by_one() -> None:
    remote = Remote({BASE + (i << 30): at for i, (at, _) in enumerate(PLACES)})
    ranges = [BodyRange(BASE + (i << 30), size) for i, (_, size) in enumerate(PLACES)]
    assert read(remote, ranges) == BODY
    held = [each for each in ranges if each.length]
    assert remote.got == [(each.address, each.length) for each in held]
    assert sorted(remote.released) == [each.address for each in held]


def test_memory_that_cannot_be_read_is_not_given_back() -> None:
    remote = Remote({})
    with pytest.raises(ConnectionLostError, match="remote access"):
        read(remote, [BodyRange(BASE + at, size) for at, size in PLACES])
    assert not remote.released


def test_lists_that_do_not_fit_the_header_are_refused_before_anything_is_read() -> None:
    remote = Remote({BASE: 0})
    whole = [BodyRange(BASE + at, size) for at, size in PLACES]
    for lie in (whole[:-1], [*whole, whole[0]], [BodyRange(BASE, 1), *whole[1:]][::-1]):
        with pytest.raises(RemoteProtocolError):
            read(remote, lie)
    assert not remote.got

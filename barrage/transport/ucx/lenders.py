"""Memory for bodies of type 1 on the server's side: the arena of shared memory, or memory that
clients read by UCX.

A lender belongs to one stream; it refuses when the stream has its window out, or when the memory
is full, and the body then goes as type 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.transport.shared_memory import LeaseTable
from barrage.transport.shared_memory.free_space import FreeSpace
from barrage.transport.ucx.remote_memory import RegisteredMemory
from barrage.transport.ucx.sender import LentBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.limits import Limits
    from barrage.transport.shared_memory import Arena
    from barrage.transport.ucx.context import UcxContext
    from barrage.wire.columns.base import BufferLike

ALIGNMENT = 64


class SharedMemoryLender:
    """Lends places in an arena. When the client is gone they are used again as soon as no process
    reads them any more."""

    def __init__(self, arena: Arena, limits: Limits) -> None:
        self._arena = arena
        self._limits = limits
        self._leases = LeaseTable()

    @property
    def remote_handle(self) -> bytes:
        """What a location says about this memory."""
        return self._arena.name.encode()

    def has_room(self, byte_count: int) -> bool:
        leases = self._leases
        return (
            leases.count < self._limits.body_window_count
            and leases.byte_count + byte_count <= self._limits.body_window_bytes
        )

    def lend(self, parts: Sequence[BufferLike], byte_count: int) -> LentBody | None:
        leases = self._leases
        if not self.has_room(byte_count):
            return None
        region = self._arena.place(parts, byte_count)
        if region is None:
            return None
        leases.grant(region)
        address = region.address

        def take_back() -> None:
            leases.release((address,))

        return LentBody(address, byte_count, take_back)

    def close(self) -> None:
        self._leases.close()


class RemoteMemory:
    """One region that clients may read by UCX, cut into bodies. Shared by all streams of a server,
    since a location carries one key."""

    def __init__(self, context: UcxContext, byte_count: int) -> None:
        self._buffer = pa.allocate_buffer(byte_count)
        self._bytes = np.frombuffer(self._buffer, dtype=np.uint8)
        self._registered = RegisteredMemory(context, self._buffer)
        self._space = FreeSpace(0, byte_count)
        self._base = int(self._buffer.address)
        self.key = self._registered.packed_key

    @property
    def bytes_free(self) -> int:
        return self._space.bytes_free

    def place(self, parts: Sequence[BufferLike], byte_count: int) -> int | None:
        """Copy a body in; its address, or None when there is no room."""
        start = self._space.take(_rounded(byte_count))
        if start is None:
            return None
        at = start
        for part in parts:
            piece = np.frombuffer(part, dtype=np.uint8)
            self._bytes[at : at + len(piece)] = piece
            at += len(piece)
        return self._base + start

    def free(self, address: int, byte_count: int) -> None:
        """Take back what :meth:`place` gave out."""
        self._space.give(address - self._base, _rounded(byte_count))

    def close(self) -> None:
        """Take the memory back from the library. Idempotent."""
        self._registered.close()


class RemoteMemoryLender:
    """Lends parts of a :class:`RemoteMemory`. When the client is gone nobody can read them."""

    def __init__(self, memory: RemoteMemory, limits: Limits) -> None:
        self._memory = memory
        self._limits = limits
        self._lent: dict[int, int] = {}
        self._lent_bytes = 0

    @property
    def remote_handle(self) -> bytes:
        """What a location says about this memory."""
        return self._memory.key

    def has_room(self, byte_count: int) -> bool:
        return (
            len(self._lent) < self._limits.body_window_count
            and self._lent_bytes + byte_count <= self._limits.body_window_bytes
        )

    def lend(self, parts: Sequence[BufferLike], byte_count: int) -> LentBody | None:
        if not self.has_room(byte_count):
            return None
        address = self._memory.place(parts, byte_count)
        if address is None:
            return None
        self._lent[address] = byte_count
        self._lent_bytes += byte_count
        return LentBody(address, byte_count, lambda: self._free(address))

    def close(self) -> None:
        for address in tuple(self._lent):
            self._free(address)

    def _free(self, address: int) -> None:
        byte_count = self._lent.pop(address, None)
        if byte_count is not None:
            self._lent_bytes -= byte_count
            self._memory.free(address, byte_count)


def _rounded(byte_count: int) -> int:
    return -(-byte_count // ALIGNMENT) * ALIGNMENT

"""Shared memory as a body transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable, host_identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.limits import Limits
    from barrage.wire.dissociated.negotiation import HostIdentity


class LocalSharedMemory:
    """Memory of servers on this host."""

    def identity(self) -> HostIdentity:
        return host_identity()

    def open(self, arena: str) -> tuple[ArenaMapping, bytes, Callable[[], None]]:
        mapping = ArenaMapping.open(arena)
        return mapping, mapping.proof(), mapping.close


class LocalArenas:
    """The backend of the way ``shm``."""

    def memory(self) -> LocalSharedMemory:
        return LocalSharedMemory()

    def serve(self, limits: Limits) -> tuple[Arena, HostIdentity]:
        arena = Arena.create(limits)
        try:
            return arena, host_identity()
        except BaseException:
            arena.close()
            raise

    def leases(self) -> LeaseTable:
        return LeaseTable()


SHARED_MEMORY = LocalArenas()

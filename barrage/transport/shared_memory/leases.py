"""What one stream has been given to read and has not given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.limits import Limits
    from barrage.transport.shared_memory.arena import Arena
    from barrage.transport.shared_memory.region import Region


class _Lease:
    __slots__ = ("count", "region", "since_ns")

    def __init__(self, region: Region, since_ns: int) -> None:
        self.region = region
        self.since_ns = since_ns
        self.count = 1


class LeaseTable:
    """The leases of one stream, by address. A lease keeps its region; a region of which two
    messages of the stream were made has to be given back twice. Used by one thread."""

    def __init__(self, arena: Arena, limits: Limits) -> None:
        self._arena = arena
        self._limits = limits
        self._leases: dict[int, _Lease] = {}
        self._is_closed = False
        self.byte_count = 0
        self.count = 0
        """Leases not given back, each as often as it was granted."""

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest lease was granted; None: there is none."""
        for lease in self._leases.values():
            return lease.since_ns
        return None

    def grant(self, region: Region, now_ns: int) -> None:
        """The stream's peer may read the region from now on.

        LimitExceededError when it has too many already, which the stream's window prevents.
        """
        if self.count >= self._limits.body_window_count:
            raise LimitExceededError(
                "bodies lent to one stream",
                actual=self.count + 1,
                maximum=self._limits.body_window_count,
                unit="bodies",
            )
        if self._is_closed:
            return
        region.expose()
        lease = self._leases.get(region.address)
        if lease is None:
            self._leases[region.address] = _Lease(region, now_ns)
        else:
            lease.count += 1
        self.count += 1
        self.byte_count += region.length

    def release(self, addresses: Iterable[int]) -> int:
        """The peer has given these back; how many of them it really had. Others are ignored."""
        released = 0
        for address in addresses:
            lease = self._leases.get(address)
            if lease is None:
                continue
            released += 1
            lease.count -= 1
            self.byte_count -= lease.region.length
            if not lease.count:
                del self._leases[address]
        self.count -= released
        return released

    def close(self) -> None:
        """The stream is over: nobody will give back the rest. Its memory is used again as soon as
        no process has a lock on it."""
        self._is_closed = True
        self._leases.clear()
        self.count = self.byte_count = 0

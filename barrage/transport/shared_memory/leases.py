"""What one stream has been given to read and has not given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.transport.shared_memory.region import Region


class _Lease:
    __slots__ = ("count", "region")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.count = 1


class LeaseTable:
    """The leases of one stream, by address. A lease keeps its region; a region of which two
    messages of the stream were made has to be given back twice. Used by one thread.

    How many there may be, and for how long, is for who grants them to say: a stream has its
    :class:`~barrage.proto.body_window.BodyWindow` for that.
    """

    def __init__(self) -> None:
        self._leases: dict[int, _Lease] = {}
        self._is_closed = False
        self.byte_count = 0
        """Bytes of the bodies that are lent, each as often as it was granted."""
        self.count = 0
        """Leases not given back, each as often as it was granted."""

    def grant(self, region: Region) -> None:
        """The stream's peer may read the region from now on; nothing when the stream is over."""
        if self._is_closed:
            return
        region.expose()
        lease = self._leases.get(region.address)
        if lease is None:
            self._leases[region.address] = _Lease(region)
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

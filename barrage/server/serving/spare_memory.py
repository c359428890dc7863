"""Giving memory back to the system that the allocator keeps for nobody.

A flood of streams that are opened and reset makes gRPC allocate hundreds of megabytes in small
pieces. All of them are freed, but glibc keeps the pages: they lie between pieces that live on, in
the arenas of gRPC's threads. ``malloc_trim`` gives back every whole page that is free, wherever it
is. It takes the locks of the arenas for some milliseconds per hundred megabytes, so it is called
only when there is much to be had.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from typing import Final, Protocol

from barrage.supervision import in_thread

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
_STATM: Final = "/proc/self/statm"


class Allocator(Protocol):
    """What is known of the memory of this process."""

    def resident_bytes(self) -> int:
        """Memory that the process occupies."""
        ...

    def free_bytes(self) -> int:
        """Memory that the allocator has and nobody uses, whether it occupies any or not."""
        ...

    def trim(self) -> None:
        """Give back what can be."""
        ...


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2``, see mallinfo(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
    hblkhd: int
    uordblks: int
    fordblks: int


class Glibc:
    """The allocator of glibc 2.33 and newer; AttributeError or OSError where that is not."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = library.mallinfo2
        self._info.restype = _MallocInfo
        self._trim = library.malloc_trim
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self.resident_bytes()

    def resident_bytes(self) -> int:
        with open(_STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * self._page_bytes

    def free_bytes(self) -> int:
        return int(self._info().fordblks)

    def used_bytes(self) -> int:
        """Memory that the allocator has given out, in small pieces and in large ones."""
        info = self._info()
        return int(info.uordblks) + int(info.hblkhd)

    def trim(self) -> None:
        self._trim(0)


def allocator_here() -> Allocator | None:
    """The allocator of this process, if it can be asked."""
    try:
        return Glibc()
    except (AttributeError, OSError):
        return None


class SpareMemory:
    """Looks at an allocator now and then."""

    def __init__(self, allocator: Allocator, *, bytes_max: int) -> None:
        self._allocator = allocator
        self._bytes_max = bytes_max
        self._resident_bytes = allocator.resident_bytes()
        self._free_bytes = allocator.free_bytes()

    async def run(self) -> None:
        """Look until cancelled, beside the event loop."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await in_thread(self.look)

    def look(self) -> bool:
        """Whether memory was given back: much of it is free, and since the last time the process
        has grown, or has freed, more than the bound. What is free says nothing by itself: it counts
        on after it has been given back."""
        allocator, bound = self._allocator, self._bytes_max
        resident, free = allocator.resident_bytes(), allocator.free_bytes()
        self._resident_bytes = min(self._resident_bytes, resident)
        self._free_bytes = min(self._free_bytes, free)
        has_grown = resident - self._resident_bytes > bound and free > bound
        if not has_grown and free - self._free_bytes <= bound:
            return False
        allocator.trim()
        self._resident_bytes, self._free_bytes = allocator.resident_bytes(), allocator.free_bytes()
        log.info("gave %d bytes back to the system", resident - self._resident_bytes)
        return True

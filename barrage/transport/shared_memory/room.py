"""How much shared memory an arena may take without hurting anybody else.

An arena leaves half of what is free in ``/dev/shm`` to others, and three quarters of the memory
that is available: pages of ``/dev/shm`` are memory, whatever size the file system claims to have.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FREE_SHARE = 2
MEMORY_SHARE = 4
SEGMENT_BYTES_LEAST = 1024 * 1024
SEGMENTS_AIMED_AT = 4
"""An arena with less room than it would like is still made of a few segments."""

_MEMORY = Path("/proc/meminfo")
_GROUP_MAX = Path("/sys/fs/cgroup/memory.max")
_GROUP_NOW = Path("/sys/fs/cgroup/memory.current")


def room_bytes(directory: str) -> int:
    """Bytes that may still be taken of ``directory``. OSError when there is no such directory."""
    free = os.statvfs(directory)
    return min([free.f_bavail * free.f_frsize // FREE_SHARE, *_memory_bounds()])


def segment_bytes(arena_bytes_max: int, wanted: int) -> int:
    """Size of the segments of an arena of that size."""
    return min(wanted, max(arena_bytes_max // SEGMENTS_AIMED_AT, SEGMENT_BYTES_LEAST))


def _memory_bounds() -> list[int]:
    """What the system, and the control group where there is one, let us have."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        after = _MEMORY.read_text().split("MemAvailable:")[1]
        found.append(int(after.split()[0]) * 1024 // MEMORY_SHARE)
    with suppress(OSError, ValueError):  # "max" where there is no bound
        most, now = int(_GROUP_MAX.read_text()), int(_GROUP_NOW.read_text())
        found.append(max(most - now, 0) // MEMORY_SHARE)
    return found

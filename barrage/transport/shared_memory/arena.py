"""The server's side: bodies in shared memory, made in place or copied in.

Threads place bodies at the same time: the lock is held while a place is looked for (microseconds),
never while a body is copied. Copying costs one memcpy, without the interpreter's lock for large
parts.

A region is free again when its last reference in the server is gone: frames that wait to be
sent, and leases of streams that were sent them. If any client may have seen it, its generation is
overwritten first and it becomes an *orphan* while some process still has a lock on it. Finalizers
only queue; what they queued is settled by whoever asks for memory next.

When no place is found the answer is None and the body goes inline; nothing here fails because
``/dev/shm`` is full.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from barrage.errors import LocalProtocolError, TransportUnavailableError
from barrage.transport.shared_memory import room
from barrage.transport.shared_memory.layout import (
    COPY_BYTES_MAX,
    FILE_HEADER_BYTES,
    NO_GENERATION,
    PROOF_BYTES,
    ROOT_BYTES,
    ROOT_NUMBER,
    SEGMENTS_MAX,
    FileHeader,
    block_bytes,
    new_name,
    segment_name,
)
from barrage.transport.shared_memory.leftovers import remove_stale
from barrage.transport.shared_memory.region import Block, Region
from barrage.transport.shared_memory.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from barrage.limits import Limits
    from barrage.wire.columns.base import BufferLike

logger = logging.getLogger(__name__)

DIRECTORY = "/dev/shm"
PAGE_BYTES = 4096
ORPHANS_TRIED_MAX = 64
"""Orphans looked at when memory is short; each costs one call of the system."""

GROWTH_PAUSE_NS = 1_000_000_000
"""After the system refused memory it is not asked again for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaStatistics:
    """What an arena has done; bytes include headers and padding."""

    bytes_max: int
    bytes_in_use: int
    """Given out, orphans included."""
    bytes_orphaned: int
    orphan_count: int
    segment_count: int
    segment_bytes: int
    """Of all segments together."""
    placed_count: int
    refused_count: int
    """How often there was no room."""


class Arena:
    """Shared memory of one server. ``name`` and ``proof`` are for its clients: who reads the proof
    under that name has the same memory. Safe to use from several threads; of no use in a forked
    child, where every placement is refused."""

    def __init__(self, root: Segment, proof: bytes, limits: Limits, *, bytes_max: int) -> None:
        """Use :meth:`create`."""
        self.name = Path(root.path).name
        self.proof = proof
        self.bytes_max = bytes_max
        self._root = root
        self._directory = str(Path(root.path).parent)
        self._segment_bytes = room.segment_bytes(bytes_max, limits.body_segment_bytes)
        self._lock = threading.Lock()
        """Held for the fields below and all free space; shortly."""
        self._segments: list[Segment] = []
        self._orphans: deque[Block] = deque()
        self._placed = 0
        self._refused = 0
        self._is_closed = False
        self._growth = threading.Lock()
        """Held while a segment is made."""
        self._growth_refused_ns: int | None = None
        self._has_warned = False
        self._returned: deque[Block] = deque()
        self._generations = itertools.count(NO_GENERATION + 1)
        self._process = os.getpid()
        self._paths = [root.path]
        self._finalizer = weakref.finalize(self, _unlink, self._paths, self._process)

    @classmethod
    def create(cls, limits: Limits, *, directory: str = DIRECTORY) -> Arena:
        """Make an arena in ``directory``, after taking away what dead servers left there. Memory
        is taken when it is needed.

        TransportUnavailableError when there is no such directory or no room in it.
        """
        try:
            remove_stale(directory)
            bytes_max = min(limits.body_arena_bytes, room.room_bytes(directory))
            if bytes_max < limits.body_inline_bytes_max:
                raise TransportUnavailableError(f"no room for shared memory in {directory}")
            proof = secrets.token_bytes(PROOF_BYTES)
            header = FileHeader(ROOT_NUMBER, ROOT_BYTES, proof)
            root = Segment(f"{directory}/{new_name()}", header)
            root.check_locks()
        except OSError as error:
            raise TransportUnavailableError(
                f"no shared memory in {directory}: {error.strerror or error}"
            ) from error
        return cls(root, proof, limits, bytes_max=bytes_max)

    def place(self, parts: Sequence[BufferLike], byte_count: int) -> Region | None:
        """Copy a body that is in parts, ``byte_count`` bytes together, into shared memory. None:
        there is no room."""
        region = self.allocate(byte_count)
        if region is None:
            return None
        _copy_parts(parts, np.asarray(region))
        return region

    def allocate(self, byte_count: int) -> Region | None:
        """Memory to build a body in; its content is whatever was there. None: there is no room."""
        if os.getpid() != self._process:
            return None
        size = block_bytes(byte_count)
        self._settle_returned()
        block = self._take(size)
        if block is None:
            self._retry_orphans(ORPHANS_TRIED_MAX)
            block = self._take(size) or self._grow_and_take(size)
        if block is None:
            with self._lock:
                self._refused += 1
            return None
        return Region(block, self._returned, length=byte_count, generation=next(self._generations))

    def statistics(self) -> ArenaStatistics:
        """The state now, after settling what was given back."""
        if os.getpid() == self._process:
            self._settle_returned()
            self._retry_orphans(ORPHANS_TRIED_MAX)
        with self._lock:
            usable = sum(segment.size - FILE_HEADER_BYTES for segment in self._segments)
            free = sum(segment.space.bytes_free for segment in self._segments)
            return ArenaStatistics(
                bytes_max=self.bytes_max,
                bytes_in_use=usable - free,
                bytes_orphaned=sum(block.size for block in self._orphans),
                orphan_count=len(self._orphans),
                segment_count=len(self._segments),
                segment_bytes=sum(segment.size for segment in self._segments),
                placed_count=self._placed,
                refused_count=self._refused,
            )

    def close(self) -> None:
        """Take the names away. Regions and what clients have mapped stay readable."""
        if os.getpid() != self._process:
            return  # nothing of it is a child's, and its locks may be held for ever
        with self._growth, self._lock:
            self._is_closed = True
            for segment in self._segments:
                segment.is_retired = True
            # Files and mappings live on in the regions that are left.
            self._segments.clear()
            self._orphans.clear()
            self._returned.clear()
        self._finalizer()

    def _take(self, size: int) -> Block | None:
        with self._lock:
            for segment in self._segments:
                start = segment.space.take(size)
                if start is not None:
                    self._placed += 1
                    return Block(segment, start, size)
        return None

    def _settle_returned(self) -> None:
        """Make room of what finalizers have queued."""
        if not self._returned:
            return
        free: list[Block] = []
        orphans: list[Block] = []
        with suppress(IndexError):  # other threads do this too
            while True:
                block = self._returned.popleft()
                (free if block.is_unread() else orphans).append(block)
        with self._lock:
            for block in free:
                block.give_back()
            self._orphans += orphans

    def _retry_orphans(self, count: int) -> None:
        """Look at the orphans that have waited longest."""
        for _ in range(min(count, len(self._orphans))):
            with self._lock:
                if not self._orphans:
                    return
                block = self._orphans.popleft()
            is_unread = block.is_unread()
            with self._lock:
                if is_unread:
                    block.give_back()
                else:
                    self._orphans.append(block)

    def _grow_and_take(self, size: int) -> Block | None:
        """Make another segment, unless somebody else just did, and take from it."""
        with self._growth:
            return self._take(size) or (self._take(size) if self._grow(size) else None)

    def _grow(self, size: int) -> bool:
        taken = sum(segment.size for segment in self._segments)
        least = -(-(FILE_HEADER_BYTES + size) // PAGE_BYTES) * PAGE_BYTES
        number = len(self._segments)
        if self._is_closed or number >= SEGMENTS_MAX or taken + least > self.bytes_max:
            return False
        now_ns = time.monotonic_ns()
        if self._growth_refused_ns is not None:
            if now_ns - self._growth_refused_ns < GROWTH_PAUSE_NS:
                return False
            self._growth_refused_ns = None
        try:
            available = min(self.bytes_max - taken, room.room_bytes(self._directory))
            wanted = min(max(self._segment_bytes, least), available) // PAGE_BYTES * PAGE_BYTES
            if wanted < least:
                raise MemoryError(f"{available} bytes are left")
            path = f"{self._directory}/{segment_name(self.name, number)}"
            segment = Segment(path, FileHeader(number, wanted, self.proof))
        except (OSError, ValueError, MemoryError) as error:
            self._growth_refused_ns = now_ns
            level = logging.DEBUG if self._has_warned else logging.WARNING
            logger.log(level, "no more shared memory in %s: %s", self._directory, error)
            self._has_warned = True
            return False
        self._paths.append(path)
        with self._lock:
            self._segments.append(segment)
        return True


def _copy_parts(parts: Sequence[BufferLike], into: npt.NDArray[np.uint8]) -> None:
    """Copy the parts of a body, which together are as long as ``into``. They may be buffers of any
    item type."""
    small = into.data
    start = 0
    for part in parts:
        view = memoryview(part)
        stop = start + view.nbytes
        if stop > len(into):
            raise LocalProtocolError(f"the parts of a body of {len(into)} bytes are longer")
        if view.nbytes > COPY_BYTES_MAX:
            np.copyto(into[start:stop], np.frombuffer(view, dtype=np.uint8))
        elif view.nbytes:
            is_flat = view.format == "B" and view.ndim == 1
            small[start:stop] = view if is_flat else view.cast("B")
        start = stop
    if start != len(into):
        raise LocalProtocolError(f"the parts of a body of {len(into)} bytes have only {start}")


def _unlink(paths: list[str], process: int) -> None:
    """Take away the names of an arena, in the process that made it."""
    if os.getpid() == process:
        for path in reversed(paths):
            with suppress(OSError):
                os.unlink(path)

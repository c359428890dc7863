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
from typing import TYPE_CHECKING, Any

import numpy as np

from barrage.errors import LocalProtocolError, TransportUnavailableError
from barrage.transport.shared_memory import room
from barrage.transport.shared_memory.layout import (
    FILE_HEADER_BYTES,
    NO_GENERATION,
    OFFSET_BITS,
    PROOF_BYTES,
    REGION_HEADER_BYTES,
    REGION_HEADER_USED,
    ROOT_BYTES,
    ROOT_NUMBER,
    SEGMENTS_MAX,
    FileHeader,
    block_bytes,
    new_name,
    region_header,
    segment_name,
    write_generation,
)
from barrage.transport.shared_memory.segment import Segment
from barrage.transport.shared_memory.stale import remove_stale
from barrage.wire.dissociated.references import BodyReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.limits import Limits
    from barrage.wire.columns.base import BufferLike

logger = logging.getLogger(__name__)

DIRECTORY = "/dev/shm"
PAGE_BYTES = 4096
COPY_BYTES_MAX = 16 * 1024
"""Parts up to this size are copied at once; handing over the interpreter's lock costs more."""

ORPHANS_TRIED_MAX = 64
"""Orphans looked at when memory is short; each costs one call of the system."""

GROWTH_PAUSE_NS = 1_000_000_000
"""After the system refused memory it is not asked again for this long."""


class _Block:
    """A part of a segment that is given out: header and body."""

    __slots__ = ("is_exposed", "segment", "size", "start")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self.segment = segment
        self.start = start
        self.size = size
        self.is_exposed = False
        """Whether any other process may know of it."""


class Region:
    """Memory for one body. It stays as long as this object, or a view of it, is referred to."""

    __slots__ = ("__weakref__", "_block", "_returned", "address", "generation", "length")

    def __init__(
        self, block: _Block, returned: deque[_Block], *, length: int, generation: int
    ) -> None:
        self._block = block
        self._returned = returned
        self.length = length
        self.generation = generation
        self.address = block.segment.number << OFFSET_BITS | block.start + REGION_HEADER_BYTES

    def __del__(self) -> None:
        self._returned.append(self._block)

    def __len__(self) -> int:
        return self.length

    def expose(self) -> None:
        """Other processes may read it from now on."""
        self._block.is_exposed = True

    def reference(self) -> BodyReference:
        """What a peer needs to find it."""
        self.expose()
        return BodyReference(self.address, self.length, self.generation)

    @property
    def view(self) -> memoryview:
        """The bytes, writable; whatever is made of it keeps the region."""
        return np.asarray(self).data

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # By address, so that the array's owner is this object and not the segment.
        start = self._block.segment.base + self._block.start + REGION_HEADER_BYTES
        return {"data": (start, False), "shape": (self.length,), "typestr": "|u1", "version": 3}


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

    def __init__(self, root: Segment, proof: bytes, limits: Limits, bytes_max: int) -> None:
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
        self._orphans: deque[_Block] = deque()
        self._orphan_bytes = 0
        self._placed = 0
        self._refused = 0
        self._is_closed = False
        self._growth = threading.Lock()
        """Held while a segment is made."""
        self._growth_refused_ns: int | None = None
        self._returned: deque[_Block] = deque()
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
        except OSError as error:
            raise TransportUnavailableError(
                f"no shared memory in {directory}: {error.strerror or error}"
            ) from error
        return cls(root, proof, limits, bytes_max)

    def place(self, parts: Sequence[BufferLike], byte_count: int) -> Region | None:
        """Copy a body that is in parts, ``byte_count`` bytes together, into shared memory. None:
        there is no room."""
        region = self.allocate(byte_count)
        if region is None:
            return None
        # Not the view: an array per large part is needed anyway.
        into = np.asarray(region)
        small = into.data
        start = 0
        for part in parts:
            # Of arrays the length counts items.
            content = memoryview(part)
            size = content.nbytes
            if not size:
                continue
            stop = start + size
            if stop > byte_count:
                raise LocalProtocolError(f"the parts of a body of {byte_count} bytes are longer")
            if size <= COPY_BYTES_MAX:
                small[start:stop] = content.cast("B")
            else:
                np.copyto(into[start:stop], np.frombuffer(part, dtype=np.uint8))
            start = stop
        if start != byte_count:
            raise LocalProtocolError(f"the parts of a body of {byte_count} bytes have {start}")
        return region

    def allocate(self, byte_count: int) -> Region | None:
        """Memory to build a body in; its content is whatever was there. None: there is no room."""
        if self._is_closed or os.getpid() != self._process:
            return None
        size = block_bytes(byte_count)
        self._settle()
        block = self._take(size)
        if block is None:
            self._retry_orphans(ORPHANS_TRIED_MAX)
            block = self._take(size) or self._grow_and_take(size)
        if block is None:
            with self._lock:
                self._refused += 1
            return None
        generation = next(self._generations)
        region = Region(block, self._returned, length=byte_count, generation=generation)
        header = region_header(generation, region.address, byte_count, self.proof)
        block.segment.memory[block.start : block.start + REGION_HEADER_USED] = header
        return region

    def statistics(self) -> ArenaStatistics:
        """The state now, after settling what was given back."""
        if os.getpid() == self._process:
            self._settle()
            self._retry_orphans(ORPHANS_TRIED_MAX)
        with self._lock:
            usable = sum(segment.size - FILE_HEADER_BYTES for segment in self._segments)
            free = sum(segment.space.bytes_free for segment in self._segments)
            return ArenaStatistics(
                bytes_max=self.bytes_max,
                bytes_in_use=usable - free,
                bytes_orphaned=self._orphan_bytes,
                orphan_count=len(self._orphans),
                segment_count=len(self._segments),
                segment_bytes=sum(segment.size for segment in self._segments),
                placed_count=self._placed,
                refused_count=self._refused,
            )

    def close(self) -> None:
        """Take the names away. Regions and what clients have mapped stay readable."""
        with self._growth, self._lock:
            self._is_closed = True
        self._finalizer()

    def _take(self, size: int) -> _Block | None:
        with self._lock:
            for segment in self._segments:
                start = segment.space.take(size)
                if start is not None:
                    self._placed += 1
                    return _Block(segment, start, size)
        return None

    def _settle(self) -> None:
        """Make room of what finalizers have queued, and of one orphan."""
        free = []
        while True:
            try:
                block = self._returned.popleft()
            except IndexError:
                break
            if not block.is_exposed or self._is_unread(block):
                free.append(block)
            else:
                with self._lock:
                    self._orphans.append(block)
                    self._orphan_bytes += block.size
        if free:
            with self._lock:
                for block in free:
                    block.segment.space.give(block.start, block.size)
        if self._orphans:
            self._retry_orphans(1)

    def _is_unread(self, block: _Block) -> bool:
        """Whether no process can still read a block. The order is what makes it true: see
        :mod:`.locks`."""
        write_generation(block.segment.memory, block.start, NO_GENERATION)
        return not block.segment.is_locked(block.start, block.size)

    def _retry_orphans(self, count: int) -> None:
        """Look at the orphans that have waited longest."""
        for _ in range(min(count, len(self._orphans))):
            with self._lock:
                if not self._orphans:
                    return
                block = self._orphans.popleft()
            is_locked = block.segment.is_locked(block.start, block.size)
            with self._lock:
                if is_locked:
                    self._orphans.append(block)
                else:
                    self._orphan_bytes -= block.size
                    block.segment.space.give(block.start, block.size)

    def _grow_and_take(self, size: int) -> _Block | None:
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
            self._paths.append(path)
            segment = Segment(path, FileHeader(number, wanted, self.proof))
        except (OSError, ValueError, MemoryError) as error:
            self._growth_refused_ns = now_ns
            logger.warning("no more shared memory for %s, bodies go inline: %s", self.name, error)
            return False
        with self._lock:
            self._segments.append(segment)
        return True


def _unlink(paths: list[str], process: int) -> None:
    """Take away the names of an arena, in the process that made it."""
    if os.getpid() == process:
        for path in reversed(paths):
            with suppress(OSError):
                os.unlink(path)

"""Memory for one body, for as long as somebody in this process refers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from barrage.transport.shared_memory.layout import (
    NO_GENERATION,
    OFFSET_BITS,
    REGION_HEADER_BYTES,
    REGION_HEADER_USED,
    region_header,
    write_generation,
)
from barrage.wire.dissociated.references import BodyReference

if TYPE_CHECKING:
    from collections import deque

    from barrage.transport.shared_memory.segment import Segment


class Block:
    """A part of a segment that is given out: header and body."""

    __slots__ = ("is_exposed", "segment", "size", "start")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self.segment = segment
        self.start = start
        self.size = size
        self.is_exposed = False
        """Whether any other process may know of it."""

    def is_unread(self) -> bool:
        """Whether no process can read the body, now and later. The order of the two steps is what
        makes it true: see :mod:`.locks`."""
        if not self.is_exposed:
            return True
        write_generation(self.segment.memory, self.start, NO_GENERATION)
        return not self.segment.is_locked(self.start, self.size)

    def give_back(self) -> None:
        """Make the memory free. Under the arena's lock."""
        self.segment.space.give(self.start, self.size)


class Region:
    """Memory for one body. It stays as long as this object, or a view of it, is referred to."""

    __slots__ = ("__weakref__", "_block", "_returned", "address", "generation", "length")

    def __init__(
        self, block: Block, returned: deque[Block], *, length: int, generation: int
    ) -> None:
        self._block = block
        self._returned = returned
        self.length = length
        """Of the body, in bytes."""
        self.generation = generation
        self.address = block.segment.number << OFFSET_BITS | block.start + REGION_HEADER_BYTES
        header = region_header(generation, self.address, length, proof=block.segment.proof)
        block.segment.memory[block.start : block.start + REGION_HEADER_USED] = header

    def __del__(self) -> None:
        # Any thread, any moment: no lock may be waited for here.
        if not self._block.segment.is_retired:
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

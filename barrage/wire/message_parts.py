"""One message as the pieces of memory it consists of, for transports that write those to a socket
without putting them together first.

Cost: nothing is copied but small pieces, for which a piece of its own costs more than its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.wire.columns.base import BufferLike

_SMALL_BYTES: Final = 4 * 1024


class MessageParts:
    """A message. The memory of its parts must not change before it has been sent."""

    __slots__ = ("_byte_count", "views")

    def __init__(self, parts: Iterable[BufferLike]) -> None:
        self.views: list[memoryview] = []
        """What it consists of, none of it empty."""
        self._byte_count = 0
        small: list[memoryview] = []
        for part in parts:
            view = memoryview(part)
            if not view.nbytes:
                continue
            self._byte_count += view.nbytes
            if view.nbytes < _SMALL_BYTES:
                small.append(view)
                continue
            self._put_small(small)
            self.views.append(view if view.itemsize == 1 else view.cast("B"))
        self._put_small(small)

    def _put_small(self, small: list[memoryview]) -> None:
        if small:
            self.views.append(memoryview(b"".join(small)))
            small.clear()

    def __len__(self) -> int:
        return self._byte_count

    def __bytes__(self) -> bytes:
        """The same in one piece."""
        return b"".join(self.views)

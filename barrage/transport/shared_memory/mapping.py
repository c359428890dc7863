"""The client's side: an arena of a server on the same host, mapped read-only.

Nothing of the server is believed: its files are opened by a name of fixed form, have to belong to
this user alone and to carry the arena's proof; every reference is checked against the file and the
header that stands before the body. A server that breaks its word can spoil what it sent itself,
nothing else.

Borrowing costs no copy; one lock per body, and a page fault per new 64 KiB the first time a part
of the arena is used.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from barrage.errors import BodyChannelError, TransportUnavailableError
from barrage.transport.shared_memory import locks
from barrage.transport.shared_memory.layout import (
    NAME,
    OFFSET_BITS,
    ROOT_NUMBER,
    SEGMENTS_MAX,
    segment_name,
)
from barrage.transport.shared_memory.mapped_segment import MappedSegment, open_checked
from barrage.wire.dissociated.references import BodyReference

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

DIRECTORY = "/dev/shm"


class ArenaMapping:
    """An arena somebody else's bodies are in. Safe to use from several threads."""

    def __init__(self, name: str, directory: str, proof: bytes) -> None:
        """Use :meth:`open`."""
        self.name = name
        self._directory = directory
        self._proof = proof
        self._lock = threading.Lock()
        """Held while a segment is mapped."""
        self._segments: dict[int, MappedSegment] = {}
        self._is_closed = False

    @classmethod
    def open(cls, name: str, *, directory: str = DIRECTORY) -> ArenaMapping:
        """Find an arena by the name its server gave.

        TransportUnavailableError when it is not on this host, of another user or not an arena, or
        when the system has no locks of the kind that is needed.
        """
        if not NAME.fullmatch(name):
            raise TransportUnavailableError(f"{name[:64]!r} is not a name of shared memory")
        fd, header = open_checked(f"{directory}/{name}", ROOT_NUMBER)
        try:
            locks.lock_shared(fd, 0, header.size)
        except OSError as error:
            raise TransportUnavailableError(
                f"shared memory cannot be locked here: {error.strerror}"
            ) from error
        finally:
            os.close(fd)
        return cls(name, directory, header.proof)

    def proof(self) -> bytes:
        """16 bytes that only who has the arena can know."""
        return self._proof

    def borrow(self, reference: BodyReference, on_release: Callable[[int], None]) -> pa.Buffer:
        """One body, not copied. ``on_release(address)`` is called when the last buffer, array or
        slice made of it is gone, in any thread; it must do no more than queue.

        BodyChannelError when the reference does not check.
        """
        return self._segment(reference.address).lend(reference, on_release)

    def copy(self, reference: BodyReference) -> pa.Buffer:
        """One body in memory of our own; it can be given back at once.

        BodyChannelError when the reference does not check.
        """
        return self._segment(reference.address).copy(reference)

    def reference_at(self, address: int, length: int) -> BodyReference:
        """What refers to the body that is at ``address`` now, for who was told of it without its
        generation and knows that it is lent to him. Nothing of it is checked before it is used.

        BodyChannelError when the arena has no such place.
        """
        generation = self._segment(address).generation_at(address)
        return BodyReference(address, length, generation)

    def close(self) -> None:
        """Borrow no more. What is borrowed stays readable until it is given back."""
        with self._lock:
            self._is_closed = True
            self._segments.clear()

    def _segment(self, address: int) -> MappedSegment:
        segment = self._segments.get(address >> OFFSET_BITS)
        return segment if segment is not None else self._open_segment(address >> OFFSET_BITS)

    def _open_segment(self, number: int) -> MappedSegment:
        with self._lock:
            segment = self._segments.get(number)
            if segment is not None:
                return segment
            if self._is_closed:
                raise BodyChannelError("the shared memory has been closed")
            if not 0 <= number < SEGMENTS_MAX:
                raise BodyChannelError(f"shared memory has no segment {number}")
            path = f"{self._directory}/{segment_name(self.name, number)}"
            try:
                segment = MappedSegment(path, number, self._proof)
            except (TransportUnavailableError, OSError, ValueError) as error:
                raise BodyChannelError(f"a part of the shared memory is gone: {error}") from error
            self._segments[number] = segment
            return segment

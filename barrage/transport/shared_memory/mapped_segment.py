"""One file of an arena, as a client sees it: checked, mapped for reading, its parts lent out.

Every part that is lent is locked, so that the server does not use it for another body even when it
thinks that the stream is over. The same part may be lent several times; the lock goes with the
last. What was lent comes back in whatever thread drops the last Arrow buffer, possibly in the
middle of :meth:`MappedSegment.lend`: finalizers queue, and unlock only when nobody else is at it;
who is at it looks at the queue afterwards.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.errors import BodyChannelError, TransportUnavailableError
from barrage.transport.shared_memory import locks
from barrage.transport.shared_memory.forks import watch_forks
from barrage.transport.shared_memory.layout import (
    ALIGNMENT,
    COPY_BYTES_MAX,
    FILE_HEADER_BYTES,
    FILE_MODE,
    NO_GENERATION,
    OFFSET_MASK,
    REGION_HEADER_BYTES,
    REGION_HEADER_USED,
    FileHeader,
    read_generation,
    region_header,
)
from barrage.wire.dissociated.references import BodyReference

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    _Returned: TypeAlias = tuple[BodyReference, Callable[[int], None] | None]

logger = logging.getLogger(__name__)

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_FD = -1
_FIRST_BODY = -(-FILE_HEADER_BYTES // ALIGNMENT) * ALIGNMENT + REGION_HEADER_BYTES


def open_checked(path: str, number: int) -> tuple[int, FileHeader]:
    """Open a file of an arena for reading, after every check that can be made of it.

    TransportUnavailableError: not there, not ours, not a file of an arena.
    """
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        raise TransportUnavailableError(f"no shared memory {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        header = FileHeader.decode(os.pread(fd, FILE_HEADER_BYTES, 0))
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TransportUnavailableError(f"shared memory {path} belongs to somebody else")
        if stat.S_IMODE(status.st_mode) != FILE_MODE:
            raise TransportUnavailableError(f"shared memory {path} is open to others")
        if header is None or header.number != number or header.size != status.st_size:
            raise TransportUnavailableError(f"shared memory {path} is not what it should be")
    except OSError as error:
        os.close(fd)
        raise TransportUnavailableError(f"shared memory {path}: {error.strerror}") from error
    except BaseException:
        os.close(fd)
        raise
    return fd, header


class _Loan:
    """What a lent Arrow buffer keeps; its end is the end of the loan."""

    __slots__ = ("_on_release", "_reference", "_segment")

    def __init__(
        self,
        segment: MappedSegment,
        reference: BodyReference,
        on_release: Callable[[int], None] | None,
    ) -> None:
        self._segment = segment
        self._reference = reference
        self._on_release = on_release

    def __del__(self) -> None:
        self._segment.take_back(self._reference, self._on_release)


class MappedSegment:
    """A mapped file. It stays mapped and open as long as anything of it is lent."""

    def __init__(self, path: str, number: int, proof: bytes) -> None:
        self._fd = _NO_FD
        self._fd, header = open_checked(path, number)
        if header.proof != proof:
            raise TransportUnavailableError(f"shared memory {path} is another arena's")
        self.size = header.size
        self._proof = proof
        mapped = self._map(path)
        self._memory = memoryview(mapped)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)
        self._base = int(self._bytes.__array_interface__["data"][0])
        self._lock = threading.Lock()
        """Held for the fields below and while locks are taken and given back."""
        self._lent: dict[BodyReference, int] = {}
        """How often each body is lent; what is here is locked."""
        self._returned: deque[_Returned] = deque()
        self._is_inherited = False
        """In a forked child: the leases are the parent's to give back."""
        self._fork_fd = _NO_FD
        watch_forks(self)

    def __del__(self) -> None:
        _close(self._fd)

    def lend(self, reference: BodyReference, on_release: Callable[[int], None] | None) -> pa.Buffer:
        """The body as a buffer in the shared memory; ``on_release(address)`` when its last user
        is gone. BodyChannelError when it is not there."""
        start = self._take(reference)
        loan = _Loan(self, reference, on_release)
        return pa.foreign_buffer(self._base + start, reference.length, base=loan)

    def copy(self, reference: BodyReference) -> pa.Buffer:
        """The body in memory of our own. BodyChannelError when it is not there."""
        start = self._take(reference)
        try:
            buffer = pa.allocate_buffer(reference.length)
            into = np.frombuffer(buffer, dtype=np.uint8)
            stop = start + reference.length
            if reference.length > COPY_BYTES_MAX:
                np.copyto(into, self._bytes[start:stop])
            elif reference.length:
                into.data[:] = self._memory[start:stop]
        finally:
            self.take_back(reference, None)
        return buffer

    def generation_at(self, address: int) -> int:
        """What the header before the body at ``address`` says; BodyChannelError when that is no
        place for a body."""
        start = self._offset(BodyReference(address, 0, NO_GENERATION))
        return read_generation(self._memory, start - REGION_HEADER_BYTES)

    def take_back(self, reference: BodyReference, on_release: Callable[[int], None] | None) -> None:
        """Queue the end of a loan, and settle the queue unless somebody else is at it."""
        self._returned.append((reference, on_release))
        self._settle()

    def before_fork(self) -> None:
        """Open the file once more and lock there what is lent, for the child: the locks of this
        opening go when the parent gives back its buffers, however many the child still has."""
        self._lock.acquire()
        try:
            self._fork_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
            for reference in self._lent:
                locks.lock_shared(self._fork_fd, *_part(reference))
        except OSError as error:
            logger.warning("a child may lose its arrays in shared memory: %s", error)

    def after_fork_in_parent(self) -> None:
        _close(self._fork_fd)
        self._fork_fd = _NO_FD
        self._lock.release()
        self._settle()

    def after_fork_in_child(self) -> None:
        # The inherited opening is closed in any case: its locks are the parent's, to be given back
        # by nobody else and to end with it.
        _close(self._fd)
        self._fd, self._fork_fd = self._fork_fd, _NO_FD
        self._is_inherited = True
        self._lock = threading.Lock()
        self._settle()

    def _take(self, reference: BodyReference) -> int:
        """Lock a body and make sure that it is the one that is meant; its offset."""
        start = self._offset(reference)
        if reference.generation == NO_GENERATION:
            raise _gone(start)
        header = region_header(
            reference.generation, reference.address, reference.length, proof=self._proof
        )
        try:
            with self._lock:
                # What is wrong already is not locked at all: the unlock would take away the lock
                # of another body in the same place.
                self._check(start, header)
                count = self._lent.get(reference, 0)
                if not count:
                    self._lock_checked(reference, start, header)
                self._lent[reference] = count + 1
        finally:
            self._settle()
        return start

    def _offset(self, reference: BodyReference) -> int:
        """Where the body begins, checked against the file."""
        offset = reference.address & OFFSET_MASK
        if offset % ALIGNMENT or offset < _FIRST_BODY or offset + reference.length > self.size:
            raise BodyChannelError(
                f"a body of {reference.length} bytes at {reference.address:#x} is not in the "
                "shared memory"
            )
        return offset

    def _check(self, start: int, header: bytes) -> None:
        first = start - REGION_HEADER_BYTES
        if self._memory[first : first + REGION_HEADER_USED] != header:
            raise _gone(start)

    def _lock_checked(self, reference: BodyReference, start: int, header: bytes) -> None:
        """Lock a body and look at it once more: see :mod:`.locks`."""
        try:
            locks.lock_shared(self._fd, *_part(reference))
        except OSError as error:
            raise BodyChannelError(
                f"a body in shared memory cannot be locked: {error.strerror}"
            ) from error
        try:
            self._check(start, header)
        except BodyChannelError:
            locks.unlock(self._fd, *_part(reference))
            raise

    def _settle(self) -> None:
        """Unlock what came back, then tell. Never waits: another thread, or this one further up
        the stack, may be at it, and then does this too before it is done."""
        while self._returned and self._lock.acquire(blocking=False):
            done: list[_Returned] = []
            try:
                while self._returned:
                    reference, on_release = self._returned.popleft()
                    self._unlock(reference)
                    done.append((reference, on_release))
            finally:
                self._lock.release()
            if not self._is_inherited:
                _tell(done)

    def _unlock(self, reference: BodyReference) -> None:
        count = self._lent.pop(reference) - 1
        if count:
            self._lent[reference] = count
        elif self._fd != _NO_FD:
            try:
                locks.unlock(self._fd, *_part(reference))
            except OSError as error:  # splitting a lock takes memory
                logger.warning("a body in shared memory stays locked: %s", error)

    def _map(self, path: str) -> mmap.mmap:
        """Map the file by another opening: the mapping keeps a descriptor of its own, which must
        not carry our locks into a forked child."""
        fd = os.open(path, _OPEN)
        try:
            if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                raise TransportUnavailableError(f"shared memory {path} was replaced")
            return mmap.mmap(fd, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)


def _close(fd: int) -> None:
    if fd != _NO_FD:
        os.close(fd)


def _part(reference: BodyReference) -> tuple[int, int]:
    """What is locked for a body: offset of its header, length of both."""
    start = (reference.address & OFFSET_MASK) - REGION_HEADER_BYTES
    return start, REGION_HEADER_BYTES + reference.length


def _tell(done: list[_Returned]) -> None:
    """Tell who borrowed these bodies that they are back."""
    for reference, on_release in done:
        if on_release is not None:
            try:
                on_release(reference.address)
            except Exception:  # whoever dropped the last buffer has nothing to do with it
                logger.exception("the end of a loan could not be told")


def _gone(start: int) -> BodyChannelError:
    return BodyChannelError(
        f"the body at offset {start:#x} of the shared memory is not there any more"
    )

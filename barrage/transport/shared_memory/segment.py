"""One file of an arena, as its server sees it: made, marked as living, mapped for writing.

The file is backed by memory from the beginning (``posix_fallocate``): a sparse one would end the
process with SIGBUS when ``/dev/shm`` runs full. It never shrinks, and its mapping lives as long as
anything in it is used, also after its name is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from barrage.transport.shared_memory import locks
from barrage.transport.shared_memory.forks import watch_forks
from barrage.transport.shared_memory.free_space import FreeSpace
from barrage.transport.shared_memory.layout import (
    ALIGNMENT,
    FILE_HEADER_BYTES,
    FILE_MODE,
    FileHeader,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FD = -1


class Segment:
    """A file of ``size`` bytes. Which parts are free is in :attr:`space`, under the arena's
    lock; the memory itself is written by whoever was given a part of it."""

    def __init__(self, path: str, header: FileHeader) -> None:
        """Make the file. OSError when there is no room, or no such directory."""
        self.path = path
        self.number = header.number
        self.size = header.size
        self._fd = _NO_FD
        self._fd = os.open(path, _CREATE, FILE_MODE)
        try:
            self._claim()
            os.posix_fallocate(self._fd, 0, header.size)
            mapped = self._map()
        except BaseException:
            self.unlink()
            raise
        # Whoever uses a part by its address has this object; the mapping ends with it.
        self.memory = memoryview(mapped)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)
        self.base = int(self.bytes.__array_interface__["data"][0])
        self.memory[:FILE_HEADER_BYTES] = header.encode()
        self.space = FreeSpace(-(-FILE_HEADER_BYTES // ALIGNMENT) * ALIGNMENT, header.size)
        watch_forks(self)

    def __del__(self) -> None:
        self._close()

    def is_locked(self, start: int, length: int) -> bool:
        """Whether some client still reads a part of the segment."""
        return locks.is_locked(self._fd, start, length)

    def unlink(self) -> None:
        """Take the name away; who has the file mapped keeps it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def before_fork(self) -> None:
        """Nothing to hold."""

    def after_fork_in_parent(self) -> None:
        """Nothing was held."""

    def after_fork_in_child(self) -> None:
        # The mark of a living creator must not outlive the creator in its children.
        self._close()

    def _claim(self) -> None:
        """Mark the file as alive. Between its creation and the mark another server that cleans up
        may have taken it for a dead one's."""
        if not locks.own_file(self._fd) or os.fstat(self._fd).st_nlink == 0:
            raise FileExistsError(errno.EEXIST, "taken away by another server", self.path)
        os.fchmod(self._fd, FILE_MODE)  # whatever the umask is

    def _map(self) -> mmap.mmap:
        """Map the file by another opening: the mapping keeps a descriptor of its own, which must
        not carry the mark into a forked child."""
        fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
                raise FileExistsError(errno.EEXIST, "replaced by another file", self.path)
            return mmap.mmap(fd, self.size)
        finally:
            os.close(fd)

    def _close(self) -> None:
        fd, self._fd = self._fd, _NO_FD
        if fd != _NO_FD:
            os.close(fd)

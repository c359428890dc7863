"""One file of an arena, as its server sees it: made, marked as living, mapped for writing.

The file is backed by memory from the beginning (``posix_fallocate``): a sparse one would end the
process with SIGBUS when ``/dev/shm`` runs full. It never shrinks, and its mapping lives as long as
anything in it is used, also after its name is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
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
CREATION_TRIES = 10
CREATION_PAUSE_SECONDS = 0.001


class Segment:
    """A file of ``size`` bytes. Which parts are free is in :attr:`space`, under the arena's
    lock; the memory itself is written by whoever was given a part of it."""

    def __init__(self, path: str, header: FileHeader) -> None:
        """Make the file. OSError when there is no room, or no such directory."""
        self.path = path
        self.number = header.number
        self.size = header.size
        self.proof = header.proof
        self.is_retired = False
        """Whether the arena is closed and asks for nothing back."""
        self._fd = _NO_FD
        self._fd = _create(path)
        try:
            os.posix_fallocate(self._fd, 0, header.size)
            mapped = self._map()
        except BaseException:
            _unlink(path)
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
        try:
            return locks.is_locked(self._fd, start, length)
        except OSError:
            return True  # nobody can say, so nobody may write

    def check_locks(self) -> None:
        """OSError, and no file, where the system has no locks of the kind that is needed."""
        try:
            locks.is_locked(self._fd, 0, self.size)
        except OSError:
            _unlink(self.path)
            raise

    def before_fork(self) -> None:
        """Nothing to hold."""

    def after_fork_in_parent(self) -> None:
        """Nothing was held."""

    def after_fork_in_child(self) -> None:
        # The mark of a living creator must not outlive the creator in its children.
        self._close()

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


def _create(path: str) -> int:
    """Make a file that is marked as a living server's. Between its creation and the mark another
    server that cleans up may take it for a dead one's; then it is made once more."""
    for _ in range(CREATION_TRIES):
        with suppress(FileExistsError):
            fd = os.open(path, _CREATE, FILE_MODE)
            try:
                is_ours = locks.own_file(fd) and os.fstat(fd).st_nlink > 0
                os.fchmod(fd, FILE_MODE)  # whatever the umask is
            except BaseException:
                os.close(fd)
                _unlink(path)
                raise
            if is_ours:
                return fd
            os.close(fd)
        time.sleep(CREATION_PAUSE_SECONDS)
    raise FileExistsError(errno.EEXIST, "taken away again and again", path)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)

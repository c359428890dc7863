"""Where journals keep their bytes: a protocol, and the local file system behind it.

Paths are relative to the data directory and use ``/``. What ``write`` took is only sure to be there
after ``sync`` has returned; what ``rename`` did is sure when it returns. A failing call raises
OSError, with ENOSPC when there is no room. What a call that was cut short by a kill has done can be
read and is not sure: :meth:`Storage.settle` and :meth:`Storage.sync_directory` make it so.

:class:`SystemCalls` is what the local file system is asked for; the simulator has its own, beneath
the same :class:`LocalStorage`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Piece: TypeAlias = "bytes | memoryview | pa.Buffer"

LOCK_FILE = "lock"
_PIECES_PER_CALL = 512
"""Pieces handed to the system at a time; POSIX promises 16, Linux takes 1024."""

_COPY_BYTES = 1 << 20
"""Bytes written again at a time."""


class AppendFile(Protocol):
    """A file that is only written at its end."""

    @property
    def size(self) -> int:
        """Bytes written."""
        ...

    def write(self, pieces: Sequence[Piece]) -> None:
        """Append all pieces. After an error the size is unknown until ``truncate``."""
        ...

    def sync(self) -> None:
        """Return when every byte written is on the disk."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off everything from byte ``size`` on."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """A directory of files, owned by one process at a time."""

    @property
    def name(self) -> str:
        """What the directory is called in messages."""
        ...

    def append_to(self, path: str) -> AppendFile:
        """The file, made with its directories when it is not there. A file that is new is sure to
        be found again once it has been synced."""
        ...

    def read(self, path: str) -> pa.Buffer:
        """The content of now, mapped where possible; FileNotFoundError."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file; FileNotFoundError."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; none when there is no such directory."""
        ...

    def overwrite(self, path: str, content: bytes) -> None:
        """Put ``content`` at the beginning of a small file, at once and without syncing it."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Make ``content`` the whole file: afterwards, and after a crash in between, the file is
        either the old or the new one."""
        ...

    def patch(self, path: str, place: int, content: bytes) -> None:
        """Put ``content`` at ``place`` of a file that is there, and return when it is on the
        disk."""
        ...

    def settle(self, path: str, start: int, stop: int) -> None:
        """Make sure of a file that another process wrote, which may have been killed before it
        synced it, or have failed to: cut it off at ``stop``, write what stands from ``start`` on
        once more, and sync it with its directories. A sync alone would not do: after one that
        failed the system takes what it could not write for written."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make sure of the names in a directory and in those above it, whoever made them; nothing
        when it is not there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a synced file another name in its directory, replacing what has that name."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a directory with all in it; nothing when it is not there."""
        ...

    def free_bytes(self) -> int:
        """Room left."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes up ``size`` bytes; OSError ENOSPC when there is no room."""
        ...

    def lock(self) -> None:
        """Become the owner; ConfigError when another process is."""
        ...

    def check_place(self) -> None:
        """OSError when the directory that was locked is not the one of that name any more: somebody
        has removed, renamed or replaced it. What is written to its files then is lost with them."""
        ...

    def unlock(self) -> None:
        """Stop being the owner."""
        ...


class SystemCalls:
    """What a storage asks of the operating system, one method per call."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, file: int) -> None:
        os.close(file)

    def size(self, file: int) -> int:
        """Bytes of an open file."""
        return os.fstat(file).st_size

    def append(self, file: int, pieces: Sequence[memoryview]) -> int:
        """Write at the end; answers how much of it was taken."""
        return os.writev(file, pieces)

    def read_at(self, file: int, size: int, place: int) -> bytes:
        return os.pread(file, size, place)

    def write_at(self, file: int, content: bytes, place: int) -> int:
        return os.pwrite(file, content, place)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """The content of a file and what it takes to find it in the file."""
        os.fdatasync(file)

    def sync_names(self, directory: str) -> None:
        """The names in a directory."""
        file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there, or a link to one."""
        return os.path.isdir(path)

    def mode(self, path: str) -> int:
        """What ``lstat`` says of kind and rights; 0 when nothing is there."""
        try:
            return os.lstat(path).st_mode
        except FileNotFoundError:
            return 0

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def names(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove_file(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def map(self, path: str) -> pa.Buffer:
        """The content of a file that is not empty."""
        with pa.memory_map(path) as mapped:
            return mapped.read_buffer()

    def free_bytes(self, path: str) -> int:
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    def allocate(self, file: int, size: int) -> None:
        os.posix_fallocate(file, 0, size)

    def lock(self, file: int) -> bool:
        """Whether the file is ours alone now."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return False
        return True

    def is_named(self, file: int, path: str) -> bool:
        """Whether an open file is the one that is found under a name."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, os.fstat(file))


class LocalAppendFile:
    """A file of the operating system, written with as few calls and copies as possible."""

    def __init__(self, path: str, system: SystemCalls) -> None:
        self._directory = os.path.dirname(path)
        self._system = system
        self._file = system.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = system.size(self._file)
        self._is_named = False
        """Whether its name is sure. That it was there when it was opened says nothing: a process
        that was killed, or a first write that failed, may have left it unsynced."""

    @property
    def size(self) -> int:
        return self._size

    def write(self, pieces: Sequence[Piece]) -> None:
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while views:
            group = views[:_PIECES_PER_CALL]
            written = self._system.append(self._file, group)
            self._size += written
            # A short write is legal, above 2 GiB it is the rule.
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def sync(self) -> None:
        self._system.sync(self._file)
        if not self._is_named:
            self._system.sync_names(self._directory)
            self._is_named = True

    def truncate(self, size: int) -> None:
        self._system.truncate(self._file, size)
        self._size = size

    def close(self) -> None:
        if self._file >= 0:
            self._system.close(self._file)
            self._file = -1


class LocalStorage:
    """A directory of the local file system."""

    def __init__(self, root: Path | str, system: SystemCalls | None = None) -> None:
        self.root = Path(root)
        self._system = system or SystemCalls()
        self._lock_file = -1
        self._sure: set[Path] = set()
        """Directories whose names, and those of all above them, this process has synced."""

    @property
    def name(self) -> str:
        return str(self.root)

    def _at(self, path: str) -> Path:
        return self.root / path

    def _make_directory(self, directory: Path) -> None:
        """With its parents, each of which is synced: a directory is an entry in its parent. One
        that is there already may be what a killed process left, and as little sure as a new one, so
        this process syncs its parent once in any case."""
        if directory in self._sure:
            return
        parent = directory.parent
        if parent != directory:
            self._make_directory(parent)
            if not self._system.is_directory(str(directory)):
                self._system.make_directory(str(directory))
            self._sync_parent(directory)
        self._sure.add(directory)

    def _sync_parent(self, directory: Path) -> None:
        try:
            self._system.sync_names(str(directory.parent))
        except PermissionError:
            if directory.is_relative_to(self.root) and directory != self.root:
                raise
            # Above the data directory somebody else's directories begin, which are older than we.

    def append_to(self, path: str) -> LocalAppendFile:
        target = self._at(path)
        self._make_directory(target.parent)
        return LocalAppendFile(str(target), self._system)

    def read(self, path: str) -> pa.Buffer:
        target = str(self._at(path))
        if self._system.size_of(target) == 0:
            return pa.py_buffer(b"")
        return self._system.map(target)

    def size(self, path: str) -> int:
        return self._system.size_of(str(self._at(path)))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(self._system.names(str(self._at(path))))
        except FileNotFoundError:
            return []

    def overwrite(self, path: str, content: bytes) -> None:
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as file:
            self._system.write_at(file, content, 0)

    def patch(self, path: str, place: int, content: bytes) -> None:
        with self._opened(path, os.O_WRONLY) as file:
            while content:
                written = self._system.write_at(file, content, place)
                place, content = place + written, content[written:]
            self._system.sync(file)

    def settle(self, path: str, start: int, stop: int) -> None:
        with self._opened(path, os.O_RDWR) as file:
            if self._system.size(file) > stop:
                self._system.truncate(file, stop)
            place = start
            while place < stop:
                piece = self._system.read_at(file, min(_COPY_BYTES, stop - place), place)
                if not piece:
                    raise OSError(errno.EIO, "a file became shorter while it was read", path)
                place += self._system.write_at(file, piece, place)
            self._system.sync(file)
        self.sync_directory(path.rpartition("/")[0])

    @contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        file = self._system.open(str(self._at(path)), flags)
        try:
            yield file
        finally:
            self._system.close(file)

    def sync_directory(self, path: str) -> None:
        directory = self._at(path)
        if self._system.is_directory(str(directory)):
            self._make_directory(directory)
            self._system.sync_names(str(directory))

    def replace(self, path: str, content: bytes) -> None:
        temporary = f"{path}.pending"
        self.remove(temporary)
        file = self.append_to(temporary)
        try:
            file.write([content])
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)

    def rename(self, source: str, target: str) -> None:
        self._system.rename(str(self._at(source)), str(self._at(target)))
        self._system.sync_names(str(self._at(target).parent))

    def remove(self, path: str) -> None:
        target = self._at(path)
        mode = self._system.mode(str(target))
        if stat.S_ISDIR(mode):
            self._sure = {each for each in self._sure if not each.is_relative_to(target)}
            self._remove_tree(target)
        elif mode:
            self._system.remove_file(str(target))
        else:
            return
        self._system.sync_names(str(target.parent))

    def _remove_tree(self, directory: Path) -> None:
        for name in self._system.names(str(directory)):
            path = directory / name
            if stat.S_ISDIR(self._system.mode(str(path))):
                self._remove_tree(path)
            else:
                self._system.remove_file(str(path))
        self._system.remove_directory(str(directory))

    def free_bytes(self) -> int:
        return self._system.free_bytes(str(self.root))

    def allocate(self, path: str, size: int) -> None:
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as file:
            try:
                self._system.allocate(file, size)
            except OSError:
                self._system.remove_file(str(self._at(path)))
                raise

    def lock(self) -> None:
        self._make_directory(self.root)
        file = self._system.open(str(self._at(LOCK_FILE)), os.O_RDWR | os.O_CREAT)
        try:
            is_ours = self._system.lock(file)
        except OSError:
            self._system.close(file)
            raise
        if not is_ours:
            self._system.close(file)
            raise ConfigError(
                f"data directory {self.root} is in use by another process; "
                "stop it, or choose another directory"
            )
        self._lock_file = file

    def check_place(self) -> None:
        lock = str(self._at(LOCK_FILE))
        if self._lock_file >= 0 and not self._system.is_named(self._lock_file, lock):
            raise OSError(
                errno.ESTALE,
                f"data directory {self.root} was removed or replaced while it was in use",
            )

    def unlock(self) -> None:
        if self._lock_file >= 0:
            self._system.close(self._lock_file)
            self._lock_file = -1

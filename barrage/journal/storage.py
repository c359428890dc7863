"""Where journals keep their bytes: a protocol, and the local file system behind it.

Paths are relative to the data directory and use ``/``. What ``write`` took is only sure to be there
after ``sync`` has returned; what ``rename`` did is sure when it returns. A failing call raises
OSError, with ENOSPC when there is no room. The simulator has a storage of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

Piece: TypeAlias = "bytes | memoryview | pa.Buffer"

LOCK_FILE = "lock"
_PIECES_PER_CALL = 512
"""Pieces handed to the system at a time; POSIX promises 16, Linux takes 1024."""


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

    def unlock(self) -> None:
        """Stop being the owner."""
        ...


class LocalAppendFile:
    """A file of the operating system, written with as few calls and copies as possible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._file).st_size

    @property
    def size(self) -> int:
        return self._size

    def write(self, pieces: Sequence[Piece]) -> None:
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while views:
            group = views[:_PIECES_PER_CALL]
            written = os.writev(self._file, group)
            self._size += written
            # A short write is legal, above 2 GiB it is the rule.
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def sync(self) -> None:
        os.fdatasync(self._file)
        if self._is_new:
            _sync_directory(self._path.parent)
            self._is_new = False

    def truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self._size = size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class LocalStorage:
    """A directory of the local file system."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._lock_file = -1

    @property
    def name(self) -> str:
        return str(self.root)

    def _at(self, path: str) -> Path:
        return self.root / path

    def _make_directory(self, directory: Path) -> None:
        """With its parents, each of which is synced: a directory is an entry in its parent."""
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)

    def append_to(self, path: str) -> LocalAppendFile:
        target = self._at(path)
        self._make_directory(target.parent)
        return LocalAppendFile(target)

    def read(self, path: str) -> pa.Buffer:
        target = self._at(path)
        if target.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(target)) as mapped:
            return mapped.read_buffer()

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def overwrite(self, path: str, content: bytes) -> None:
        file = os.open(self._at(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, content, 0)
        finally:
            os.close(file)

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
        self._at(source).rename(self._at(target))
        _sync_directory(self._at(target).parent)

    def remove(self, path: str) -> None:
        target = self._at(path)
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        else:
            return
        _sync_directory(target.parent)

    def free_bytes(self) -> int:
        info = os.statvfs(self.root)
        return info.f_bavail * info.f_frsize

    def allocate(self, path: str, size: int) -> None:
        file = os.open(self._at(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            self._at(path).unlink()
            raise
        finally:
            os.close(file)

    def lock(self) -> None:
        self._make_directory(self.root)
        file = os.open(self._at(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise ConfigError(
                f"data directory {self.root} is in use by another process; "
                "stop it, or choose another directory"
            ) from error
        self._lock_file = file

    def unlock(self) -> None:
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

"""A journal's storage in memory that behaves as a disk does: what was not synced may be gone after
a crash, or there in part; a disk may be full, fail, or say that it synced what it did not."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from barrage.errors import ConfigError

PAGE_BYTES = 512


@dataclass
class DiskFile:
    """A file as the process sees it, and what of it is sure."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    is_linked: bool = False
    """Whether its name is sure to be found after a crash."""

    @property
    def size(self) -> int:
        """Bytes as the process sees it."""
        return len(self.content)


@dataclass
class Faults:
    """Chances per call. All 0: an honest disk."""

    lost_sync: float = 0.0
    failed_sync: float = 0.0
    failed_write: float = 0.0


class MemoryStorage:
    """Files by path. One process at a time, as the lock says."""

    def __init__(
        self, random: Random | None = None, *, room: int = 1 << 40, faults: Faults | None = None
    ) -> None:
        self.random = random or Random(0)
        self.files: dict[str, DiskFile] = {}
        self.room = room
        self.faults = faults or Faults()
        self.lost_syncs = 0
        self.sync_count = 0
        self._is_locked = False

    @property
    def name(self) -> str:
        return "memory"

    # --- what the process does --------------------------------------------------------------------

    def append_to(self, path: str) -> MemoryFile:
        file = self.files.setdefault(path, DiskFile())
        return MemoryFile(self, file)

    def read(self, path: str) -> pa.Buffer:
        return pa.py_buffer(bytes(self._file(path).content))

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def _file(self, path: str) -> DiskFile:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/"
        names = {
            name[len(prefix) :].split("/")[0] for name in self.files if name.startswith(prefix)
        }
        return sorted(names)

    def overwrite(self, path: str, content: bytes) -> None:
        file = self.files.setdefault(path, DiskFile())
        self.take_room(max(0, len(content) - len(file.content)))
        file.content[: len(content)] = content

    def replace(self, path: str, content: bytes) -> None:
        pending = f"{path}.pending"
        self.remove(pending)
        file = self.append_to(pending)
        file.write([content])
        file.sync()
        self.rename(pending, path)

    def rename(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)
        self.files[target].is_linked = True

    def remove(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(f"{path}/")]:
            del self.files[name]

    def free_bytes(self) -> int:
        used = sum(file.size for file in self.files.values())
        return max(0, self.room - used)

    def allocate(self, path: str, size: int) -> None:
        self.take_room(size)
        self.files[path] = DiskFile(bytearray(size), bytes(size), is_linked=True)

    def take_room(self, size: int) -> None:
        """ENOSPC when there is not that much."""
        if size > self.free_bytes():
            raise OSError(errno.ENOSPC, "no room")

    def lock(self) -> None:
        if self._is_locked:
            raise ConfigError("in use")
        self._is_locked = True

    def unlock(self) -> None:
        self._is_locked = False

    # --- what happens to it -----------------------------------------------------------------------

    def crash(self) -> None:
        """The power fails: of what was not synced some pages are there, in any order."""
        self._is_locked = False
        for path, file in list(self.files.items()):
            if not file.is_linked and self.random.random() < 0.5:
                del self.files[path]
                continue
            file.content = bytearray(self._what_is_left(file))
            file.synced = bytes(file.content)
            file.is_linked = True

    def _what_is_left(self, file: DiskFile) -> bytes:
        if file.content == file.synced:
            return file.synced
        fate = self.random.random()
        if fate < 0.25:
            return file.synced
        if fate < 0.5:
            return bytes(file.content)
        left = bytearray(file.synced)
        size = self.random.randint(0, len(file.content))
        left.extend(bytes(max(0, size - len(left))))
        for start in range(0, size, PAGE_BYTES):
            stop = min(size, start + PAGE_BYTES)
            if file.content[start:stop] != left[start:stop] and self.random.random() < 0.5:
                left[start:stop] = file.content[start:stop]
        return bytes(left)


class MemoryFile:
    """A file open for appending."""

    def __init__(self, storage: MemoryStorage, file: DiskFile) -> None:
        self._storage = storage
        self._file = file

    @property
    def size(self) -> int:
        return len(self._file.content)

    def write(self, pieces: list[bytes]) -> None:
        storage = self._storage
        if storage.random.random() < storage.faults.failed_write:
            raise OSError(errno.EIO, "the disk does not write")
        for piece in pieces:
            data = bytes(piece)
            room = storage.free_bytes()
            self._file.content += data[:room]
            if room < len(data):
                raise OSError(errno.ENOSPC, "no room")

    def sync(self) -> None:
        storage = self._storage
        storage.sync_count += 1
        if storage.random.random() < storage.faults.failed_sync:
            raise OSError(errno.EIO, "the disk does not sync")
        self._file.is_linked = True
        if storage.random.random() < storage.faults.lost_sync:
            storage.lost_syncs += 1
            return
        self._file.synced = bytes(self._file.content)

    def truncate(self, size: int) -> None:
        del self._file.content[size:]

    def close(self) -> None:
        """Nothing to release."""

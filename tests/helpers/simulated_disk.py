"""A disk in memory that tells what the system holds in its cache from what is on the platter.

It answers the calls of :class:`~barrage.journal.disk.storage.SystemCalls`, so the storage above it
is the real one. Two things happen to it. A *kill* takes the process away: handles and the lock are
gone, the cache stays. A *power cut* leaves any state the calls allow: of what was written since the
last sync any subset of sectors, each as it was at some moment since then; of what was named,
renamed, made or removed in a directory since that was synced any subset as well; what lies beneath
a name that is gone is gone with it.

A sync that fails behaves as Linux does: what it could not write counts as written from then on, so
a later sync passes over it, though it can be read until the cache lets it go.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from barrage.journal.disk.storage import SystemCalls

SECTOR_BYTES = 512
NO_LIMIT = 1 << 40
"""Room that is never used up, so nobody counts."""


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Faults:
    """Chances per call. All 0: an honest disk."""

    lost_sync: float = 0.0
    """The disk says that it synced a segment, and did not."""
    failed_sync: float = 0.0
    failed_write: float = 0.0


@dataclass(eq=False)
class DiskFile:
    """A file as processes see it, and what of it is on the platter."""

    content: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)
    """Sizes it has had since the last sync."""
    sectors: dict[int, list[bytes]] = field(default_factory=dict)
    """What sectors have held since the last sync, oldest first."""
    dropped: set[int] = field(default_factory=set)
    """Sectors that a failed sync took for written."""

    @property
    def size(self) -> int:
        """Bytes as processes see it."""
        return len(self.content)

    def write(self, place: int, content: bytes | memoryview) -> None:
        """Put bytes into the cache."""
        if not content:
            return
        stop = place + len(content)
        if stop > len(self.content):
            self.content.extend(bytes(stop - len(self.content)))
            self.sizes.append(stop)
        self.content[place:stop] = content
        for sector in range(place // SECTOR_BYTES, (stop - 1) // SECTOR_BYTES + 1):
            self.sectors.setdefault(sector, []).append(self._sector(sector))
            self.dropped.discard(sector)

    def _sector(self, number: int) -> bytes:
        return bytes(self.content[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])

    def resize(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        if size < len(self.content):
            del self.content[size:]
            # What is cut off does not come back when the file grows again.
            for sector in [each for each in self.sectors if each * SECTOR_BYTES >= size]:
                del self.sectors[sector]
            self.dropped = {each for each in self.dropped if each * SECTOR_BYTES < size}
        else:
            self.content.extend(bytes(size - len(self.content)))
        self.sizes.append(size)

    def sync(self) -> None:
        """Bring what the cache has to the platter, but what a failed sync has dropped."""
        self._resize_platter(len(self.content))
        for sector in self.sectors:
            self._bring(sector, self._sector(sector))
        self.sectors.clear()
        self.sizes.clear()

    def _resize_platter(self, size: int) -> None:
        del self.platter[size:]
        self.platter.extend(bytes(size - len(self.platter)))

    def _bring(self, sector: int, content: bytes) -> None:
        start = sector * SECTOR_BYTES
        stop = min(start + len(content), len(self.platter))
        if start < stop:
            self.platter[start:stop] = content[: stop - start]

    def fail_to_sync(self, random: Random) -> None:
        """Some sectors get there, the others are forgotten to be dirty."""
        self._resize_platter(max(len(self.content), len(self.platter)))
        for sector in self.sectors:
            if random.random() < 0.5:
                self._bring(sector, self._sector(sector))
            else:
                self.dropped.add(sector)
        self.sectors.clear()

    def let_go(self, random: Random) -> None:
        """The cache may let go of what counts as written."""
        if not self.dropped or random.random() < 0.5:
            return
        for sector in self.dropped:
            start = sector * SECTOR_BYTES
            stop = min(start + SECTOR_BYTES, len(self.content))
            left = bytes(self.platter[start:stop])
            self.content[start:stop] = left.ljust(stop - start, b"\0")
        self.dropped.clear()

    def cut(self, random: Random) -> None:
        """The power fails."""
        if self.sizes or self.sectors:
            fate = random.random()
            size = random.choice([len(self.platter), *self.sizes])
            if fate < 0.2:
                size = len(self.content)
            elif fate < 0.4:
                size = random.randint(*sorted((len(self.platter), len(self.content))))
            self._resize_platter(size)
            share = random.choice([0.0, 0.5, 0.5, 0.9, 1.0])
            for sector, versions in self.sectors.items():
                if random.random() < share:
                    newest = random.random() < 0.7
                    self._bring(sector, versions[-1] if newest else random.choice(versions))
        self.content = bytearray(self.platter)
        self.sizes.clear()
        self.sectors.clear()
        self.dropped.clear()


@dataclass(eq=False)
class Directory:
    """Names as processes see them, and those on the platter."""

    names: dict[str, DiskFile | Directory] = field(default_factory=dict)
    platter: dict[str, DiskFile | Directory] = field(default_factory=dict)
    changed: dict[str, list[DiskFile | Directory | None]] = field(default_factory=dict)
    """What names have stood for since the last sync."""

    def put(self, name: str, node: DiskFile | Directory | None) -> None:
        """Let a name stand for something, or for nothing."""
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.changed.setdefault(name, []).append(node)

    def sync(self) -> None:
        """Bring the names to the platter."""
        self.platter = dict(self.names)
        self.changed.clear()

    def fail_to_sync(self, random: Random) -> None:
        """Some names get there; the others wait for the next sync, as the journal of a file system
        keeps them until it is written or the file system is shut down."""
        for name, versions in self.changed.items():
            if random.random() < 0.5:
                self._bring(name, versions[-1])

    def _bring(self, name: str, node: DiskFile | Directory | None) -> None:
        self.platter.pop(name, None)
        if node is not None:
            self.platter[name] = node

    def cut(self, random: Random, seen: set[int]) -> None:
        """The power fails."""
        share = random.choice([0.0, 0.5, 1.0])
        for name, versions in self.changed.items():
            if random.random() < share:
                self._bring(
                    name, versions[-1] if random.random() < 0.7 else random.choice(versions)
                )
        self.names = dict(self.platter)
        self.changed.clear()
        for child in self.names.values():
            if id(child) in seen:
                continue
            seen.add(id(child))
            if isinstance(child, Directory):
                child.cut(random, seen)
            else:
                child.cut(random)

    def files(self) -> Iterator[tuple[str, DiskFile]]:
        """All files beneath, by path."""
        for name, node in self.names.items():
            if isinstance(node, DiskFile):
                yield name, node
            else:
                for path, file in node.files():
                    yield f"{name}/{path}", file


class FileView(MutableMapping[str, DiskFile]):
    """All files by their path. Changes go past the process, to cache and platter at once."""

    def __init__(self, root: Directory) -> None:
        self._root = root

    def _directory(self, path: str, *, make: bool = False) -> tuple[Directory, str]:
        *parents, name = path.split("/")
        directory = self._root
        for each in parents:
            child = directory.names.get(each)
            if child is None and make:
                child = directory.names[each] = directory.platter[each] = Directory()
            if not isinstance(child, Directory):
                raise KeyError(path)
            directory = child
        return directory, name

    def __getitem__(self, path: str) -> DiskFile:
        directory, name = self._directory(path)
        node = directory.names[name]
        if not isinstance(node, DiskFile):
            raise KeyError(path)
        return node

    def __setitem__(self, path: str, file: DiskFile) -> None:
        directory, name = self._directory(path, make=True)
        directory.names[name] = directory.platter[name] = file

    def __delitem__(self, path: str) -> None:
        directory, name = self._directory(path)
        del directory.names[name]
        directory.platter.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path for path, _ in self._root.files()))

    def __len__(self) -> int:
        return sum(1 for _ in self._root.files())


@dataclass
class _Handle:
    node: DiskFile
    is_lock: bool = False


class SimulatedDisk(SystemCalls):
    """The calls of one process at a time upon one disk. Paths are absolute: ``/data/...``."""

    def __init__(
        self, random: Random | None = None, *, room: int = NO_LIMIT, faults: Faults | None = None
    ) -> None:
        self.random = random or Random(0)
        self.root = Directory()
        self.room = room
        self.faults = faults or Faults()
        self.lost_syncs = 0
        self.has_shown_lies = False
        self.sync_count = 0
        """Syncs of files."""
        self.calls = 0
        """Calls that change something or make it sure."""
        self.on_call: Callable[[str, str], None] | None = None
        """Told of each such call before it happens; may raise :class:`Killed`."""
        self.fail: Callable[[str, str], int] | None = None
        """Asked of each such call for the error number with which it fails; 0: it does not."""
        self._handles: dict[int, _Handle] = {}
        self._paths: dict[int, str] = {}
        self._next_handle = 3
        self._locked: DiskFile | None = None

    # --- what happens to it -----------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone; what the system has in its cache is still there."""
        self._handles.clear()
        self._paths.clear()
        self._locked = None
        for _, file in self.root.files():
            file.let_go(self.random)

    def cut(self) -> None:
        """The power fails, and comes back."""
        self.kill()
        self.root.cut(self.random, set())

    # --- names ------------------------------------------------------------------------------------

    def _node(self, path: str) -> DiskFile | Directory | None:
        node: DiskFile | Directory | None = self.root
        for name in path.split("/"):
            if name:
                node = node.names.get(name) if isinstance(node, Directory) else None
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        node = self._node(parent)
        if not isinstance(node, Directory):
            raise FileNotFoundError(path)
        return node, name

    def _file(self, path: str) -> DiskFile:
        node = self._node(path)
        if not isinstance(node, DiskFile):
            raise FileNotFoundError(path)
        return node

    def _called(self, name: str, path: str, *, half: Callable[[], None] | None = None) -> None:
        """A call is made; when it is to fail, ``half`` is what it does all the same."""
        self.calls += 1
        if self.on_call is not None:
            self.on_call(name, path)
        number = 0 if self.fail is None else self.fail(name, path)
        if number:
            if half is not None:
                half()
            raise OSError(number, os.strerror(number), path)

    def open(self, path: str, flags: int) -> int:
        node = self._node(path)
        if node is None and flags & os.O_CREAT:
            parent, name = self._parent(path)
            self._called("create", path)
            node = DiskFile()
            parent.put(name, node)
        if not isinstance(node, DiskFile):
            raise FileNotFoundError(path)
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._handles[handle] = _Handle(node)
        self._paths[handle] = path
        return handle

    def close(self, file: int) -> None:
        handle = self._handles.pop(file, None)
        self._paths.pop(file, None)
        if handle is not None and handle.is_lock:
            self._locked = None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._node(path), Directory)

    def mode(self, path: str) -> int:
        node = self._node(path)
        if node is None:
            return 0
        return stat.S_IFDIR if isinstance(node, Directory) else stat.S_IFREG

    def names(self, directory: str) -> list[str]:
        node = self._node(directory)
        if not isinstance(node, Directory):
            raise FileNotFoundError(directory)
        return list(node.names)

    def make_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        self._called("mkdir", path)
        parent.put(name, Directory())

    def rename(self, source: str, target: str) -> None:
        node = self._file(source)
        self._called("rename", target)
        parent, name = self._parent(source)
        parent.put(name, None)
        parent, name = self._parent(target)
        parent.put(name, node)

    def remove_file(self, path: str) -> None:
        self._file(path)
        self._called("unlink", path)
        parent, name = self._parent(path)
        parent.put(name, None)

    def remove_directory(self, path: str) -> None:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._called("rmdir", path)
        parent, name = self._parent(path)
        parent.put(name, None)

    def sync_names(self, directory: str) -> None:
        node = self._node(directory)
        if not isinstance(node, Directory):
            raise FileNotFoundError(directory)
        self._called("sync names", directory, half=lambda: node.fail_to_sync(self.random))
        node.sync()

    # --- content ----------------------------------------------------------------------------------

    def _open_file(self, file: int) -> DiskFile:
        if file not in self._handles:
            raise OSError(errno.EBADF, "this handle is closed")
        return self._handles[file].node

    def size(self, file: int) -> int:
        return self._open_file(file).size

    def size_of(self, path: str) -> int:
        return self._file(path).size

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(bytes(self._file(path).content))

    def append(self, file: int, pieces: Sequence[memoryview]) -> int:
        node = self._open_file(file)
        data = b"".join(pieces)
        half = data[: len(data) // 2]
        self._called("write", self._paths[file], half=lambda: node.write(node.size, half))
        if self.random.random() < self.faults.failed_write:
            raise OSError(errno.EIO, "the disk does not write")
        room = self.free_bytes("/")
        if data and not room:
            raise OSError(errno.ENOSPC, "no room")
        node.write(node.size, data[:room])
        return min(len(data), room)

    def read_at(self, file: int, size: int, place: int) -> bytes:
        return bytes(self._open_file(file).content[place : place + size])

    def write_at(self, file: int, content: bytes, place: int) -> int:
        node = self._open_file(file)
        half = content[: len(content) // 2]
        self._called("write at", self._paths[file], half=lambda: node.write(place, half))
        if self.random.random() < self.faults.failed_write:
            raise OSError(errno.EIO, "the disk does not write")
        if place + len(content) - node.size > self.free_bytes("/"):
            raise OSError(errno.ENOSPC, "no room")
        node.write(place, content)
        return len(content)

    def truncate(self, file: int, size: int) -> None:
        node = self._open_file(file)
        self._called("truncate", self._paths[file])
        node.resize(size)

    def sync(self, file: int) -> None:
        node = self._open_file(file)
        self._called("sync", self._paths[file], half=lambda: self._fail_to_sync(node))
        self.sync_count += 1
        if self.random.random() < self.faults.failed_sync:
            self._fail_to_sync(node)
            raise OSError(errno.EIO, "the disk does not sync")
        if "/wal/" in self._paths[file] and self.random.random() < self.faults.lost_sync:
            self.lost_syncs += 1
            return
        node.sync()

    def _fail_to_sync(self, node: DiskFile) -> None:
        """What a sync that was a lie left in the cache goes with the rest."""
        self.has_shown_lies |= self.lost_syncs > 0
        node.fail_to_sync(self.random)

    def free_bytes(self, path: str) -> int:
        return self.room if self.room >= NO_LIMIT else max(0, self.room - self.used_bytes())

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for _, file in self.root.files())

    def allocate(self, file: int, size: int) -> None:
        node = self._open_file(file)
        self._called("allocate", self._paths[file])
        if size - node.size > self.free_bytes("/"):
            raise OSError(errno.ENOSPC, "no room")
        node.resize(size)

    def is_named(self, file: int, path: str) -> bool:
        return self._open_file(file) is self._node(path)

    def lock(self, file: int) -> bool:
        node = self._open_file(file)
        if self._locked is node:
            return False
        self._locked = node
        self._handles[file].is_lock = True
        return True

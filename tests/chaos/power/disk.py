"""A disk as POSIX promises it: what is in the page cache, and what is sure to be on the platter.

A kill keeps the page cache. A power cut keeps what was synced, and of everything else any part: any
subset of the writes since the last sync of a file, each torn at sectors; any subset of the
entries made, removed and renamed in a directory since its last sync. A rename is one entry
operation: it is there or not.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

SECTOR_BYTES: Final = 512
Entries: TypeAlias = "dict[tuple[int, str], int | None]"
Tree: TypeAlias = "dict[str, bytes | None]"
"""Content by path; None for a directory."""


@dataclass(slots=True)
class Write:
    """Bytes put at a place."""

    offset: int
    content: bytes


@dataclass(slots=True)
class Resize:
    """A file made longer, with zeros, or shorter."""

    size: int


@dataclass(slots=True)
class Inode:
    """A file or a directory, under whatever names."""

    number: int
    is_directory: bool
    cached: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[Write | Resize] = field(default_factory=list)

    def do(self, change: Write | Resize) -> None:
        apply(self.cached, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.synced = bytes(self.cached)
        self.unsynced.clear()


def apply(content: bytearray, change: Write | Resize) -> None:
    """Do what a change says."""
    if isinstance(change, Resize):
        if change.size < len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.content)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.content


ROOT: Final = 0


class Disk:
    """A directory and everything beneath it."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {ROOT: Inode(ROOT, is_directory=True)}
        self.cached: Entries = {}
        self.synced: Entries = {}
        self.unsynced: list[Entries] = []
        """Operations upon entries, in order; one may touch two names."""

    @classmethod
    def of(cls, tree: Tree) -> Disk:
        """A disk on which all of this is sure."""
        disk = cls()
        for path in sorted(tree):
            content = tree[path]
            if content is None:
                disk.make(path, is_directory=True)
            else:
                disk.make(path, is_directory=False).do(Write(0, content))
        for inode in disk.inodes.values():
            inode.sync()
        disk.synced, disk.unsynced = dict(disk.cached), []
        return disk

    # --- names ------------------------------------------------------------------------------------

    def find(self, path: str) -> Inode | None:
        """What has a name now."""
        number: int | None = ROOT
        for part in PurePosixPath(path).parts:
            assert number is not None
            number = self.cached.get((number, part))
            if number is None:
                return None
        return self.inodes[number] if number is not None else None

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        found = self.find(parent)
        if found is None:
            raise KeyError(f"there is no directory {parent!r}")
        return found.number, name

    def make(self, path: str, *, is_directory: bool) -> Inode:
        inode = Inode(len(self.inodes), is_directory=is_directory)
        self.inodes[inode.number] = inode
        self._enter({self._place(path): inode.number})
        return inode

    def remove(self, path: str) -> None:
        self._enter({self._place(path): None})

    def rename(self, source: str, target: str) -> None:
        found = self.find(source)
        assert found is not None, source
        self._enter({self._place(source): None, self._place(target): found.number})

    def _enter(self, entries: Entries) -> None:
        self.cached.update(entries)
        self.unsynced.append(entries)

    def sync(self, inode: Inode) -> None:
        """What fsync of a file or a directory promises. A rename is sure with either directory."""
        if not inode.is_directory:
            inode.sync()
            return
        kept = []
        for entries in self.unsynced:
            if any(directory == inode.number for directory, _ in entries):
                self.synced.update(entries)
            else:
                kept.append(entries)
        self.unsynced = kept

    # --- what is found later ----------------------------------------------------------------------

    def after_a_kill(self) -> Tree:
        """What another process sees."""
        contents = {n: bytes(inode.cached) for n, inode in self.inodes.items()}
        return self._tree(self.cached, contents)

    def after_a_cut(self, chance: random.Random) -> Tree:
        """One of the states that a power cut may leave. The same chances make the same state."""
        entries = dict(self.synced)
        survive = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for change in self.unsynced:
            if chance.random() < survive:
                entries.update(change)
        survive = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        contents = {
            number: after_a_cut(inode, survive, chance) for number, inode in self.inodes.items()
        }
        return self._tree(entries, contents)

    def _tree(self, entries: Entries, contents: dict[int, bytes]) -> Tree:
        names: dict[int, list[tuple[str, int]]] = {}
        for (directory, name), number in entries.items():
            if number is not None:
                names.setdefault(directory, []).append((name, number))
        tree: Tree = {}
        waiting = [("", ROOT)]
        while waiting:
            path, directory = waiting.pop()
            for name, number in names.get(directory, ()):
                where = f"{path}/{name}".lstrip("/")
                if self.inodes[number].is_directory:
                    tree[where] = None
                    waiting.append((where, number))
                else:
                    tree[where] = contents[number]
        return tree


def after_a_cut(inode: Inode, survive: float, chance: random.Random) -> bytes:
    """What a cut leaves of a file."""
    content = bytearray(inode.synced)
    for change in inode.unsynced:
        if chance.random() >= survive:
            continue
        if isinstance(change, Write) and chance.random() < 0.3:
            for part in _sectors(change):
                if chance.random() < 0.5:
                    apply(content, part)
        else:
            apply(content, change)
    return bytes(content)


def _sectors(write: Write) -> list[Write]:
    """A write cut where the disk may tear it."""
    parts = []
    start, end = write.offset, write.offset + len(write.content)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        at = start - write.offset
        parts.append(Write(start, write.content[at : at + stop - start]))
        start = stop
    return parts


def read_tree(root: Path) -> Tree:
    """What is in a directory of ours."""
    tree: Tree = {}
    for directory, folders, files in os.walk(root):
        at = Path(directory)
        for name in folders:
            tree[str((at / name).relative_to(root))] = None
        for name in files:
            tree[str((at / name).relative_to(root))] = (at / name).read_bytes()
    return tree


def write_tree(tree: Tree, root: Path) -> None:
    """Make a directory what a tree says."""
    root.mkdir(parents=True)
    for path in sorted(tree):
        content = tree[path]
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)

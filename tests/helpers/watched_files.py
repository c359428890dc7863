"""Real files whose calls are watched, so that it is known what a power cut leaves at the least: of
each file what it held when it was synced last, of each directory the names it had then.

It stands in for functions of :mod:`os`, so it knows nothing of who calls them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

WATCHED = ("writev", "fsync", "fdatasync", "mkdir")


class Ended(BaseException):
    """The process ends here."""


class WatchedFiles:
    """Everything beneath one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before: Callable[[str, str], None] = lambda *_: None
        """Told of each watched call before it is made, with the path; may raise."""
        self._honest: dict[str, Callable[..., Any]] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        """Of a directory its names, each with an inode and whether that is a directory."""
        self._kept: list[int] = []

    def __enter__(self) -> Self:
        for name in WATCHED:
            self._honest[name] = getattr(os, name)
            setattr(os, name, self._watching(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._honest.items():
            setattr(os, name, function)
        for file in self._kept:
            os.close(file)

    def _watching(self, name: str) -> Callable[..., Any]:
        honest = self._honest[name]

        def call(target: Any, *arguments: Any, **named: Any) -> Any:
            is_file = isinstance(target, int)
            path = os.readlink(f"/proc/self/fd/{target}") if is_file else os.fspath(target)
            self.before(name, path)
            answer = honest(target, *arguments, **named)
            if name in ("fsync", "fdatasync") and Path(path).is_relative_to(self.root):
                self._note(target)
            return answer

        return call

    def _note(self, file: int) -> None:
        info = os.fstat(file)
        if info.st_ino not in self._contents and info.st_ino not in self._names:
            # An inode that is open is not given to another file.
            self._kept.append(os.dup(file))
        if stat.S_ISDIR(info.st_mode):
            with os.scandir(file) as entries:
                self._names[info.st_ino] = {e.name: (e.inode(), e.is_dir()) for e in entries}
        else:
            # Not through the file itself, which may be open for writing only.
            self._contents[info.st_ino] = Path(f"/proc/self/fd/{file}").read_bytes()

    def after_a_power_cut(self, target: Path) -> Path:
        """A directory with what is sure to be there, and nothing else."""
        self._rebuild(self.root.stat().st_ino, target, is_directory=True)
        return target

    def _rebuild(self, inode: int, target: Path, *, is_directory: bool) -> None:
        if not is_directory:
            target.write_bytes(self._contents.get(inode, b""))
            return
        target.mkdir()
        for name, (child, is_child_directory) in self._names.get(inode, {}).items():
            self._rebuild(child, target / name, is_directory=is_child_directory)


@contextmanager
def ending_at(files: WatchedFiles, name: str, end_of_path: str, number: int = 1) -> Iterator[None]:
    """The process ends before its ``number``-th call of that name upon such a path."""
    left = [number]

    def before(called: str, path: str) -> None:
        if called == name and path.endswith(end_of_path):
            left[0] -= 1
            if left[0] == 0:
                raise Ended

    files.before = before
    try:
        yield
    except Ended:
        return
    finally:
        files.before = lambda *_: None
    raise AssertionError(f"no {name} of {end_of_path}")

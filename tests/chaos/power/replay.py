"""From recorded calls to what happened on the disk and what clients were told, in order."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.power.disk import Disk, Inode, Resize, Tree, Write
from tests.chaos.power.strace import UNKNOWN_TO_THE_MODEL, Call, calls

DELETED = " (deleted)"
NO_CALL = "syscall_0x"
"""What strace calls a number that no system call has: it reads the registers of a thread that a
kill meets on its way into a call, and they may hold anything. Such a call did nothing."""


class UnexplainedKillError(Exception):
    """What a kill left is explained by no choice among the calls in which it met the threads."""


class UnknownCallError(Exception):
    """The server asked the disk for something that the model has no words for."""


@dataclass
class _Open:
    """An open file: where the next write goes."""

    path: str
    appends: bool
    position: int = 0


@dataclass(frozen=True)
class Told:
    """Something a client was told, at its place in the record."""

    what: dict[str, Any]


class Replay:
    """Applies the calls of one life to a disk.

    ``step()`` yields after every call that changed something, and what clients were told in
    between; calls in which the server was killed are left out and kept in ``doubtful``.
    """

    def __init__(self, disk: Disk, *, root: Path, marks: Path, record: Path) -> None:
        self.disk = disk
        self.doubtful: list[Call] = []
        self._root = f"{root}/"
        self._marks = str(marks)
        self._record = record
        self._open: dict[tuple[int, str], _Open] = {}

    def steps(self) -> Iterator[Told | Call]:
        for call in calls(self._record):
            if call.result is None:
                self.doubtful.append(call)
            elif call.result >= 0:
                told = self._told(call)
                if told is not None:
                    yield from told
                elif self.do(call):
                    yield call

    def _told(self, call: Call) -> list[Told] | None:
        if call.name != "write" or call.file()[1] != self._marks:
            return None
        (said,) = call.strings()
        return [Told(json.loads(line)) for line in said.splitlines()]

    def settle(self, found: Tree) -> None:
        """Let those of the doubtful calls have happened that must have, for the disk to be as it
        was found after the kill. Each thread was in one call at most, so any of them may have
        happened and any may not; a write may have been cut short. UnexplainedKillError when no
        choice explains what was found."""
        doubtful, self.doubtful = self.doubtful, []
        choices = [self._outcomes(call, found) for call in doubtful]
        for outcomes in sorted(itertools.product(*choices), key=_count_of_done):
            done = [call for call in outcomes if call is not None]
            trial = copy.deepcopy(self)
            for call in done:
                trial.do(call)
            if trial.disk.after_a_kill() == found:
                for call in done:
                    self.do(call)
                return
        raise UnexplainedKillError(f"{self._told_apart(found)} after {doubtful}")

    def _outcomes(self, call: Call, found: Tree) -> list[Call | None]:
        """What may have become of a call: nothing, all of it, or the part of a write that explains
        how long the file is. Nothing alone, where doing it changes no file."""
        trial = copy.deepcopy(self)
        before = trial.disk.after_a_kill()
        trial.do(call)
        after = trial.disk.after_a_kill()
        outcomes: list[Call | None] = [None]
        if after != before:
            outcomes.append(call)
        if call.name in ("write", "writev") and after != before:
            (path,) = (path for path in after if after[path] != before.get(path))
            part = len(found.get(path) or b"") - len(before.get(path) or b"")
            if 0 < part < len(b"".join(call.strings())):
                outcomes.append(replace(call, result=part))
        return outcomes

    def _told_apart(self, found: Tree) -> str:
        now = self.disk.after_a_kill()
        wrong = [
            path
            for path in sorted({*now, *found})
            if now.get(path, b"absent") != found.get(path, b"absent")
        ]
        sizes = [(path, len(now.get(path) or b""), len(found.get(path) or b"")) for path in wrong]
        return f"the model of the disk is wrong about {sizes} (path, size in it, size found)"

    def do(self, call: Call) -> bool:
        """Whether the call changed anything beneath the root."""
        if call.name in UNKNOWN_TO_THE_MODEL or call.name.startswith(NO_CALL):
            if self._root in call.arguments or self._hex_root() in call.arguments:
                raise UnknownCallError(f"{call.name}({call.arguments[:200]})")
            return False
        method = getattr(self, f"_{_FORMS.get(call.name, call.name)}")
        return bool(method(call))

    def _hex_root(self) -> str:
        return "".join(f"\\x{byte:02x}" for byte in self._root.encode())

    def _inside(self, path: str) -> str | None:
        """A path relative to the root; None for one that is elsewhere."""
        if path + "/" == self._root:
            return ""
        if not path.startswith(self._root) or path.endswith(DELETED):
            return None
        return path.removeprefix(self._root)

    def _path(self, call: Call, index: int = 0) -> str | None:
        return self._inside(call.paths()[index])

    # --- names ------------------------------------------------------------------------------------

    def _openat(self, call: Call) -> bool:
        path = self._path(call)
        if not path:
            return False
        inode, changed = self.disk.find(path), False
        if inode is None:
            if "O_CREAT" not in call.arguments:
                return False
            inode, changed = self.disk.make(path, is_directory=False), True
        if "O_SYNC" in call.arguments or "O_DSYNC" in call.arguments:
            raise UnknownCallError(f"{path} is opened to be written through")
        if "O_TRUNC" in call.arguments and inode.cached:
            inode.do(Resize(0))
            changed = True
        if call.result is not None:
            appends = "O_APPEND" in call.arguments
            self._open[call.result, path] = _Open(path, appends)
        return changed

    def _mkdir(self, call: Call) -> bool:
        path = self._path(call)
        if path is None:
            return False
        if path:
            self.disk.make(path, is_directory=True)
        return True

    def _unlink(self, call: Call) -> bool:
        path = self._removed(call)
        if path is None or self.disk.find(path) is None:
            return False
        self.disk.remove(path)
        return True

    def _removed(self, call: Call) -> str | None:
        """The path of an unlink, which may be relative to an open directory."""
        name = call.paths()[0]
        if name.startswith("/"):
            return self._inside(name)
        if call.arguments.startswith('"'):
            return None
        directory = self._inside(call.file()[1]) if call.arguments[0].isdigit() else None
        return None if directory is None else f"{directory}/{name}".lstrip("/")

    def _rename(self, call: Call) -> bool:
        source, target = self._path(call, 0), self._path(call, 1)
        if source is None and target is None:
            return False
        if source is None or target is None:
            raise UnknownCallError("a rename across the edge of the data directory")
        self.disk.rename(source, target)
        return True

    # --- content ----------------------------------------------------------------------------------

    def _found(self, call: Call) -> tuple[Inode, int, str] | None:
        number, path = call.file()
        inside = self._inside(path)
        if inside is None:
            return None
        inode = self.disk.find(inside)
        return None if inode is None else (inode, number, inside)

    def _write(self, call: Call) -> bool:
        found = self._found(call)
        if found is None:
            return False
        inode, number, path = found
        content = b"".join(call.strings())
        content = content if call.result is None else content[: call.result]
        if call.name.startswith("pwrite"):
            inode.do(Write(call.last_number(), content))
            return True
        # A file that was renamed while it was open has another path now.
        file = self._open.get((number, path)) or next(
            each for (n, _), each in reversed(self._open.items()) if n == number
        )
        place = len(inode.cached) if file.appends else file.position
        inode.do(Write(place, content))
        file.position = place + len(content)
        return True

    def _lseek(self, call: Call) -> bool:
        number, path = call.file()
        inside = self._inside(path)
        if inside is not None and (number, inside) in self._open and call.result is not None:
            self._open[number, inside].position = call.result
        return False

    def _ftruncate(self, call: Call) -> bool:
        found = self._found(call)
        if found is None:
            return False
        found[0].do(Resize(call.last_number()))
        return True

    def _truncate(self, call: Call) -> bool:
        path = self._path(call)
        inode = None if path is None else self.disk.find(path)
        if inode is None:
            return False
        inode.do(Resize(call.last_number()))
        return True

    def _fallocate(self, call: Call) -> bool:
        found = self._found(call)
        if found is None:
            return False
        mode, offset, size = (part.strip() for part in call.arguments.split(",")[1:])
        if mode != "0":
            raise UnknownCallError(f"fallocate in mode {mode}")
        end = int(offset) + int(size)
        if end > len(found[0].cached):
            found[0].do(Resize(end))
        return True

    def _fsync(self, call: Call) -> bool:
        found = self._found(call)
        # A call in which the process was killed promises nothing to anybody.
        if found is None or call.result is None:
            return False
        self.disk.sync(found[0])
        return True


def _count_of_done(outcomes: tuple[Call | None, ...]) -> int:
    return sum(call is not None for call in outcomes)


_FORMS = {
    "open": "openat",
    "creat": "openat",
    "mkdirat": "mkdir",
    "rmdir": "unlink",
    "unlinkat": "unlink",
    "renameat": "rename",
    "renameat2": "rename",
    "writev": "write",
    "pwrite64": "write",
    "pwritev": "write",
    "fdatasync": "fsync",
}

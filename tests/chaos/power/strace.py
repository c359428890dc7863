"""Recording the system calls of processes with ``strace``, and reading the record.

The order of the record is that in which calls returned, and a process goes on only when its call
stands in it: what one process did because of what another told it comes after what the other did
before. Only calls that can change files are recorded; those that the model of the disk does not
know (see :data:`UNKNOWN_TO_THE_MODEL`) are recorded too, so that their use is noticed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KNOWN_TO_THE_MODEL: Final = (
    "open",
    "openat",
    "creat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "lseek",
    "truncate",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
)
UNKNOWN_TO_THE_MODEL: Final = (
    "openat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "pwritev2",
    "copy_file_range",
    "sendfile",
    "splice",
    "vmsplice",
    "sync",
    "syncfs",
    "sync_file_range",
    "msync",
    "io_uring_setup",
    "io_submit",
)
_STRING_BYTES_MAX: Final = 64 * 1024 * 1024
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(?:<([^>]*)>)?")
_FILE = re.compile(r"(-?\d+|AT_FDCWD)(?:<([^>]*)>)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that has returned, or one of a process that was killed in it."""

    pid: int
    name: str
    arguments: str
    result: int | None
    """None when nobody knows, since the process was killed in the call."""
    result_path: str

    def strings(self) -> list[bytes]:
        """The texts and data among the arguments."""
        found = []
        for match in _STRING.finditer(self.arguments):
            if match[2]:
                raise ValueError(f"{self.name}: the record is cut short")
            found.append(bytes.fromhex(match[1].replace("\\x", "")))
        return found

    def file(self) -> tuple[int, str]:
        """The open file that is the first argument: its number and path."""
        match = _FILE.match(self.arguments)
        if match is None or match[1] == "AT_FDCWD":
            raise ValueError(f"{self.name} without a file: {self.arguments[:80]}")
        return int(match[1]), _text(match[2] or "")

    def paths(self) -> list[str]:
        """The paths among the arguments, absolute ones as they are."""
        return [each.decode() for each in self.strings()]

    def last_number(self) -> int:
        return int(self.arguments.rsplit(",", 1)[1])


def is_there() -> bool:
    """Whether calls can be recorded here."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def command(record: Path, arguments: Sequence[str], *, inject: str | None = None) -> list[str]:
    """The command that runs another and records the calls of all its processes. ``inject`` is a
    fault as strace takes it: ``fdatasync:signal=KILL:when=7`` kills whoever makes its seventh call
    of that name, before the call has done anything."""
    names = (*KNOWN_TO_THE_MODEL, *UNKNOWN_TO_THE_MODEL)
    made = ["strace", "-f", "-qq", "--seccomp-bpf", "-y", "-xx", "-s", str(_STRING_BYTES_MAX)]
    made += ["-e", "signal=none", "-e", f"trace={','.join(names)}", "-o", str(record)]
    if inject is not None:
        made += ["-e", f"inject={inject}"]
    return [*made, *arguments]


def calls(record: Path) -> Iterator[Call]:
    """The calls of a record, in the order in which they returned. Calls in which a process was
    killed come last, as nobody knows when they took effect, if they did."""
    begun: dict[int, str] = {}
    with record.open(encoding="ascii") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                continue
            pid, text = int(match[1]), match[2]
            if text.endswith("<unfinished ...>"):
                begun[pid] = text.removesuffix("<unfinished ...>")
                continue
            resumed = _RESUMED.match(text)
            if resumed is not None:
                text = begun.pop(pid) + resumed[2].removeprefix(" <unfinished ...>")
            if text.endswith(" = ?"):
                begun[pid] = text.removesuffix(" = ?").rstrip().removesuffix(")")
                continue
            call = _parsed(pid, text)
            if call is not None:
                yield call
    for pid, text in begun.items():
        call = _parsed(pid, f"{text.rstrip(', ')}) = ?")
        if call is not None:
            yield call


def _parsed(pid: int, text: str) -> Call | None:
    match = _CALL.match(text)
    if match is None:
        return None
    result = None if match[3] == "?" else int(match[3])
    return Call(pid, match[1], match[2], result, _text(match[4] or ""))


def _text(escaped: str) -> str:
    return bytes.fromhex(_ESCAPED.sub(r"\1", escaped)).decode() if "\\x" in escaped else escaped

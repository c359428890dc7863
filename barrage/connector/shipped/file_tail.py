"""Lines of a file that grows, as ``tail -F`` sees it: across rotation and truncation.

A message's id is the number of bytes up to and with its line, counted over all files that have
stood under the path. Which file began at which count is remembered in a state file before its first
line is sent, so that ids are the same whenever it is read again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barrage.connector.messages import MessageBatch
from barrage.connector.source import Source
from barrage.errors import ConfigError, SourceLostError
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from barrage.connector.state_file import StateFile

READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
HEAD_BYTES = 256
"""What tells whether a file is still the one it was."""
FILES_MAX = 1000
"""That are remembered; the oldest is forgotten first."""


@dataclass(slots=True)
class _Known:
    """A file that has stood under the path."""

    device: int
    inode: int
    base: int
    """Bytes of the files before it."""
    head: str
    """Digest of its first bytes."""
    head_bytes: int


class FileTail(Source):
    """Follows one path. ``follows=False`` ends at the end of the file that is there.

    SourceLostError when a file that was read in part is gone, or its state is.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        state: StateFile,
        name: str | None = None,
        follows: bool = True,
        poll_seconds: float = 0.1,
    ) -> None:
        self._path = Path(path).absolute()
        self.name = name or f"file:{self._path}"
        self._state = state
        self._follows = follows
        self._poll_seconds = poll_seconds
        self._files: list[_Known] = []

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :class:`~barrage.connector.source.Source`."""
        reader = await in_thread(self._open_at, after or 0)
        try:
            while True:
                batch = await in_thread(reader.lines)
                if batch is not None:
                    yield batch
                    continue
                following = await in_thread(self._next_file, reader)
                if following is not None:
                    rest = await in_thread(reader.rest)
                    if rest is not None:
                        yield rest
                    reader.close()
                    reader = following
                elif self._follows:
                    await asyncio.sleep(self._poll_seconds)
                else:
                    rest = await in_thread(reader.rest)
                    if rest is not None:
                        yield rest
                    return
        finally:
            reader.close()

    # --- which file -----------------------------------------------------------------------------

    def _open_at(self, position: int) -> _LineReader:
        """The file that has the byte at ``position``, there."""
        told = self._state.load()
        self._files = [_Known(**each) for each in told or ()]
        if not self._files:
            if position:
                raise SourceLostError(
                    f"{self.name} was read up to byte {position}, and {self._state.path}, which "
                    "says of which file, is gone"
                )
            return self._begin(self._path, 0)
        at = max((n for n, each in enumerate(self._files) if each.base <= position), default=None)
        if at is None:
            raise SourceLostError(f"{self.name}: byte {position} is of a file long forgotten")
        known = self._files[at]
        found = self._find(known)
        if found is None:
            if at + 1 < len(self._files) and self._files[at + 1].base == position:
                return self._open_at_next(at + 1)
            raise SourceLostError(
                f"{self.name} was read up to byte {position - known.base} of a file that is not "
                f"beside {self._path} any more"
            )
        del self._files[at + 1 :]
        return _LineReader(found, known, position - known.base)

    def _open_at_next(self, at: int) -> _LineReader:
        known = self._files[at]
        found = self._find(known)
        if found is None:
            raise SourceLostError(f"{self.name}: the next file is gone from beside {self._path}")
        del self._files[at + 1 :]
        return _LineReader(found, known, 0)

    def _begin(self, path: Path, base: int) -> _LineReader:
        """A file that was not read before; what it is is remembered first."""
        try:
            status = path.stat()
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
        known = _Known(status.st_dev, status.st_ino, base, _digest(head), len(head))
        self._files = [*self._files[-FILES_MAX + 1 :], known]
        self._remember()
        return _LineReader(path, known, 0)

    def _remember(self) -> None:
        self._state.save([asdict(each) for each in self._files])

    def _candidates(self) -> list[Path]:
        """The path, and what may have been it: its name with more behind."""
        try:
            with os.scandir(self._path.parent) as found:
                names = [e.name for e in found if e.name.startswith(self._path.name)]
        except OSError:
            return []
        return [self._path.parent / name for name in names]

    def _find(self, known: _Known) -> Path | None:
        for path in self._candidates():
            try:
                status = path.stat()
                if (status.st_dev, status.st_ino) == (known.device, known.inode):
                    with path.open("rb") as file:
                        head = file.read(known.head_bytes)
                    return path if _digest(head) == known.head else None
            except OSError:
                continue
        return None

    def _next_file(self, reader: _LineReader) -> _LineReader | None:
        """What comes after a file that was read to its end: nothing as long as it stands under the
        path and only grows. Files that stood there meanwhile are those beside it that were changed
        since, in the order of their changes."""
        status = os.fstat(reader.file.fileno())
        known = reader.known
        if status.st_size < reader.offset:
            # Truncated in place: it begins anew.
            return self._begin(self._path, known.base + reader.end)
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return None
        if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
            self._learn_head(reader)
            return None
        if status.st_size > reader.end:
            return None
        seen = {(each.device, each.inode) for each in self._files}
        newer: list[tuple[int, Path]] = []
        for path in self._candidates():
            try:
                each = path.stat()
            except OSError:
                continue
            is_known = (each.st_dev, each.st_ino) in seen
            if not is_known and each.st_mtime_ns >= status.st_mtime_ns:
                newer.append((each.st_mtime_ns, path))
        newer = [each for each in newer if each[1] != self._path]
        first = min(newer)[1] if newer else self._path
        return self._begin(first, known.base + reader.end)

    def _learn_head(self, reader: _LineReader) -> None:
        """A file that was nearly empty when it was begun is known better by now."""
        known = reader.known
        if known.head_bytes < HEAD_BYTES and reader.offset > known.head_bytes:
            head = os.pread(reader.file.fileno(), min(HEAD_BYTES, reader.offset), 0)
            known.head, known.head_bytes = _digest(head), len(head)
            self._remember()


class _LineReader:
    """One open file, from an offset on."""

    def __init__(self, path: Path, known: _Known, offset: int) -> None:
        self.file: Any = path.open("rb", buffering=0)
        self.known = known
        self.offset = offset
        """Up to which it was read and given out as lines."""
        self._partial = b""
        if os.fstat(self.file.fileno()).st_size < offset:
            self.file.close()
            raise SourceLostError(f"{path} is shorter than what was read of it")
        self.file.seek(offset)

    @property
    def end(self) -> int:
        """Up to which it was read, an unfinished line included."""
        return self.offset + len(self._partial)

    def close(self) -> None:
        self.file.close()

    def lines(self) -> MessageBatch | None:
        """The next whole lines; None when there are none now."""
        while data := self.file.read(READ_BYTES):
            whole, has_break, partial = (self._partial + data).rpartition(b"\n")
            self._partial = partial
            if len(partial) > LINE_BYTES_MAX:
                raise ConfigError(f"a line has more than {LINE_BYTES_MAX} bytes")
            if has_break:
                return self._batch(whole.split(b"\n"), 1)
        return None

    def rest(self) -> MessageBatch | None:
        """What stands behind the last line break, when no more comes."""
        rest, self._partial = self._partial, b""
        return self._batch([rest], 0) if rest else None

    def _batch(self, lines: list[bytes], break_bytes: int) -> MessageBatch | None:
        if max(map(len, lines)) > LINE_BYTES_MAX:
            raise ConfigError(f"a line has more than {LINE_BYTES_MAX} bytes")
        start = self.known.base + self.offset
        ids = list(accumulate((len(line) + break_bytes for line in lines), initial=start))[1:]
        self.offset = ids[-1] - self.known.base
        return MessageBatch(ids=ids, payloads=lines)


def _digest(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()[:32]

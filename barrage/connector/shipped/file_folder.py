"""Files of rows in a folder: Parquet, CSV, JSON lines and Arrow, in order of their names, once.

A message is some thousand rows as an Arrow IPC stream; its id is the number of rows up to its last,
counted over all files. At which count a file begins is remembered before its first row is sent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, json

from barrage.connector.messages import MessageBatch
from barrage.connector.source import Source
from barrage.errors import ConfigError, SourceLostError
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from barrage.connector.state_file import StateFile

ENDINGS = (".parquet", ".csv", ".json", ".jsonl", ".ndjson", ".arrow")
ROWS_MAX = 8_192
BYTES_MAX = 1024 * 1024
"""Of a message, about."""


class FileFolder(Source):
    """Every file in a folder whose name ends as one of :data:`ENDINGS`. Files must not change once
    they are there: write them elsewhere and move them in. SourceLostError when one did."""

    def __init__(
        self,
        folder: str | Path,
        *,
        state: StateFile,
        name: str | None = None,
        follows: bool = True,
        poll_seconds: float = 1.0,
    ) -> None:
        self._folder = Path(folder).absolute()
        self.name = name or f"folder:{self._folder}"
        self._state = state
        self._follows = follows
        self._poll_seconds = poll_seconds
        self._files: dict[str, list[int]] = {}
        """Name to base, size, time of change, and rows, -1 until they are counted."""

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :class:`~barrage.connector.source.Source`."""
        self._files = await in_thread(self._state.load) or {}
        position = after or 0
        if position and not self._files:
            raise SourceLostError(f"{self._state.path}, which says what was read, is gone")
        while True:
            names = await in_thread(self._look)
            is_new = any(self._files[name][3] < 0 for name in names)
            for name in names:
                base, _, _, rows = self._files[name]
                if rows >= 0 and base + rows <= position:
                    continue
                async for batch in self._messages(name, base, position):
                    yield batch
                position = max(position, base + self._files[name][3])
            if is_new:
                # There may be another one.
                continue
            if not self._follows:
                return
            await asyncio.sleep(self._poll_seconds)

    async def _messages(self, name: str, base: int, after: int) -> AsyncIterator[MessageBatch]:
        pieces = rows_of_file(self._folder / name)
        at = base
        while (piece := await in_thread(next, pieces, None)) is not None:
            at += len(piece)
            if at > after:
                yield MessageBatch(ids=[at], payloads=[_stream_of(piece)])
        self._files[name][3] = at - base
        await in_thread(self._state.save, self._files)

    def _look(self) -> list[str]:
        """Names of the files to read, in order; a new one begins where the last of before ends."""
        found = {
            path.name: path.stat()
            for path in self._folder.iterdir()
            if path.suffix in ENDINGS and path.is_file() and not path.name.startswith((".", "_"))
        }
        for name, (_, size, changed, _) in self._files.items():
            status = found.get(name)
            if status is not None and (status.st_size, status.st_mtime_ns) != (size, changed):
                raise SourceLostError(f"{self._folder / name} was changed after it was read")
        unfinished = [name for name, each in self._files.items() if each[3] < 0]
        if unfinished:
            if unfinished[0] not in found:
                raise SourceLostError(f"{self._folder / unfinished[0]} is gone, read in part")
            return [name for name in self._files if name in found]
        fresh = sorted(found.keys() - self._files.keys())
        if fresh:
            # One at a time: the next begins where this one ends.
            status = found[fresh[0]]
            base = max((each[0] + each[3] for each in self._files.values()), default=0)
            self._files[fresh[0]] = [base, status.st_size, status.st_mtime_ns, -1]
            self._state.save(self._files)
        return [name for name in self._files if name in found]


def rows_of_file(path: Path) -> Iterator[pa.Table]:
    """The rows of a file in pieces, the same ones each time. ConfigError for a file that cannot be
    read."""
    try:
        for table in _tables_of(path):
            size = max(1, min(ROWS_MAX, BYTES_MAX * max(1, len(table)) // max(1, table.nbytes)))
            for start in range(0, len(table), size):
                yield table.slice(start, size)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _tables_of(path: Path) -> Iterator[pa.Table]:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)
    elif path.suffix == ".csv":
        yield csv.read_csv(path)
    elif path.suffix == ".arrow":
        with pa.ipc.open_file(path) as reader:
            for number in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(number)])
    else:
        yield json.read_json(path)


def _stream_of(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    data: bytes = out.getvalue().to_pybytes()
    return data

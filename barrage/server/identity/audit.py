"""The audit log: who did what to which table, and what became of it, in lines of JSON.

Calls leave a record in memory and go on; a task has them written by a thread. A disk that is too
slow, or full, costs records, never calls: those that were dropped are counted, and the next line
says how many. Secrets are not in what is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from barrage.supervision import Role, in_thread, start_awaited, start_task

if TYPE_CHECKING:
    from pathlib import Path

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.supervision import OnDeath

log = logging.getLogger(__name__)

WRITER = Role("barrage-audit", "health: nothing more is written to the audit log")

FILES_KEPT = 4
"""Files of before, beside the one that is written."""

PAUSE_S = 0.05
"""How long records gather."""

AGAIN_S = 1.0
"""How long a disk that failed is left alone."""

_NANOS_PER_S = 1_000_000_000
_MODE = 0o600


class AuditLog:
    """The log of one server. Runs on the event loop, but for what it has written."""

    def __init__(self, path: Path, limits: Limits, clock: Clock, *, bytes_max: int) -> None:
        self._path = path
        self._limits = limits
        self._clock = clock
        self._bytes_max = bytes_max
        self._waiting: deque[dict[str, object]] = deque()
        self._dropped = 0
        self.dropped_in_all = 0
        self._has_some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False
        self._writing: asyncio.Future[None] | None = None
        self._under_way = 0
        """Records that are being written."""

    def start(self, *, on_death: OnDeath) -> None:
        """Begin to write."""
        self._task = start_task(WRITER, self._run(), on_death=on_death)

    def record(self, **told: object) -> None:
        """Have a line written; what is None or empty is left out."""
        if len(self._waiting) >= self._limits.audit_records_max:
            self._drop(1)
            return
        kept = {name: value for name, value in told.items() if value not in (None, "", [])}
        self._waiting.append({"time_ns": self._clock.wall_ns(), **kept})
        self._has_some.set()

    async def close(self) -> None:
        """Write what waits, if that can be done, and end. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        for _ in range(2):
            # What is being written, and then what waits.
            writing = self._writing or self._begin_writing()
            await asyncio.wait([writing])
            self._settle(writing)

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            await asyncio.sleep(PAUSE_S)
            writing = self._begin_writing()
            # To its end, also when the server stops: no line is written twice, or half.
            await asyncio.wait([writing])
            if not self._settle(writing):
                self._has_some.set()
                await asyncio.sleep(AGAIN_S)

    def _begin_writing(self) -> asyncio.Future[None]:
        records = self._taken()
        self._under_way = len(records)
        self._writing = start_awaited(in_thread(self._write, records))
        return self._writing

    def _settle(self, writing: asyncio.Future[None]) -> bool:
        """Whether it was written; raises what nobody foresaw."""
        self._writing = None
        error = writing.exception()
        if error is not None and not isinstance(error, OSError):
            raise error
        if error is not None:
            self._drop(self._under_way)
            if not self._has_failed:
                log.error("the audit log cannot be written: %s", error)
        self._has_failed = error is not None
        return error is None

    def _drop(self, count: int) -> None:
        self._dropped += count
        self.dropped_in_all += count

    def _taken(self) -> list[dict[str, object]]:
        records = list(self._waiting)
        self._waiting.clear()
        self._has_some.clear()
        if self._dropped:
            records.append({"time_ns": self._clock.wall_ns(), "dropped": self._dropped})
            self._dropped = 0
        return records

    # --- any thread ---

    def _write(self, records: list[dict[str, object]]) -> None:
        """OSError."""
        if not records:
            return
        text = b"".join(_line(record) for record in records)
        number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        try:
            size = os.fstat(number).st_size
            if size and size + len(text) > self._bytes_max:
                self._rotate()
                os.close(number)
                number = os.open(
                    self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE
                )
            left = memoryview(text)
            while left:
                left = left[os.write(number, left) :]
        finally:
            os.close(number)

    def _rotate(self) -> None:
        for age in range(FILES_KEPT, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{age}")
            newer = self._path.with_name(f"{self._path.name}.{age - 1}") if age > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


def _line(record: dict[str, object]) -> bytes:
    at_ns = record["time_ns"]
    assert isinstance(at_ns, int)
    seconds, nanos = divmod(at_ns, _NANOS_PER_S)
    time = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    told = {name: value for name, value in record.items() if name != "time_ns"}
    return msgspec.json.encode({"time": f"{time}.{nanos // 1000:06d}Z", **told}) + b"\n"
